"""The frontier topic as a log: what counts in it, and what does not."""

import json

import pytest
from manual_clock import ManualClock
from structlog.testing import capture_logs

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.cluster.frontier_log import POLL_MS, POLL_RECORDS_MAX, FrontierLog
from delayd.cluster.topics import create_topics, last_frontier, load_settings
from delayd.errors import FrontierError
from replication.record import encode, record_key

FRONTIER = "delayd-frontier"
KEY = "a key that is long enough"
TIMEOUT_MS = 1_000


@pytest.fixture
def kafka() -> MemoryKafka:
    made = MemoryKafka(ManualClock())
    create_topics(MemoryBus(made), cluster="c", cluster_key=KEY, partitions=1)
    return made


@pytest.mark.parametrize("key", [b"another-key", b"shard-1", b""])
def test_a_stray_is_no_frontier_whatever_its_value(kafka: MemoryKafka, key: bytes) -> None:
    """docs/design/frontier.md, Strays: not even the bytes of a true frontier.

    Rules: stray-skipped
    """
    bus = MemoryBus(kafka)
    log = FrontierLog(bus, FRONTIER, 0)
    first = log.open(TIMEOUT_MS)
    assert first is not None
    for value in (b"hello", None, encode(first.record)):
        kafka.append(FRONTIER, 0, key, value)
    assert load_settings(bus, "c", "delayd-", TIMEOUT_MS) == first
    assert log.poll(0) == [] and log.newest == first
    log.catch_up(log.stable_end(TIMEOUT_MS), TIMEOUT_MS)
    kafka.append(FRONTIER, 0, record_key(0), encode(first.record))
    assert [seen.offset for seen in log.poll(0)] == [log.stable_end(TIMEOUT_MS) - 1]


def test_each_stray_is_counted_and_logged_once(kafka: MemoryKafka) -> None:
    """Rules: stray-skipped"""
    for _ in range(100):
        kafka.append(FRONTIER, 0, b"another-key", b"hello")
    first = kafka.log(FRONTIER, 0).end_offset - 100
    log = FrontierLog(MemoryBus(kafka), FRONTIER, 0)
    with capture_logs() as lines:
        log.open(TIMEOUT_MS)  # reads the last ones twice
    assert log.strays_count == 100
    assert sum(line["count"] for line in lines) == 100
    assert {line["event"] for line in lines} == {"frontier_strays_skipped"}
    assert min(line["first_offset"] for line in lines) == first


def test_no_number_of_strays_hides_the_last_frontier(kafka: MemoryKafka) -> None:
    """To skip them is to get on: only waiting has a bound.

    Rules: stray-skipped
    """
    for _ in range(4 * POLL_RECORDS_MAX):
        kafka.append(FRONTIER, 0, b"another-key", b"hello")
    assert last_frontier(MemoryBus(kafka), FRONTIER, 2 * POLL_MS) is not None


def test_a_topic_of_strays_alone_can_be_initialised() -> None:
    kafka = MemoryKafka(ManualClock())
    kafka.create_topic(
        FRONTIER, 1, {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    )
    kafka.append(FRONTIER, 0, b"another-key", b"hello")
    create_topics(MemoryBus(kafka), cluster="c", cluster_key=KEY, partitions=1)
    assert last_frontier(MemoryBus(kafka), FRONTIER, TIMEOUT_MS) is not None


def test_garbage_under_the_key_of_the_shard_is_refused(kafka: MemoryKafka) -> None:
    """It may be the frontier of a newer version: to skip that would deliver again.

    Rules: stray-skipped
    """
    bus = MemoryBus(kafka)
    kafka.append(FRONTIER, 0, record_key(0), b"hello")
    with pytest.raises(FrontierError) as refused:
        last_frontier(bus, FRONTIER, TIMEOUT_MS)
    assert "A forged frontier record" in refused.value.remedy


def newer(value: bytes, **fields: object) -> bytes:
    return json.dumps({**json.loads(value), **fields}).encode()


def test_optional_fields_of_a_newer_release_are_passed_over(kafka: MemoryKafka) -> None:
    """docs/design/frontier.md, Optional fields.

    Rules: optional-fields
    """
    bus = MemoryBus(kafka)
    first = load_settings(bus, "c", "delayd-", TIMEOUT_MS)
    kafka.append(FRONTIER, 0, record_key(0), newer(encode(first.record), later=1))
    assert load_settings(bus, "c", "delayd-", TIMEOUT_MS).record == first.record


def test_the_release_that_knows_a_needed_feature_is_named(kafka: MemoryKafka) -> None:
    """docs/design/frontier.md, Optional fields.

    Rules: needed-features
    """
    bus = MemoryBus(kafka)
    first = load_settings(bus, "c", "delayd-", TIMEOUT_MS)
    needing = newer(encode(first.record), format=3, needs={"later": "9.1.0"})
    kafka.append(FRONTIER, 0, record_key(0), needing)
    with pytest.raises(FrontierError, match=r"needs later.*run delayd 9\.1\.0 or later"):
        load_settings(bus, "c", "delayd-", TIMEOUT_MS)
