"""What a takeover is told and what it orders: its whole vocabulary, frozen.

Facts are in the past tense and carry `now_ms`, the monotonic time when they were learnt; orders are
imperatives. Each order is answered by exactly one fact. Not here: which order follows from which
fact (`takeover.py`).

Source: docs/design/frontier.md, "Takeover".
"""

from dataclasses import dataclass
from enum import Enum

from replication.frontier import Frontier


class Refusal(Enum):
    """Why a takeover must not go on."""

    BEHIND = "behind"
    """The own wheel has not reached a frontier: another node may try."""
    MARKER_LOST = "marker-lost"
    """The frontier topic holds what can be neither read nor ruled out."""
    NOT_INITIALISED = "not-initialised"
    """No frontier record: a new cluster, or a lost topic. Never start at "now"."""
    OTHER_TOPIC = "other-topic"
    """The topic was made again: what was read of the one before need not be the last frontier."""


# Facts


@dataclass(frozen=True, slots=True)
class Granted:
    """Leadership was won. `known` is the newest frontier that this node has read, if any."""

    now_ms: int
    known: Frontier | None


@dataclass(frozen=True, slots=True)
class GrantEnded:
    """Instead of an answer: the lease ran out or was withdrawn, and nothing was carried out."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class WheelReached:
    """Answers WaitForWheel."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class WheelBehind:
    """Answers WaitForWheel: not yet."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class PredecessorsFenced:
    """Answers FencePredecessors: what they left open is aborted, what they write is refused."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class EndsRead:
    """Answers ReadEnds: last stable offset and high watermark, read in this order."""

    now_ms: int
    stable: int
    written: int


@dataclass(frozen=True, slots=True)
class FrontierRead:
    """Answers ReadFrontier and ReadProgress: the last one, None if there is none at all."""

    now_ms: int
    frontier: Frontier | None
    is_of_topic: bool = True
    """Has the topic the id that the record names, asked for when it had been read?"""


@dataclass(frozen=True, slots=True)
class TermBegun:
    """Answers BeginTerm: the first step is committed."""

    now_ms: int


Fact = (
    Granted
    | GrantEnded
    | WheelReached
    | WheelBehind
    | PredecessorsFenced
    | EndsRead
    | FrontierRead
    | TermBegun
)


# Orders


@dataclass(frozen=True, slots=True)
class WaitForWheel:
    """Wait a moment until the own wheel has reached O of this frontier."""

    frontier: Frontier


@dataclass(frozen=True, slots=True)
class FencePredecessors:
    """`init_transactions()` of the shard's one transactional id."""


@dataclass(frozen=True, slots=True)
class ReadEnds:
    """Read the frontier partition's last stable offset, then its high watermark."""


@dataclass(frozen=True, slots=True)
class ReadFrontier:
    """Read the frontier partition up to this offset."""

    end: int


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """Read the progress that etcd holds, under the leadership that was won."""


@dataclass(frozen=True, slots=True)
class BeginTerm:
    """Plan from `last` on; write `first`, the master's first step."""

    last: Frontier
    first: Frontier


@dataclass(frozen=True, slots=True)
class Refuse:
    """Give up, and say why: nothing answers it."""

    reason: Refusal
    detail: str


Order = (
    WaitForWheel | FencePredecessors | ReadEnds | ReadFrontier | ReadProgress | BeginTerm | Refuse
)
