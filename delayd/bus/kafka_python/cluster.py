"""Administration and metadata with kafka-python's requests.

Not here: which topics delayd needs and how they must be set.

Invariants:
- every call ends within its time-out: KafkaUnreachableError when no answer came;
- a refusal (authorisation, policy, an unknown topic) is a TopicMismatchError that names it, since
  waiting would not help.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from delayd.bus import Survey, TopicState
from delayd.bus.kafka_python.connections import close_driven, open_client
from delayd.bus.kafka_python.descriptions import describe, metadata_request, survey
from delayd.bus.kafka_python.library import (
    CreateTopicsRequest,
    IsolationLevel,
    ListOffsetsRequest,
    OffsetSpec,
    errors,
)
from delayd.bus.kafka_python.questions import Question
from delayd.bus.kafka_python.settings import Properties
from delayd.errors import TopicMismatchError
from delayd.runtime.clock import SystemClock

SURVEY_PATIENCE_MS: Final = 200
"""How long one topic whose metadata still spreads may hold up the answer about the others."""


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
        return len(question.ask(lambda: metadata_request([])).brokers)

    def describe(self, topics: Iterable[str], timeout_ms: int) -> dict[str, TopicState]:
        """See the port."""
        question = self._question("describing topics", timeout_ms)
        found = survey(_once(topics), question, patience_ms=timeout_ms)
        return question.all_described(found)

    def survey(self, topics: Iterable[str], timeout_ms: int) -> Survey:
        """See the port."""
        question = self._question("describing topics", timeout_ms)
        return survey(_once(topics), question, patience_ms=SURVEY_PATIENCE_MS)

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
            controller = question.ask(lambda: metadata_request([])).controller_id
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
            found = self._description(name, question)
            places = [] if found is None else found.partitions
            if len(places) == partitions and all(p.leader_id >= 0 for p in places):
                return True
            question.pause("no leader yet")

    def start_offsets(self, topic: str, timeout_ms: int) -> dict[int, int]:
        """See the port; TopicMismatchError if the topic does not exist."""
        return self._offsets(topic, timeout_ms, OffsetSpec.EARLIEST, committed=False)

    def end_offsets(self, topic: str, timeout_ms: int, *, committed: bool) -> dict[int, int]:
        """See the port; TopicMismatchError if the topic does not exist."""
        return self._offsets(topic, timeout_ms, OffsetSpec.LATEST, committed=committed)

    def offsets_since(self, topic: str, at_ms: int, timeout_ms: int) -> dict[int, int]:
        """See the port; TopicMismatchError if the topic does not exist."""
        found = self._offsets(topic, timeout_ms, at_ms, committed=False)
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    def close(self) -> None:
        """See the port."""
        if self._client is not None:
            close_driven(self._client)
            self._client = None

    def _description(self, name: str, question: Question) -> Any:
        """Return what brokers say about a topic, or None if it does not exist."""
        found = describe([name], question, patience_ms=question.timeout_ms)
        for problem in found.refused.values():
            raise TopicMismatchError(f"describing {name} was refused: {problem}")
        if found.silent:
            raise question.unreachable(found.passing or "no answer")
        return found.given.get(name)

    def _offsets(
        self, topic: str, timeout_ms: int, spec: Any, *, committed: bool
    ) -> dict[int, int]:
        question = self._question(f"asking for the offsets of {topic}", timeout_ms)
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        while True:
            described = self._description(topic, question)
            if described is None:
                raise TopicMismatchError(
                    f"the topic {topic} does not exist", remedy="create it, or correct its name"
                )
            by_leader: dict[int, list[int]] = defaultdict(list)
            for partition in described.partitions:
                by_leader[partition.leader_id].append(partition.partition_index)
            offsets: dict[int, int] = {}
            early: Exception | None = None
            for leader, numbers in by_leader.items():
                if leader < 0:
                    early = errors.LeaderNotAvailableError(topic)
                    continue
                request = partial(_offsets_request, topic, numbers, spec, level)
                answer = question.ask(request, leader)
                for partition in answer.topics[0].partitions:
                    error = errors.for_code(partition.error_code)
                    if error is errors.NoError:
                        offsets[partition.partition_index] = partition.offset
                    else:
                        early = error(topic)
            if early is None:
                return dict(sorted(offsets.items()))
            question.pause_or_raise(early)

    def _question(self, doing: str, timeout_ms: int) -> Question:
        assert self._client is not None, "the cluster was closed"
        manager = self._client._manager
        if self._connected is None or self._connected.failed():
            self._connected = manager.bootstrap_async()
        question = Question(doing, timeout_ms, self._clock, self._client)
        question.await_connection(self._connected)
        return question


def _once(topics: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(topics))


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
