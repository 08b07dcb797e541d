"""Administration and metadata with librdkafka.

Not here: which topics delayd needs and how they must be set.

Invariants:
- every call ends within its time-out: KafkaUnreachableError when no answer came;
- a refusal (authorisation, policy, an unknown topic) is a TopicMismatchError that names it, since
  waiting would not help.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Final, Generic, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub exports none
    AclOperation,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)
from confluent_kafka.admin import AdminClient as Client

from delayd.bus import PartitionState, Survey, TopicState
from delayd.bus.confluent.settings import Properties
from delayd.clock import Clock, SystemClock
from delayd.errors import KafkaUnreachableError, TopicMismatchError

T = TypeVar("T")

RETRY_MS: Final = 20
"""Pause before a question that came too early (no leader yet, not yet visible) is repeated."""

ATTEMPT_FIRST_MS: Final = 1_000
"""After so long without an answer a question is asked again by a new client, which then has twice
as long. librdkafka waits for the broker that it knows as the controller, also when that is dead,
and asks no other who the controller is now."""

SURVEY_PATIENCE_MS: Final = 200
"""How long one topic whose metadata still spreads may hold up the answer about the others."""

_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_UNREACHABLE: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
    }
)

_PASSING: Final = frozenset(
    {
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.UNKNOWN,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_ID,
        # Of a topic that was just described: one broker knows it, the other not yet.
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""What a broker answers while metadata spreads or leaders move; it is asked again. librdkafka's
admin client marks none of them as retriable."""


class ConfluentCluster:
    """One administration client; see the port `Cluster`."""

    def __init__(self, properties: Properties) -> None:
        self._clock = SystemClock()
        self._properties = properties
        self._client: Client | None = Client(properties)

    def broker_count(self, timeout_ms: int) -> int:
        """See the port."""
        question = self._question("counting the brokers", timeout_ms)
        return len(question.ask(lambda s: self._alive().describe_cluster(request_timeout=s)).nodes)

    def describe(self, topics: Iterable[str], timeout_ms: int) -> dict[str, TopicState]:
        """See the port."""
        question = self._question("describing topics", timeout_ms)
        found = self._survey(topics, question, patience_ms=timeout_ms)
        for name, problem in found.refused.items():
            raise TopicMismatchError(f"describing {name} was refused: {problem}")
        if found.silent:
            raise question.unreachable(f"none for {', '.join(sorted(found.silent))}")
        return dict(found.states)

    def survey(self, topics: Iterable[str], timeout_ms: int) -> Survey:
        """See the port."""
        question = self._question("describing topics", timeout_ms)
        return self._survey(topics, question, patience_ms=SURVEY_PATIENCE_MS)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str],
        timeout_ms: int,
    ) -> bool:
        """See the port."""
        # One attempt: the second would find what the first one made.
        question = self._question(f"creating {name}", timeout_ms, attempt_ms=timeout_ms)
        topic = NewTopic(name, partitions, replication_factor, config=dict(config))
        created = question.ask_each(
            lambda _, s: self._alive().create_topics(
                [topic], request_timeout=s, operation_timeout=s
            ),
            [name],
            absent=KafkaError.TOPIC_ALREADY_EXISTS,
        )
        if name not in created:
            return False
        while True:
            found = self._descriptions([name], question)
            if name in found and len(found[name].partitions) == partitions:
                leaders = [p.leader for p in found[name].partitions]
                if all(leader is not None and leader.id >= 0 for leader in leaders):
                    return True
            question.pause("no leader yet")

    def start_offsets(self, topic: str, timeout_ms: int) -> dict[int, int]:
        """See the port; TopicMismatchError if the topic does not exist."""
        return self._offsets(topic, timeout_ms, _EARLIEST, committed=False)

    def end_offsets(self, topic: str, timeout_ms: int, *, committed: bool) -> dict[int, int]:
        """See the port; TopicMismatchError if the topic does not exist."""
        return self._offsets(topic, timeout_ms, _LATEST, committed=committed)

    def offsets_since(self, topic: str, at_ms: int, timeout_ms: int) -> dict[int, int]:
        """See the port; TopicMismatchError if the topic does not exist."""
        spec = OffsetSpec.for_timestamp(at_ms)
        found = self._offsets(topic, timeout_ms, spec, committed=False)
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    def close(self) -> None:
        """See the port."""
        self._client = None

    def _offsets(
        self, topic: str, timeout_ms: int, spec: OffsetSpec, *, committed: bool
    ) -> dict[int, int]:
        question = self._question(f"asking for the offsets of {topic}", timeout_ms)
        described = self._descriptions([topic], question)
        if topic not in described:
            raise TopicMismatchError(
                f"the topic {topic} does not exist", remedy="create it, or correct its name"
            )
        wanted = [TopicPartition(topic, p.id) for p in described[topic].partitions]
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        answers = question.ask_each(
            lambda some, s: self._alive().list_offsets(
                dict.fromkeys(some, spec), isolation_level=level, request_timeout=s
            ),
            wanted,
        )
        return {where.partition: answer.offset for where, answer in sorted(answers.items())}

    def _descriptions(self, names: list[str], question: "_Question") -> dict[str, TopicDescription]:
        if not names:
            return {}
        return question.ask_each(
            lambda some, s: self._alive().describe_topics(TopicCollection(some), request_timeout=s),
            names,
            absent=KafkaError.UNKNOWN_TOPIC_OR_PART,
        )

    def _survey(self, topics: Iterable[str], question: "_Question", *, patience_ms: int) -> Survey:
        names = list(dict.fromkeys(topics))
        if not names:
            return Survey({}, {}, frozenset())
        topic_answers = question.ask_some(
            lambda some, s: self._alive().describe_topics(
                TopicCollection(some), include_authorized_operations=True, request_timeout=s
            ),
            names,
            absent=KafkaError.UNKNOWN_TOPIC_OR_PART,
            patience_ms=patience_ms,
        )
        described = topic_answers.given
        config_answers = question.ask_some(
            lambda some, s: self._alive().describe_configs(some, request_timeout=s),
            [ConfigResource(ResourceType.TOPIC, name) for name in described],
            absent=KafkaError.UNKNOWN_TOPIC_OR_PART,
            patience_ms=patience_ms,
        )
        silent = {*topic_answers.silent, *(resource.name for resource in config_answers.silent)}
        if len(silent) == len(names):
            raise question.unreachable(
                topic_answers.passing or config_answers.passing or "no answer"
            )
        refused = {
            **topic_answers.refused,
            **{resource.name: told for resource, told in config_answers.refused.items()},
        }
        states = {
            resource.name: _state_of(described[resource.name], config)
            for resource, config in config_answers.given.items()
        }
        return Survey(states, refused, frozenset(silent))

    def _question(
        self, doing: str, timeout_ms: int, attempt_ms: int = ATTEMPT_FIRST_MS
    ) -> "_Question":
        self._alive().poll(0)  # takes librdkafka's log lines, which would pile up
        return _Question(doing, timeout_ms, self._clock, self._renew, attempt_ms)

    def _renew(self) -> None:
        """Forget what the client believes about the brokers."""
        self._client = Client(self._properties)

    def _alive(self) -> Client:
        assert self._client is not None, "the cluster was closed"
        return self._client


