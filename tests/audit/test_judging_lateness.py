"""delayd.audit.judging.lateness and .travel: figures, against a plain count of the same rows."""

from collections import defaultdict
from itertools import pairwise
from math import ceil
from random import Random
from typing import Any

import pytest
from past import START_MS, Row, frame
from pyspark.sql import DataFrame, SparkSession

from delayd.audit.judging.figures import HOUR_MS, travel_of, width_of
from delayd.audit.judging.lateness import (
    AFTER_FAILOVER_MS,
    BEFORE_FAILOVER_MS,
    MOMENTS_MAX,
    counts_of,
    histogram_of,
    lateness_around,
    lateness_of,
    newest_hours,
    timeline_of,
)
from delayd.audit.report import EXAMPLES_MAX
from delayd.audit.tables import MESSAGES

HOURS = 5


def message_rows(chance: Random, count: int) -> list[Row]:
    rows = []
    for offset in range(count):
        append_ms = START_MS + chance.randrange(HOURS * HOUR_MS)
        due_ms = append_ms + chance.choice([-5_000, 0, 10, 60_000, HOUR_MS])
        time_ms = max(due_ms, append_ms)
        fate = chance.choice(["delivered"] * 12 + ["cancelled", "dead", "pending", "rejected"])
        late_ms = chance.choice([0, 1, 2, 3, 8, 90, chance.randrange(2_000_000)])
        is_again = fate == "delivered" and chance.random() < 0.1
        rows.append(
            {
                "partition": chance.randrange(3),
                "offset": offset,
                "topic": chance.choice(["orders", "orders", "mails"]),
                "append_ms": append_ms,
                "due_ms": due_ms,
                "planned_ms": due_ms,
                "rank_ms": time_ms + (10_000 if is_again else 0),
                "fate": fate if offset else "lost",
                "killed_ms": append_ms + 5 if fate == "cancelled" else None,
                "dead_ms": time_ms + 30 if fate == "dead" else None,
                "delivered_ms": time_ms + late_ms if fate == "delivered" else None,
            }
        )
    return rows


ROWS = message_rows(Random(5), 3_000)
PLAIN = [
    row
    for row in ROWS
    if row["fate"] == "delivered" and row["rank_ms"] == max(row["due_ms"], row["append_ms"])
]


def late_of(row: Row) -> int:
    return int(row["delivered_ms"] - max(row["due_ms"], row["append_ms"]))


def agrees(found: Any, values: list[int], prefix: str = "") -> bool:
    """Percentiles are the least value that the share does not exceed, 0.1 % too low at most."""
    ordered = sorted(values)
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
        exact = ordered[ceil(share * len(ordered)) - 1]
        told = found.asDict().get(prefix + name, exact)
        if not exact * 0.999 - 1 <= told <= exact:
            return False
    return bool(found[prefix + "max"] == ordered[-1])


@pytest.fixture(scope="module")
def messages(spark: SparkSession) -> DataFrame:
    return frame(spark, ROWS, MESSAGES).cache()


@pytest.fixture(scope="module")
def counts(messages: DataFrame) -> DataFrame:
    return counts_of(messages).cache()


def test_percentiles_of_all_of_topics_and_of_hours(counts: DataFrame) -> None:
    expected: dict[tuple[str | None, int | None], list[int]] = defaultdict(list)
    for row in PLAIN:
        hour_ms = row["due_ms"] // HOUR_MS * HOUR_MS
        for key in ((None, None), (row["topic"], None), (row["topic"], hour_ms)):
            expected[key].append(late_of(row))

    found = {(row.topic, row.hour_ms): row for row in lateness_of(counts).collect()}

    assert {key: row["count"] for key, row in found.items()} == {
        key: len(values) for key, values in expected.items()
    }
    assert all(agrees(found[key], values) for key, values in expected.items())


def test_of_hours_the_newest_are_kept(counts: DataFrame) -> None:
    late = lateness_of(counts).cache()
    hours = [row for row in late.collect() if row.hour_ms is not None]
    most = len(hours) // 2
    assert len({row.hour_ms for row in hours}) > 2 < most

    assert newest_hours(late).collect() == hours

    newest = sorted(hours, key=lambda row: (-row.hour_ms, row.topic))[:most]
    assert newest_hours(late, most).collect() == sorted(
        newest, key=lambda row: (row.topic, row.hour_ms)
    )


