"""The guard of a reader that cannot tell batches apart, on Kafka's twin."""

from contextlib import closing

import pytest
from flattening import FlatteningConsumer
from manual_clock import ManualClock

from delayd.bus import Consumer, Headers, Position, Record
from delayd.bus.guarded import GuardedConsumer
from delayd.bus.memory import MemoryBus, MemoryKafka, Refused
from delayd.bus.unreadable import RECORD_BYTES, BatchError, UnreadableBatch, weight_max
from delayd.runtime import native
from delayd.runtime.native.flat import Surveyor

pytestmark = pytest.mark.usefixtures("either_path")
TOPIC = "buffer"
BYTES_MAX = 10_000
HEAVY: list[tuple[bytes, Headers]] = [(bytes(1_000), [])] * 20


@pytest.fixture
def kafka() -> MemoryKafka:
    kafka = MemoryKafka(ManualClock())
    kafka.create_topic(TOPIC, 2, {"message.timestamp.type": "LogAppendTime"})
    return kafka


def reader(kafka: MemoryKafka, *, coarse: bool = True, at: int = 0) -> Consumer:
    bus = MemoryBus(kafka, coarse_bytes_max=BYTES_MAX if coarse else None)
    consumer = bus.consumer(TOPIC)
    made_flat(consumer)
    consumer.assign({0: Position(at), 1: Position(0)})
    return consumer


def made_flat(consumer: Consumer) -> None:
    """Have the fast reader hand out flat records, on the native path."""
    if native.library is not None and isinstance(consumer, GuardedConsumer):
        consumer._fast = FlatteningConsumer(consumer._fast, Surveyor(native.library))


def append(kafka: MemoryKafka, count: int, partition: int = 0, value: bytes = b"v") -> None:
    for _ in range(count):
        clock = kafka.clock
        assert isinstance(clock, ManualClock)
        clock.now_ms += 1
        kafka.append(TOPIC, partition, None, value)


def abort_one(kafka: MemoryKafka, partition: int) -> None:
    bus = MemoryBus(kafka)
    producer = bus.transactional_producer("a-user")
    producer.init_transactions(1_000)
    producer.begin()
    producer.send(TOPIC, key=None, value=b"aborted", headers=[], partition=partition)
    producer.flush(1_000)
    producer.close()
    bus.transactional_producer("a-user").init_transactions(1_000)


def read_all(consumer: Consumer, records_max: int, end: int, partition: int = 0) -> list[Record]:
    records: list[Record] = []
    for _ in range(1_000):
        got = consumer.poll(records_max, 0)
        assert len(got) <= records_max
        records += got
        for number in {record.partition for record in got}:
            last = max(r.offset for r in got if r.partition == number)
            assert consumer.position(number) > last
        if consumer.position(partition) == end:
            return records
    raise AssertionError(f"stood still at {consumer.position(partition)}")


@pytest.mark.parametrize("is_refused", [True, False])
@pytest.mark.parametrize("records_max", [1, 3, 7, 20, 21, 1_000])
def test_a_guarded_reader_reads_what_a_careful_one_reads(
    kafka: MemoryKafka, records_max: int, is_refused: bool
) -> None:
    """Rules: batch-unreadable"""
    append(kafka, 5)
    kafka.append_heavy(TOPIC, 0, HEAVY, is_refused=is_refused)
    append(kafka, 5)
    kafka.append_heavy(TOPIC, 0, HEAVY, is_refused=is_refused)
    kafka.append_heavy(TOPIC, 0, HEAVY, is_refused=not is_refused)
    append(kafka, 1)
    end = kafka.log(TOPIC, 0).end_offset
    seen = []
    for coarse in (True, False):
        with closing(reader(kafka, coarse=coarse)) as consumer:
            seen.append(read_all(consumer, records_max, end))
    assert seen[0] == seen[1]
    batches = [record for record in seen[0] if isinstance(record, UnreadableBatch)]
    assert [batch.offset for batch in batches] == [24, 49, 69] and len(seen[0]) == 14


@pytest.mark.parametrize("records_max", [25, 1_000])
def test_a_reader_is_careful_up_to_where_it_is_told_to_be(
    kafka: MemoryKafka, records_max: int
) -> None:
    """Rules: batch-unreadable"""
    append(kafka, 3, partition=1)
    log = kafka.log(TOPIC, 0)
    kafka.append_heavy(TOPIC, 0, HEAVY, is_refused=False)
    careful_to = {0: log.end_offset, 1: 3}
    bus = MemoryBus(kafka, coarse_bytes_max=BYTES_MAX)
    with closing(bus.consumer(TOPIC, careful_to=careful_to)) as consumer:
        made_flat(consumer)
        consumer.assign({0: Position(0), 1: Position(0)})
        assert len(read_all(consumer, records_max, log.end_offset)) >= 1
        assert log.expanded_whole == 0
        kafka.append_heavy(TOPIC, 0, HEAVY, is_refused=False)
        append(kafka, 1)
        records = read_all(consumer, records_max, log.end_offset)
        assert isinstance(records[0], UnreadableBatch) and len(records) == 2
    assert log.expanded_whole > 0, "behind it the fast reader reads"


