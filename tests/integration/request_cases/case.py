"""What a request case is: records for the buffer, and the one outcome of each. Data only.

A case is a list of steps. The last one is what the case is about; those before it bring the id into
a state, and are judged too.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

PARTITIONS: Final = 3
"""Of the buffer, in all cases."""

TARGET_PARTITIONS: Final = 4
"""Of `orders`, the target of most cases."""

RECORD_BYTES_MAX: Final = 983_052
"""What a broker with default settings takes (1,048,588), less 64 KiB."""

KEY: Final = b"4711"
VALUE: Final = b"cancel if unpaid"


class Moment(NamedTuple):
    """A time that is known when the case is played: so long after it is written."""

    in_ms: int
    form: str = "ms"
    """`ms` for Unix milliseconds, else RFC 3339 with this zone: `Z` or an offset like `+05:30`. The
    name of a zone: as its clock shows it, without an offset."""


class Span(NamedTuple):
    """So long after the append time of the record."""

    ms: int


Content: TypeAlias = bytes | Moment | None
Header: TypeAlias = tuple[str | bytes, Content]
"""A name is bytes where it is not UTF-8 or holds a NUL."""

Due: TypeAlias = int | Moment | Span
"""Unix ms, or relative to the run."""


class After(Enum):
    """When a step is written."""

    SENT = "the step before is acknowledged"
    ANSWERED = "the step before has had its outcome"
    RETRIED = "the first step's message has been tried, and waits to be tried again"
    PASSED = "the first step's due time has passed, for delivery too"


@dataclass(frozen=True, slots=True)
class Delivered:
    """The message is in its target."""

    due: Due
    """What the header `delayd-due` says."""
    key: bytes | None = None
    """If it is not the record's own."""
    partition: int | None = None
    """If it is not that of the key."""
    headers: tuple[tuple[str, bytes | None], ...] | None = None
    """The user's, if they are not those of the record."""
    topic: bytes = b"orders"
    is_planned: bool = False
    """It has a window, and says where in it it was to come."""
    moved_by: int | None = None
    """The step by which it has the due time, if it was moved: `due` is as of that one."""
    since: int | None = None
    """The step that `due` is as of, if that is another one of its run."""


@dataclass(frozen=True, slots=True)
class Recurs:
    """Of a series: each multiple of so many ms, from its append time up to its `delayd-until`."""

    every_ms: int


@dataclass(frozen=True, slots=True)
class Pending:
    """The message waits in the wheel; it is due long after the cases are done."""


@dataclass(frozen=True, slots=True)
class Killed:
    """A later step of the case sees to it that the message is never delivered."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A dead letter at once."""

    reason: str
    detail: str
    """What the header `delayd-detail` has somewhere in it."""
    keeps_value: bool = True
    keeps_headers: bool = True


@dataclass(frozen=True, slots=True)
class Dead:
    """Accepted, perhaps retried in vain, then a dead letter."""

    detail: str
    reason: str = "dead"
    attempts: int = -1
    """In vain; by default all that there are, or none if it has expired."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """No message, no dead letter."""


Fate: TypeAlias = Delivered | Recurs | Pending | Killed | Refused | Dead | Nothing


class Told(NamedTuple):
    """A receipt."""

    verdict: str
    killed: tuple[int, ...] = ()
    """The steps whose messages it says will never be delivered."""
    detail: str = ""
    """What its `detail` has somewhere in it."""
    id: str | None = None
    """If it is not that of the header."""


@dataclass(frozen=True, slots=True)
class Step:
    """One record of the buffer, and what must become of it."""

    headers: tuple[Header, ...]
    fate: Fate
    told: tuple[Told, ...] = ()
    """All its receipts, in any order."""
    key: bytes | None = KEY
    value: bytes | None = VALUE
    partition: int | None = None
    """Of the buffer; default: that of the key, 0 without a key."""
    size_bytes: int | None = None
    """The value is filled up until the record counts so many bytes."""
    after: After = After.SENT
    implied: int = 0
    """How many headers at the end need not be shown: the section says that they are there."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row, or one cell, of the documentation."""

    section: str
    says: str
    steps: tuple[Step, ...]
    column: str = ""
    """Of a cell: `section` is the table, `says` the row."""
    forgets: bool = False
    """Played in a cluster that remembers ids for a millisecond."""

    @property
    def name(self) -> str:
        """What a failure is reported under."""
        return f"{self.section}: {self.says}" + (f": {self.column}" if self.column else "")


def header_of(step: Step, name: str) -> bytes | None:
    """The header that is there once and not empty; else None."""
    found = [content for other, content in step.headers if other == name]
    return found[0] if len(found) == 1 and isinstance(found[0], bytes) and found[0] else None