class _Question:
    """One call of the port: what it does, and how long it may still take.

    `renew` replaces the client, when the present one had no answer.
    """

    def __init__(
        self,
        doing: str,
        timeout_ms: int,
        clock: Clock,
        renew: Callable[[], None],
        attempt_ms: int = ATTEMPT_FIRST_MS,
    ) -> None:
        self._doing = doing
        self._clock = clock
        self._renew = renew
        self._attempt_ms = attempt_ms
        self._timeout_ms = timeout_ms
        self._deadline_ms = clock.monotonic_ms() + timeout_ms

    def ask(self, order: Callable[[float], Future[T]]) -> T:
        """The answer, asked again while Kafka calls the failure a passing one."""
        while True:
            until_ms = self._begin_attempt()
            try:
                return order(self._until_s(until_ms)).result(self._until_s(until_ms))
            except FutureTimeoutError:
                self._end_attempt()
                self.pause("no answer")
            except KafkaException as error:
                if error.args[0].code() in _UNREACHABLE:
                    self._end_attempt()
                self._pause_or_raise(error.args[0])

    def ask_each(
        self,
        order: Callable[[list[Any], float], Mapping[Any, Future[T]]],
        keys: list[Any],
        *,
        absent: int | None = None,
    ) -> dict[Any, T]:
        """The answer by key; without those that Kafka answers with the error code `absent`."""
        answers = self.ask_some(order, keys, absent=absent, patience_ms=self._timeout_ms)
        for told in answers.refused.values():
            raise self._refused(told)
        if answers.silent:
            raise self.unreachable(answers.passing or "no answer")
        return answers.given

    def ask_some(
        self,
        order: Callable[[list[Any], float], Mapping[Any, Future[T]]],
        keys: list[Any],
        *,
        absent: int | None = None,
        patience_ms: int,
    ) -> "_Answers[T]":
        """What was answered, by key. Keys whose failure is a passing one are asked again, for
        `patience_ms` once there is an answer for others."""
        answers: _Answers[T] = _Answers()
        waiting = keys
        patient_until_ms = self._clock.monotonic_ms() + patience_ms
        while waiting:
            if self._left_ms() <= 0:
                break
            attempt_until_ms = self._begin_attempt()
            futures = order(waiting, self._until_s(attempt_until_ms))
            answers.unreachable = False
            waiting = [
                key
                for key in waiting
                if not self._settle(futures[key], key, answers, absent, attempt_until_ms)
            ]
            if answers.unreachable:
                self._end_attempt()
            until_ms = self._deadline_ms
            if answers.given or answers.refused:
                until_ms = min(until_ms, patient_until_ms)
            if not waiting or self._clock.monotonic_ms() + RETRY_MS >= until_ms:
                break
            Event().wait(RETRY_MS / 1000)
        answers.silent = waiting
        return answers

    def _settle(
        self,
        future: Future[T],
        key: Any,
        answers: "_Answers[T]",
        absent: int | None,
        until_ms: int,
    ) -> bool:
        """Take a key's answer; False if it has to be asked for again."""
        try:
            answers.given[key] = future.result(self._until_s(until_ms))
        except FutureTimeoutError:
            answers.unreachable = True
            return False
        except KafkaException as error:
            found: KafkaError = error.args[0]
            if found.code() == absent:
                return True
            told = f"{found.name()}, {found.str()}"
            if _is_passing(found):
                answers.passing = told
                answers.unreachable |= found.code() in _UNREACHABLE
                return False
            answers.refused[key] = told
        return True

    def pause(self, why: str) -> None:
        """Wait a little before asking again; raises when the time is over."""
        if self._clock.monotonic_ms() + RETRY_MS >= self._deadline_ms:
            raise self.unreachable(why)
        Event().wait(RETRY_MS / 1000)

    def unreachable(self, why: str) -> KafkaUnreachableError:
        """What to raise when there is no answer."""
        return KafkaUnreachableError(
            f"{self._doing} had no answer within {self._timeout_ms} ms: {why}",
            remedy="is Kafka running, and is the bootstrap address right?",
        )

    def _pause_or_raise(self, error: KafkaError) -> None:
        told = f"{error.name()}, {error.str()}"
        if not _is_passing(error):
            raise self._refused(told)
        self.pause(told)

    def _refused(self, told: str) -> TopicMismatchError:
        return TopicMismatchError(f"{self._doing} was refused: {told}")

    def _left_ms(self) -> int:
        return self._deadline_ms - self._clock.monotonic_ms()

    def _begin_attempt(self) -> int:
        """Until when (monotonic ms) this attempt may wait."""
        left_ms = self._left_ms()
        if left_ms <= 0:
            raise self.unreachable("no answer")
        return self._clock.monotonic_ms() + min(left_ms, self._attempt_ms)

    def _end_attempt(self) -> None:
        """There was no answer."""
        self._attempt_ms *= 2
        self._renew()

    def _until_s(self, until_ms: int) -> float:
        return max(1, until_ms - self._clock.monotonic_ms()) / 1000


@dataclass(slots=True)
class _Answers(Generic[T]):
    """What became of a question about many keys. Those that do not exist are in none."""

    given: dict[Any, T] = field(default_factory=dict)
    refused: dict[Any, str] = field(default_factory=dict)
    silent: list[Any] = field(default_factory=list)
    passing: str = ""
    """The last passing failure, if there was one."""
    unreachable: bool = False
    """Had the last attempt no answer at all about some key?"""


def _is_passing(error: KafkaError) -> bool:
    return error.code() in _UNREACHABLE or error.code() in _PASSING or error.retriable()


def _state_of(described: TopicDescription, config: Mapping[str, Any]) -> TopicState:
    operations = described.authorized_operations
    return TopicState(
        name=described.name,
        topic_id=str(described.topic_id),
        partitions=tuple(
            PartitionState(
                leader=p.leader.id if p.leader is not None and p.leader.id >= 0 else None,
                replicas=len(p.replicas),
                in_sync=len(p.isr),
            )
            for p in sorted(described.partitions, key=lambda p: p.id)
        ),
        config={key: entry.value for key, entry in config.items()},
        may_write=None if operations is None else AclOperation.WRITE in operations,
    )
