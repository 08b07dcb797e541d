"""How far back a topic proves anything, by what Kafka has left of it and how it deletes.

Source: docs/design/audit.md, "Retention".
"""

import pytest
from manual_clock import ManualClock

from delayd.audit.spans import Span, as_configured, span_of, target_spans, trimmed_before_ms
from delayd.bus.memory import MemoryBus, MemoryKafka

DAY_MS = 86_400_000
READ_MS = 1_785_000_000_000
STAMPED = {"message.timestamp.type": "LogAppendTime", "retention.ms": str(7 * DAY_MS)}


CLOCK = ManualClock(READ_MS)


def topic(config: dict[str, str], appended_ms: tuple[int, ...], keep: int) -> MemoryBus:
    """Three partitions: the first with records of these times, of which the last `keep` are left;
    one that was emptied; one that is whole."""
    clock = ManualClock(READ_MS)
    kafka = MemoryKafka(clock)
    kafka.create_topic("t", 3, config)
    for clock.now_ms in appended_ms:
        kafka.append("t", 0, b"key", b"")
    kafka.log("t", 0).delete_before(len(appended_ms) - keep)
    kafka.append("t", 1, b"key", b"")
    kafka.log("t", 1).delete_before(1)
    kafka.append("t", 2, b"key", b"")
    return MemoryBus(kafka)


def span(bus: MemoryBus) -> Span:
    kafka = bus.cluster()
    return as_configured(span_of(kafka, CLOCK, "t"), kafka.describe(["t"], 1_000)["t"].config)


def trimmed(bus: MemoryBus, first_ms: dict[int, int] | None = None) -> tuple[int, ...] | None:
    return trimmed_before_ms(bus, CLOCK, span(bus), READ_MS, first_ms)


def test_an_emptied_partition_held_nothing_younger_than_the_retention() -> None:
    young, old = READ_MS - DAY_MS, READ_MS - 8 * DAY_MS
    kept_from_ms = READ_MS - 7 * DAY_MS

    assert trimmed(topic(STAMPED, (old, young), keep=1)) == (kept_from_ms, kept_from_ms, 0)


def test_what_is_left_bounds_what_is_gone_where_it_is_older_than_the_retention() -> None:
    """Segments are deleted as a whole, when their last record is old enough."""
    older, old = READ_MS - 9 * DAY_MS, READ_MS - 8 * DAY_MS

    assert trimmed(topic(STAMPED, (older, old), keep=1)) == (old + 1, READ_MS - 7 * DAY_MS, 0)


@pytest.mark.parametrize(
    "config",
    [
        {"retention.bytes": "1000000"},
        {"retention.ms": "-1"},
        {"retention.ms": str(2**63 - 1)},
        {"cleanup.policy": ""},
    ],
    ids=str,
)
def test_an_emptied_partition_proves_nothing_if_age_is_not_what_emptied_it(
    config: dict[str, str],
) -> None:
    young = READ_MS - DAY_MS

    assert trimmed(topic(STAMPED | config, (young, young), keep=1)) == (young + 1, READ_MS, 0)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_proves_nothing(policy: str) -> None:
    bus = topic(STAMPED | {"cleanup.policy": policy}, (READ_MS,), keep=1)

    assert trimmed(bus) == (READ_MS,) * 3


def test_a_whole_topic_has_no_bound() -> None:
    kafka = MemoryKafka(CLOCK)
    kafka.create_topic("t", 2, STAMPED)
    kafka.append("t", 0, b"key", b"")

    assert trimmed(MemoryBus(kafka)) is None


@pytest.mark.parametrize("foreign_ms", [READ_MS - 365 * DAY_MS, READ_MS + 365 * DAY_MS])
@pytest.mark.parametrize("size", ["-1", "1000000"])
def test_the_times_of_other_producers_say_nothing(foreign_ms: int, size: str) -> None:
    """Where the producers set them; when the first deliveries were fired is known besides."""
    config = {"retention.ms": str(7 * DAY_MS), "retention.bytes": size}
    bus = topic(config, (foreign_ms, foreign_ms), keep=1)
    kept_from_ms = READ_MS - 7 * DAY_MS if size == "-1" else READ_MS
    fired_ms = READ_MS - 8 * DAY_MS

    [found] = target_spans(bus, CLOCK, ["t"])
    assert not found.is_append_time
    assert trimmed(bus, {}) == (kept_from_ms, kept_from_ms, 0)
    assert trimmed(bus, {0: fired_ms, 2: fired_ms}) == (fired_ms + 1, kept_from_ms, 0)
