"""Administration and metadata with kafka-python's requests.

Not here: which topics delayd needs and how they must be set.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from delayd.bus import Survey
from delayd.bus.kafka_python.connections import close_driven, open_client
from delayd.bus.kafka_python.descriptions import (
    broker_settings,
    describe,
    metadata_request,
    survey,
)
from delayd.bus.kafka_python.library import (
    CoordinatorType,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    FindCoordinatorRequest,
    IsolationLevel,
    ListOffsetsRequest,
    OffsetFetchRequest,
    errors,
)
from delayd.bus.kafka_python.questions import Question, is_passing
from delayd.bus.kafka_python.settings import Properties
from delayd.bus.questions import LATEST, SURVEY_PATIENCE_MS, BrokerCluster
from delayd.errors import KafkaUnreachableError
from delayd.runtime.clock import SystemClock


class KafkaPythonCluster(BrokerCluster[Question]):
    """One administration client; see the port `Cluster`."""

    def __init__(self, properties: Properties) -> None:
        self._clock = SystemClock()
        self._client: Any = open_client(properties)
        self._client._net.start()
        self._connected: Any = None

    def broker_count(self, timeout_ms: int) -> int:
        question = self._question("counting the brokers", timeout_ms)
        return len(question.ask(lambda: metadata_request([])).brokers)

    def broker_settings(self, timeout_ms: int) -> dict[int, Mapping[str, str]]:
        question = self._question("asking brokers for their settings", timeout_ms)
        brokers = [each.node_id for each in question.ask(lambda: metadata_request([])).brokers]
        return broker_settings(brokers, question)

    def group_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]], timeout_ms: int
    ) -> dict[tuple[str, int], int]:
        question = self._question(f"asking for the offsets of the group {group}", timeout_ms)
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        for topic, number in partitions:
            numbers[topic].append(number)
        while True:
            found = question.ask(
                lambda: FindCoordinatorRequest(
                    key_type=CoordinatorType.GROUP.value, coordinator_keys=[group], min_version=4
                )
            ).coordinators[0]
            code = found.error_code
            if not code:
                [told] = question.ask(lambda: _offset_fetch(group, numbers), found.node_id).groups
                places = {
                    (topic.name, each.partition_index): each
                    for topic in told.topics
                    for each in topic.partitions
                }
                codes = [told.error_code, *(each.error_code for each in places.values())]
                code = next(filter(None, codes), 0)
            if not code:
                offsets = {place: each.committed_offset for place, each in places.items()}
                return {place: offset for place, offset in offsets.items() if offset >= 0}
            question.pause_or_raise(errors.for_code(code)(group))

    def close(self) -> None:
        if self._client is not None:
            close_driven(self._client)
            self._client = None

    def _create(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str],
        question: Question,
    ) -> bool:
        topic = CreateTopicsRequest.CreatableTopic
        wanted = topic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=[],
            configs=[topic.CreatableTopicConfig(name=k, value=v) for k, v in config.items()],
        )

        def request() -> CreateTopicsRequest:
            return CreateTopicsRequest(
                topics=[wanted], timeout_ms=question.timeout_ms, validate_only=False
            )

        error = _changed(request, "topics", question, errors.TopicAlreadyExistsError)
        return error is errors.NoError

    def _add_partitions(self, topic: str, partitions: int, question: Question) -> None:
        wanted = CreatePartitionsRequest.CreatePartitionsTopic(
            name=topic, count=partitions, assignments=None
        )

        def request() -> CreatePartitionsRequest:
            return CreatePartitionsRequest(
                topics=[wanted], timeout_ms=question.timeout_ms, validate_only=False
            )

        _changed(request, "results", question, errors.InvalidPartitionsError)

    def _survey(self, names: list[str], question: Question, patience_ms: int) -> Survey:
        return survey(names, question, patience_ms=patience_ms)

    def _leaders(self, topic: str, question: Question) -> dict[int, int] | None:
        found = describe([topic], question, patience_ms=question.timeout_ms)
        described = question.all_given(found).get(topic)
        return None if described is None else _leaders_in(described)

    def _leaders_by_topic(
        self, topics: list[str], question: Question
    ) -> tuple[dict[str, dict[int, int]], set[str]]:
        answers = describe(topics, question, patience_ms=SURVEY_PATIENCE_MS)
        found = {topic: _leaders_in(described) for topic, described in answers.given.items()}
        return found, set(answers.silent)

    def _offsets(
        self, topic: str, timeout_ms: int, at_ms: int, *, committed: bool
    ) -> dict[int, int]:
        question = self._question(f"asking for the offsets of {topic}", timeout_ms)
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        while True:
            by_leader: dict[int, list[int]] = defaultdict(list)
            for number, leader in self._leaders_of(topic, question).items():
                by_leader[leader].append(number)
            offsets: dict[int, int] = {}
            early: Exception | None = None
            for leader, numbers in by_leader.items():
                if leader < 0:
                    early = errors.LeaderNotAvailableError(topic)
                    continue
                places = [(topic, number) for number in numbers]
                request = partial(_offsets_request, places, at_ms, level)
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

    def _answering(
        self, leaders: Mapping[tuple[str, int], int], question: Question
    ) -> set[tuple[str, int]]:
        found: set[tuple[str, int]] = set()
        waiting = dict(leaders)
        while True:
            said = _offset_errors(question.ask_brokers(_requests_by_leader(waiting)))
            passing = {place for place, error in said.items() if is_passing(error)}
            found |= said.keys() - passing
            waiting = {place: waiting[place] for place in passing}
            if not waiting:
                return found
            try:
                question.pause("their leaders are not ready")
            except KafkaUnreachableError:
                return found

    def _question(self, doing: str, timeout_ms: int) -> Question:
        assert self._client is not None, "the cluster was closed"
        manager = self._client._manager
        if self._connected is None or self._connected.failed():
            self._connected = manager.bootstrap_async()
        question = Question(doing, timeout_ms, self._clock, self._client)
        question.await_connection(self._connected)
        return question


def _leaders_in(described: Any) -> dict[int, int]:
    return {p.partition_index: p.leader_id for p in described.partitions}


def _requests_by_leader(leaders: Mapping[tuple[str, int], int]) -> dict[int, Any]:
    places: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
    for place, leader in leaders.items():
        places[leader].append(place)
    level = IsolationLevel.READ_UNCOMMITTED
    return {leader: _offsets_request(led, LATEST, level) for leader, led in places.items()}


def _offset_errors(answers: Mapping[int, Any]) -> dict[tuple[str, int], type[BaseException]]:
    """Return what brokers said of each partition, if only that nothing is wrong."""
    return {
        (topic.name, partition.partition_index): errors.for_code(partition.error_code)
        for answer in answers.values()
        for topic in answer.topics
        for partition in topic.partitions
    }


def _offsets_request(places: Iterable[tuple[str, int]], at_ms: int, level: Any) -> Any:
    of_topic = ListOffsetsRequest.ListOffsetsTopic
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for topic, number in places:
        by_topic[topic].append(
            of_topic.ListOffsetsPartition(
                partition_index=number, current_leader_epoch=-1, timestamp=at_ms
            )
        )
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=level,
        topics=[of_topic(name=name, partitions=asked) for name, asked in by_topic.items()],
        min_version=2,  # the first that knows of committed records
    )


def _offset_fetch(group: str, numbers: Mapping[str, list[int]]) -> Any:
    of_group = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = [
        of_group.OffsetFetchRequestTopics(name=topic, partition_indexes=some)
        for topic, some in numbers.items()
    ]
    return OffsetFetchRequest(
        groups=[of_group(group_id=group, topics=topics)],
        require_stable=True,
        min_version=8,
        max_version=8,
    )


def _changed(
    request: Callable[[], Any], field: str, question: Question, done: type[BaseException]
) -> type[BaseException]:
    """Have the controller change one topic; return how it answers in that field: with no error, or
    with the one that says that it was done before. Asks again while the question has time."""
    while True:
        controller = question.ask(lambda: metadata_request([])).controller_id
        answer = question.ask(request, controller if controller >= 0 else None)
        [result] = getattr(answer, field)
        error: type[BaseException] = errors.for_code(result.error_code)
        if error in (errors.NoError, done):
            return error
        question.pause_or_raise(error(result.error_message))
