"""Topics as tables, on a real broker: what is read is what is there, by another driver's word."""

import warnings
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from nodes import HANGS_S
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from raw_records import RawWriter

from delayd.audit.reading.access import Access
from delayd.audit.reading.kafka import read_here, read_ranges, read_topics
from delayd.audit.reading.partition import ReadError
from delayd.audit.reading.ranges import Range
from delayd.audit.spans import Span, span_of
from delayd.audit.tables import RECORDS
from delayd.bus.murmur2 import murmur2
from delayd.cluster.connect import open_bus
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import create_topic
from delayd.request.proof import proof_of
from delayd.request.request import RequestLimits
from delayd.runtime.clock import SystemClock

CLOCK = SystemClock()
KEY = "the key of clusters in tests"
RECORDS_WRITTEN = 20_000


class Topics(NamedTuple):
    """Where topics are made and read."""

    cluster: LocalCluster
    access: Path

    def create(self, name: str, partitions: int, **config: str) -> str:
        config = {key.replace("_", "."): value for key, value in config.items()}
        bus = open_bus(self.cluster.bootstrap)
        return create_topic(bus, f"audit-reading-{name}", partitions, config)

    def span(self, topic: str) -> Span:
        with closing(open_bus(self.cluster.bootstrap).cluster()) as kafka:
            return span_of(kafka, CLOCK, topic)


