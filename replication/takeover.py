"""Takeover: what a new master does, and in which order, before it delivers anything.

Pure: no clock, no I/O. A fact goes in, one order comes out; the caller carries it out and answers
with its fact. When no order comes out the takeover is over, and `is_done` says if the master may
deliver. An error of Kafka is no fact: it ends the mastership, and the next one begins here again.

    order               why it comes where it does
    WaitForWheel        as far as this node knows of a frontier: who is behind fences nobody
    FencePredecessors   from here on nobody else can commit, so whatever is read next stays true
    ReadEnds            nobody can have a transaction open now: what is written must be readable
    ReadFrontier        the last one that any predecessor can ever have committed
    WaitForWheel        O: a step plans from everything below it
    BeginTerm           the first step: the next term, and nothing else moves

Where the guarantee is at-least-once nobody can be fenced, and etcd holds the progress. There one
order takes the place of the three in the middle; that no predecessor writes any more is seen to by
etcd, which takes a write only under the leadership that is.

    ReadProgress        the last one that any predecessor has written or can ever write

Invariants:
- Nothing is ordered once the grant has ended, and predecessors are never fenced without one.
- No frontier is read before predecessors are fenced; no term begins before it is read.
- The term comes from that frontier alone, never from the election.

Source: docs/design/frontier.md, "Takeover".
"""

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

from replication.frontier import Frontier, begin_term
from replication.takeover_facts import (
    BeginTerm,
    EndsRead,
    Fact,
    FencePredecessors,
    FrontierRead,
    Granted,
    GrantEnded,
    Order,
    PredecessorsFenced,
    ReadEnds,
    ReadFrontier,
    ReadProgress,
    Refusal,
    Refuse,
    TermBegun,
    WaitForWheel,
    WheelBehind,
    WheelReached,
)

GIVE_WAY_MS = 10_000
"""Who cannot get on for so long lets another node try."""

STABLE_TIMEOUT_MS = 5_000
"""How long the frontier's last stable offset may stay behind its high watermark: markers of a
transaction that was just aborted or committed take a moment."""


class Stage(Enum):
    """How far a takeover has come."""

    BEGUN = "begun"
    CATCHING_UP = "catching-up"
    FENCING = "fencing"
    SETTLING = "settling"
    READING = "reading"
    REACHING = "reaching"
    BEGINNING = "beginning"
    DONE = "done"
    ENDED = "ended"


class Takeover:
    """One takeover. Made for a grant, and thrown away with it."""

    def __init__(self, *, is_fenced: bool = True) -> None:
        """`is_fenced`: predecessors can be fenced; else etcd holds the progress."""
        self._is_fenced = is_fenced
        self._stage = Stage.BEGUN
        self._since_ms = 0
        """Since when this stage has lasted."""
        self._aim: Frontier | None = None
        """What the wheel must reach."""

    @property
    def is_done(self) -> bool:
        """May the master deliver?"""
        return self._stage is Stage.DONE

    def handle(self, fact: Fact) -> Order | None:
        """Take one fact; what to do next, or None if the takeover is over."""
        if isinstance(fact, GrantEnded):
            self._enter(Stage.ENDED, fact)
            return None
        transition = _TRANSITIONS[self._stage].get(type(fact))
        assert transition is not None, f"{fact} answers nothing in stage {self._stage.value}"
        return transition(self, fact)

    def _begin(self, fact: Granted) -> Order:
        if fact.known is None:
            return self._fence(fact)
        return self._wait_for(Stage.CATCHING_UP, fact, fact.known)

    def _wait_for(self, stage: Stage, fact: Fact, frontier: Frontier) -> Order:
        self._aim = frontier
        self._enter(stage, fact)
        return WaitForWheel(frontier)

    def _wait_on(self, fact: WheelBehind) -> Order:
        if fact.now_ms - self._since_ms > GIVE_WAY_MS:
            return self._refuse(
                fact,
                Refusal.BEHIND,
                "the wheel has not reached the frontier's offsets: another node may try",
            )
        assert self._aim is not None, "who waits knows for what"
        return WaitForWheel(self._aim)

    def _fence(self, fact: Granted | WheelReached) -> Order:
        if not self._is_fenced:
            self._enter(Stage.READING, fact)
            return ReadProgress()
        self._enter(Stage.FENCING, fact)
        return FencePredecessors()

    def _settle(self, fact: PredecessorsFenced) -> Order:
        self._enter(Stage.SETTLING, fact)
        return ReadEnds()

    def _compare_ends(self, fact: EndsRead) -> Order:
        if fact.stable == fact.written:
            self._enter(Stage.READING, fact)
            return ReadFrontier(fact.stable)
        if fact.now_ms - self._since_ms > STABLE_TIMEOUT_MS:
            return self._refuse(
                fact,
                Refusal.MARKER_LOST,
                f"the last stable offset {fact.stable} stays behind the high watermark "
                f"{fact.written}, though no transaction can be open there: a commit marker was "
                "lost",
            )
        return ReadEnds()

    def _judge_frontier(self, fact: FrontierRead) -> Order:
        if fact.frontier is None:
            return self._refuse(fact, Refusal.NOT_INITIALISED, "holds no frontier record")
        if not fact.is_of_topic:
            return self._refuse(
                fact,
                Refusal.OTHER_TOPIC,
                "was deleted and made again, whatever it holds now: the frontier that was read is "
                "of the one before",
            )
        return self._wait_for(Stage.REACHING, fact, fact.frontier)

    def _begin_term(self, fact: WheelReached) -> Order:
        assert self._aim is not None, "a term begins after the frontier that was read"
        self._enter(Stage.BEGINNING, fact)
        return BeginTerm(self._aim, begin_term(self._aim))

    def _finish(self, fact: TermBegun) -> None:
        self._enter(Stage.DONE, fact)

    def _refuse(self, fact: Fact, reason: Refusal, detail: str) -> Order:
        self._enter(Stage.ENDED, fact)
        return Refuse(reason, detail)

    def _enter(self, stage: Stage, fact: Fact) -> None:
        self._stage = stage
        self._since_ms = fact.now_ms


_TRANSITIONS: Mapping[Stage, Mapping[type[Fact], Callable[[Takeover, Any], Order | None]]] = (
    MappingProxyType(
        {
            Stage.BEGUN: {Granted: Takeover._begin},
            Stage.CATCHING_UP: {
                WheelReached: Takeover._fence,
                WheelBehind: Takeover._wait_on,
            },
            Stage.FENCING: {PredecessorsFenced: Takeover._settle},
            Stage.SETTLING: {EndsRead: Takeover._compare_ends},
            Stage.READING: {FrontierRead: Takeover._judge_frontier},
            Stage.REACHING: {
                WheelReached: Takeover._begin_term,
                WheelBehind: Takeover._wait_on,
            },
            Stage.BEGINNING: {TermBegun: Takeover._finish},
            Stage.DONE: {},
            Stage.ENDED: {},
        }
    )
)
"""All transitions. Anything else is a bug of the caller: each order has one answer."""
