"""Series: what stands in the buffer behind each record of one, and whether that is right.

A record that continues another of a series

- carries what that carried: content, expression, zone, end;
- has its number, or the next one if it `follows`;
- is due when the expression says so (`cron_times.py`, which reads it anew), and after that one;
- passes over nothing but what an outage had missed;
- says whether another occurrence is left.

And whatever came out has one behind it, unless it was the last. That each occurrence comes out
once, in time and before the next one, is judged with all other messages (`messages.py`).

Source: docs/design/series.md.
"""

from itertools import islice
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import findings, is_done, is_true, source_text, table_of
from delayd.audit.judging.contents import together
from delayd.audit.judging.cron_times import times_after
from delayd.audit.judging.faults import Fault
from delayd.audit.tables import FINDINGS

CATCHUP_MS_MAX: Final = 24 * 60 * 60 * 1000
STEP_MS_MAX: Final = 60_000
"""How far the `now` of a step may lie before the append time of what it writes: a delivery report
that is older ends a mastership."""
CLOCKS_APART_MS: Final = 10_000
"""And after it."""

_CARRIED: Final = (
    *("topic", "key_hash", "value_hash", "headers_hash", "id", "target_partition"),
    *("late_ms", "is_told", "series", "origin", "group"),
)


def judge_series(logged: DataFrame, messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return what is wrong with series (FINDINGS)."""
    of_series = logged.where("occurrence is not null")
    if of_series.isEmpty():  # as a rule: spare the joins
        return table_of(logged.sparkSession, FINDINGS)
    place = {"topic": F.lit(bounds.settings.buffer.name), "source": source_text(offset="origin")}
    links = _links(of_series)
    wrong = findings(
        links.withColumn("problem", _problem_of_link()),
        {Fault.SERIES: F.col("problem")},
        *("id", "partition", "offset", "due_ms"),
        **place,
    )
    is_open = F.col("goes_on") & F.col("continued_by").isNull() & is_done(bounds.frontier)
    came_out = messages.where("deliveries + letters > 0").select(
        "partition", F.col("newest").alias("offset")
    )
    ends = of_series.where(is_open).join(came_out, ["partition", "offset"], "left_semi")
    ended = F.format_string("occurrence %d came out, and no other one follows", "occurrence")
    found = wrong.unionByName(
        findings(ends, {Fault.SERIES: ended}, *("id", "partition", "offset", "due_ms"), **place)
    )
    # One wrong record leads to others: the first of a series tells of it.
    by_source = Window.partitionBy("source").orderBy("offset")
    first = found.withColumn("number", F.row_number().over(by_source)).where("number = 1")
    return first.drop("number")


def _links(of_series: DataFrame) -> DataFrame:
    """Return continuations, each with what it continues, `before`."""
    carried = together(*_CARRIED)
    before = of_series.select(
        "partition",
        F.col("offset").alias("continues"),
        F.struct(
            "occurrence", _own_ms().alias("due_ms"), "goes_on", carried.alias("carried")
        ).alias("before"),
    )
    continuations = of_series.where("op = 'continue'").withColumn("carried", carried)
    times = continuations.groupBy("partition", "continues").agg(F.count("*").alias("times"))
    joined = continuations.join(before, ["partition", "continues"])
    return joined.join(times, ["partition", "continues"])


def _own_ms() -> Column:
    """Return when an occurrence is due by the expression, whenever it was fired; of a request its
    append time."""
    is_fired = F.col("occurrence") > 0
    return F.when(is_fired, F.coalesce("own_ms", "due_ms")).otherwise(F.col("due_ms"))


def _problem_of_link() -> Column:
    before = F.col("before")
    is_first = before["occurrence"] == 0
    follows = is_true(F.col("follows"))
    is_same = ~follows & (F.col("occurrence") == before["occurrence"])
    is_same &= _own_ms() == before["due_ms"]  # a retry, deferred, or fired
    number = before["occurrence"] + (follows | (is_first & ~is_same)).cast("int")
    is_over = is_true(F.col("is_over"))
    wrong_number = ~is_over & (F.col("occurrence") != number)
    time = F.udf(problem_of_time, "string", useArrow=False)(
        *("cron", "zone", "until_ms", "catches_up"),
        before["due_ms"].alias("after_ms"),
        F.when(~is_over, _own_ms()),
        F.col("append_ms"),
        F.col("goes_on"),
    )
    return (
        F.when(F.col("times") > 1, F.format_string("one of %d that follow the same", "times"))
        .when(F.col("carried") != before["carried"], "it carries something else than was asked for")
        .when(~before["goes_on"] & follows, "it follows the last occurrence")
        .when(wrong_number, F.format_string("it is number %d, not %d", "occurrence", number))
        .when(~is_same, time)
    )


def problem_of_time(
    cron: str,
    zone: str,
    until_ms: int | None,
    catches_up: bool,
    after_ms: int,
    due_ms: int | None,
    append_ms: int,
    goes_on: bool,
) -> str | None:
    """Return what is wrong with the time of an occurrence behind one at `after_ms`, which a step
    wrote at `append_ms`; `due_ms` None: that there is none. Times are Unix ms."""
    try:
        first_ms = next(times_after(cron, zone, after_ms), None)
    except (ValueError, KeyError):
        first_ms = None
    if first_ms is not None and until_ms is not None and first_ms > until_ms:
        first_ms = None
    if due_ms is None or first_ms is None:
        is_right = due_ms is None and first_ms is None
        return None if is_right else f"the next occurrence is {first_ms}, and not {due_ms}"
    around = list(islice(times_after(cron, zone, due_ms - 1_000), 2))
    if around[:1] != [due_ms] or due_ms <= after_ms:
        return f"nothing of the series is due at {due_ms}; the next occurrence is {first_ms}"
    following_ms = around[1] if len(around) > 1 else None
    if until_ms is not None and following_ms is not None and following_ms > until_ms:
        following_ms = None
    if goes_on != (following_ms is not None):
        return f"it is taken for the last one, or not; the next one is {following_ms}"
    if due_ms == first_ms:
        missed_ms = following_ms if not catches_up else None
    elif due_ms > append_ms + CLOCKS_APART_MS:
        return f"it passes over {first_ms}, which was not missed yet"
    elif catches_up:
        missed_ms = None
        if first_ms > append_ms - CATCHUP_MS_MAX:
            return f"it passes over {first_ms}, which was to be caught up with"
    else:
        missed_ms = following_ms
    if missed_ms is not None and missed_ms <= append_ms - STEP_MS_MAX:
        return f"it is older than {missed_ms}, which had been missed too"
    return None
