"""Takeover: what a new master does, and in which order, before it delivers anything.

Pure: no clock, no I/O. A fact goes in, one order comes out; the caller carries it out and answers
with one fact. The last order is CommitTerm, after which the master delivers, or Refuse. The caller
drops a takeover whose grant has ended, and one that met an error of Kafka: the next mastership
begins again from the start.

    order               why it comes where it does
    CatchUp             a node that is behind a frontier it knows fences no other
    FencePredecessors   from here on no other node can commit, so what is read next stays true
    ReadEnds            no transaction can be open now: what is written must be readable
    ReadFrontier        the last frontier that any predecessor can ever have committed
    ReachFrontier       a step plans from everything below O
    BeginTerm           the first step: the next term, and nothing else moves
    CommitTerm          its record stands where the read ended: the read missed nothing

Where the guarantee is at-least-once, no node can be fenced and etcd holds the progress. One order
takes the place of the three in the middle. No predecessor writes after it, because etcd takes a
write only under the present leadership.

    ReadProgress        the last frontier that any predecessor has written or can ever write

A fence stops writers; it makes no read linearizable. A broker that leads no more, and does not know
it, serves a consistent log that lacks the last steps. Only a write reaches the true leader. So the
first record of a term is part of the read: it must land exactly where the read ended.

Invariants:
- No frontier is read before predecessors are fenced; no term begins before it is read.
- The term comes from that frontier alone, never from the election.
- No term is committed unless nothing stands between what was read and its first record.

Source: docs/design/frontier.md, "Takeover", with a diagram of `TRANSITIONS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType, NoneType
from typing import Any

from replication.frontier import Frontier, begin_term

GIVE_WAY_MS = 10_000
"""A node that cannot get on for so long lets another node try."""

STABLE_TIMEOUT_MS = 5_000
"""How long the frontier's last stable offset may stay behind its high watermark: markers of a
transaction that was just aborted or committed take a moment."""


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
    LOG_CUT = "log-cut"
    """The topic ends before a record that this node has read."""
    STALE_READ = "stale-read"
    """The log went on behind what was read. Read again, over new connections."""


# Facts, with the monotonic time at which they were learnt


@dataclass(frozen=True, slots=True)
class Granted:
    """Leadership was won. `known` is the newest frontier that this node has read, if any."""

    now_ms: int
    known: Frontier | None


@dataclass(frozen=True, slots=True)
class WheelReached:
    """Answers CatchUp and ReachFrontier."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class WheelBehind:
    """Answers CatchUp and ReachFrontier: not yet."""

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
    read: int = 0
    """Up to where this node has read the partition before."""


@dataclass(frozen=True, slots=True)
class FrontierRead:
    """Answers ReadFrontier and ReadProgress: the last frontier, None if there is none at all."""

    now_ms: int
    frontier: Frontier | None
    end: int
    """Up to where the frontier partition was read: the next record would get this offset."""
    is_of_topic: bool = True
    """Has the topic the id that the record names, asked for when it had been read?"""


@dataclass(frozen=True, slots=True)
class TermWritten:
    """Answers BeginTerm: its record is in the partition, and not committed."""

    now_ms: int
    offset: int


Fact = (
    Granted
    | WheelReached
    | WheelBehind
    | PredecessorsFenced
    | EndsRead
    | FrontierRead
    | TermWritten
)


# Orders


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Wait a moment until the own wheel has reached O of this frontier, the newest one known."""

    frontier: Frontier


@dataclass(frozen=True, slots=True)
class FencePredecessors:
    """`init_transactions()` of the shard's one transactional id."""


@dataclass(frozen=True, slots=True)
class ReadEnds:
    """Read the frontier partition's last stable offset, then its high watermark."""

    is_anew: bool = False
    """Over new connections: what the old ones reach may lead no more."""


@dataclass(frozen=True, slots=True)
class ReadFrontier:
    """Read the frontier partition up to this offset."""

    end: int


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """Read the progress that etcd holds, under the leadership that was won."""


@dataclass(frozen=True, slots=True)
class ReachFrontier:
    """Wait a moment until the own wheel has reached O of this frontier, the last one."""

    frontier: Frontier
    end: int
    """As in BeginTerm."""


@dataclass(frozen=True, slots=True)
class BeginTerm:
    """Plan from `last` on, and write `first`, the master's first step."""

    last: Frontier
    first: Frontier
    end: int
    """The offset at which the record of `first` has to be."""


@dataclass(frozen=True, slots=True)
class CommitTerm:
    """Commit the first step, and deliver."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Give up, and say why."""

    reason: Refusal
    detail: str


Read = FencePredecessors | ReadEnds | ReadFrontier | ReadProgress
"""Orders about the steps of predecessors."""
Order = CatchUp | Read | ReachFrontier | BeginTerm | CommitTerm | Refuse


