"""Dead letters, compared with what had to be refused.

A letter is of the record that it names: of a reject, with the reason that the rules give; of a
conflict; or, reason `dead`, of a stored message that could not be delivered. It keeps the record as
it was. Letters are few beside messages, and so are the requests that they are about.

Source: docs/design/audit.md, "Dead letters".
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import is_below, several_findings, source_text
from delayd.audit.judging.evidence import letter_hash
from delayd.audit.judging.faults import Fault
from delayd.audit.judging.joins import few
from delayd.audit.judging.retention import is_uncertain, was_not_read


def judge_letters(
    logged: DataFrame, messages: DataFrame, letters: DataFrame, killers: DataFrame, bounds: Bounds
) -> DataFrame:
    """Return what is wrong with dead letters (FINDINGS). `killers`: cancel markers that say what
    they killed."""
    checked = _checked(logged, messages, letters, killers, bounds)
    told = {
        "id": F.col("asked_id"),
        "topic": F.lit(bounds.settings.dead.name),
        "due_ms": F.col("due_ms"),
    }
    false = several_findings(
        checked,
        {Fault.LETTER_FALSE: F.col("problem")},
        source=F.coalesce(source_text(F.col("partition"), F.col("origin_offset")), F.col("source")),
        partition=F.col("at_partition"),
        offset=F.col("at_offset"),
        **told,
    )
    of_record = checked.where("partition is not null").groupBy(
        "partition", F.coalesce("origin_offset", "offset").alias("offset")
    )
    doubled = of_record.agg(
        F.count_if(F.col("problem").isNull()).alias("right"),
        F.first("asked_id").alias("asked_id"),
        F.first("due_ms").alias("due_ms"),
    ).where("right > 1")
    doubled_found = several_findings(
        doubled,
        {Fault.LETTER_DOUBLED: F.format_string("it has %d dead letters", "right")},
        source=source_text(F.col("partition"), F.col("offset")),
        **told,
    )
    return false.unionByName(doubled_found).unionByName(_missing(logged, letters, bounds, told))


def _missing(
    logged: DataFrame, letters: DataFrame, bounds: Bounds, told: dict[str, Column]
) -> DataFrame:
    trimmed_ms = bounds.trimmed_before_ms(bounds.settings.dead.name)
    is_passed = is_below(bounds.frontier.offsets, F.col("partition"), F.col("offset"))
    owed = logged.where(_owed_reason(bounds).isNotNull() & is_passed).where(
        F.col("append_ms") >= trimmed_ms
    )
    named = letters.where("source_offset is not null").select(
        F.col("source_partition").alias("partition"), F.col("source_offset").alias("offset")
    )
    missing = owed.select(
        "partition",
        "offset",
        "due_ms",
        _owed_reason(bounds).alias("why"),
        F.col("id").alias("asked_id"),
    ).join(named, ["partition", "offset"], "left_anti")
    return several_findings(
        missing,
        {
            Fault.LETTER_MISSING: F.format_string(
                "it was refused as %s, and is no dead letter", "why"
            )
        },
        source=source_text(F.col("partition"), F.col("offset")),
        **told,
    )


def _owed_reason(bounds: Bounds) -> Column:
    """Return the reason of the letter that a request is owed by the rules; null if it is owed
    none."""
    is_conflict = (F.col("answer") == "conflict") & ~is_uncertain(bounds)
    return F.when(F.col("op") == "reject", F.col("reason")).when(is_conflict, "conflict")


def _checked(
    logged: DataFrame, messages: DataFrame, letters: DataFrame, killers: DataFrame, bounds: Bounds
) -> DataFrame:
    """Return letters, each with what is wrong with it: `problem`."""
    read = letters.withColumnsRenamed({"partition": "at_partition", "offset": "at_offset"})
    read = read.withColumnsRenamed({"source_partition": "partition", "source_offset": "offset"})
    sources = read.where("offset is not null").select("partition", "offset").distinct()
    named = logged.join(few(sources), ["partition", "offset"], "left_semi").select(
        *("partition", "offset", "due_ms", "stored", "is_refused", "killed_by"),
        F.col("id").alias("asked_id"),
        F.col("op").alias("asked_op"),
        F.col("origin").alias("origin_offset"),
        F.col("attempt").alias("tried"),
        F.col("record_hash").alias("asked_hash"),
        _owed_reason(bounds).alias("owed_reason"),
        letter_hash(
            F.col("topic"),
            F.col("due_ms").cast("string"),
            F.col("id"),
            F.col("target_partition").cast("string"),
            F.col("key_hash"),
            F.col("value_hash"),
            F.col("headers_hash"),
        ).alias("message_hash"),
        is_uncertain(bounds).alias("is_uncertain"),
    )
    came_out_too = messages.where("letters > 0 and deliveries > 0").select(
        "partition", F.col("offset").alias("origin_offset"), F.lit(True).alias("is_delivered")
    )
    joined = (
        read.join(named, ["partition", "offset"], "left")
        .join(came_out_too, ["partition", "origin_offset"], "left")
        .join(killers, ["partition", "killed_by"], "left")
    )
    return joined.withColumn("problem", _problem(bounds)).localCheckpoint()


def _problem(bounds: Bounds) -> Column:
    is_there = F.col("asked_op").isNotNull()
    is_nothing = ~is_there & ~F.coalesce(
        was_not_read(bounds, F.col("partition"), F.col("offset")), F.lit(False)
    )
    return (
        F.when(is_nothing, F.lit("it names no request"))
        .when(~is_there | F.col("is_uncertain"), F.lit(None))
        .when(F.col("owed_reason").isNotNull(), _problem_of_refused())
        .when(F.col("stored") & F.col("reason").eqNullSafe("dead"), _problem_of_dead())
        .otherwise(F.lit("nothing is wrong with the request that it names"))
    )


def _problem_of_refused() -> Column:
    is_too_large = F.col("owed_reason") == "too-large"
    is_other = ~F.col("record_hash").eqNullSafe(F.col("asked_hash"))
    is_marked = F.col("origin").isNotNull() | F.col("attempt").isNotNull()
    return (
        F.when(
            ~F.col("reason").eqNullSafe(F.col("owed_reason")),
            F.format_string(
                "it says %s, the reason is %s",
                F.coalesce("reason", F.lit("nothing")),
                "owed_reason",
            ),
        )
        .when(F.col("is_truncated") != is_too_large, F.lit("it is cut short, or should be"))
        .when(~is_too_large & is_other, F.lit("it is not the record that was refused"))
        .when(is_marked, F.lit("it says that it was tried"))
    )


def _problem_of_dead() -> Column:
    own = source_text(F.col("partition"), F.col("origin_offset"))
    is_killed = F.array_contains("killed_sources", own) & (
        F.col("timestamp_ms") >= F.col("killed_at_ms")
    )
    return (
        F.when(F.col("is_delivered"), F.lit("the message that it is of was delivered"))
        .when(is_killed, F.lit("the message that it is of had been killed before"))
        .when(~F.col("origin").eqNullSafe(own), F.lit("it names another origin"))
        .when(~F.col("attempt").eqNullSafe(F.col("tried") + 1), F.lit("it counts other attempts"))
        .when(
            F.col("is_truncated") | ~F.col("record_hash").eqNullSafe(F.col("message_hash")),
            F.lit("it is not the message that died"),
        )
    )
