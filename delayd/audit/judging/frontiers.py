"""The frontier topic: what it says of itself, and what each step claims, held against the log.

A record may be at fault in one way only, and what follows it is forgiven as far as it fits what
came before it. The history may begin anywhere, and have gaps where Kafka has compacted it.
Source: docs/design/audit.md, "The frontier".
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import findings, source_text
from delayd.audit.judging.faults import Fault
from delayd.audit.judging.history import covered_by, history_of
from delayd.audit.judging.links import COMPACTION_LAG_MS, links_of
from delayd.audit.tables import FRONTIERS, RANK
from replication.record import FORMAT

__all__ = ["COMPACTION_LAG_MS", "failovers_of", "frontiers_of", "judge_frontier", "reigns_of"]

COUNTS: Final = ("delivered", "late", "killed", "retried", "dead", "answers")

_LONG = LongType()
_VALUE = StructType(
    [
        *(StructField(name, _LONG) for name in ("format", "shard", "term", "step")),
        StructField("owner", StringType()),
        StructField("now_ms", _LONG),
        StructField("cursor", RANK),
        StructField("lanes", MapType(StringType(), RANK)),
        StructField("offsets", FRONTIERS["offsets"].dataType),
        StructField("own_writes", FRONTIERS["own_writes"].dataType),
        StructField("counts", StructType([StructField(name, _LONG) for name in COUNTS])),
        StructField("digest", _LONG),
        StructField(
            "settings",
            StructType([StructField("partitions", _LONG), StructField("lanes", _LONG)]),
        ),
    ]
)
_VALUE_KEYS: Final = sorted(field.name for field in _VALUE)


def frontiers_of(records: DataFrame) -> DataFrame:
    """RECORDS of the frontier topic as FRONTIERS."""
    text = F.col("value").cast("string")
    parsed = (
        records.withColumn("text", text)
        .withColumn("it", F.from_json("text", _VALUE))
        .withColumn("keys", F.array_sort(F.json_object_keys("text")))
        .withColumn("flaw", _flaw())
    )
    return parsed.select(
        "offset",
        F.col("timestamp_ms").alias("append_ms"),
        F.coalesce(F.when(F.col("flaw").isNull(), F.col("it.shard")), F.col("partition"))
        .cast("int")
        .alias("shard"),
        *(f"it.{name}" for name in ("term", "step", "owner", "now_ms", "cursor", "lanes")),
        *("it.offsets", "it.own_writes"),
        *(f"it.counts.{name}" for name in COUNTS),
        "it.digest",
        "flaw",
    )


def judge_frontier(
    frontiers: DataFrame, logged: DataFrame, letters: DataFrame, bounds: Bounds
) -> DataFrame:
    """What is wrong with the frontier topic, as FINDINGS; each record in at most one of them.

    Starts small jobs of its own, to build the history that is searched.
    """
    shard = bounds.frontier.shard
    links = links_of(frontiers, bounds).localCheckpoint()

    def found(rows: DataFrame, fault: Fault, reason: Column) -> DataFrame:
        topic = F.lit(bounds.settings.frontier.name)
        partition = F.lit(shard)
        return findings(
            rows, fault, reason, topic=topic, partition=partition, offset=F.col("offset")
        )

    broken = frontiers.where(F.col("flaw").isNotNull() & (F.col("shard") == shard))
    outcome = found(broken, Fault.FRONTIER_BROKEN, F.col("flaw"))
    for fault in (Fault.FRONTIER_TERM, Fault.FRONTIER_BACK, Fault.FRONTIER_STEP):
        rows = links.where(F.col("fault") == fault.slug)
        outcome = outcome.unionByName(found(rows, fault, F.col("reason")))
    false = _false_claims(links, logged, letters, bounds)
    return outcome.unionByName(found(false, Fault.FRONTIER_FALSE, F.col("reason")))


def _false_claims(
    links: DataFrame, logged: DataFrame, letters: DataFrame, bounds: Bounds
) -> DataFrame:
    """Steps that claim something else than their difference, with the reason."""
    history = history_of(links, bounds)
    covered = covered_by(_deliverable(logged, letters, bounds), history)
    alive = covered.where(F.col("killed_by").isNull() | (F.col("killed_by") >= F.col("step_end")))
    crc = F.crc32(source_text(F.col("partition"), F.col("offset")).cast("binary"))
    held = alive.groupBy(F.col("step_at").alias("offset")).agg(
        F.count("*").alias("held"),
        F.sum(crc).alias("held_digest"),
        F.count(F.when(F.col("has_letter"), 1)).alias("letters"),
        F.sum(F.when(F.col("has_letter"), crc)).alias("letters_digest"),
    )
    claims = (
        links.where(F.col("is_sound") & (F.col("offset") <= bounds.frontier_offset))
        .transform(_with_reach)
        .where(~F.col("is_base") & _is_whole(bounds))
        .select("offset", "step", "delivered", "dead", "digest")
    )
    none = F.lit(0).cast("long")
    held_against = claims.join(held, "offset", "left").select(
        *claims.columns,
        *(F.coalesce(name, none).alias(name) for name in held.columns if name != "offset"),
    )
    over = F.col("delivered") + F.col("dead")
    # A dead letter that is missing, or one too many, is a finding by itself: then only counts tell.
    expected = F.when(F.col("dead") == 0, F.col("held_digest")).when(
        F.col("dead") == F.col("letters"), F.col("held_digest") - F.col("letters_digest")
    )
    return held_against.select(
        "offset",
        F.when(
            over != F.col("held"),
            F.concat_ws(
                " ",
                *(F.lit("step"), "step", F.lit("says that it delivered"), "delivered"),
                *(F.lit("and gave up"), "dead", F.lit("messages; by the log it had"), "held"),
            ),
        )
        .when(
            F.col("digest") != expected,
            F.concat_ws(
                " ",
                *(
                    F.lit("step"),
                    "step",
                    F.lit("delivered as many messages as it says, but others:"),
                ),
                *(F.lit("their digest is"), expected, F.lit("and not"), "digest"),
            ),
        )
        .alias("reason"),
    ).where("reason is not null")


def _deliverable(logged: DataFrame, letters: DataFrame, bounds: Bounds) -> DataFrame:
    """What a step must deliver or give up, unless it was killed: stored and not put back. With
    `has_letter`: is there a dead letter that says so?"""
    columns = ("partition", "offset", "lane", "rank_ms", "killed_by")
    stored = logged.where(F.col("stored") & F.col("continued_by").isNull())
    is_last = F.coalesce("attempt", F.lit(0)) >= len(bounds.settings.retry_delays_ms)
    # Only the last of all attempts may end as a dead letter, so few rows are joined.
    given_up = (
        letters.where(F.col("reason") == "dead")
        .select(
            F.col("source_partition").alias("partition"),
            F.col("source_offset").alias("offset"),
            F.lit(True).alias("has_letter"),
        )
        .dropDuplicates(["partition", "offset"])
    )
    last = stored.where(is_last).select(*columns).join(given_up, ["partition", "offset"], "left")
    return (
        stored.where(~is_last)
        .select(*columns, F.lit(False).alias("has_letter"))
        .unionByName(
            last.select(*columns, F.coalesce("has_letter", F.lit(False)).alias("has_letter"))
        )
    )


def _with_reach(sound: DataFrame) -> DataFrame:
    """With O and the lowest due time among the cursors of the record before."""
    cursors = F.concat(F.array("cursor"), F.map_values("lanes"))
    lowest_ms = F.array_min(F.transform(cursors, lambda cursor: F.get(cursor, F.lit(0))))
    history = Window.partitionBy("shard").orderBy("offset")
    return sound.withColumn("reach_ms", F.lag(lowest_ms).over(history)).withColumn(
        "reach", F.lag("offsets").over(history)
    )


def _is_whole(bounds: Bounds) -> Column:
    """Is all that the step can have delivered still in the buffer?"""
    starts = bounds.buffer_starts
    if not any(starts):
        return F.lit(True)
    settings = bounds.settings
    since_ms = bounds.trimmed_ms.get(settings.buffer.name, bounds.frontier_append_ms)
    is_whole = F.col("reach_ms") >= since_ms + settings.max_delay_ms
    for partition, start in enumerate(starts):
        is_whole &= F.get("reach", F.lit(partition)) >= start
    return is_whole


def reigns_of(frontiers: DataFrame) -> DataFrame:
    """The terms as report.Reign has them; in order."""
    return (
        frontiers.where(F.col("flaw").isNull() & (F.col("term") > 0))
        .groupBy("term", "owner")
        .agg(
            F.min("append_ms").alias("from_ms"),
            F.max("append_ms").alias("to_ms"),
            F.count("*").alias("steps"),
            F.sum("delivered").alias("delivered"),
            F.min(F.when(F.col("delivered") > 0, F.col("append_ms"))).alias("first_delivery_ms"),
        )
        .orderBy("from_ms", "term")
    )


def failovers_of(frontiers: DataFrame) -> DataFrame:
    """Changes of master as report.Failover has them, without their lateness; in order.

    A master that takes over from itself, after a failed step, is none.
    """
    terms = Window.partitionBy(F.lit(0)).orderBy("from_ms", "term")
    return (
        reigns_of(frontiers)
        .withColumn("old_owner", F.lag("owner").over(terms))
        .withColumn("old_to_ms", F.lag("to_ms").over(terms))
        .where(F.col("owner") != F.col("old_owner"))
        .select(
            F.col("from_ms").alias("at_ms"),
            "term",
            "old_owner",
            F.col("owner").alias("new_owner"),
            (F.col("first_delivery_ms") - F.col("old_to_ms")).alias("gap_ms"),
        )
        .orderBy("at_ms")
    )


def _flaw() -> Column:
    """Why a record is no frontier record; null if it is one."""
    it = F.col("it")
    numbers = [
        *(it[name] for name in ("shard", "term", "step", "now_ms", "digest")),
        *(it["counts"][name] for name in COUNTS),
        *(it["settings"][name] for name in ("partitions", "lanes")),
    ]
    parts = [it["owner"], it["cursor"], it["lanes"], it["offsets"], it["own_writes"]]
    is_partial = F.lit(False)
    for part in (*numbers, *parts):
        is_partial |= part.isNull()

    def is_no_lane(lane: Column) -> Column:
        number = lane.try_cast("int")
        return number.isNull() | (number < 0) | (number >= it["settings"]["lanes"])

    def is_no_row(numbers: Column) -> Column:
        return (F.size(numbers) != it["settings"]["partitions"]) | _has_gap(numbers)

    key = F.concat(F.lit("shard-"), F.col("partition").cast("string"))
    is_elsewhere = (it["shard"] != F.col("partition")) | (F.col("key").cast("string") != key)
    return (
        F.when(F.col("value").isNull(), "it has no value")
        .when(F.col("keys").isNull(), "it is no JSON object")
        .when(
            F.coalesce(it["format"], F.lit(-1)) != FORMAT,
            F.concat(F.lit("its format is not "), F.lit(str(FORMAT))),
        )
        .when(F.col("keys") != F.array(*map(F.lit, _VALUE_KEYS)), "fields are missing, or unknown")
        .when(is_partial, "a field is missing, or not of its type")
        .when(
            _is_no_rank(it["cursor"])
            | F.exists(F.map_values(it["lanes"]), _is_no_rank)
            | F.exists(F.map_keys(it["lanes"]), is_no_lane),
            "a cursor is no rank, or of no lane",
        )
        .when(
            is_no_row(it["offsets"]) | is_no_row(it["own_writes"]),
            "its offsets do not match the partitions of the buffer",
        )
        .when(F.coalesce(is_elsewhere, F.lit(True)), "its key is not that of its shard")
    )


def _is_no_rank(numbers: Column) -> Column:
    return numbers.isNull() | (F.size(numbers) != 3) | _has_gap(numbers)


def _has_gap(numbers: Column) -> Column:
    return F.exists(numbers, lambda number: number.isNull())
