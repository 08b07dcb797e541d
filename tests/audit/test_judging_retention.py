"""What Kafka has deleted accuses nobody, and hides nothing but what it was."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from audited import Tables, fates, findings_of, kept, tables_of
from manual_clock import ManualClock
from plans import Plan
from pyspark.sql import SparkSession
from world import START_MS, World
from written import PARTITIONS, Written

from delayd.audit.judging.messages import judge_messages
from delayd.audit.judging.retention import deserted_of, unproven_of
from delayd.audit.spans import Span, target_spans
from delayd.audit.table_loader import Source, is_trimmed_by_hand, trimmed_of
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.murmur2 import partition_of

READ_MS = START_MS + 20_000
DAY_MS = 86_400_000
MONTH = {"retention.ms": str(30 * DAY_MS)}
BY_SIZE = MONTH | {"retention.bytes": "1000000"}
TARGET, MAILS, DEAD, RECEIPTS = "orders", "mails", "delayd-dead", "delayd-receipts"
TOLD_ID = "told"


class Past:
    """A history in which evidence is missing; by what it was of: `sources`."""

    def __init__(self) -> None:
        world = World()
        plan = Plan(world)
        lost = plan.schedule("lost", 100, 1_000)
        mail = plan.schedule("mail", 100, 1_500, topic=MAILS)
        plan.named("late", 100, "late", 2_000)
        late = plan.named("late cancel", 1_500, "late", op="cancel")
        plan.named("told", 100, TOLD_ID, 2_000)
        told = plan.named("told cancel", 600, TOLD_ID, op="cancel")
        plan.named("told again", 9_000, TOLD_ID, 10_000)
        plan.schedule("dead", 100, 1_000, topic="down")
        for number in range(12):
            plan.schedule("plain", 100, 3_000 + 200 * number, key=f"k{number}")
        history = world.run()
        history.targets = [
            each for each in history.targets if source(each) not in (lost.place, mail.place)
        ]
        history.receipts = [each for each in history.receipts if source(each) != told.place]
        # The master saw this mark only after its message had been delivered.
        [receipt] = [each for each in history.receipts if source(each) == late.place]
        said = json.loads(receipt.value or b"")
        receipt.value = json.dumps(said | {"verdict": "too-late", "killed": []}).encode()
        self.history = history
        self.lost, self.mail, self.late, self.told = (
            each.place for each in (lost, mail, late, told)
        )


def source(written: Written) -> str | None:
    return written.header("delayd-source")


PAST = Past()


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Tables:
    return tables_of(spark, PAST.history)


def found(
    tables: Tables, trimmed_ms: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, int], set[tuple[str, str]]]:
    """Fates, and what is found: fault and source."""
    bounds = replace(PAST.history.bounds, trimmed_ms=trimmed_ms)
    messages = judge_messages(tables.logged, tables.deliveries, tables.letters, bounds)
    judged = tables._replace(messages=kept(messages))
    findings = findings_of(judged, replace(PAST.history, bounds=bounds))
    return fates(judged), {(fault, place) for fault, place, _ in findings}


def emptied(topics: Mapping[str, Mapping[str, str]], partition: int) -> Source:
    """Topics with these settings, of which one partition held a record that Kafka has deleted."""
    clock = ManualClock(READ_MS)  # stands still when the audit reads
    kafka = MemoryKafka(clock)
    for name, config in topics.items():
        kafka.create_topic(name, PARTITIONS, config)
        kafka.append(name, partition, None, b"")
        kafka.log(name, partition).delete_before(1)
    return Source(MemoryBus(kafka), "", clock)


def trimmed_as_read(source: Source, tables: Tables, *topics: str) -> dict[str, tuple[int, ...]]:
    """As an audit works it out."""
    spans = target_spans(source.bus, source.clock, topics)
    own = [span for span in spans if span.topic.startswith("delayd-")]
    targets = [span for span in spans if span not in own]
    return trimmed_of(source, own, targets, tables.deliveries, READ_MS)


TOLD_PARTITION = partition_of(TOLD_ID.encode(), PARTITIONS)
ALL = {
    ("lost", PAST.lost),
    ("lost", PAST.mail),
    ("verdict-missing", PAST.told),
    ("verdict-false", PAST.late),
}


def test_a_quiet_partition_that_was_emptied_hides_nothing(tables: Tables) -> None:
    """One old letter, receipt or delivery that Kafka has deleted for its age."""
    topics = (DEAD, RECEIPTS, TARGET)
    source = emptied(dict.fromkeys(topics, MONTH), TOLD_PARTITION)
    trimmed_ms = trimmed_as_read(source, tables, *topics)
    assert trimmed_ms.keys() == set(topics)

    counts, faults = found(tables, trimmed_ms)

    assert faults == ALL
    assert counts["lost"] == 2 and "unproven" not in counts


@pytest.mark.parametrize(
    ("starts", "retention_ms", "shards", "is_by_hand"),
    [
        ((0, 0), 1_000, 1, False),
        ((1, 0), 1_000, 1, True),
        ((1, 0), READ_MS, 1, True),
        ((1, 0), None, 1, False),
        ((1, 0), 1, 1, False),
        # Of the partition of a shard only its own steps know how far it is.
        ((0, 5), 1_000, 2, False),
        ((0, 10), 1_000, 2, True),
    ],
)
def test_what_was_too_young_for_retention_was_trimmed_by_hand(
    spark: SparkSession,
    starts: tuple[int, ...],
    retention_ms: int | None,
    shards: int,
    is_by_hand: bool,
) -> None:
    """docs/design/audit.md, What Kafka has deleted."""
    steps = [(READ_MS - 500, [0, 7]), (READ_MS - 100, [9, 9])]
    if shards > 1:
        steps = [(READ_MS - 500, [9, 0]), (READ_MS - 100, [0, 9])]
    frontiers = spark.createDataFrame(
        [(at % shards, None, append_ms, offsets) for at, (append_ms, offsets) in enumerate(steps)],
        "shard int, flaw string, append_ms long, offsets array<long>",
    )
    buffer = Span("delayd-buffer", starts, (20, 20), retention_ms=retention_ms)
    assert is_trimmed_by_hand(buffer, frontiers, READ_MS, shards) is is_by_hand


def test_receipts_are_missed_where_their_partition_is_whole(tables: Tables) -> None:
    """Kafka deletes for the size, so nobody knows what the emptied partition held."""
    other = (TOLD_PARTITION + 1) % PARTITIONS
    for partition, expected in (
        (other, ALL),
        (TOLD_PARTITION, ALL - {("verdict-missing", PAST.told)}),
    ):
        source = emptied({RECEIPTS: BY_SIZE}, partition)
        trimmed_ms = trimmed_as_read(source, tables, RECEIPTS)
        assert found(tables, trimmed_ms)[1] == expected


def test_a_late_mark_on_a_trimmed_target_is_not_held_against_its_receipt(tables: Tables) -> None:
    """A transaction that a user left open in the buffer may have hidden it."""
    counts, faults = found(tables, {TARGET: (START_MS + 2_500,) * PARTITIONS})

    assert faults == {("lost", PAST.mail), ("verdict-missing", PAST.told)}
    assert counts["lost"] == 1


def test_targets_are_trimmed_by_what_delayd_wrote_there(tables: Tables) -> None:
    """Not by the time of a foreign record, which was written with this one of the twin."""
    delivered = [each for each in PAST.history.targets if each.topic == TARGET]
    partition = delivered[0].partition
    first = next(each for each in delivered if each.partition == partition)
    source = emptied({TARGET: BY_SIZE, MAILS: BY_SIZE}, partition)

    trimmed_ms = trimmed_as_read(source, tables, TARGET, MAILS)

    fired_ms = int(first.header("delayd-fired") or "")
    assert trimmed_ms[TARGET][partition] == fired_ms + 1
    assert trimmed_ms[MAILS][partition] == READ_MS


def test_only_a_target_that_was_delivered_to_is_a_deleted_one(tables: Tables) -> None:
    bounds = PAST.history.bounds
    deserted = deserted_of(tables.logged, [MAILS, "down"], bounds)

    assert [row.topic for row in deserted.collect()] == [MAILS]


def test_what_was_delivered_to_a_deleted_target_is_unproven(tables: Tables) -> None:
    counts, faults = found(tables, {MAILS: (READ_MS,)})

    assert faults == ALL - {("lost", PAST.mail)}
    assert counts["unproven"] == 1


def test_messages_are_unproven_for_a_reason(tables: Tables) -> None:
    """Those for a trimmed target, and those of others that may have been dead letters."""
    bounds = replace(
        PAST.history.bounds,
        trimmed_ms={
            TARGET: (START_MS + 1_100,) + (0,) * (PARTITIONS - 1),
            DEAD: (START_MS + 1_600,) * PARTITIONS,
        },
    )
    messages = judge_messages(tables.logged, tables.deliveries, tables.letters, bounds)

    assert [tuple(row) for row in unproven_of(messages, bounds).collect()] == [
        (MAILS, 1, 0, 1),
        (TARGET, 1, 1, 0),
    ]
