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
from threading import Event
from typing import Any, Final, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient as Client
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub exports none
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from delayd.bus import PartitionState, TopicState
from delayd.bus.confluent.settings import Properties
from delayd.clock import Clock, SystemClock
from delayd.errors import KafkaUnreachableError, TopicMismatchError

T = TypeVar("T")

RETRY_MS: Final = 20
"""Pause before a question that came too early (no leader yet, not yet visible) is repeated."""

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
        self._client: Client | None = Client(properties)

    def broker_count(self, timeout_ms: int) -> int:
        """See the port."""
        question = self._question("counting the brokers", timeout_ms)
        return len(question.ask(lambda s: self._alive().describe_cluster(request_timeout=s)).nodes)

    def describe(self, topics: Iterable[str], timeout_ms: int) -> dict[str, TopicState]:
        """See the port."""
        question = self._question("describing topics", timeout_ms)
        described = self._descriptions(list(topics), question)
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in described]
        states: dict[str, TopicState] = {}
        for resource, config in question.ask_each(
            lambda s: self._alive().describe_configs(resources, request_timeout=s),
            resources,
            absent=KafkaError.UNKNOWN_TOPIC_OR_PART,
        ).items():
            name = resource.name
            states[name] = TopicState(
                name=name,
                topic_id=str(described[name].topic_id),
                partitions=tuple(
                    PartitionState(
                        leader=p.leader.id if p.leader is not None and p.leader.id >= 0 else None,
                        replicas=len(p.replicas),
                        in_sync=len(p.isr),
                    )
                    for p in sorted(described[name].partitions, key=lambda p: p.id)
                ),
                config={key: entry.value for key, entry in config.items()},
            )
        return states

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
        question = self._question(f"creating {name}", timeout_ms)
        topic = NewTopic(name, partitions, replication_factor, config=dict(config))
        created = question.ask_each(
            lambda s: self._alive().create_topics([topic], request_timeout=s, operation_timeout=s),
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
        wanted = {TopicPartition(topic, p.id): spec for p in described[topic].partitions}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        answers = question.ask_each(
            lambda s: self._alive().list_offsets(wanted, isolation_level=level, request_timeout=s),
            list(wanted),
        )
        return {where.partition: answer.offset for where, answer in sorted(answers.items())}

    def _descriptions(self, names: list[str], question: "_Question") -> dict[str, TopicDescription]:
        if not names:
            return {}
        return question.ask_each(
            lambda s: self._alive().describe_topics(TopicCollection(names), request_timeout=s),
            names,
            absent=KafkaError.UNKNOWN_TOPIC_OR_PART,
        )

    def _question(self, doing: str, timeout_ms: int) -> "_Question":
        self._alive().poll(0)  # takes librdkafka's log lines, which would pile up
        return _Question(doing, timeout_ms, self._clock)

    def _alive(self) -> Client:
        assert self._client is not None, "the cluster was closed"
        return self._client


class _Question:
    """One call of the port: what it does, and how long it may still take."""

    def __init__(self, doing: str, timeout_ms: int, clock: Clock) -> None:
        self._doing = doing
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._deadline_ms = clock.monotonic_ms() + timeout_ms

    def ask(self, order: Callable[[float], Future[T]]) -> T:
        """The answer, asked again while Kafka calls the failure a passing one."""
        while True:
            try:
                return order(self._left_s()).result(self._left_s())
            except FutureTimeoutError:
                raise self._unreachable("no answer") from None
            except KafkaException as error:
                self._pause_or_raise(error.args[0])

    def ask_each(
        self,
        order: Callable[[float], Mapping[Any, Future[T]]],
        keys: list[Any],
        *,
        absent: int | None = None,
    ) -> dict[Any, T]:
        """The answer by key; without those that Kafka answers with the error code `absent`."""
        answers: dict[Any, T] = {}
        waiting = keys
        while waiting:
            futures = order(self._left_s())
            again: KafkaError | None = None
            for key in waiting:
                try:
                    answers[key] = futures[key].result(self._left_s())
                except FutureTimeoutError:
                    raise self._unreachable("no answer") from None
                except KafkaException as error:
                    again = error.args[0] if error.args[0].code() != absent else again
            if again is None:
                return answers
            self._pause_or_raise(again)
        return answers

    def pause(self, why: str) -> None:
        """Wait a little before asking again; raises when the time is over."""
        if self._clock.monotonic_ms() + RETRY_MS >= self._deadline_ms:
            raise self._unreachable(why)
        Event().wait(RETRY_MS / 1000)

    def _pause_or_raise(self, error: KafkaError) -> None:
        told = f"{error.name()}, {error.str()}"
        if error.code() in _UNREACHABLE or error.code() in _PASSING or error.retriable():
            self.pause(told)
            return
        raise TopicMismatchError(f"{self._doing} was refused: {told}") from None

    def _left_s(self) -> float:
        left_ms = self._deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            raise self._unreachable("no answer")
        return left_ms / 1000

    def _unreachable(self, why: str) -> KafkaUnreachableError:
        return KafkaUnreachableError(
            f"{self._doing} had no answer within {self._timeout_ms} ms: {why}",
            remedy="is Kafka running, and is the bootstrap address right?",
        )
