"""LeadershipSession: what a node does with a grant of leadership, until the grant or its use is
over.

Pure: no clock, no I/O. A fact goes in, one order comes out; the caller carries it out and answers
with its fact. The last order is Rest: delivery is at rest, and the election hears of it. What
happens inside of one mastership is not told here (`takeover.py`, `delivery_queue.py`).

                 failed, and may pass                  over
    BeMaster ---------------------------> Wait --+   ---------> Rest(asked)
       ^  ^                                      |
       |  +--------------------------------------+    another node may try
       +----- at once, if it has learnt               ---------> Rest(fenced, higher-term,
              what to send less of                                    leadership-lost,
                                                                      clock-drift, failed)

Invariants:
- Any failure ends the mastership that met it. The next one begins with a takeover of its own.
- Who was fenced or superseded, or whose clock is wrong, does not try again under this grant.
- No step for `GIVE_WAY_MS`: it rests, though its lease is good, so that another node may try.
- Nothing is ordered once the grant has ended.

Source: docs/design/election.md, "Leadership session".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from replication.election_facts import Ended
from replication.takeover import GIVE_WAY_MS

RETRY_FIRST_MS = 50
"""A wait before the next mastership; it doubles with each that has committed no step."""

RETRY_MAX_MS = 2_000
"""The longest of them: whatever failed may be well again, and messages are waiting."""


class Failure(Enum):
    """How a mastership failed."""

    FENCED = "fenced"
    SUPERSEDED = "superseded"
    """A later term was read."""
    LEADERSHIP_LOST = "leadership-lost"
    """etcd took its progress no more."""
    CLOCK_DRIFT = "clock-drift"
    BEHIND = "behind"
    """Its wheel did not reach a frontier in `GIVE_WAY_MS`."""
    STEP_FAILED = "step-failed"
    """Kafka refused or was not heard, or etcd was not, where it holds the progress: it may pass."""


_ENDS: Mapping[Failure, Ended] = MappingProxyType(
    {
        Failure.FENCED: Ended.FENCED,
        Failure.SUPERSEDED: Ended.HIGHER_TERM,
        Failure.LEADERSHIP_LOST: Ended.LEADERSHIP_LOST,
        Failure.CLOCK_DRIFT: Ended.CLOCK_DRIFT,
        Failure.BEHIND: Ended.FAILED,
    }
)
"""What to try again after would be of no use."""


# Facts


@dataclass(frozen=True, slots=True)
class GrantGiven:
    """Leadership was won."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class GrantOver:
    """It was withdrawn or ran out, or the node is to stop: instead of an answer, or in the middle
    of a mastership."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class MastershipFailed:
    """Answers BeMaster; its producer and its delivery queue are thrown away."""

    now_ms: int
    failure: Failure
    has_stepped: bool
    """Was a step committed, beside the one that begins the term?"""
    has_learnt: bool
    """Did the failure say what to send less of, so that the next step is another one?"""


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
    """Let so much time pass, less if the grant ends."""

    wait_ms: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Write no more under this grant, and report DeliveryStopped: nothing answers it."""

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
        """Take one fact; what to do next."""
        self._order = self._next(fact)
        return self._order

    def _next(self, fact: Fact) -> Order:
        match fact, self._order:
            case GrantGiven(), None:
                self._failing_since_ms = fact.now_ms
                return BeMaster()
            case GrantOver(), BeMaster() | Wait():
                return Rest(Ended.ASKED)
            case MastershipFailed(), BeMaster():
                return self._judge(fact)
            case Waited(), Wait():
                return BeMaster()
        raise AssertionError(f"{fact} does not answer {self._order}")

    def _judge(self, fact: MastershipFailed) -> Order:
        ended = _ENDS.get(fact.failure)
        if ended is not None:
            return Rest(ended)
        if fact.has_stepped:
            self._wait_ms = RETRY_FIRST_MS
            self._failing_since_ms = fact.now_ms
        if fact.has_learnt:
            return BeMaster()  # Nothing passes by waiting: the next step is another one.
        if fact.now_ms - self._failing_since_ms > GIVE_WAY_MS:
            return Rest(Ended.FAILED)
        wait_ms, self._wait_ms = self._wait_ms, min(RETRY_MAX_MS, self._wait_ms * 2)
        return Wait(wait_ms)
