"""Leadership session: what a node does with a grant of leadership, until it rests.

Pure: no clock, no I/O. A fact goes in, one order comes out; the caller carries it out and answers
with one fact. The last order is Rest: delivery is at rest, and the election learns why. Not here:
what happens inside of one mastership (`takeover.py`, `delivery_queue.py`).

Invariants:
- Any failure ends the mastership that met it. The next one begins with a takeover of its own.
- A master that was fenced or superseded, or whose clock is wrong, does not try again under this
  grant.
- A node that commits no step for `GIVE_WAY_MS` rests, though its lease is good, so that another
  node may try. While etcd is silent none could, and it goes on trying.
- Nothing is ordered once the grant has ended.

Source: docs/design/election.md, "Leadership session", with a diagram of `TRANSITIONS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType, NoneType
from typing import Any

from replication.election_facts import Ended
from replication.takeover import GIVE_WAY_MS

RETRY_FIRST_MS = 50
"""The wait before the next mastership; it doubles with each that has committed no step."""

RETRY_MAX_MS = 2_000
"""The longest wait: the failure may be over, and messages are waiting."""


class Failure(Enum):
    """How a mastership failed."""

    FENCED = "fenced"
    SUPERSEDED = "superseded"
    """A later term was read."""
    LEADERSHIP_LOST = "leadership-lost"
    """etcd refused its progress."""
    CLOCK_DRIFT = "clock-drift"
    BEHIND = "behind"
    """Its wheel did not reach a frontier in `GIVE_WAY_MS`."""
    STALE_READ = "stale-read"
    """The broker that was asked for the last frontier leads no more: another may answer."""
    STEP_FAILED = "step-failed"
    """Kafka refused or could not be reached, or etcd where it holds the progress: it may pass."""


_ENDS: Mapping[Failure, Ended] = MappingProxyType(
    {
        Failure.FENCED: Ended.FENCED,
        Failure.SUPERSEDED: Ended.HIGHER_TERM,
        Failure.LEADERSHIP_LOST: Ended.LEADERSHIP_LOST,
        Failure.CLOCK_DRIFT: Ended.CLOCK_DRIFT,
        Failure.BEHIND: Ended.FAILED,
    }
)
"""Failures after which another try under the same grant is useless."""


# Facts


@dataclass(frozen=True, slots=True)
class GrantGiven:
    """Leadership was won."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class GrantOver:
    """The grant was withdrawn or ran out, or the node is to stop."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class MastershipFailed:
    """Answers BeMaster. The producer and the delivery queue are thrown away."""

    now_ms: int
    failure: Failure
    has_stepped: bool
    """Was a step committed, beside the one that begins the term?"""
    has_learnt: bool
    """Did the failure say what to do otherwise, so that the next step differs?"""
    is_alone: bool = False
    """Is the lease over, so that etcd must answer before another node can try?"""


@dataclass(frozen=True, slots=True)
class Waited:
    """Answers Wait."""

    now_ms: int


Fact = GrantGiven | GrantOver | MastershipFailed | Waited


# Orders


@dataclass(frozen=True, slots=True)
class BeMaster:
    """Take over, and step after step, until something fails or the grant is over."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Let this time pass, or less if the grant ends."""

    wait_ms: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Write no more under this grant, and report DeliveryStopped."""

    ended: Ended


Order = BeMaster | Wait | Rest


class LeadershipSession:
    """The use of one grant. Made for it, and thrown away with it."""

    def __init__(self) -> None:
        self._order: Order | None = None
        self._failing_since_ms = 0
        """Monotonic time since when nothing was committed."""
        self._wait_ms = RETRY_FIRST_MS

    def handle(self, fact: Fact) -> Order:
        """Take one fact; return what to do next."""
        transition = TRANSITIONS[type(self._order)].get(type(fact))
        assert transition is not None, f"{fact} does not answer {self._order}"
        act, *leads_to = transition
        self._order = act(self, fact)
        assert type(self._order) in leads_to, f"{fact} led to {self._order}"
        return self._order

    def _begin(self, fact: GrantGiven) -> Order:
        self._failing_since_ms = fact.now_ms
        return BeMaster()

    def _judge(self, fact: MastershipFailed) -> Order:
        ended = _ENDS.get(fact.failure)
        if ended is not None:
            return Rest(ended)
        if fact.has_stepped:
            self._wait_ms = RETRY_FIRST_MS
            self._failing_since_ms = fact.now_ms
        if fact.has_learnt:
            return BeMaster()  # Waiting would gain nothing: the next step is another one.
        if fact.now_ms - self._failing_since_ms > GIVE_WAY_MS and not fact.is_alone:
            return Rest(Ended.FAILED)
        wait_ms, self._wait_ms = self._wait_ms, min(RETRY_MAX_MS, self._wait_ms * 2)
        return Wait(wait_ms)

    def _try_again(self, _: Waited) -> Order:
        return BeMaster()

    def _rest(self, _: GrantOver) -> Order:
        return Rest(Ended.ASKED)


Transition = tuple[Callable[[LeadershipSession, Any], Order], *tuple[type[Order], ...]]
"""The action of a fact, and the orders that may come of it."""

TRANSITIONS: Mapping[type[Order | None], Mapping[type[Fact], Transition]] = MappingProxyType(
    {
        NoneType: {GrantGiven: (LeadershipSession._begin, BeMaster)},
        BeMaster: {
            MastershipFailed: (LeadershipSession._judge, BeMaster, Wait, Rest),
            GrantOver: (LeadershipSession._rest, Rest),
        },
        Wait: {
            Waited: (LeadershipSession._try_again, BeMaster),
            GrantOver: (LeadershipSession._rest, Rest),
        },
        Rest: {},
    }
)
"""All transitions, by the last order. Any other fact is a bug of the caller."""
