"""The pulse: what a follower concludes from its connection to the master's process.

Pure: no clock, no I/O. A fact goes in, one order comes out; the caller carries it out and answers
with one fact. One `Pulse` is for one leadership: the lease in the leader key and the life (nonce)
that holds it. The last order is Rest, with what became of the master. Not here: who is elected then
(`election.py`), and the fence, which makes a wrong conclusion cost a hand-over and nothing else.

    order    answered by                         what it proves
    Find     Answered, Refused, Replaced,        that it lives, if it is answered; else nothing: the
             Unanswered, Ended                   address may be wrong, or the master too old
    Listen   Beaten, CutOff, Silent, Ended,      that it lives, while it beats
             Parted
    AskKafka KafkaAnswers, KafkaSilent           that Kafka answers here, after the master has said
                                                 that it has no answer
    Ask      as Find, after the connection that  that it is dead, if nobody listens there any more,
             was answered has ended              or another life answers

The kernel closes the sockets of a process that dies, and never those of one that is frozen, cut off
or busy. So an end alone proves nothing (a network may end a connection), and no silence does. A
master that is silent for `suspicion_ms` is *missed*, which counts only beside the other nodes'
(`most_miss`).

Invariants:
- Dead is concluded only of a life that has answered, whose connection ended, and which then refused
  or was replaced.
- Cut off is concluded only of a master that says so itself, and still does CONFIRM_MS after Kafka
  has answered this follower: when Kafka is away for all, nobody is deposed for it.
- A follower's own standstill is no silence: each fact adds at most WAIT_MS to it.

Source: docs/design/election.md, "Pulse", with a diagram of `TRANSITIONS`.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType, NoneType
from typing import Any, Final

BEAT_MS: Final = 250
"""How often a master's process gives a sign of life."""

WAIT_MS: Final = 250
"""How long a follower waits for one fact, and between two attempts to find the master."""

CONFIRM_MS: Final = 1_000
"""A master that still has no answer so long after Kafka has answered here is cut off."""

ASK_AGAIN_MS: Final = 10
"""Between two attempts when the first was ended unanswered: a dying process closes one socket after
the other."""

CHANGES_FREE: Final = 4
"""Leaderships that may begin within WINDOW_MS before depositions must wait."""
WINDOW_MS: Final = 60_000
PAUSE_MS: Final = 250
"""The first wait; it doubles with each further leadership in the window."""


class Verdict(Enum):
    """What became of the master."""

    DEAD = "dead"
    PARTED = "parted"
    """It gave the leadership back."""
    CUT_OFF = "cut-off"
    """Kafka does not answer it, and answers here."""


# Facts


@dataclass(frozen=True, slots=True)
class Watched:
    """The leader key names this life."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Answered:
    """That life answered a new connection."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Nobody listens at the address."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Replaced:
    """Another life answered, or something that knows of no pulse."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Nothing came of a new connection within WAIT_MS, or it cannot be made."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Beaten:
    """A sign of life came."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Silent:
    """Nothing came within WAIT_MS."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The other side ended the connection, without a farewell."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class Parted:
    """The master said farewell: this leadership is over, and its lease given back."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class CutOff:
    """The master said that Kafka does not answer it."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class KafkaAnswers:
    """A broker answered this follower."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class KafkaSilent:
    """No broker answers this follower either."""

    now_ms: int


Heard = Answered | Refused | Replaced | Unanswered | Beaten | Silent | Ended | Parted | CutOff
Fact = Watched | Heard | KafkaAnswers | KafkaSilent


# Orders


@dataclass(frozen=True, slots=True)
class Find:
    """Connect, after this wait."""

    after_ms: int


@dataclass(frozen=True, slots=True)
class Listen:
    """Wait for what comes over the connection."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Connect again to where the life has answered, after this wait."""

    after_ms: int


@dataclass(frozen=True, slots=True)
class AskKafka:
    """Ask Kafka for a sign of life."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Watch this leadership no more."""

    verdict: Verdict


Order = Find | Listen | Ask | AskKafka | Rest


