"""What an event says: the id that it cancels, by a rule. Pure.

Nothing in an event raises: what cannot be read is `UNUSABLE`, and is counted.
"""

import json
import re
from enum import Enum
from typing import Any, Final

from delayd.bus import Record
from delayd.config.cancel_on import CancelOn
from delayd.request.grammar import ID_BYTES_MAX

HEADER: Final = "header:"
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")


class Event(Enum):
    """An event without an id to cancel."""

    OTHER = "other"
    """It is none of the rule's: one of its conditions does not hold."""
    UNUSABLE = "unusable"
    """The rule is for it, and it has no id, or none that a message can have."""


_MISSING: Final = object()


def cancelled_by(rule: CancelOn, record: Record) -> bytes | Event:
    """Return the id that an event cancels."""
    read = _Reading(record)
    for place, wanted in rule.where.items():
        if read.text_at(place) != wanted:
            return Event.OTHER
    text = read.text_at(rule.id)
    if text is None:
        return Event.UNUSABLE
    try:
        id = text.encode()
    except UnicodeEncodeError:  # JSON may have half of a surrogate pair
        return Event.UNUSABLE
    return id if 0 < len(id) <= ID_BYTES_MAX else Event.UNUSABLE


class _Reading:
    """One event; its JSON is read once, if a place asks for it."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._json: Any = None
        self._is_read = False

    def text_at(self, place: str) -> str | None:
        """Return what a place says, as text; None if it says nothing."""
        if place == "key":
            return _text(self._record.key)
        if place.startswith(HEADER):
            name = place.removeprefix(HEADER)
            return next((_text(value) for key, value in self._record.headers if key == name), None)
        return _text_of(self._value_at(place))

    def _value_at(self, pointer: str) -> Any:
        if not self._is_read:
            self._is_read = True
            try:
                self._json = json.loads(self._record.value or b"")
            except (ValueError, RecursionError):
                self._json = _MISSING
        found = self._json
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(name, _MISSING)
            elif isinstance(found, list) and _INDEX.fullmatch(name):
                found = found[int(name)] if int(name) < len(found) else _MISSING
            else:
                return _MISSING
        return found


def _text(content: bytes | None) -> str | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _text_of(value: Any) -> str | None:
    """Return a value of JSON as text: a string, a whole number, true or false."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # A number of thousands of digits is no id, and Python refuses to write it.
        return str(value) if -(10**40) < value < 10**40 else None
    return None
