"""The figures of a report: small values computed from tables."""

from typing import Any

from pyspark.sql import DataFrame, Row

from delayd.audit.judging.figures import heat_of
from delayd.audit.judging.frontiers import failovers_of, felt, reigns_of
from delayd.audit.judging.lateness import (
    FAILOVERS_MAX,
    counts_of,
    histogram_of,
    lateness_around,
    lateness_of,
    newest_hours,
    timeline_of,
)
from delayd.audit.report import HeatCell, Lateness, Moment, Reign, TopicHour


def figures_of(
    messages: DataFrame, frontiers: DataFrame, shards: int
) -> tuple[dict[str, Any], int]:
    """Return what was delivered when and who led, as fields of a report, and how many messages
    lateness leaves out."""
    counts = counts_of(messages).localCheckpoint()
    all_late = lateness_of(counts).localCheckpoint()
    late = all_late.where("hour_ms is null").collect()
    histogram, left_out = histogram_of(counts)
    reigns = reigns_of(frontiers).collect()
    failovers = failovers_of(reigns)
    around = {}
    if failovers:  # there are none as a rule: spare the messages
        changes = [(each.shard, each.term, each.at_ms) for each in failovers]
        rows = lateness_around(messages, changes, shards).collect()
        around = {(row.shard, row.term): _lateness(row) for row in rows}
    figures = {
        "lateness": next((_lateness(row) for row in late if row.topic is None), None),
        "by_topic": tuple((row.topic, _lateness(row)) for row in late if row.topic is not None),
        "by_hour": tuple(
            TopicHour(row.topic, row.hour_ms, _lateness(row))
            for row in newest_hours(all_late).collect()
        ),
        "histogram": histogram,
        "timeline": tuple(Moment(**row.asDict()) for row in timeline_of(counts).collect()),
        "reigns": tuple(Reign(*row[:-1]) for row in reigns),
        "failovers": (
            *(
                felt(each, around.get((each.shard, each.term)))
                for each in failovers[:FAILOVERS_MAX]
            ),
            *failovers[FAILOVERS_MAX:],
        ),
    }
    return figures, left_out


def heat_cells(expected: DataFrame, pending: DataFrame, found: DataFrame) -> tuple[HeatCell, ...]:
    """Return the heat map of pending messages."""
    return tuple(HeatCell(**row.asDict()) for row in heat_of(expected, pending, found).collect())


def _lateness(row: Row) -> Lateness:
    return Lateness(row["count"], row.p50, row.p99, row.p999, row.max)
