"""The parts of both drivers that ask brokers: waiting, asking again, and ending in time.

Not here: how a question reaches a broker, and which failures pass by themselves.

Invariants:
- every question ends within its time: KafkaUnreachableError when no answer came;
- a refusal (authorisation, policy, an unknown topic) is a TopicMismatchError that names it, since
  waiting would not help.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Final, Generic, TypeVar

from delayd.bus import Survey, TopicState
from delayd.bus.refusals import remedy_of
from delayd.errors import KafkaUnreachableError, TopicMismatchError
from delayd.runtime.clock import Clock

T = TypeVar("T")
Q = TypeVar("Q", bound="Patience")

RETRY_MS: Final = 20
"""Pause before a question that came too early (no leader yet, not yet visible) is repeated."""

ABSENT_PATIENCE_MS: Final = 500
"""How long a topic that must be there is asked for: a broker may not know yet what another one has
just made."""

SURVEY_PATIENCE_MS: Final = 200
"""How long one topic whose metadata still spreads may hold up the answer about the others."""

EARLIEST: Final = -2
LATEST: Final = -1
"""Kafka's own numbers for the ends of a log, where a timestamp stands otherwise."""


@dataclass(slots=True)
class Answers(Generic[T]):
    """The answers to a question about many keys. Keys that do not exist are in none of these."""

    given: dict[Any, T] = field(default_factory=dict)
    refused: dict[Any, str] = field(default_factory=dict)
    silent: list[Any] = field(default_factory=list)
    passing: str = ""
    """The last passing failure, if there was one."""
    unreachable: bool = False
    """True if the last attempt had no answer at all about some key."""


class Patience:
    """The time that one call of the port may still take, and the errors with which it ends.

    `refusal` returns why brokers last refused a connection, if they did.
    """

    def __init__(
        self, doing: str, timeout_ms: int, clock: Clock, refusal: Callable[[], str | None]
    ) -> None:
        self.timeout_ms: Final = timeout_ms
        self._begun_ms: Final = clock.monotonic_ms()
        self._deadline_ms: Final = self._begun_ms + timeout_ms
        self._doing = doing
        self._clock = clock
        self._refusal = refusal

    def left_ms(self) -> int:
        """Return the time left; KafkaUnreachableError if there is none."""
        left_ms = self._deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            raise self.unreachable("no answer")
        return left_ms

    def pause(self, why: str) -> None:
        """Wait a little before asking again; KafkaUnreachableError if the time is over."""
        if not self._pause_until(self._deadline_ms):
            raise self.unreachable(why)

    def pause_within(self, patience_ms: int) -> bool:
        """Wait a little; return False instead if so much time of this question is over."""
        return self._pause_until(min(self._begun_ms + patience_ms, self._deadline_ms))

    def unreachable(self, why: str) -> KafkaUnreachableError:
        """Return the error for a question that nobody answers."""
        why = self._refusal() or why
        return KafkaUnreachableError(
            f"{self._doing} had no answer within {self.timeout_ms} ms: {why}",
            remedy=remedy_of(why),
        )

    def refused(self, why: str) -> TopicMismatchError:
        """Return the error for a question that brokers refuse to answer."""
        return TopicMismatchError(f"{self._doing} was refused: {why}")

    def all_given(self, answers: Answers[T]) -> dict[Any, T]:
        """Return the answers by key; raise if a key was refused or silent."""
        for told in answers.refused.values():
            raise self.refused(told)
        if answers.silent:
            raise self.unreachable(answers.passing or "no answer")
        return answers.given

    def repeated(
        self,
        attempt: Callable[[list[Any], Answers[T]], list[Any]],
        keys: Iterable[Any],
        patience_ms: int,
    ) -> Answers[T]:
        """Return the answers by key. `attempt` notes some, and returns the keys to ask about again.

        Once some keys have an answer, the others are asked about for `patience_ms` only.
        """
        answers: Answers[T] = Answers()
        waiting = list(keys)
        patient_until_ms = self._clock.monotonic_ms() + patience_ms
        while waiting:
            try:
                waiting = attempt(waiting, answers)
            except KafkaUnreachableError:
                break
            until_ms = self._deadline_ms
            if answers.given or answers.refused:
                until_ms = min(until_ms, patient_until_ms)
            if not waiting or not self._pause_until(until_ms):
                break
        answers.silent = waiting
        return answers

    def _pause_until(self, until_ms: int) -> bool:
        """Wait a little, but not beyond a monotonic time; return False if that is too near."""
        if self._clock.monotonic_ms() + RETRY_MS >= until_ms:
            return False
        Event().wait(RETRY_MS / 1000)
        return True