@pytest.fixture(scope="module")
def topics(kafka_and_etcd: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Topics:
    access = Access(kafka_and_etcd.bootstrap, {}, "here", KEY)
    return Topics(kafka_and_etcd, access.write(tmp_path_factory.mktemp("access") / "access"))


@pytest.fixture(scope="module")
def mixed(topics: Topics) -> str:
    """20,000 records that are committed, beside aborted ones and markers, in four codecs."""
    topic = topics.create("mixed", 2, message_timestamp_type="LogAppendTime", segment_ms="700")
    for number, codec in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
        producer = Producer(
            {
                "bootstrap.servers": topics.cluster.bootstrap,
                "transactional.id": f"audit-reading-{codec}",
                "compression.type": codec,
                "retry.backoff.ms": 5,
            }
        )
        producer.init_transactions()
        for part in range(4):
            producer.begin_transaction()
            for n in range(RECORDS_WRITTEN // 20):
                _produce(producer, topic, number * 100_000 + part * 10_000 + n)
            producer.commit_transaction()
            producer.begin_transaction()
            for n in range(300 if part % 2 else 3):
                _produce(producer, topic, -n)
            producer.flush()
            producer.abort_transaction()
    return topic


def test_20000_records_are_those_that_another_driver_sees(
    spark: SparkSession, topics: Topics, mixed: str
) -> None:
    span = topics.span(mixed)
    table = read_topics(spark, topics.access, [span], "buffer", offsets_max=60_000)
    assert table.schema == RECORDS

    rows = _rows(table)

    here = read_here(spark, topics.access, [span], "buffer")
    assert here is not None and here.schema == RECORDS
    assert _rows(here) == rows
    seen = list(_seen(topics.cluster.bootstrap, mixed, span))
    assert len(seen) == RECORDS_WRITTEN < sum(span.ends)
    log_ms: dict[int, int] = {}
    for record, row in zip(seen, rows, strict=True):
        log_ms[record.partition] = max(log_ms.get(record.partition, 0), record.timestamp)
        headers = list(record.headers)
        control = dict.fromkeys(row["control"]) | _control(headers)
        assert row == {
            "topic": mixed,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp,
            "is_append_time": True,
            "log_ms": log_ms[record.partition],
            "key": record.key,
            "value": record.value,
            "headers": _pairs(h for h in headers if not h[0].startswith("delayd-")),
            "record_headers": _pairs(headers),
            "control": control,
            "flaw": _flaw(headers),
            "older_flaw": _flaw(headers),
            "flaw_of_5": _flaw(headers),
            "flaw_of_6": _flaw(headers),
            "size_bytes": _size(record),
            "key_murmur2": None if record.key is None else murmur2(record.key) & 0x7FFFFFFF,
            "is_proved": None,
        }


def test_more_than_a_process_may_read_by_itself_is_left_to_spark(
    spark: SparkSession, topics: Topics, mixed: str
) -> None:
    assert read_here(spark, topics.access, [topics.span(mixed)], "buffer", bytes_max=10_000) is None


def test_several_ranges_of_a_partition_are_as_one(topics: Topics, mixed: str) -> None:
    span = topics.span(mixed)
    last = span.ends[1]
    [one, several] = [
        [batch.to_pylist() for batch in _read(topics, "buffer", *ranges)]
        for ranges in (
            [Range(mixed, 1, 0, 0, last)],
            [Range(mixed, 1, 0, at, min(last, at + 997)) for at in range(0, last, 997)],
        )
    ]

    assert len(several) > len(one) >= 1
    assert list(chain(*several)) == list(chain(*one))


def test_a_range_without_records_ends_and_is_empty(topics: Topics, mixed: str) -> None:
    span = topics.span(mixed)
    last = span.ends[0]

    assert list(_read(topics, "target", Range(mixed, 0, 0, last - 3, last))) == []
    assert list(_read(topics, "target", Range(mixed, 0, 0, 5, 5))) == []


def test_ranges_that_the_broker_does_not_fill_end_with_an_error(
    spark: SparkSession, topics: Topics, mixed: str
) -> None:
    span = topics.span(mixed)
    past = Span(mixed, span.starts, (span.ends[0], span.ends[1] + 5))

    with pytest.raises(PySparkException, match="nothing came for 1 s at offset"):
        read_topics(spark, topics.access, [past], "target", stall_ms=1000).count()


def test_a_deleted_beginning_is_an_error(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create("trimmed", 1)
    producer = Producer({"bootstrap.servers": topics.cluster.bootstrap})
    for n in range(100):
        producer.produce(topic, b"%d" % n)
    producer.flush()
    before = topics.span(topic)
    _delete_before(topics.cluster.bootstrap, topic, 50)

    with pytest.raises(PySparkException, match="deleted its beginning while it was being read"):
        read_topics(spark, topics.access, [before], "target").count()
    with pytest.raises(ReadError, match="deleted"):
        read_here(spark, topics.access, [before], "target")
    assert read_topics(spark, topics.access, [topics.span(topic)], "target").count() == 50


def test_odd_headers_are_kept_or_named(topics: Topics) -> None:
    topic = topics.create("odd", 1)
    records: list[tuple[list[Any], list[Any], str | None]] = [
        ([("a", None), ("a", b""), ("", b"\xff\0"), ("ü", b"1")], ["a", "a", "", "ü"], None),
        ([("a", b"1"), (b"\xff\xfe", b"2")], ["delayd-unreadable-headers"], "not-utf8"),
        ([("delayd-topic", b"\xff"), ("b", None)], ["delayd-topic", "b"], "not-utf8"),
        ([("delayd-id", b"1"), ("delayd-id", b"1")], ["delayd-id"] * 2, "repeated-header"),
        ([("delayd-id", None), ("delayd-nope", b"1")], ["delayd-id", "delayd-nope"], "null-header"),
        ([(b"x\xff", b"")], ["delayd-unreadable-headers"], "not-utf8"),
        ([], [], None),
    ]
    with closing(RawWriter(topics.cluster.bootstrap, topic)) as writer:
        for headers, _, _ in records:
            writer.send(0, b"k", b"v", headers)
            writer.flush()

    [batch] = _read(topics, "buffer", Range(topic, 0, 0, 0, len(records)))

    rows = batch.to_pylist()
    for row, (_, names, flaw) in zip(rows, records, strict=True):
        assert [header["name"] for header in row["record_headers"]] == names
        assert row["flaw"] == flaw
    assert [header["value"] for header in rows[0]["headers"]] == [None, b"", b"\xff\0", b"1"]


def test_proofs_are_checked_with_the_key_and_the_key_stays_out_of_the_plan(
    spark: SparkSession, topics: Topics
) -> None:
    topic = topics.create("proofs", 1)
    headers: list[Any] = [("a", None), ("delayd-continues", b"5")]
    limits = RequestLimits(0, 1, 1, "here", KEY.encode())
    right = proof_of(limits, 0, b"k", None, headers)
    with closing(RawWriter(topics.cluster.bootstrap, topic)) as writer:
        for proof in ([right], [b"0" * 64], [], [right, right]):
            writer.send(0, b"k", None, [*headers, *(("delayd-proof", p) for p in proof)])
        writer.send(0, b"k", b"", [*headers, ("delayd-proof", right)])
        writer.send(0, b"k", b"", [("delayd-topic", b"t")])
        writer.flush()
    span = topics.span(topic)
    without = Access(topics.cluster.bootstrap).write(topics.access.with_name("keyless"))

    table = read_topics(spark, topics.access, [span], "buffer")

    assert [row["is_proved"] for row in _rows(table)] == [True, False, False, False, False, None]
    assert [r["is_proved"] for r in _rows(read_topics(spark, without, [span], "buffer"))] == [
        *(None, None, False, None, None, None),
    ]
    plan: Any = table._jdf.queryExecution()
    options = plan.analyzed().options().asCaseSensitiveMap().toString()
    assert KEY not in options + plan.toString() and topic in options


def test_times_that_step_back_make_no_difference_to_ranges(topics: Topics) -> None:
    topic = topics.create("times", 1)
    producer = Producer({"bootstrap.servers": topics.cluster.bootstrap, "linger.ms": 0})
    base_ms = CLOCK.wall_ms() - 10_000_000
    times = [base_ms + (n * 7919) % 5000 + 10 * n for n in range(3_000)]
    for n, time_ms in enumerate(times):
        producer.produce(topic, b"%d" % n, timestamp=time_ms)
        if n % 50 == 0:
            producer.flush()
    producer.flush()

    log_ms = [
        row["log_ms"]
        for at in range(0, 3_000, 500)
        for batch in _read(topics, "buffer", Range(topic, 0, 0, at, at + 500))
        for row in batch.to_pylist()
    ]

    assert log_ms == [max(times[: n + 1]) for n in range(3_000)]


def _produce(producer: Producer, topic: str, n: int) -> None:
    headers: list[tuple[str, bytes | None]] = [("n", b"%d" % n), ("\u00fc", b"\xff\x00")]
    if n % 3 == 0:
        headers.insert(1, ("delayd-topic", b"t%d" % n))
        headers.append(("n", None))
    if n % 7 == 0:
        headers.append(("delayd-id", None if n % 2 else b"id"))
    if n % 11 == 0:
        headers = []
    while True:
        try:
            producer.produce(
                topic,
                None if n % 5 == 0 else b"v" * (n % 300),
                None if n % 4 == 0 else b"key-%d" % (n % 1000),
                partition=n % 2,
                headers=headers,  # type: ignore[arg-type]
            )
            return
        except BufferError:
            producer.poll(0.1)


def _read(topics: Topics, role: str, *ranges: Range) -> Iterator[Any]:
    return read_ranges(Access.read(topics.access), role, ranges, 10_000)


def _rows(table: DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.toArrow().to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def _seen(bootstrap: str, topic: str, span: Span) -> Iterator[Any]:
    """All committed records as kafka-python has them, by partition and offset."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kafka import KafkaConsumer, TopicPartition
    consumer: Any = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    with closing(consumer):
        for partition, end in enumerate(span.ends):
            at = TopicPartition(topic, partition)
            consumer.assign([at])
            consumer.seek(at, 0)
            deadline_ms = CLOCK.monotonic_ms() + HANGS_S * 1_000
            while consumer.position(at) < end and CLOCK.monotonic_ms() < deadline_ms:
                for records in consumer.poll(timeout_ms=100).values():
                    yield from records


def _delete_before(bootstrap: str, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        done.result(HANGS_S)


def _pairs(headers: Any) -> list[dict[str, Any]]:
    return [{"name": name, "value": content} for name, content in headers]


def _control(headers: list[tuple[str, bytes | None]]) -> dict[str, str]:
    return {
        name.removeprefix("delayd-"): content.decode()
        for name, content in headers
        if name.startswith("delayd-") and content
    }


def _flaw(headers: list[tuple[str, bytes | None]]) -> str | None:
    own = [content for name, content in headers if name.startswith("delayd-")]
    return "null-header" if None in own else None


def _size(record: Any) -> int:
    size = 128 + len(record.key or b"") + len(record.value or b"")
    return size + sum(10 + len(name.encode()) + len(c or b"") for name, c in record.headers)
