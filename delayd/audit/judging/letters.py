"""Dead letters, compared with what had to be refused.

A letter is of the record that it names: of a reject, with the reason that the rules give; of a
conflict; or, reason `dead`, of a stored message that could not be delivered; or, `expired`, of one
that was not worth delivering any more. It keeps the record as it was. Letters are few beside
messages, and so are the requests that they are about.

Source: docs/design/audit.md, "Dead letters".
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import (
    GIVEN_UP,
    NO_OCCURRENCE,
    PLACE,
    few,
    findings,
    is_below,
    is_true,
    named_place,
    source_text,
)
from delayd.audit.judging.contents import together
from delayd.audit.judging.faults import Fault
from delayd.audit.judging.held import UNMOVED
from delayd.audit.judging.retention import is_uncertain, was_not_read
from delayd.audit.judging.too_late import CLOCKS_APART_MS


def judge_letters(
    logged: DataFrame, messages: DataFrame, letters: DataFrame, killers: DataFrame, bounds: Bounds
) -> DataFrame:
    """Return what is wrong with dead letters (FINDINGS). `killers`: cancel markers that say what
    they killed."""
    if letters.isEmpty():  # nothing can be wrong but that there is none: spare the joins
        return _missing(logged, letters, bounds)
    checked = _checked(logged, messages, letters, killers, bounds)
    topic = F.lit(bounds.settings.dead.name)
    found = findings(
        checked,
        {Fault.LETTER_FALSE: F.col("problem")},
        *("id", "due_ms"),
        topic=topic,
        source=F.coalesce(source_text(offset="origin_offset"), F.col("source")),
        partition=F.col("at_partition"),
        offset=F.col("at_offset"),
    )
    of_record = checked.where("partition is not null").groupBy(
        "partition", F.coalesce("origin_offset", "offset").alias("offset"), "occurrence"
    )
    doubled = of_record.agg(
        F.count_if(F.col("problem").isNull()).alias("right"),
        F.first("id").alias("id"),
        F.first("due_ms").alias("due_ms"),
    ).where("right > 1")
    too_many = F.format_string("it has %d dead letters", "right")
    more = findings(
        doubled,
        {Fault.LETTER_DOUBLED: too_many},
        *("id", "due_ms"),
        topic=topic,
        source=source_text(),
    )
    return found.unionByName(more).unionByName(_missing(logged, letters, bounds))


def _missing(logged: DataFrame, letters: DataFrame, bounds: Bounds) -> DataFrame:
    """Return findings about requests that are owed a letter, and have none."""
    topic = bounds.settings.dead.name
    reason = _owed_reason(bounds)
    is_kept = F.col("append_ms") >= bounds.trimmed_before_ms(topic)
    owed = logged.where(reason.isNotNull() & is_kept & is_below(bounds.frontier.offsets))
    named = letters.where("source_offset is not null").select(*named_place())
    none = F.format_string("it was refused as %s, and is no dead letter", reason)
    return findings(
        owed.join(named, PLACE, "left_anti"),
        {Fault.LETTER_MISSING: none},
        *("id", "due_ms"),
        topic=F.lit(topic),
        source=source_text(),
    )


def _owed_reason(bounds: Bounds) -> Column:
    """Return the reason of the letter that a request is owed by the rules; null if it is owed
    none."""
    is_conflict = (F.col("answer") == "conflict") & ~is_uncertain(bounds)
    # A reschedule that changes nothing says why.
    is_unmoved = F.col("answer").isin(*UNMOVED) & ~is_uncertain(bounds)
    return (
        F.when(F.col("op") == "reject", F.col("reason"))
        .when(is_conflict, "conflict")
        .when(is_unmoved, F.col("answer"))
    )


def _checked(
    logged: DataFrame, messages: DataFrame, letters: DataFrame, killers: DataFrame, bounds: Bounds
) -> DataFrame:
    """Return letters, each with what is wrong with it: `problem`."""
    read = letters.withColumnsRenamed({"partition": "at_partition", "offset": "at_offset"})
    read = read.withColumnsRenamed({"source_partition": "partition", "source_offset": "offset"})
    sources = read.where("offset is not null").select(*PLACE).distinct()
    is_over, due = is_true(F.col("is_over")), F.col("due_ms")
    named = logged.join(few(sources), PLACE, "left_semi").select(
        *("partition", "offset", "id", "due_ms", "stored", "killed_by"),
        F.col("op").alias("asked_op"),
        F.col("origin").alias("origin_offset"),
        F.col("attempt").alias("tried"),
        F.col("occurrence").alias("asked_occurrence"),
        is_over.alias("is_over"),
        (F.col("planned_ms") + F.col("late_ms")).alias("worth_until_ms"),
        F.col("record_hash").alias("asked_hash"),
        _owed_reason(bounds).alias("owed_reason"),
        # As `record_hash` of a dead letter: see evidence.letters_of.
        together(
            *("topic", F.when(is_over, F.col("clock")).otherwise(due.cast("string")), "id"),
            *(F.col("target_partition").cast("string"), "key_hash", "value_hash", "headers_hash"),
            F.when(F.col("is_told"), "yes"),
            *(
                F.concat(F.col(name).cast("string"), F.lit("ms"))
                for name in ("late_ms", "window_ms")
            ),
            "group",
            *(F.when(is_over, F.col(name)) for name in ("cron", "zone")),
            F.when(is_over, F.col("until_ms").cast("string")),
            F.when(is_over & is_true(F.col("catches_up")), "all"),
        ).alias("message_hash"),
        is_uncertain(bounds).alias("is_uncertain"),
    )
    came_out_too = messages.where("letters > 0 and deliveries > 0").select(
        "partition", F.col("offset").alias("origin_offset"), F.lit(True).alias("is_delivered")
    )
    joined = (
        read.join(named, PLACE, "left")
        .join(came_out_too, ["partition", "origin_offset"], "left")
        .join(killers, ["partition", "killed_by"], "left")
    )
    return joined.withColumn("problem", _problem(bounds)).localCheckpoint()


def _problem(bounds: Bounds) -> Column:
    is_there = F.col("asked_op").isNotNull()
    is_of_stored = F.when(F.col("is_over"), F.col("reason") == NO_OCCURRENCE).otherwise(
        F.col("reason").isin(*GIVEN_UP) & ~is_true(F.col("asked_occurrence") == 0)
    )
    return (
        F.when(~is_there & ~was_not_read(bounds), "it names no request")
        .when(~is_there | F.col("is_uncertain"), None)
        .when(F.col("owed_reason").isNotNull(), _problem_of_refused())
        .when(F.col("stored") & is_true(is_of_stored), _problem_of_dead())
        .otherwise("nothing is wrong with the request that it names")
    )


def _problem_of_refused() -> Column:
    is_too_large = F.col("owed_reason") == "too-large"
    is_other = ~F.col("record_hash").eqNullSafe(F.col("asked_hash"))
    is_marked = F.col("origin").isNotNull() | F.col("attempt").isNotNull()
    said = F.coalesce("reason", F.lit("nothing"))
    other_reason = F.format_string("it says %s, the reason is %s", said, "owed_reason")
    return (
        F.when(~F.col("reason").eqNullSafe(F.col("owed_reason")), other_reason)
        .when(F.col("is_truncated") != is_too_large, "it is cut short, or should be")
        .when(~is_too_large & is_other, "it is not the record that was refused")
        .when(is_marked, "it says that it was tried")
    )


def _problem_of_dead() -> Column:
    own = source_text(offset="origin_offset")
    is_killed = (
        F.array_contains("killed_sources", own)
        & F.col("asked_occurrence").isNull()
        & (F.col("timestamp_ms") >= F.col("killed_at_ms"))
    )
    is_other = ~F.col("record_hash").eqNullSafe(F.col("message_hash"))
    tried, is_expired = F.col("tried"), F.col("reason") == "expired"
    is_dead = F.col("reason") == "dead"
    attempts = F.when(is_dead, tried + 1).when(tried > 0, tried)
    # It may be of another clock than the step's now, which judges it exactly (`frontiers.py`).
    stamped_ms = F.col("timestamp_ms") + CLOCKS_APART_MS
    is_hasty = is_expired & ~is_true(stamped_ms > F.col("worth_until_ms"))
    return (
        F.when(F.col("is_delivered"), "the message that it is of was delivered")
        .when(is_killed, "the message that it is of had been killed before")
        .when(~F.col("origin").eqNullSafe(own), "it names another origin")
        .when(~F.col("attempt").eqNullSafe(attempts), "it counts other attempts")
        .when(
            ~F.col("occurrence").eqNullSafe(F.col("asked_occurrence")),
            "it names another occurrence",
        )
        .when(is_hasty, "the message that it is of was still worth delivering")
        .when(F.col("is_truncated") | is_other, "it is not the message that died")
    )
