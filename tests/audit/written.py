"""The topics of a cluster in plain Python: each record as it was written, to be changed to plant a
defect, and read as the audit reads it."""

from dataclasses import dataclass
from typing import Final

from record_rows import Row, row_of

from delayd import request as wire
from delayd.audit.bounds import Bounds
from delayd.bus import Headers
from delayd.request import RequestLimits

PARTITIONS: Final = 4
LIMITS: Final = RequestLimits(
    max_delay_ms=86_400_000,
    record_bytes_max=2_000,
    partitions=PARTITIONS,
    cluster="world",
    proof_key=b"the key of the world",
)


@dataclass
class Written:
    """A record of some topic; may be changed to plant a defect."""

    role: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    log_ms: int | None = None

    @property
    def place(self) -> str:
        """Of a record of the buffer: its source."""
        return wire.source_of(self.partition, self.offset)

    def header(self, name: str) -> str | None:
        """The text of the last header with this name."""
        found = [content for other, content in self.headers if other == name]
        return (found[-1] or b"").decode() if found else None

    def set(self, name: str, content: bytes | None) -> None:
        """Change a header."""
        self.headers = [(each, content if each == name else was) for each, was in self.headers]

    def remove(self, name: str) -> None:
        """Take a header away."""
        self.headers = [each for each in self.headers if each[0] != name]

    def row(self) -> Row:
        """As the audit's reader has it."""
        return row_of(
            self.role,
            *(self.topic, self.partition, self.offset, self.timestamp_ms),
            *(self.key, self.value, self.headers),
            log_ms=self.log_ms,
            limits=LIMITS,
        )


@dataclass
class History:
    """All that a cluster's topics hold, and the cut."""

    buffer: list[Written]
    targets: list[Written]
    receipts: list[Written]
    dead: list[Written]
    frontier: list[Written]
    bounds: Bounds

    def rows(self, role: str) -> list[Row]:
        """RECORDS of a role: buffer, targets, receipts, dead, frontier."""
        return [written.row() for written in getattr(self, role)]