class BrokerCluster(ABC, Generic[Q]):
    """One administration client of a driver; see the port `Cluster`."""

    def partition_count(self, topic: str, timeout_ms: int) -> int:
        """Return the partitions of a topic; TopicMismatchError if it does not exist."""
        question = self._question(f"counting the partitions of {topic}", timeout_ms)
        return len(self._leaders_of(topic, question))

    def describe(self, topics: Iterable[str], timeout_ms: int) -> dict[str, TopicState]:
        question = self._question("describing topics", timeout_ms)
        found = self._survey_once(topics, question, timeout_ms)
        for name, problem in found.refused.items():
            raise TopicMismatchError(f"describing {name} was refused: {problem}")
        if found.silent:
            raise question.unreachable(f"none for {', '.join(sorted(found.silent))}")
        return dict(found.states)

    def survey(self, topics: Iterable[str], timeout_ms: int) -> Survey:
        question = self._question("describing topics", timeout_ms)
        return self._survey_once(topics, question, SURVEY_PATIENCE_MS)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str],
        timeout_ms: int,
    ) -> bool:
        question = self._question(f"creating {name}", timeout_ms)
        if not self._create(name, partitions, replication_factor, config, question):
            return False
        while True:
            leaders = self._leaders(name, question) or {}
            if len(leaders) == partitions and min(leaders.values()) >= 0:
                return True
            question.pause("no leader yet")

    def add_partitions(self, topic: str, partitions: int, timeout_ms: int) -> bool:
        question = self._question(f"adding partitions to {topic}", timeout_ms)
        if len(self._leaders_of(topic, question)) >= partitions:
            return False
        self._add_partitions(topic, partitions, question)
        while True:
            leaders = self._leaders(topic, question) or {}
            if len(leaders) >= partitions and min(leaders.values()) >= 0:
                return True
            question.pause("no leader yet")

    def start_offsets(self, topic: str, timeout_ms: int) -> dict[int, int]:
        """See the port; TopicMismatchError if the topic does not exist."""
        return self._offsets(topic, timeout_ms, EARLIEST, committed=False)

    def end_offsets(self, topic: str, timeout_ms: int, *, committed: bool) -> dict[int, int]:
        """See the port; TopicMismatchError if the topic does not exist."""
        return self._offsets(topic, timeout_ms, LATEST, committed=committed)

    def offsets_since(self, topic: str, at_ms: int, timeout_ms: int) -> dict[int, int]:
        """See the port; TopicMismatchError if the topic does not exist."""
        found = self._offsets(topic, timeout_ms, at_ms, committed=False)
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    def answering(
        self, partitions: Iterable[tuple[str, int]], timeout_ms: int
    ) -> set[tuple[str, int]]:
        question = self._question("asking leaders whether they answer", timeout_ms)
        places = set(partitions)
        topics = sorted({topic for topic, _ in places})
        found, silent = self._leaders_by_topic(topics, question)
        if topics and len(silent) == len(topics):
            raise question.unreachable("none of any topic")
        led = {(topic, n): leader for topic, of in found.items() for n, leader in of.items()}
        asked = {place: led[place] for place in places & led.keys() if led[place] >= 0}
        leaderless = {place for place, leader in led.items() if leader < 0}
        unsaid = {place for place in places if place[0] in silent}
        return places - leaderless - unsaid - (asked.keys() - self._answering(asked, question))

    @abstractmethod
    def close(self) -> None:
        """Release sockets and threads. Idempotent."""

    def _survey_once(self, topics: Iterable[str], question: Q, patience_ms: int) -> Survey:
        names = list(dict.fromkeys(topics))
        if not names:
            return Survey({}, {}, frozenset())
        return self._survey(names, question, patience_ms)

    def _leaders_of(self, topic: str, question: Q) -> dict[int, int]:
        while (leaders := self._leaders(topic, question)) is None:
            if not question.pause_within(ABSENT_PATIENCE_MS):
                raise TopicMismatchError(
                    f"the topic {topic} does not exist", remedy="create it, or correct its name"
                )
        return leaders

    @abstractmethod
    def _question(self, doing: str, timeout_ms: int) -> Q:
        """Begin a call."""

    @abstractmethod
    def _create(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str],
        question: Q,
    ) -> bool:
        """Have a topic created; return False if it existed."""

    @abstractmethod
    def _add_partitions(self, topic: str, partitions: int, question: Q) -> None:
        """Have a topic get so many partitions, unless it has as many by now."""

    @abstractmethod
    def _survey(self, names: list[str], question: Q, patience_ms: int) -> Survey:
        """Describe each topic; raise KafkaUnreachableError if there is no answer for any."""

    @abstractmethod
    def _leaders(self, topic: str, question: Q) -> dict[int, int] | None:
        """Return the leader of each partition, or -1; None if there is no such topic."""

    @abstractmethod
    def _leaders_by_topic(
        self, topics: list[str], question: Q
    ) -> tuple[dict[str, dict[int, int]], set[str]]:
        """Return the leader of each partition, or -1, of the topics that exist and may be
        described; and the topics about which nobody answers."""

    @abstractmethod
    def _offsets(
        self, topic: str, timeout_ms: int, at_ms: int, *, committed: bool
    ) -> dict[int, int]:
        """Return offsets by partition: those of a time (Unix ms), EARLIEST or LATEST."""

    @abstractmethod
    def _answering(
        self, leaders: Mapping[tuple[str, int], int], question: Q
    ) -> set[tuple[str, int]]:
        """Return those of these partitions, each with its leader, of which the leader answers
        within the question's time."""
