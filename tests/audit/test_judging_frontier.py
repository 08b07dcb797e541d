"""delayd.audit.judging.frontiers: the frontier topic compared with itself and with the log."""

import json
from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import pytest
from cluster_settings import LANES
from past import SETTINGS, Past, Row, frame, frontier_rows, record_row
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Row as Found

from delayd.audit.bounds import Bounds, ShardCut
from delayd.audit.judging.frontiers import (
    failovers_of,
    frontiers_of,
    judge_frontier,
    reigns_of,
)
from delayd.audit.judging.history import covered_by, history_of
from delayd.audit.judging.links import COMPACTION_LAG_MS, links_of
from delayd.audit.tables import DELIVERIES, FRONTIERS, LOGGED, RECORDS
from replication.frontier import Frontier
from replication.rank import Rank
from replication.record import FrontierRecord, encode

Record = tuple[int, int, FrontierRecord]
PAST = Past(seed=1, turns=400)


@pytest.fixture(scope="module")
def logged(spark: SparkSession) -> DataFrame:
    return frame(spark, PAST.logged, LOGGED).cache()


def frontiers(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return frontiers_of(frame(spark, rows, RECORDS)).cache()


def judged(rows: DataFrame, logged: DataFrame, bounds: Bounds) -> list[Found]:
    links = links_of(rows, bounds)
    none = frame(rows.sparkSession, [], DELIVERIES)
    return judge_frontier(rows, links, history_of(links, bounds), logged, none, bounds).collect()


def with_frontier(record: FrontierRecord, **changed: Any) -> FrontierRecord:
    return replace(record, frontier=replace(record.frontier, **changed))


def test_the_step_of_a_message_is_the_first_that_covers_it(
    spark: SparkSession, logged: DataFrame
) -> None:
    bounds = PAST.bounds()
    history = history_of(links_of(frontiers(spark, frontier_rows(PAST.records)), bounds), bounds)

    found = covered_by(logged.where("stored"), history).collect()

    expected = {}
    for row in PAST.logged:
        if row["stored"]:
            step, is_late = PAST.step_of(row)
            is_passed = row["offset"] < PAST.frontier.offsets[row["partition"]]
            # Not covered, and yet below O: it was there in time.
            known = False if step is None and is_passed else is_late
            expected[row["partition"], row["offset"]] = (step, known)
    assert {(r.partition, r.offset): (r.step_at, r.is_late) for r in found} == expected
    assert len({step for step, _ in expected.values()}) > 100
    assert sum(is_late is True for _, is_late in expected.values()) > 50
    assert history.has_lanes, "some lanes had a cursor of their own"


@pytest.mark.parametrize("end", [15, 28])
def test_what_a_lane_has_not_come_to_at_the_end_is_of_no_step(
    spark: SparkSession, logged: DataFrame, end: int
) -> None:
    """The usual cursor has passed it, and the lane stands behind."""
    records = PAST.records[:end]
    offset, append_ms, last = records[-1]
    cut = last.frontier
    rows = frontiers(spark, frontier_rows(records))
    bounds = PAST.bounds(frontier=cut, cuts=(ShardCut(offset, append_ms),))
    covered = covered_by(logged.where("stored"), history_of(links_of(rows, bounds), bounds))
    steps = {(row.partition, row.offset): row.step_at for row in covered.collect()}
    expected = {}
    for row in PAST.logged:
        if row["stored"]:
            step, _ = PAST.step_of(row)
            is_within = step is not None and step <= offset
            expected[row["partition"], row["offset"]] = step if is_within else None
    assert steps == expected
    waiting = [
        row
        for row in PAST.logged
        if row["stored"]
        and row["offset"] < cut.offsets[row["partition"]]
        and expected[row["partition"], row["offset"]] is None
        and Rank(row["rank_ms"], row["partition"], row["offset"]) < cut.highest_cursor
    ]
    assert waiting
    assert judged(rows, logged, bounds) == []


def test_a_true_history_has_no_findings(spark: SparkSession, logged: DataFrame) -> None:
    rows = frontiers(spark, frontier_rows(PAST.records))

    assert rows.select(*FRONTIERS.fieldNames()).schema.simpleString() == FRONTIERS.simpleString()
    assert judged(rows, logged, PAST.bounds()) == []
    assert sum(record.counts.dead for _, _, record in PAST.records) > 5
    assert sum(record.counts.killed for _, _, record in PAST.records) > 50


def low(record: FrontierRecord, before: FrontierRecord) -> FrontierRecord:
    """The cursor of the lane that is furthest steps back."""
    cursors = list(record.frontier.cursors)
    lane = max(range(len(cursors)), key=lambda number: before.frontier.cursors[number])
    cursors[lane] = Rank(before.frontier.cursors[lane].due_ms - 1, 0, 0)
    return with_frontier(record, cursors=tuple(cursors))


def ahead(record: FrontierRecord, lanes: int, by_ms: int) -> FrontierRecord:
    """Some lanes stand beyond what is due by the step's now."""
    beyond = Rank(record.now_ms + 1 + by_ms, 0, 0)
    return with_frontier(record, cursors=(beyond,) * lanes + record.frontier.cursors[lanes:])


def lower(values: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    return (before[0] - 1, *values[1:])


def counted(record: FrontierRecord, **changed: int) -> FrontierRecord:
    return replace(record, counts=replace(record.counts, **changed))


PLANTED: dict[str, tuple[str, Callable[[FrontierRecord, FrontierRecord], FrontierRecord]]] = {
    "a cursor": ("frontier-back", low),
    "all cursors ahead": ("frontier-ahead", lambda it, _: ahead(it, LANES, 3_600_000)),
    "a cursor ahead": ("frontier-ahead", lambda it, _: ahead(it, 1, 1)),
    "an O": (
        "frontier-back",
        lambda it, old: with_frontier(it, offsets=lower(it.frontier.offsets, old.frontier.offsets)),
    ),
    "an R": (
        "frontier-back",
        lambda it, old: with_frontier(
            it, own_writes=lower(it.frontier.own_writes, old.frontier.own_writes)
        ),
    ),
    "a term": ("frontier-term", lambda it, _: with_frontier(it, term=it.frontier.term - 1)),
    "two owners": ("frontier-term", lambda it, _: replace(it, owner="somebody/else")),
    "a step number": (
        "frontier-step",
        lambda it, _: with_frontier(it, step=it.frontier.step + 1_000),
    ),
    "one delivered more": (
        "frontier-false",
        lambda it, _: counted(it, delivered=it.counts.delivered + 1),
    ),
    "one given up more": ("frontier-false", lambda it, _: counted(it, dead=it.counts.dead + 1)),
    "one given up and not delivered": (
        "frontier-false",
        lambda it, _: counted(it, delivered=it.counts.delivered - 1, dead=it.counts.dead + 1),
    ),
    "another digest": ("frontier-false", lambda it, _: replace(it, digest=it.digest + 1)),
}


def plant(records: list[Record]) -> tuple[list[Row], set[tuple[str, int]]]:
    """Every defect, far from one another, in the middle of a term; and what must be found."""
    found = set()
    planted = list(records)
    index = 20
    for fault, change in PLANTED.values():
        index = settled(records, index + 12)
        offset, append_ms, record = records[index]
        planted[index] = (offset, append_ms, change(record, records[index - 1][2]))
        found.add((fault, offset))
    rows = frontier_rows(planted)
    # One that is written twice, one that is written again much later, one that is missing.
    for fault, back, at in (("frontier-step", 0, 1), ("frontier-back", 9, 1)):
        index = settled(records, index + 12)
        offset, append_ms, _ = records[index]
        rows.append(record_row(offset + at, append_ms, encode(records[index - back][2])))
        found.add((fault, offset + at))
    index = settled(records, index + 12)
    rows = [row for row in rows if row["offset"] != records[index][0]]
    found.add(("frontier-step", records[index + 1][0]))
    # And broken ones: in place of a record, and besides.
    for value in (None, b"\xff", b'{"format":2}', without(records[0][2], "digest")):
        index = settled(records, index + 8)
        offset = records[index][0]
        rows = [row for row in rows if row["offset"] != offset]
        rows.append(record_row(offset, records[index][1], value))
        found.add(("frontier-broken", offset))
    index = settled(records, index + 8)
    offset, append_ms, record = records[index]
    odd = json.loads(encode(record)) | {"offsets": [1]}
    rows.append(record_row(offset + 1, append_ms, json.dumps(odd).encode()))
    found.add(("frontier-broken", offset + 1))
    for more in ({"format": 3, "needs": {"later": "9.1.0"}}, {"format": 3}):
        index = settled(records, index + 8)
        offset, append_ms, record = records[index]
        odd = json.loads(encode(record)) | more
        rows.append(record_row(offset + 1, append_ms, json.dumps(odd).encode()))
        found.add(("frontier-broken", offset + 1))
    # An optional field of a newer release is no fault.
    index = settled(records, index + 8)
    offset, append_ms, record = records[index]
    rows = [row for row in rows if row["offset"] != offset]
    more = json.loads(encode(record)) | {"later": 1}
    rows.append(record_row(offset, append_ms, json.dumps(more).encode()))
    # A stray is no fault, even with the bytes of a record.
    for at, value in ((2, b"hello"), (3, encode(record))):
        rows.append(record_row(offset + at, append_ms, value) | {"key": b"another-key"})
    return sorted(rows, key=lambda row: int(row["offset"])), found


def without(record: FrontierRecord, field: str) -> bytes:
    fields = json.loads(encode(record))
    del fields[field]
    return json.dumps(fields).encode()


def settled(records: list[Record], index: int) -> int:
    """The next step from here that delivers, in the middle of a term, and moves what it can."""

    def is_settled(at: int) -> bool:
        around = [record.frontier for _, _, record in records[at - 10 : at + 3]]
        old, new = around[9], around[10]
        return (
            len({frontier.term for frontier in around}) == 1
            and records[at][2].counts.delivered > 0
            and moves(old, new)
            and moves(new, around[11])
        )

    return next(at for at in range(index, len(records)) if is_settled(at))


def moves(old: Frontier, new: Frontier) -> bool:
    return old.offsets[0] < new.offsets[0]


def test_each_planted_defect_is_one_finding(spark: SparkSession, logged: DataFrame) -> None:
    rows, expected = plant(LONG.records)

    found = judged(frontiers(spark, rows), frame(spark, LONG.logged, LOGGED), LONG.bounds())

    assert {(row.fault, row.offset) for row in found} == expected
    assert len(found) == len(expected)
    assert {(row.job, row.topic, row.partition) for row in found} == {
        ("frontier", "delayd-frontier", 0)
    }
    assert all(row.reason for row in found)


LONG = Past(seed=2, turns=900)


def test_what_kafka_compacted_or_trimmed_is_not_judged(
    spark: SparkSession, logged: DataFrame
) -> None:
    # Begun in the middle; and a gap that is older than compaction leaves alone.
    old = [(o, ms - COMPACTION_LAG_MS - 10**6, it) for o, ms, it in PAST.records[50:100]]
    rows = frontiers(spark, frontier_rows(old[:20] + old[30:] + PAST.records[100:]))
    assert judged(rows, logged, PAST.bounds()) == []

    _, trimmed_ms, record = PAST.records[100]
    start = record.frontier.offsets[0]
    bounds = PAST.bounds(
        buffer_starts=(start, 0),
        trimmed_ms={"delayd-buffer": (trimmed_ms, 0)},
        settings=replace(SETTINGS, max_delay_ms=60_000),
    )
    is_left = f"partition = 1 or offset >= {start}"
    assert judged(rows, logged.where(is_left), bounds) == []


def test_reigns_and_changes_of_master(spark: SparkSession) -> None:
    rows = frontiers(spark, frontier_rows(PAST.records))

    reigns = reigns_of(rows).collect()
    changes = failovers_of(reigns)

    terms: dict[int, list[tuple[int, FrontierRecord]]] = {}
    for _, append_ms, record in PAST.records[1:]:
        terms.setdefault(record.frontier.term, []).append((append_ms, record))
    assert [(r.term, r.owner, r.from_ms, r.to_ms, r.steps, r.delivered) for r in reigns] == [
        (
            *(term, steps[0][1].owner, steps[0][0], steps[-1][0], len(steps)),
            sum(record.counts.delivered for _, record in steps),
        )
        for term, steps in terms.items()
    ]
    expected = []
    for term in range(2, len(terms) + 1):
        old, new = terms[term - 1], terms[term]
        if old[0][1].owner != new[0][1].owner:
            first = next((ms for ms, record in new if record.counts.delivered), None)
            gap_ms = None if first is None else first - old[-1][0]
            expected.append((new[0][0], term, old[0][1].owner, new[0][1].owner, gap_ms))
    assert [astuple(change) for change in changes] == [(*each, None, 0) for each in expected]
    assert 0 < len(expected) < len(terms) - 1, "a master that follows itself is no change"