def test_bars_and_moments_count_everything_once(counts: DataFrame) -> None:
    bars, left_out = histogram_of(counts)
    assert sum(bar.count for bar in bars) == len(PLAIN)
    assert left_out == sum(row["fate"] == "delivered" for row in ROWS) - len(PLAIN) > 0
    for bar in bars:
        exact = [row for row in PLAIN if bar.from_ms <= late_of(row) < bar.to_ms]
        assert bar.count == len(exact) or bar.from_ms > 2_000
    assert [bar.from_ms for bar in bars[1:]] == [bar.to_ms for bar in bars[:-1]]

    moments = timeline_of(counts).collect()
    assert sum(moment.delivered for moment in moments) == len(PLAIN)
    assert len(moments) <= MOMENTS_MAX
    width_ms = min(b.at_ms - a.at_ms for a, b in pairwise(moments))
    by_moment: dict[int, list[int]] = defaultdict(list)
    for row in PLAIN:
        by_moment[row["delivered_ms"] // width_ms * width_ms].append(late_of(row))
    assert {moment.at_ms for moment in moments} == by_moment.keys()
    assert all(agrees(moment, by_moment[moment.at_ms], "late_") for moment in moments)


def test_lateness_around_a_change_of_master(spark: SparkSession, messages: DataFrame) -> None:
    changes = [(START_MS + 3_333_333, 7), (START_MS + 3_340_001, 8), (START_MS - HOUR_MS, 1)]
    failovers = sorted((0, term, at_ms) for at_ms, term in changes)

    found = {row.term: row for row in lateness_around(messages, failovers).collect()}

    expected = {}
    for at_ms, term in changes:
        near = [
            late_of(row)
            for row in PLAIN
            if -BEFORE_FAILOVER_MS
            <= max(row["due_ms"], row["append_ms"]) - at_ms
            <= AFTER_FAILOVER_MS
        ]
        if near:
            expected[term] = near
    assert {term: row["count"] for term, row in found.items()} == {
        term: len(values) for term, values in expected.items()
    }
    assert expected.keys() == {7, 8}
    assert all(agrees(found[term], values) for term, values in expected.items())


def test_what_was_pending_at_a_time(messages: DataFrame) -> None:
    at_ms = START_MS + 2 * HOUR_MS
    expected = []
    for row in ROWS:
        ended_ms = row["delivered_ms"] or row["killed_ms"] or row["dead_ms"]
        if row["fate"] == "lost":
            ended_ms = row["rank_ms"]
        is_open = ended_ms is None or ended_ms > at_ms
        if row["append_ms"] <= at_ms and is_open and row["fate"] != "rejected":
            expected.append((max(row["due_ms"], row["append_ms"]), row))
    assert 50 < len(expected) < len(ROWS) / 2

    travelled = travel_of(messages, at_ms)

    assert dict(travelled.by_topic) == {
        topic: sum(row["topic"] == topic for _, row in expected) for topic in ("orders", "mails")
    }
    hours = dict(travelled.by_hour)
    assert hours == {
        hour: sum(due // HOUR_MS * HOUR_MS == hour for due, _ in expected) for hour in hours
    }
    assert sum(hours.values()) == travelled.pending == len(expected)
    ordered = sorted((due, row["partition"], row["offset"]) for due, row in expected)
    assert [(due_ms, source) for source, _, due_ms in travelled.next_due] == [
        (due, f"{partition}/{offset}") for due, partition, offset in ordered[:EXAMPLES_MAX]
    ]


def test_without_a_delivery_there_are_no_figures(spark: SparkSession) -> None:
    counts = counts_of(frame(spark, [], MESSAGES))

    assert lateness_of(counts).collect() == []
    assert timeline_of(counts).collect() == []
    bars, left_out = histogram_of(counts)
    assert sum(bar.count for bar in bars) == left_out == 0


@pytest.mark.parametrize("span_ms", [0, 1, 239_000, 10**6, 10**9, 10**12])
def test_intervals_are_round_and_few(span_ms: int) -> None:
    for least_ms in (0, START_MS, START_MS + 999):
        width_ms = width_of(least_ms, least_ms + span_ms, MOMENTS_MAX)
        count = (least_ms + span_ms) // width_ms - least_ms // width_ms + 1
        assert count <= MOMENTS_MAX
        assert width_ms % 1_000 == 0