class Pulse:
    """What one follower knows of one leadership. Thrown away when the leader key changes."""

    def __init__(self, suspicion_ms: int) -> None:
        """`suspicion_ms`: after this much silence a master is missed; 0: it never is."""
        self._suspicion_ms = suspicion_ms
        self._order: Order | None = None
        self._now_ms = 0
        self._has_answered = False
        self._silent_ms = 0
        self._kafka_answered_ms: int | None = None

    @property
    def is_missed(self) -> bool:
        """True if the life has answered once, and is silent for longer than allowed."""
        return self._has_answered and 0 < self._suspicion_ms <= self._silent_ms

    def handle(self, fact: Fact) -> Order:
        """Take one fact; return what to do next."""
        transition = TRANSITIONS[type(self._order)].get(type(fact))
        assert transition is not None, f"{fact} does not answer {self._order}"
        act, *leads_to = transition
        if type(fact) in SIGNS_OF_LIFE:
            self._has_answered, self._silent_ms = True, 0
        else:
            self._silent_ms += min(max(0, fact.now_ms - self._now_ms), WAIT_MS)
        self._now_ms = max(self._now_ms, fact.now_ms)
        self._order = act(self, fact)
        assert type(self._order) in leads_to, f"{fact} led to {self._order}"
        return self._order

    def _begin(self, _: Watched) -> Order:
        return Find(0)

    def _listen(self, _: Answered | Beaten | KafkaSilent) -> Order:
        return Listen()

    def _find_again(self, _: Fact) -> Order:
        return Find(WAIT_MS)

    def _listen_or_find(self, _: Silent) -> Order:
        # A network that was cut may never carry an old connection again.
        return Find(0) if self.is_missed else Listen()

    def _ask(self, _: Ended) -> Order:
        return Ask(0)

    def _ask_soon(self, _: Ended) -> Order:
        return Ask(ASK_AGAIN_MS)

    def _ask_again(self, _: Unanswered) -> Order:
        return Ask(WAIT_MS)

    def _conclude(self, _: Refused | Replaced) -> Order:
        return Rest(Verdict.DEAD)

    def _judge_contact(self, fact: CutOff) -> Order:
        # A Kafka that was slow for all answers the master soon after it has answered here.
        answered_ms = self._kafka_answered_ms
        if answered_ms is None or fact.now_ms >= answered_ms + 2 * CONFIRM_MS:
            return AskKafka()
        return Listen() if fact.now_ms < answered_ms + CONFIRM_MS else Rest(Verdict.CUT_OFF)

    def _note_contact(self, fact: KafkaAnswers) -> Order:
        self._kafka_answered_ms = fact.now_ms
        return Listen()

    def _let_go(self, _: Parted) -> Order:
        return Rest(Verdict.PARTED)


SIGNS_OF_LIFE = (Answered, Beaten, Parted, CutOff)

Transition = tuple[Callable[[Pulse, Any], Order], *tuple[type[Order], ...]]
"""The action of a fact, and the orders that may come of it."""

TRANSITIONS: Mapping[type[Order | None], Mapping[type[Fact], Transition]] = MappingProxyType(
    {
        NoneType: {Watched: (Pulse._begin, Find)},
        Find: {
            Answered: (Pulse._listen, Listen),
            Refused: (Pulse._find_again, Find),
            Replaced: (Pulse._find_again, Find),
            Unanswered: (Pulse._find_again, Find),
            Ended: (Pulse._find_again, Find),
        },
        Listen: {
            Beaten: (Pulse._listen, Listen),
            Silent: (Pulse._listen_or_find, Listen, Find),
            Ended: (Pulse._ask, Ask),
            Parted: (Pulse._let_go, Rest),
            CutOff: (Pulse._judge_contact, Listen, AskKafka, Rest),
        },
        AskKafka: {
            KafkaAnswers: (Pulse._note_contact, Listen),
            KafkaSilent: (Pulse._listen, Listen),
        },
        Ask: {
            Answered: (Pulse._listen, Listen),
            Refused: (Pulse._conclude, Rest),
            Replaced: (Pulse._conclude, Rest),
            Unanswered: (Pulse._ask_again, Ask),
            Ended: (Pulse._ask_soon, Ask),
        },
        Rest: {},
    }
)
"""All transitions, by the last order. Any other fact is a bug of the caller."""


def most_miss(missing: int, members: int) -> bool:
    """Return whether so many of all announced nodes, the master among them, may depose it."""
    return 2 * missing > members


class Restraint:
    """Keeps nodes that judge wrongly from deposing one master after the other.

    A leadership may be deposed once it has lasted for a pause, which doubles with each one that
    began within the last minute. All nodes see the same leader key, so the bound is the cluster's.
    Where it holds a deposition back, the lease decides as if there were no pulse.
    """

    def __init__(self) -> None:
        self._begun_ms: deque[int] = deque()

    def note_leadership(self, now_ms: int) -> None:
        """Note that the leader key names a leadership that it did not name before."""
        self._forget(now_ms)
        self._begun_ms.append(now_ms)

    def may_depose_ms(self, now_ms: int) -> int:
        """Return from when on the present leadership may be deposed."""
        self._forget(now_ms)
        if not self._begun_ms:
            return now_ms
        doublings = len(self._begun_ms) - CHANGES_FREE
        pause_ms = PAUSE_MS << (doublings - 1) if doublings > 0 else 0
        return self._begun_ms[-1] + min(pause_ms, WINDOW_MS)

    def _forget(self, now_ms: int) -> None:
        while self._begun_ms and self._begun_ms[0] <= now_ms - WINDOW_MS:
            self._begun_ms.popleft()
