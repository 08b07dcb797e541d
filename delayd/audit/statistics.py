"""The figures of a report: small values computed from tables."""

from typing import Any

from pyspark.sql import DataFrame, Row

from delayd.audit.judging.frontiers import failovers_of, reigns_of
from delayd.audit.judging.lateness import (
    counts_of,
    histogram_of,
    lateness_around,
    lateness_of,
    newest_hours,
    requeued_count,
    timeline_of,
)
from delayd.audit.judging.replicas import heat_of
from delayd.audit.judging.travel import travel_of
from delayd.audit.report import (
    Bin,
    Failover,
    HeatCell,
    Lateness,
    Moment,
    Reign,
    TopicHour,
    Travel,
)


def figures_of(messages: DataFrame, frontiers: DataFrame) -> tuple[dict[str, Any], int]:
    """Return what was delivered when and who led, as fields of a report, and how many messages
    lateness leaves out."""
    counts = counts_of(messages).localCheckpoint()
    all_late = lateness_of(counts).localCheckpoint()
    late = all_late.where("hour_ms is null").collect()
    failovers = failovers_of(frontiers).localCheckpoint()
    around = {row.term: _lateness(row) for row in lateness_around(messages, failovers).collect()}
    [left_out] = requeued_count(counts).collect()
    figures = {
        "lateness": next((_lateness(row) for row in late if row.topic is None), None),
        "by_topic": tuple((row.topic, _lateness(row)) for row in late if row.topic is not None),
        "by_hour": tuple(
            TopicHour(row.topic, row.hour_ms, _lateness(row))
            for row in newest_hours(all_late).collect()
        ),
        "histogram": tuple(Bin(**row.asDict()) for row in histogram_of(counts).collect()),
        "timeline": tuple(Moment(**row.asDict()) for row in timeline_of(counts).collect()),
        "reigns": tuple(
            Reign(**row.asDict())
            for row in reigns_of(frontiers).drop("first_delivery_ms").collect()
        ),
        "failovers": tuple(
            Failover(**row.asDict(), lateness=around.get(row.term)) for row in failovers.collect()
        ),
    }
    return figures, left_out["count"]


def heat_cells(expected: DataFrame, pending: DataFrame, found: DataFrame) -> tuple[HeatCell, ...]:
    """Return the heat map of pending messages."""
    return tuple(HeatCell(**row.asDict()) for row in heat_of(expected, pending, found).collect())


def travel_to(messages: DataFrame, at_ms: int) -> Travel:
    """Return what was pending at `at_ms` (Unix ms)."""
    found = travel_of(messages, at_ms)
    by_topic = tuple((row.topic, row.pending) for row in found.by_topic.collect())
    return Travel(
        at_ms=at_ms,
        pending=sum(pending for _, pending in by_topic),
        by_topic=by_topic,
        by_hour=tuple((row.hour_ms, row.pending) for row in found.by_hour.collect()),
        next_due=tuple((row.source, row.topic, row.due_ms) for row in found.next_due.collect()),
    )


def _lateness(row: Row) -> Lateness:
    return Lateness(row["count"], row.p50, row.p99, row.p999, row.max)
