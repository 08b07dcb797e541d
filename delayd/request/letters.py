"""Dead letters as their readers meet them: what `bodies.dead_letter` wrote, taken apart. Pure.

Invariant: what delayd appended to the record is taken off again, and nothing else, even if the
record had headers of the same names: only the end of the headers is delayd's.
"""

from typing import Final, NamedTuple

from delayd.bus import Headers, Record
from delayd.request.grammar import number_of, source_partition_of

_APPENDED: Final = (
    *("delayd-reason", "delayd-detail", "delayd-source"),
    *("delayd-truncated", "delayd-origin", "delayd-attempt"),
)
"""In the order in which they are written; the first three are always there."""


class Letter(NamedTuple):
    """A dead letter."""

    source: str
    """Of the record of the buffer that it tells of: its name."""
    reason: str
    """A slug."""
    detail: str
    dead_ms: int
    """When it was written, Unix ms: the timestamp of its record."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    """Those of the record, without what delayd appended."""
    truncated_bytes: int | None = None
    """Size of the record, if its value was left out."""
    origin: str | None = None
    """Source of the user's own request, of a message that could not be delivered."""
    attempts: int = 0
    """How often its delivery was tried."""

    @property
    def topic(self) -> str | None:
        """The target, as far as the record names one."""
        return self._text("delayd-topic")

    @property
    def id(self) -> str | None:
        """The id, as far as the record has one."""
        return self._text("delayd-id")

    def _text(self, name: str) -> str | None:
        contents = [content for other, content in self.headers if other == name]
        return contents[0].decode(errors="replace") if contents and contents[0] else None


def letter_of(record: Record) -> Letter | None:
    """The letter that a record of the dead-letter topic is; None if delayd did not write it."""
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
    )
