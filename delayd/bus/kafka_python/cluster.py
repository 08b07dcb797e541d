"""Administration and metadata with kafka-python's requests.

Not here: which topics delayd needs and how they must be set.

Invariants:
- every call ends within its time-out: KafkaUnreachableError when no answer came;
- a refusal (authorisation, policy, an unknown topic) is a TopicMismatchError that names it, since
  waiting would not help;
- a topic looks the same as through the other driver, its id too: nodes compare them.
"""

import base64
from collections import defaultdict
from collections.abc import Iterable, Mapping
from threading import Event
from typing import Any, Final

from delayd.bus import PartitionState, Survey, TopicState
from delayd.bus.kafka_python.connections import close_driven, open_client, refusal, wait_done
from delayd.bus.kafka_python.failure import told
from delayd.bus.kafka_python.library import (
    CreateTopicsRequest,
    DescribeConfigsRequest,
    IsolationLevel,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetSpec,
    errors,
)
from delayd.bus.kafka_python.settings import Properties
from delayd.clock import Clock, SystemClock
from delayd.errors import KafkaUnreachableError, TopicMismatchError

RETRY_MS: Final = 20
"""Pause before a question that came too early (no leader yet, not yet visible) is repeated."""

_TOPIC: Final = 2
"""The resource type of topics in requests about settings."""

_PASSING: Final = (
    errors.RetriableError,
    errors.BrokerNotAvailableError,
    errors.KafkaConnectionError,
    errors.UnknownTopicOrPartitionError,
)
"""What is answered while metadata spreads or leaders move; it is asked again. An unknown topic is
among them only where it was just described: one broker knows it, the other not yet."""


class KafkaPythonCluster:
    """One administration client; see the port `Cluster`."""

    def __init__(self, properties: Properties) -> None:
        self._clock = SystemClock()
        self._client: Any = open_client(properties)
        self._client._net.start()
        self._connected: Any = None

    def broker_count(self, timeout_ms: int) -> int:
        """See the port."""
        question = self._question("counting the brokers", timeout_ms)
        return len(question.ask(lambda: _metadata_request([])).brokers)

    def describe(self, topics: Iterable[str], timeout_ms: int) -> dict[str, TopicState]:
        """See the port."""
        question = self._question("describing topics", timeout_ms)
        described = self._descriptions(list(topics), question)
        configs = self._configs(list(described), question)
        return {
            name: TopicState(
                name=name,
                topic_id=_id_text(topic.topic_id),
                partitions=tuple(
                    PartitionState(
                        leader=p.leader_id if p.leader_id >= 0 else None,
                        replicas=len(p.replica_nodes),
                        in_sync=len(p.isr_nodes),
                    )
                    for p in sorted(topic.partitions, key=lambda p: int(p.partition_index))
                ),
                config=configs[name],
            )
            for name, topic in described.items()
            if name in configs
        }

    def survey(self, topics: Iterable[str], timeout_ms: int) -> Survey:
        """See the port; whether a topic may be written is not known here."""
        wanted = sorted(set(topics))
        try:
            return Survey(self.describe(wanted, timeout_ms), {}, frozenset())
        except TopicMismatchError:
            pass
        # One that may not be described must not stand for all of them.
        states: dict[str, TopicState] = {}
        refused: dict[str, str] = {}
        silent: set[str] = set()
        for name in wanted:
            try:
                states |= self.describe([name], timeout_ms)
            except TopicMismatchError as error:
                refused[name] = str(error)
            except KafkaUnreachableError:
                silent.add(name)
        if len(silent) == len(wanted):
            raise KafkaUnreachableError("no broker describes a topic in time")
        return Survey(states, refused, frozenset(silent))

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
        topic = CreateTopicsRequest.CreatableTopic
        wanted = topic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=[],
            configs=[topic.CreatableTopicConfig(name=k, value=v) for k, v in config.items()],
        )
        while True:
            controller = question.ask(lambda: _metadata_request([])).controller_id
            answer = question.ask(
                lambda: CreateTopicsRequest(
                    topics=[wanted], timeout_ms=timeout_ms, validate_only=False
                ),
                controller if controller >= 0 else None,
            ).topics[0]
            error = errors.for_code(answer.error_code)
            if error is errors.TopicAlreadyExistsError:
                return False
            if error is errors.NoError:
                break
            question.pause_or_raise(error(answer.error_message))
        while True:
            found = self._descriptions([name], question)
            places = found[name].partitions if name in found else []
            if len(places) == partitions and all(p.leader_id >= 0 for p in places):
                return True
            question.pause("no leader yet")

    def start_offsets(self, topic: str, timeout_ms: int) -> dict[int, int]:
        """See the port; TopicMismatchError if the topic does not exist."""
        return self._offsets(topic, timeout_ms, OffsetSpec.EARLIEST, committed=False)

    def end_offsets(self, topic: str, timeout_ms: int, *, committed: bool) -> dict[int, int]:
        """See the port; TopicMismatchError if the topic does not exist."""
        return self._offsets(topic, timeout_ms, OffsetSpec.LATEST, committed=committed)

    def close(self) -> None:
        """See the port."""
        if self._client is not None:
            close_driven(self._client)
            self._client = None

    def _descriptions(self, names: list[str], question: "_Question") -> dict[str, Any]:
        """What brokers say of the topics that exist, by name."""
        if not names:
            return {}
        while True:
            found: dict[str, Any] = {}
            early: Exception | None = None
            for topic in question.ask(lambda: _metadata_request(names)).topics:
                error = errors.for_code(topic.error_code)
                if error is errors.NoError:
                    found[topic.name] = topic
                elif error is not errors.UnknownTopicOrPartitionError:
                    early = error(topic.name)
            if early is None:
                return found
            question.pause_or_raise(early)

    def _configs(self, names: list[str], question: "_Question") -> dict[str, dict[str, str]]:
        """Effective settings by topic; without those that vanished meanwhile."""
        if not names:
            return {}
        resources = [(_TOPIC, name, None) for name in names]
        while True:
            configs: dict[str, dict[str, str]] = {}
            early: Exception | None = None
            answer = question.ask(lambda: DescribeConfigsRequest(resources=resources))
            for result in answer.results:
                error = errors.for_code(result.error_code)
                if error is errors.NoError:
                    configs[result.resource_name] = {c.name: c.value for c in result.configs}
                elif error is not errors.UnknownTopicOrPartitionError:
                    early = error(result.error_message)
            if early is None:
                return configs
            question.pause_or_raise(early)

    def _offsets(
        self, topic: str, timeout_ms: int, spec: Any, *, committed: bool
    ) -> dict[int, int]:
        question = self._question(f"asking for the offsets of {topic}", timeout_ms)
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        while True:
            described = self._descriptions([topic], question)
            if topic not in described:
                raise TopicMismatchError(
                    f"the topic {topic} does not exist", remedy="create it, or correct its name"
                )
            by_leader: dict[int, list[int]] = defaultdict(list)
            for partition in described[topic].partitions:
                by_leader[partition.leader_id].append(partition.partition_index)
            offsets: dict[int, int] = {}
            early: Exception | None = None
            for leader, numbers in by_leader.items():
                if leader < 0:
                    early = errors.LeaderNotAvailableError(topic)
                    continue
                request = _offsets_request(topic, numbers, spec, level)
                answer = question.ask(lambda r=request: r, leader)
                for partition in answer.topics[0].partitions:
                    error = errors.for_code(partition.error_code)
                    if error is errors.NoError:
                        offsets[partition.partition_index] = partition.offset
                    else:
                        early = error(topic)
            if early is None:
                return dict(sorted(offsets.items()))
            question.pause_or_raise(early)

    def _question(self, doing: str, timeout_ms: int) -> "_Question":
        assert self._client is not None, "the cluster was closed"
        manager = self._client._manager
        if self._connected is None or self._connected.failed():
            self._connected = manager.bootstrap_async()
        question = _Question(doing, timeout_ms, self._clock, self._client)
        question.await_connection(self._connected)
        return question


