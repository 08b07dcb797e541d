"""Local times: each record that resolves one says when the clock of the zone shows it.

A record that continues one with a local time

- has the same local time and zone, unless a reschedule has given it another;
- is due when the clock shows it (`cron_times.moment_of`, which reads it anew), or as before if it
  was only deferred;
- is final only within a day of that: before, it is to be resolved again;
- is over only if there is no such zone.

The audit reads zones from the tzdata of its host: where that is of another version than the
master's was, and the zone has changed between, it finds what the master did not know.

Source: docs/design/local-times.md.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import findings, is_true, source_text, table_of
from delayd.audit.judging.cron_times import moment_of
from delayd.audit.judging.faults import Fault
from delayd.audit.tables import FINDINGS

AGAIN_MS: Final = 24 * 60 * 60 * 1000
STEP_MS_MAX: Final = 60_000
"""How far the `now` of a step may lie from the append time of what it writes."""


def judge_local_times(logged: DataFrame, bounds: Bounds) -> DataFrame:
    """Return what is wrong with local times (FINDINGS)."""
    of_local = logged.where("clock is not null")
    if of_local.isEmpty():  # as a rule: spare the joins
        return table_of(logged.sparkSession, FINDINGS)
    before = of_local.select(
        "partition",
        F.col("offset").alias("continues"),
        F.struct("clock", "zone", "resolved", "is_open", "due_ms").alias("before"),
    )
    links = logged.where("op = 'continue'").join(before, ["partition", "continues"])
    return findings(
        links.withColumn("problem", _problem()),
        {Fault.LOCAL_TIME: F.col("problem")},
        *("id", "partition", "offset", "due_ms"),
        topic=F.lit(bounds.settings.buffer.name),
        source=source_text(offset="origin"),
    )


def _problem() -> Column:
    before, resolved = F.col("before"), F.col("resolved")
    is_same = resolved.eqNullSafe(before["resolved"]) & (F.col("due_ms") == before["due_ms"])
    is_other = ~(
        F.col("clock").eqNullSafe(before["clock"]) & F.col("zone").eqNullSafe(before["zone"])
    )
    is_early = (resolved == "final") & (
        F.col("due_ms") - F.col("append_ms") > AGAIN_MS + STEP_MS_MAX
    )
    is_kept = (
        (resolved == "final")
        & (before["resolved"] == "expected")
        & (F.col("due_ms") == before["due_ms"])
    )
    moment = F.udf(problem_of_moment, "string", useArrow=False)(
        "clock", "zone", F.when(resolved != "over", F.col("due_ms")), is_true(is_kept)
    )
    return (
        F.when(F.col("moved_by").isNotNull(), None)
        .when(is_other, "it has another local time than was asked for")
        .when(is_same, None)
        .when(~is_true(before["is_open"]), "it was final, and is due at another time")
        .when(is_early, "it is final more than a day before it is due")
        .otherwise(moment)
    )


def problem_of_moment(
    clock: str, zone: str, due_ms: int | None, is_kept: bool = False
) -> str | None:
    """Return what is wrong with the due time (Unix ms) of a local time; None: it has no zone.
    `is_kept`: it was due then before, and a zone that is known no more does not change that."""
    try:
        moment_ms = moment_of(clock, zone)
    except (ValueError, KeyError):
        moment_ms = None
    if moment_ms == due_ms or (moment_ms is None and is_kept):
        return None
    return f"the clock of {zone} shows {clock} at {moment_ms}, and not at {due_ms}"
