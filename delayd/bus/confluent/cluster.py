"""Administration and metadata with librdkafka.

Not here: which topics delayd needs and how they must be set; how long a call waits for answers
(questions.py).
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub exports none
    AclOperation,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)
from confluent_kafka.admin import AdminClient as Client

from delayd.bus import PartitionState, Survey, TopicState
from delayd.bus.confluent.log import Refusals
from delayd.bus.confluent.questions import Question
from delayd.bus.confluent.settings import Properties
from delayd.bus.questions import EARLIEST, LATEST, SURVEY_PATIENCE_MS, BrokerCluster
from delayd.runtime.clock import SystemClock

_ENDS: Final = {
    EARLIEST: OffsetSpec.earliest(),  # type: ignore[no-untyped-call]
    LATEST: OffsetSpec.latest(),  # type: ignore[no-untyped-call]
}

NO_TOPIC: Final = "delayd-none"
"""Nothing is asked about it: about all topics would take long on a large cluster."""


class ConfluentCluster(BrokerCluster[Question]):
    """One administration client; see the port `Cluster`."""

    def __init__(self, properties: Properties) -> None:
        self._clock = SystemClock()
        self._refusals = Refusals("admin")
        self._properties = {**properties, "error_cb": self._refusals.take}
        self._client: Client | None = Client(self._properties)

    def broker_count(self, timeout_ms: int) -> int:
        """See the port. Any broker may answer: librdkafka asks one that it believes to be the
        controller when a cluster is to be described, whether it lives or not."""
        return len(self._brokers(self._question("counting the brokers", timeout_ms)))

    def broker_settings(self, timeout_ms: int) -> dict[int, Mapping[str, str]]:
        """See the port."""
        question = self._question("asking brokers for their settings", timeout_ms)
        answers = question.ask_some(
            lambda some, s: self._alive().describe_configs(some, request_timeout=s),
            [ConfigResource(ResourceType.BROKER, str(each)) for each in self._brokers(question)],
            patience_ms=SURVEY_PATIENCE_MS,
        )
        return {int(resource.name): _told_by(each) for resource, each in answers.given.items()}

    def group_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]], timeout_ms: int
    ) -> dict[tuple[str, int], int]:
        """See the port."""
        question = self._question(f"asking for the offsets of the group {group}", timeout_ms)
        wanted = ConsumerGroupTopicPartitions(
            group, [TopicPartition(topic, number) for topic, number in partitions]
        )
        while True:
            answer: ConsumerGroupTopicPartitions = question.ask(
                lambda s: self._alive().list_consumer_group_offsets(
                    [wanted], require_stable=True, request_timeout=s
                )[group]
            )
            found = answer.topic_partitions or []
            failed = next((each.error for each in found if each.error is not None), None)
            if failed is None:
                return {
                    (each.topic, each.partition): each.offset for each in found if each.offset >= 0
                }
            if failed.code() != KafkaError.UNSTABLE_OFFSET_COMMIT:
                raise question.refused(failed.name())
            question.pause(failed.name())

    def close(self) -> None:
        self._client = None

    def _create(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str],
        question: Question,
    ) -> bool:
        # One attempt: a second would find the topic that the first one made.
        question.attempt_ms = question.timeout_ms
        topic = NewTopic(name, partitions, replication_factor, config=dict(config))
        created = question.ask_each(
            lambda _, s: self._alive().create_topics(
                [topic], request_timeout=s, operation_timeout=s
            ),
            [name],
            absent=KafkaError.TOPIC_ALREADY_EXISTS,
        )
        return name in created

    def _add_partitions(self, topic: str, partitions: int, question: Question) -> None:
        wanted = NewPartitions(topic, partitions)
        question.ask_each(
            lambda _, s: self._alive().create_partitions(
                [wanted], request_timeout=s, operation_timeout=s
            ),
            [topic],
            absent=KafkaError.INVALID_PARTITIONS,
        )

    def _offsets(
        self, topic: str, timeout_ms: int, at_ms: int, *, committed: bool
    ) -> dict[int, int]:
        question = self._question(f"asking for the offsets of {topic}", timeout_ms)
        wanted = [TopicPartition(topic, number) for number in self._leaders_of(topic, question)]
        spec = _ENDS.get(at_ms) or OffsetSpec.for_timestamp(at_ms)
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        answers = question.ask_each(
            lambda some, s: _answered(
                self._alive().list_offsets(
                    dict.fromkeys(some, spec), isolation_level=level, request_timeout=s
                )
            ),
            wanted,
        )
        return {where.partition: answer.offset for where, answer in sorted(answers.items())}

    def _answering(
        self, leaders: Mapping[tuple[str, int], int], question: Question
    ) -> set[tuple[str, int]]:
        # An operation for each: librdkafka answers one about many when the last of them is known.
        spec = _ENDS[LATEST]
        answers = question.ask_some(
            lambda some, s: _answered(
                {
                    each: self._alive().list_offsets({each: spec}, request_timeout=s)[each]
                    for each in some
                }
            ),
            [TopicPartition(topic, number) for topic, number in leaders],
            patience_ms=question.timeout_ms,
        )
        silent = {(each.topic, each.partition) for each in answers.silent}
        return leaders.keys() - silent

    def _brokers(self, question: Question) -> list[int]:
        try:
            return list(
                self._alive().list_topics(NO_TOPIC, timeout=question.left_ms() / 1000).brokers
            )
        except KafkaException as error:
            raise question.unreachable(error.args[0].name()) from error

    def _leaders(self, topic: str, question: Question) -> dict[int, int] | None:
        found: dict[str, TopicDescription] = question.ask_each(
            lambda some, s: self._alive().describe_topics(TopicCollection(some), request_timeout=s),
            [topic],
            absent=KafkaError.UNKNOWN_TOPIC_OR_PART,
        )
        return _leaders_in(found[topic]) if topic in found else None

    def _leaders_by_topic(
        self, topics: list[str], question: Question
    ) -> tuple[dict[str, dict[int, int]], set[str]]:
        answers = question.ask_some(
            lambda some, s: self._alive().describe_topics(TopicCollection(some), request_timeout=s),
            topics,
            absent=KafkaError.UNKNOWN_TOPIC_OR_PART,
            patience_ms=SURVEY_PATIENCE_MS,
        )
        found = {topic: _leaders_in(state) for topic, state in answers.given.items()}
        return found, set(answers.silent)

    def _survey(self, names: list[str], question: Question, patience_ms: int) -> Survey:
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

    def _question(self, doing: str, timeout_ms: int) -> Question:
        self._alive().poll(0)  # takes librdkafka's log lines, which would pile up
        return Question(doing, timeout_ms, self._clock, self._renew, self._refusal)

    def _renew(self) -> None:
        """Forget what the client believes about the brokers."""
        self._refusal()
        self._client = Client(self._properties)

    def _refusal(self) -> str | None:
        self._alive().poll(0)
        return self._refusals.last

    def _alive(self) -> Client:
        assert self._client is not None, "the cluster was closed"
        return self._client


def _answered(futures: Mapping[Any, Future[Any]]) -> dict[Any, Future[Any]]:
    """Return the same results of `list_offsets`; one without an offset becomes a time-out.

    Where a leader did not answer, or its connection was lost, librdkafka drops the error of that
    request and gives a result without one, and without an offset. It does so when the time is over,
    so that on a busy machine it may come before the caller has noticed that.
    """
    checked: dict[Any, Future[Any]] = {}
    for place, future in futures.items():
        checked[place] = Future()
        future.add_done_callback(partial(_pass_on, checked[place]))
    return checked


def _pass_on(checked: Future[Any], future: Future[Any]) -> None:
    if (error := future.exception()) is not None:
        checked.set_exception(error)
    elif future.result().offset == OFFSET_INVALID:
        checked.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    else:
        checked.set_result(future.result())


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
        config=_told_by(config),
        may_write=None if operations is None else AclOperation.WRITE in operations,
        may_read=None if operations is None else AclOperation.READ in operations,
    )


def _told_by(config: Mapping[str, Any]) -> dict[str, str]:
    return {key: entry.value for key, entry in config.items()}


def _leaders_in(state: TopicDescription) -> dict[int, int]:
    return {p.id: -1 if p.leader is None else p.leader.id for p in state.partitions}
