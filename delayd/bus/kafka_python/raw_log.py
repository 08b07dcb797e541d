"""The log as it lies on the brokers, with kafka-python's requests; see the port `delayd.bus.raw`.

librdkafka has none of this: it hides batches and markers, and its administration neither lists the
producers of a partition nor ends a transaction there.

Not here: what a transaction holds, and whether it may be ended.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from functools import partial
from struct import Struct
from typing import Any, Final

from delayd.bus.kafka_python.cluster import KafkaPythonCluster
from delayd.bus.kafka_python.descriptions import metadata_request
from delayd.bus.kafka_python.failures import told
from delayd.bus.kafka_python.library import (
    ApiVersionsRequest,
    CoordinatorType,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    IsolationLevel,
    ListTransactionsRequest,
    MemoryRecords,
    MetadataRequest,
    WriteTxnMarkersRequest,
    errors,
)
from delayd.bus.kafka_python.questions import Question, is_passing
from delayd.bus.kafka_python.records import records_of
from delayd.bus.raw import (
    Active,
    Batch,
    Marker,
    OpenTransaction,
    Place,
    ProducerEpoch,
    Producers,
    TransactionState,
)
from delayd.errors import ConsumerError

FETCH_BYTES: Final = 4 * 1024 * 1024
FETCH_WAIT_MS: Final = 500
FETCH_VERSION_MAX: Final = 12
"""The last that names topics by name."""
_OVER: Final = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
"""The states of a transactional id without a transaction."""
PLACES_MAX: Final = 1_000
"""Partitions in one question."""
_MARKER_KEY: Final = Struct(">hh")
"""Version and type; type 1 is a commit."""
_MARKER_VALUE: Final = Struct(">hi")
"""Version and coordinator epoch."""


class KafkaPythonRawLog(KafkaPythonCluster):
    """One client; see the port `RawLog`."""

    def places(self, timeout_ms: int) -> list[Place]:
        question = self._question("listing all topics", timeout_ms)
        return sorted(self._leaders_of_all(question))

    def producers(self, places: Iterable[Place], timeout_ms: int) -> Producers:
        question = self._question("asking for the producers of partitions", timeout_ms)
        waiting = set(places)
        active: dict[Place, tuple[Active, ...]] = {}
        refused: dict[Place, str] = {}
        while waiting:
            leaders = self._leaders_of_all(question)
            by_leader: dict[int, list[Place]] = defaultdict(list)
            for place in sorted(waiting):
                by_leader[leaders.get(place, -1)].append(place)
            why: BaseException = errors.LeaderNotAvailableError()
            for leader, led in by_leader.items():
                for at in range(0, len(led) if leader >= 0 else 0, PLACES_MAX):
                    some = led[at : at + PLACES_MAX]
                    answer = question.ask(partial(_producers_request, some), leader)
                    for place, partition in _partitions_of(answer.topics):
                        error = errors.for_code(partition.error_code)
                        if error is errors.NoError:
                            active[place] = tuple(map(_active, partition.active_producers))
                        elif is_passing(error):
                            why = error(place)
                        else:
                            refused[place] = told(error(partition.error_message))
            waiting -= active.keys() | refused.keys()
            if waiting:
                question.pause_or_raise(why)
        return Producers(active, refused)

    def transaction(self, transactional_id: str, timeout_ms: int) -> TransactionState | None:
        question = self._question(f"asking for the transaction of {transactional_id}", timeout_ms)
        while True:
            found = question.ask(
                lambda: FindCoordinatorRequest(
                    key_type=CoordinatorType.TRANSACTION.value,
                    coordinator_keys=[transactional_id],
                    min_version=4,
                )
            ).coordinators[0]
            error = errors.for_code(found.error_code)
            if error is errors.NoError:
                answer = question.ask(
                    lambda: DescribeTransactionsRequest(transactional_ids=[transactional_id]),
                    found.node_id,
                ).transaction_states[0]
                error = errors.for_code(answer.error_code)
                if error is errors.NoError:
                    producer = ProducerEpoch(answer.producer_id, answer.producer_epoch)
                    return TransactionState(answer.transaction_state, producer)
            if error is errors.TransactionalIdNotFoundError:
                return None
            question.pause_or_raise(error(transactional_id))

    def open_transactions(
        self, producers: Iterable[int], timeout_ms: int
    ) -> dict[int, OpenTransaction]:
        question = self._question("asking for open transactions", timeout_ms)
        wanted = list(producers)
        found: dict[int, OpenTransaction] = {}
        brokers = question.ask(lambda: metadata_request([])).brokers
        for broker in [each.node_id for each in brokers] if wanted else ():
            while True:
                answer = question.ask(
                    lambda: ListTransactionsRequest(
                        state_filters=[], producer_id_filters=wanted, max_version=0
                    ),
                    broker,
                )
                if not answer.error_code:
                    break
                question.pause_or_raise(errors.for_code(answer.error_code)())
            names = [each.transactional_id for each in answer.transaction_states]
            described = question.ask(
                partial(DescribeTransactionsRequest, transactional_ids=names), broker
            ).transaction_states
            for each in described:
                if not each.error_code and each.transaction_state not in _OVER:
                    found[each.producer_id] = OpenTransaction(
                        each.transactional_id,
                        each.transaction_state,
                        each.transaction_start_time_ms,
                    )
        return found

    def features(self, timeout_ms: int) -> dict[str, tuple[int, int]]:
        question = self._question("asking for the features of brokers", timeout_ms)
        answer = question.ask(
            lambda: ApiVersionsRequest(
                client_software_name="delayd", client_software_version="0", min_version=3
            )
        )
        highest = {each.name: each.max_version for each in answer.supported_features}
        return {
            each.name: (each.max_version_level, highest.get(each.name, each.max_version_level))
            for each in answer.finalized_features
        }

    def read(
        self, place: Place, start: int, end: int, producers: Container[int], timeout_ms: int
    ) -> Iterator[Batch | Marker]:
        at = start
        while at < end:
            for batch in self._fetched(place, at, timeout_ms):
                if batch.base_offset >= end:
                    return
                if batch.last_offset >= at and batch.producer_id in producers:
                    yield _read(place.partition, batch, at, end)
                at = max(at, batch.next_offset)

    def write_marker(self, place: Place, marker: Marker, timeout_ms: int) -> None:
        question = self._question(f"writing a marker to {place}", timeout_ms)
        of_marker = WriteTxnMarkersRequest.WritableTxnMarker
        while True:
            leader = self._leaders_of_all(question).get(place, -1)
            error: Any = errors.LeaderNotAvailableError
            if leader >= 0:
                answer = question.ask(
                    lambda: WriteTxnMarkersRequest(
                        markers=[
                            of_marker(
                                producer_id=marker.producer.id,
                                producer_epoch=marker.producer.epoch,
                                transaction_result=marker.is_commit,
                                topics=[
                                    of_marker.WritableTxnMarkerTopic(
                                        name=place.topic, partition_indexes=[place.partition]
                                    )
                                ],
                                coordinator_epoch=marker.coordinator_epoch,
                            )
                        ]
                    ),
                    leader,
                )
                [result] = answer.markers[0].topics[0].partitions
                error = errors.for_code(result.error_code)
            if error is errors.NoError:
                return
            question.pause_or_raise(error(str(place)))

    def _fetched(self, place: Place, at: int, timeout_ms: int) -> list[Any]:
        question = self._question(f"reading {place}", timeout_ms)
        of_topic = FetchRequest.FetchTopic
        asked = of_topic(
            topic=place.topic,
            partitions=[
                of_topic.FetchPartition(
                    partition=place.partition,
                    fetch_offset=at,
                    log_start_offset=-1,
                    partition_max_bytes=FETCH_BYTES,
                )
            ],
        )
        while True:
            leader = self._leaders_of_all(question).get(place, -1)
            error: Any = errors.LeaderNotAvailableError
            if leader >= 0:
                answer = question.ask(
                    lambda: FetchRequest(
                        max_wait_ms=FETCH_WAIT_MS,
                        min_bytes=1,
                        max_bytes=FETCH_BYTES,
                        isolation_level=IsolationLevel.READ_UNCOMMITTED,
                        session_id=0,
                        session_epoch=-1,
                        topics=[asked],
                        forgotten_topics_data=[],
                        rack_id="",
                        min_version=4,
                        max_version=FETCH_VERSION_MAX,
                    ),
                    leader,
                )
                found = answer.responses[0].partitions[0]
                error = errors.for_code(found.error_code)
                if error is errors.NoError:
                    if batches := _batches(place, found.records):
                        return batches
                    question.pause("nothing came")
                    continue
            question.pause_or_raise(error(str(place)))

    def _leaders_of_all(self, question: Question) -> dict[Place, int]:
        answer = question.ask(
            lambda: MetadataRequest(
                topics=None,
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
        )
        return {
            Place(topic.name, partition.partition_index): partition.leader_id
            for topic in answer.topics
            if not topic.is_internal and not topic.error_code
            for partition in topic.partitions
        }


def _producers_request(places: list[Place]) -> Any:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in places:
        by_topic[topic].append(partition)
    of_topic = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(
        topics=[of_topic(name=name, partition_indexes=some) for name, some in by_topic.items()]
    )


def _partitions_of(topics: Any) -> Iterator[tuple[Place, Any]]:
    for topic in topics:
        for partition in topic.partitions:
            yield Place(topic.name, partition.partition_index), partition


def _active(said: Any) -> Active:
    start = said.current_txn_start_offset
    return Active(
        ProducerEpoch(said.producer_id, said.producer_epoch),
        said.coordinator_epoch,
        said.last_timestamp,
        start if start >= 0 else None,
    )


def _batches(place: Place, data: Any) -> list[Any]:
    """Return the whole batches of an answer."""
    records, found = MemoryRecords(bytes(data or b"")), []
    while (batch := records.next_batch()) is not None:
        if batch.magic < 2 or not batch.validate_crc():
            raise ConsumerError(f"{place} is damaged at offset {batch.base_offset}")
        found.append(batch)
    return found


def _read(partition: int, batch: Any, start: int, end: int) -> Batch | Marker:
    producer = ProducerEpoch(batch.producer_id, batch.producer_epoch)
    records = records_of(partition, batch)
    if batch.is_control_batch and records:  # compaction may have taken its record
        [control] = records
        _, kind = _MARKER_KEY.unpack_from(control.key or b"")
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(control.value or b"")
        return Marker(producer, kind == 1, coordinator_epoch, control.offset)
    held = [record for record in records if start <= record.offset < end]
    return Batch(producer, batch.is_transactional, batch.base_sequence, held)