class _Question:
    """One call of the port: what it does, and how long it may still take."""

    def __init__(self, doing: str, timeout_ms: int, clock: Clock, client: Any) -> None:
        self._doing = doing
        self._clock = clock
        self._client = client
        self._manager = client._manager
        self._timeout_ms = timeout_ms
        self._deadline_ms = clock.monotonic_ms() + timeout_ms

    def await_connection(self, connected: Any) -> None:
        """Wait until some broker has said who the others are."""
        if not wait_done(connected, self._left_ms()):
            raise self._unreachable("no broker can be reached")
        if connected.exception is not None:
            raise self._unreachable(told(connected.exception))

    def ask(self, request: Any, broker: int | None = None) -> Any:
        """The answer of a broker, or of any; asked again while the failure is a passing one."""
        while True:
            answer = self._manager.call_soon(self._send, request(), broker, self._left_ms())
            if not wait_done(answer, self._left_ms()):
                raise self._unreachable("no answer")
            if answer.exception is None:
                return answer.value
            self.pause_or_raise(answer.exception)

    def pause(self, why: str) -> None:
        """Wait a little before asking again; raises when the time is over."""
        if self._clock.monotonic_ms() + RETRY_MS >= self._deadline_ms:
            raise self._unreachable(why)
        Event().wait(RETRY_MS / 1000)

    def pause_or_raise(self, error: BaseException) -> None:
        """Wait a little if waiting helps, else say what was refused."""
        if isinstance(error, _PASSING):
            self.pause(told(error))
            return
        raise TopicMismatchError(f"{self._doing} was refused: {told(error)}") from None

    async def _send(self, request: Any, broker: int | None, timeout_ms: int) -> Any:
        return await self._manager.send(request, node_id=broker, request_timeout_ms=timeout_ms)

    def _left_ms(self) -> int:
        left_ms = self._deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            raise self._unreachable("no answer")
        return left_ms

    def _unreachable(self, why: str) -> KafkaUnreachableError:
        refused = refusal(self._client)
        why = why if refused is None else told(refused)
        return KafkaUnreachableError(
            f"{self._doing} had no answer within {self._timeout_ms} ms: {why}",
            remedy="is Kafka running, and is the bootstrap address right?",
        )


def _metadata_request(names: list[str]) -> Any:
    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def _offsets_request(topic: str, numbers: list[int], spec: Any, level: Any) -> Any:
    of_topic = ListOffsetsRequest.ListOffsetsTopic
    partitions = [
        of_topic.ListOffsetsPartition(
            partition_index=number, current_leader_epoch=-1, timestamp=int(spec)
        )
        for number in numbers
    ]
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=level,
        topics=[of_topic(name=topic, partitions=partitions)],
        min_version=2,  # the first that knows of committed records
    )


def _id_text(topic_id: Any) -> str:
    """A topic's id as librdkafka prints it: base64 without padding. (Kafka's own tools print it for
    URLs, with - and _ in place of + and /.)"""
    return base64.b64encode(topic_id.bytes).decode().rstrip("=")
