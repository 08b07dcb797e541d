"""Reading delivered records: the inverse of `bodies.delivered`. Pure.

Invariant: exactly the headers that delayd appended are taken off again, even if the message had
headers of the same names: only the last ones are delayd's.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from delayd.bus import Headers, Record
from delayd.request.grammar import number_of, source_partition_of

_APPENDED: Final = (
    *("delayd-id", "delayd-due", "delayd-planned", "delayd-fired", "delayd-source"),
    *("delayd-origin", "delayd-attempt", "delayd-occurrence", "delayd-local"),
)
"""In the order in which they are written; due, fired and source are always present."""


class Arrival(NamedTuple):
    """A message in its target."""

    source: str
    """The source of the buffer record that it comes from."""
    asked_due_ms: int
    """The due time that was asked for, Unix ms; of a local time what it was resolved to."""
    fired_ms: int
    """`now` of the step that delivered it, Unix ms."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    """The user's."""
    id: str | None = None
    origin: str = ""
    """Source of the user's own request, of a message that was requeued."""
    attempt: int = 0
    occurrence: int | None = None
    """Of a series: its number, from 1."""
    local: str | None = None
    """Of a local time: as it was asked for, `2027-03-28T09:00[Europe/Berlin]`."""


def arrival_of(record: Record) -> Arrival | None:
    """Return the message in a record of a target, None if no master delivered it."""
    headers = list(record.headers)
    found: dict[str, str] = {}
    for name in reversed(_APPENDED):
        if headers and headers[-1][0] == name:
            found[name] = (headers.pop()[1] or b"").decode(errors="replace")
    source = found.get("delayd-source", "")
    due_ms, fired_ms = _number(found, "delayd-due"), _number(found, "delayd-fired")
    if source_partition_of(source) is None or due_ms is None or fired_ms is None:
        return None
    return Arrival(
        source,
        due_ms,
        fired_ms,
        record.key,
        record.value,
        headers,
        found.get("delayd-id"),
        found.get("delayd-origin", ""),
        _number(found, "delayd-attempt") or 0,
        _number(found, "delayd-occurrence"),
        found.get("delayd-local"),
    )


def _number(found: Mapping[str, str], name: str) -> int | None:
    return number_of(found.get(name, ""))