def test_other_partitions_keep_their_order_meanwhile(kafka: MemoryKafka) -> None:
    append(kafka, 30, partition=1)
    append(kafka, 2)
    kafka.append_heavy(TOPIC, 0, HEAVY)
    append(kafka, 30, partition=1)
    with closing(reader(kafka)) as consumer:
        records = read_all(consumer, 7, 60, partition=1)
    assert [record.offset for record in records if record.partition == 1] == list(range(60))


def test_what_is_many_in_a_millisecond_and_no_batch_is_read_record_by_record(
    kafka: MemoryKafka,
) -> None:
    for _ in range(30):  # in one millisecond
        kafka.append(TOPIC, 0, None, bytes(1_000))
    with closing(reader(kafka)) as consumer:
        records = read_all(consumer, 4, 30)
    assert [record.offset for record in records] == list(range(30))
    assert not any(isinstance(record, UnreadableBatch) for record in records)


def test_nothing_is_passed_that_is_held_back(kafka: MemoryKafka) -> None:
    kafka.append_heavy(TOPIC, 0, HEAVY[:5], is_refused=False)  # light enough
    append(kafka, 3, partition=1)
    with closing(reader(kafka)) as consumer:
        seen: set[tuple[int, int]] = set()
        while len(seen) < 8:
            seen |= {(r.partition, r.offset) for r in consumer.poll(2, 0)}
            for partition in (0, 1):
                read = {offset for number, offset in seen if number == partition}
                assert consumer.position(partition) <= len(read)


@pytest.mark.parametrize("records_max", [1, 1_000])
def test_nothing_is_asked_for_that_was_told_to_be_passed(
    kafka: MemoryKafka, records_max: int
) -> None:
    """Retention deletes what every node has passed: also markers, and what was aborted."""
    append(kafka, 2, partition=1)
    abort_one(kafka, 1)
    append(kafka, 1, partition=1)
    log = kafka.log(TOPIC, 1)
    with closing(reader(kafka)) as consumer:
        while consumer.position(1) < log.end_offset:
            consumer.poll(records_max, 0)
            log.delete_before(consumer.position(1))
        abort_one(kafka, 1)
        consumer.poll(records_max, 0)
        log.delete_before(consumer.position(1))
        kafka.append_heavy(TOPIC, 0, HEAVY)
        append(kafka, 1, partition=1)
        records = read_all(consumer, records_max, log.end_offset, partition=1)
    assert [r.value for r in records if r.partition == 1] == [b"v"]


def test_a_new_assignment_forgets_the_examination(kafka: MemoryKafka) -> None:
    kafka.append_heavy(TOPIC, 0, HEAVY)
    append(kafka, 4)
    with closing(reader(kafka)) as consumer:
        consumer.poll(0, 0)
        consumer.assign({0: Position(20)})
        assert [record.offset for record in read_all(consumer, 10, 24)] == [20, 21, 22, 23]


def test_without_a_guard_the_coarse_reader_ends(kafka: MemoryKafka) -> None:
    from delayd.bus.memory.consumer import MemoryConsumer
    from delayd.bus.memory.link import Link

    kafka.append_heavy(TOPIC, 0, HEAVY)
    consumer = MemoryConsumer(kafka, Link(), TOPIC, is_coarse=True)
    consumer.assign({0: Position(0)})
    with pytest.raises(BatchError) as raised:
        consumer.poll(10, 0)
    assert (raised.value.partition, raised.value.offset) == (0, 0)


def test_a_topic_that_stores_batches_uncompressed_takes_none(kafka: MemoryKafka) -> None:
    kafka.create_topic("created", 1, {"compression.type": "uncompressed"})
    with pytest.raises(Refused, match="MSG_SIZE_TOO_LARGE"):
        kafka.append_heavy("created", 0, HEAVY)


def test_a_weight_counts_all_that_a_record_takes() -> None:
    bare = Record(0, 0, 0, 0, None, None, [])
    full = bare._replace(key=b"12", value=b"345", headers=[("h", b"67"), ("ü", None)])
    assert weight_max([bare]) > RECORD_BYTES
    assert weight_max([full]) >= weight_max([bare]) + 2 + 3 + 1 + 2 + 2 + 2 * 10
    assert weight_max([bare, full]) == weight_max([bare]) + weight_max([full])
