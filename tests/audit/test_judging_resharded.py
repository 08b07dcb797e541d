"""A frontier topic whose cluster had other shards: histories begin with those there are, where the
ones before were closed and the new ones stand where they stood.

Source: docs/design/audit.md, "Shards".
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from past import SETTINGS, Row, frame, record_row
from pyspark.sql import SparkSession

from delayd.audit.judging.frontiers import frontiers_of
from delayd.audit.tables import RECORDS
from replication.frontier import first_frontier
from replication.rank import Rank
from replication.record import FrontierRecord, StepCounts, encode, record_key
from replication.resharding import closed, resharded, resting
from replication.settings import Settings

PARTITIONS = 4
SHARED = replace(SETTINGS, partitions=PARTITIONS)
Log = list[tuple[int, FrontierRecord]]
"""Records, each with its partition."""


def first(settings: Settings) -> FrontierRecord:
    frontier = first_frontier(0, PARTITIONS, settings.lanes)
    return FrontierRecord(frontier, "topics-create", 0, StepCounts(), 0, settings)


def stepped(record: FrontierRecord) -> FrontierRecord:
    """The next step of a shard, which passes something."""
    frontier = record.frontier
    offsets = (o + frontier.owns(p) for p, o in enumerate(frontier.offsets))
    at = Rank(record.now_ms, 0, 0)
    following = replace(
        frontier,
        step=frontier.step + 1,
        offsets=tuple(offsets),
        cursors=(max(at, frontier.cursors[0]),) * len(frontier.cursors),
    )
    counts = StepCounts(delivered=1)
    return replace(
        record, frontier=following, now_ms=record.now_ms + 100, counts=counts, owner="n/1"
    )


def changed(parts: Sequence[FrontierRecord], shards: int, log: Log) -> list[FrontierRecord]:
    """Give the cluster so many shards; return the newest record of each."""
    ends = [closed(part, shards, "delayd-shards") for part in parts]
    others = {n: record for n, record in log if n >= len(parts)}
    made = resharded(ends, shards, others, "delayd-shards")
    log += [(record.frontier.shard, record) for record in (*ends, *made)]
    return made[:shards]


def went_on(parts: Sequence[FrontierRecord], log: Log) -> list[FrontierRecord]:
    for _ in range(3):
        parts = [stepped(part) for part in parts]
        log += [(part.frontier.shard, part) for part in parts]
    return list(parts)


def played() -> Log:
    """1 shard, 4, 2, the same again because a run was given up, and at rest."""
    log: Log = [(0, first(SHARED))]
    parts = went_on([log[0][1]], log)
    parts = went_on(changed(parts, 4, log), log)
    rest = Rank(parts[0].now_ms + 1_000, 0, 0)
    parts = [
        replace(p, frontier=replace(p.frontier, cursors=(rest,) * len(p.frontier.cursors)))
        for p in map(stepped, parts)
    ]
    log += [(part.frontier.shard, part) for part in parts]
    parts = went_on(changed(parts, 2, log), log)
    parts = went_on(changed(parts, 2, log), log)
    told = [resting(part, parts[0].now_ms + 9_000, "delayd-shards") for part in parts]
    log += [(part.frontier.shard, part) for part in told]
    went_on(told, log)
    return log


def rows_of(log: Log, change: Callable[[int, FrontierRecord], FrontierRecord]) -> list[Row]:
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    rows = []
    for number, (partition, record) in enumerate(log):
        row = record_row(offsets[partition], 1_000 + number, encode(change(number, record)))
        rows.append({**row, "partition": partition, "key": record_key(partition)})
        offsets[partition] += 1
    return rows


def judged(
    spark: SparkSession,
    change: Callable[[int, FrontierRecord], FrontierRecord] = lambda _, record: record,
) -> dict[int, list[tuple[int, str | None]]]:
    """By shard: step and flaw of each record that is left."""
    rows = frame(spark, rows_of(played(), change), RECORDS)
    found = frontiers_of(rows, 2, may_be_resharded=True).orderBy("offset").collect()
    return {
        shard: [(row.step, row.flaw) for row in found if row.shard == shard] for shard in range(2)
    }


def first_of_two() -> int:
    """Where the first record of the two shards is."""
    log = played()
    numbers = [
        n for n, (partition, r) in enumerate(log) if partition == 0 and r.settings.shards == 2
    ]
    return numbers[0]


def test_histories_begin_with_the_shards_that_there_are(spark: SparkSession) -> None:
    expected = {
        shard: [
            (record.frontier.step, None)
            for partition, record in played()
            if partition == shard and record.settings.shards == 2
        ]
        for shard in range(2)
    }
    assert len(expected[0]) > 10
    assert judged(spark) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda r: replace(r, counts=StepCounts(delivered=1)),
        lambda r: replace(r, frontier=replace(r.frontier, term=1)),
        lambda r: replace(r, frontier=replace(r.frontier, step=1)),
        lambda r: replace(r, frontier=replace(r.frontier, offsets=(9, 0, 9, 0))),
        lambda r: replace(
            r, frontier=replace(r.frontier, cursors=(Rank(1, 0, 0),) * len(r.frontier.cursors))
        ),
    ],
)
def test_who_does_not_begin_where_the_one_before_stood_begins_nothing(
    spark: SparkSession, change: Callable[[FrontierRecord], FrontierRecord]
) -> None:
    at = first_of_two()
    found = judged(spark, lambda n, record: change(record) if n == at else record)
    flaws = [flaw for _, flaw in found[0] if flaw]
    assert flaws and set(flaws) == {"it has other shards"}
    assert not any(flaw for _, flaw in found[1])


def test_a_shard_that_was_not_closed_was_not_the_last(spark: SparkSession) -> None:
    log = played()
    at = max(n for n in range(first_of_two()) if log[n][0] == 0)
    assert log[at][1].resharding == 2
    found = judged(spark, lambda n, r: replace(r, resharding=0) if n == at else r)
    assert {flaw for _, flaw in found[0] if flaw} == {"it has other shards"}


def test_a_record_of_other_shards_among_those_there_are_is_a_fault(spark: SparkSession) -> None:
    log = played()
    at = len(log) - 4
    assert log[at][0] == 0 and log[at][1].settings.shards == 2
    strange = replace(SHARED, shards=4)

    def change(number: int, record: FrontierRecord) -> FrontierRecord:
        if number != at:
            return record
        return replace(record, settings=strange, frontier=replace(record.frontier, shards=4))

    found = judged(spark, change)
    assert [flaw for _, flaw in found[0] if flaw] == ["it has other shards"]
    assert len(found[0]) > 10, "nothing before it is passed over"
