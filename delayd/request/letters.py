"""Reading dead letters: the inverse of `bodies.dead_letter`. Pure.

Invariant: exactly the headers that delayd appended are taken off again, even if the record had
headers of the same names: only the last ones are delayd's.
"""

from typing import Final, NamedTuple

from delayd.bus import Headers, Record
from delayd.request.grammar import number_of, source_partition_of

_APPENDED: Final = (
    *("delayd-reason", "delayd-detail", "delayd-source"),
    *("delayd-truncated", "delayd-origin", "delayd-attempt", "delayd-occurrence"),
)
"""In the order in which they are written; the first three are always present."""


class Letter(NamedTuple):
    """A dead letter."""

    source: str
    """The source of the buffer record that it is about."""
    reason: str
    """A slug."""
    detail: str
    dead_ms: int
    """When it was written, Unix ms: the timestamp of its record."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    """The headers of the record, without those that delayd appended."""
    truncated_bytes: int | None = None
    """Size of the record, if its value was left out."""
    origin: str | None = None
    """Source of the user's own request, of a message that could not be delivered."""
    attempts: int = 0
    """Attempts to deliver it."""
    occurrence: int | None = None
    """Of a series: which it was, from 1; 0 if none was found."""

    @property
    def topic(self) -> str | None:
        """Return the target, if the record names one."""
        return self._text("delayd-topic")

    @property
    def id(self) -> str | None:
        """Return the id, if the record has one."""
        return self._text("delayd-id")

    def _text(self, name: str) -> str | None:
        contents = [content for other, content in self.headers if other == name]
        return contents[0].decode(errors="replace") if contents and contents[0] else None


def letter_of(record: Record) -> Letter | None:
    """Return the letter in a record of the dead-letter topic, None if delayd did not write it."""
    headers = list(record.headers)
    appended: dict[str, str] = {}
    for name in reversed(_APPENDED):
        if headers and headers[-1][0] == name:
            appended[name] = (headers.pop()[1] or b"").decode(errors="replace")
    source = appended.get("delayd-source", "")
    if source_partition_of(source) is None or not {*_APPENDED[:3]} <= appended.keys():
        return None
    return Letter(
        source,
        appended["delayd-reason"],
        appended["delayd-detail"],
        record.append_ms,
        record.key,
        record.value,
        headers,
        number_of(appended.get("delayd-truncated", "")),
        appended.get("delayd-origin"),
        number_of(appended.get("delayd-attempt", "")) or 0,
        number_of(appended.get("delayd-occurrence", "")),
    )