class Takeover:
    """One takeover. Made for a grant, and thrown away with it."""

    def __init__(self, *, is_fenced: bool = True) -> None:
        """`is_fenced`: predecessors can be fenced; else etcd holds the progress."""
        self._is_fenced = is_fenced
        self._order: Order | None = None
        self._since_ms = 0
        """Since when an order of this kind has been the last one."""

    def handle(self, fact: Fact) -> Order:
        """Take one fact; return what to do next."""
        transition = TRANSITIONS[type(self._order)].get(type(fact))
        assert transition is not None, f"{fact} does not answer {self._order}"
        act, *leads_to = transition
        order = act(self, fact)
        assert type(order) in leads_to, f"{fact} led to {order}"
        if type(order) is not type(self._order):
            self._since_ms = fact.now_ms
        self._order = order
        return order

    def _begin(self, fact: Granted) -> Order:
        return self._fence(fact) if fact.known is None else CatchUp(fact.known)

    def _fence(self, _: Granted | WheelReached) -> Order:
        return FencePredecessors() if self._is_fenced else ReadProgress()

    def _read_ends(self, _: PredecessorsFenced) -> Order:
        return ReadEnds()

    def _compare_ends(self, fact: EndsRead) -> Order:
        if fact.read <= fact.stable == fact.written:
            return ReadFrontier(fact.stable)
        waited_ms = fact.now_ms - self._since_ms
        if waited_ms <= STABLE_TIMEOUT_MS:
            return ReadEnds(is_anew=waited_ms > STABLE_TIMEOUT_MS // 2)
        if fact.read > fact.stable:
            return Refuse(
                Refusal.LOG_CUT,
                f"ends at offset {fact.stable}, though this node has read it up to {fact.read}",
            )
        return Refuse(
            Refusal.MARKER_LOST,
            f"the last stable offset {fact.stable} stays behind the high watermark {fact.written}, "
            "though no transaction can be open there: a commit marker was lost",
        )

    def _judge_frontier(self, fact: FrontierRead) -> Order:
        if fact.frontier is None:
            return Refuse(Refusal.NOT_INITIALISED, "holds no frontier record")
        if not fact.is_of_topic:
            return Refuse(
                Refusal.OTHER_TOPIC,
                "was deleted and made again, whatever it holds now: the frontier that was read is "
                "of the one before",
            )
        return ReachFrontier(fact.frontier, fact.end)

    def _wait_on(self, fact: WheelBehind) -> Order:
        assert self._order is not None, "a wheel is behind what was ordered"
        if fact.now_ms - self._since_ms <= GIVE_WAY_MS:
            return self._order
        return Refuse(
            Refusal.BEHIND,
            "the wheel has not reached the frontier's offsets: another node may try",
        )

    def _begin_term(self, _: WheelReached) -> Order:
        assert isinstance(self._order, ReachFrontier), "a term begins after the last frontier"
        last = self._order.frontier
        return BeginTerm(last, begin_term(last), self._order.end)

    def _compare_offset(self, fact: TermWritten) -> Order:
        assert isinstance(self._order, BeginTerm), "only a term has a first record"
        if fact.offset == self._order.end:
            return CommitTerm()
        return Refuse(
            Refusal.STALE_READ,
            f"was read up to offset {self._order.end} and the first record of the term landed at "
            f"{fact.offset}: the read was stale, and the takeover begins again",
        )


Transition = tuple[Callable[[Takeover, Any], Order], *tuple[type[Order], ...]]
"""The action of a fact, and the orders that may come of it."""

TRANSITIONS: Mapping[type[Order | None], Mapping[type[Fact], Transition]] = MappingProxyType(
    {
        NoneType: {Granted: (Takeover._begin, CatchUp, FencePredecessors, ReadProgress)},
        CatchUp: {
            WheelReached: (Takeover._fence, FencePredecessors, ReadProgress),
            WheelBehind: (Takeover._wait_on, CatchUp, Refuse),
        },
        FencePredecessors: {PredecessorsFenced: (Takeover._read_ends, ReadEnds)},
        ReadEnds: {EndsRead: (Takeover._compare_ends, ReadEnds, ReadFrontier, Refuse)},
        ReadFrontier: {FrontierRead: (Takeover._judge_frontier, ReachFrontier, Refuse)},
        ReadProgress: {FrontierRead: (Takeover._judge_frontier, ReachFrontier, Refuse)},
        ReachFrontier: {
            WheelReached: (Takeover._begin_term, BeginTerm),
            WheelBehind: (Takeover._wait_on, ReachFrontier, Refuse),
        },
        BeginTerm: {TermWritten: (Takeover._compare_offset, CommitTerm, Refuse)},
        CommitTerm: {},
        Refuse: {},
    }
)
"""All transitions, by the last order. Any other fact is a bug of the caller."""
