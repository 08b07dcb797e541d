"""Replicas: what every node holds at the cut, compared with what the log says must be pending.

All is brought together once, by source, as narrow rows: which nodes hold it, and a hash of what
each says of it. Only where they differ is it looked at again, field by field.
Source: docs/design/audit.md, "Replicas".
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import (
    as_table,
    findings,
    findings_of_job,
    is_below,
    is_done,
    of_partition,
    source_text,
)
from delayd.audit.judging.faults import Fault
from delayd.audit.judging.intervals import width_of
from delayd.audit.report import NodeState
from delayd.audit.tables import PENDING
from replication.rank import SLOT_MS

LOG: Final = ""
"""In place of a node: what the log says."""

NODES_MAX: Final = 62
"""Exports that are compared: each is a bit of a number, one is the log's."""
DIFFERING_MAX: Final = 200_000
"""So many that differ are sent to everyone, to look at them again; more are joined."""

HEAT_BUCKETS_MAX: Final = 96

_COMPARED: Final = (
    ("slot", "the slot"),
    ("due_ms", "the due time"),
    ("lane", "the lane"),
    ("topic", "the topic"),
    ("append_ms", "the append time"),
    ("id", "the id"),
    ("payload_crc", "the payload"),
)
"""What the log knows of a pending message, and a node must."""


def expected_pending(logged: DataFrame, bounds: Bounds) -> DataFrame:
    """Return what must be pending at the cut by the log, as PENDING of the node LOG."""
    partition, offset = F.col("partition"), F.col("offset")
    offsets = bounds.frontier.offsets
    is_over = is_done(bounds.frontier, F.col("lane"), F.col("rank_ms"), partition, offset)
    is_killed = F.coalesce(is_below(offsets, partition, F.col("killed_by")), F.lit(False))
    pending = logged.where(
        F.col("stored") & is_below(offsets, partition, offset) & ~is_over & ~is_killed
    )
    return as_table(
        pending,
        PENDING,
        node=F.lit(LOG),
        slot=F.expr(f"rank_ms div {SLOT_MS}"),
        due_ms=F.col("rank_ms"),
        digest=F.lit(None),
    )


def judge_replicas(
    expected: DataFrame, pending: DataFrame, nodes: Sequence[NodeState], bounds: Bounds
) -> DataFrame:
    """Return what nodes lack, hold too much, or hold with something else in it, as FINDINGS.

    A node with a problem is one finding, and nothing of its export counts. Starts the job that
    finds what differs, because how the rest is done depends on how much that is.
    """
    present = sorted(state.node for state in nodes if state.problem is None)
    assert len(present) <= NODES_MAX, "a bit of a number for each node"
    outcome = _absent(expected, nodes)
    if not present:
        return outcome
    held = expected.unionByName(pending.where(F.col("node").isin(present)))
    differing = _differing(held, present, bounds).localCheckpoint()
    count = differing.limit(DIFFERING_MAX + 1).count()
    if count == 0:
        return outcome
    if count <= DIFFERING_MAX:
        differing = F.broadcast(differing)
    seen = held.join(differing, ["partition", "offset"])
    return outcome.unionByName(_compare(seen, present))


def _absent(expected: DataFrame, nodes: Sequence[NodeState]) -> DataFrame:
    rows = expected.sparkSession.createDataFrame(
        [(state.node, state.problem) for state in nodes if state.problem is not None],
        "node string, problem string",
    )
    return findings(rows, Fault.REPLICA_ABSENT, F.col("problem"), node=F.col("node"))


def _differing(held: DataFrame, present: Sequence[str], bounds: Bounds) -> DataFrame:
    """Sources that are not alike everywhere. One shuffle of narrow rows."""
    numbers = {node: 1 << number for number, node in enumerate((LOG, *present))}
    everyone = sum(numbers.values())
    bit = F.lit(0).cast("long")
    for node, value in numbers.items():
        bit = F.when(F.col("node") == node, F.lit(value).cast("long")).otherwise(bit)
    is_log = F.col("node") == LOG
    # The log cannot say a digest, only whether there is one.
    digest = F.when(~is_log & F.col("digest").isNotNull(), F.xxhash64("digest"))
    has_digest = F.when(is_log, F.col("id").isNotNull()).otherwise(F.col("digest").isNotNull())
    marks = [
        F.when(F.col(name).isNull(), number).otherwise(0)
        for number, name in enumerate(("id", "topic"), start=1)
    ]
    said = F.xxhash64(*(name for name, _ in _COMPARED), *marks, has_digest)
    start = of_partition(bounds.buffer_starts, F.col("partition"))
    return (
        held.select("partition", "offset", bit.alias("bit"), said.alias("said"), digest.alias("d"))
        .groupBy("partition", "offset")
        .agg(
            F.sum("bit").alias("bits"),
            F.count("*").alias("holders"),
            F.min("said").alias("said_least"),
            F.max("said").alias("said_most"),
            F.min("d").alias("digest_least"),
            F.max("d").alias("digest_most"),
        )
        .where(
            (F.col("bits") != everyone)
            | (F.col("holders") != len(numbers))
            | (F.col("said_least") != F.col("said_most"))
            | (F.col("digest_least") != F.col("digest_most"))
        )
        # Of what Kafka has deleted from the buffer the log says nothing.
        .where(F.col("offset") >= F.coalesce(start, "offset"))
        .select("partition", "offset")
    )


def _compare(seen: DataFrame, present: Sequence[str]) -> DataFrame:
    """Return the findings among sources that differ somewhere."""
    fields = F.struct("node", "digest", *(name for name, _ in _COMPARED))
    is_log = F.col("node") == LOG
    sources = (
        seen.groupBy("partition", "offset")
        .agg(
            F.max(F.when(is_log, fields)).alias("log"),
            F.array_sort(F.collect_list(F.when(~is_log, fields))).alias("copies"),
        )
        .withColumn("digests", F.transform("copies", lambda copy: copy["digest"]))
    )
    each = sources.select(
        *("partition", "offset", "log", "copies", "digests"),
        F.explode(F.array(*map(F.lit, present))).alias("node"),
    ).select(
        *("partition", "offset", "log", "node"),
        F.filter("copies", lambda copy: copy["node"] == F.col("node")).alias("own"),
        _usual_digest().alias("usual"),
    )
    first = F.get("own", F.lit(0))
    count = F.size("own")
    is_wanted = F.col("log").isNotNull()
    known = F.when(is_wanted, F.col("log")).otherwise(first)
    judged = each.select(
        *("partition", "offset", "node"),
        is_wanted.alias("is_wanted"),
        known.alias("it"),
        count.alias("count"),
        _wrong_fields(F.col("log"), first, F.col("usual")).alias("wrong"),
    )
    slot = F.concat(F.lit("slot "), F.col("it.slot").cast("string"))
    cases = (
        (~F.col("is_wanted"), Fault.REPLICA_EXTRA, F.lit(" holds it, but it is not pending")),
        (F.col("count") == 0, Fault.REPLICA_MISSING, F.lit(" lacks it")),
        (F.col("count") > 1, Fault.REPLICA_EXTRA, F.lit(" holds it more than once")),
        (
            F.size("wrong") > 0,
            Fault.REPLICA_CHANGED,
            F.concat(F.lit(" has it with another value of "), F.array_join("wrong", ", ")),
        ),
    )
    fault = reason = F.lit(None).cast("string")
    for is_case, name, text in reversed(cases):
        fault = F.when(is_case, name.slug).otherwise(fault)
        reason = F.when(is_case, F.concat(slot, text)).otherwise(reason)
    found = judged.where("is_wanted or count > 0").select(
        "*", fault.alias("fault"), reason.alias("reason")
    )
    return findings_of_job(
        found.where("fault is not null"),
        Fault.REPLICA_CHANGED.job,
        F.col("fault"),
        F.col("reason"),
        source=source_text(F.col("partition"), F.col("offset")),
        id=F.col("it.id"),
        topic=F.col("it.topic"),
        node=F.col("node"),
        due_ms=F.col("it.due_ms"),
    )


def _usual_digest() -> Column:
    """Return the digest that most copies have; of equally many the one of the first node."""
    digests = F.col("digests")

    def times(digest: Column) -> Column:
        return F.size(F.filter(digests, lambda other: other.eqNullSafe(digest)))

    ranked = F.transform(
        digests,
        lambda digest, at: F.struct(times(digest).alias("n"), (-at).alias("at"), digest.alias("d")),
    )
    return F.array_max(ranked)["d"]


def _wrong_fields(log: Column, copy: Column, usual: Column) -> Column:
    differing = [F.when(~log[name].eqNullSafe(copy[name]), F.lit(text)) for name, text in _COMPARED]
    is_misplaced = log["id"].isNull() != copy["digest"].isNull()
    is_other = F.when(is_misplaced | ~copy["digest"].eqNullSafe(usual), F.lit("the digest"))
    return F.array_compact(F.array(*differing, is_other))


def heat_of(expected: DataFrame, pending: DataFrame, found: DataFrame) -> DataFrame:
    """Return how many messages are pending by due time and node, and how many of them differ, as
    report.HeatCell; of each node at most HEAT_BUCKETS_MAX. `found` is what judge_replicas found."""
    held = expected.select("node", "due_ms").unionByName(pending.select("node", "due_ms"))
    [(least_ms, most_ms)] = held.agg(F.min("due_ms"), F.max("due_ms")).collect()
    width_ms = width_of(least_ms or 0, most_ms or 0, HEAT_BUCKETS_MAX)
    at = F.expr(f"due_ms div {width_ms} * {width_ms}").alias("at_ms")
    none = F.lit(0).cast("long")
    cells = held.groupBy(at, "node").agg(F.count("*").alias("pending"))
    differ = (
        found.where("node is not null and due_ms is not null")
        .groupBy(at, "node")
        .agg(F.count("*").alias("differ"))
    )
    return (
        cells.join(differ, ["at_ms", "node"], "full")
        .select(
            *("at_ms", "node"),
            F.coalesce("pending", none).alias("pending"),
            F.coalesce("differ", none).alias("differ"),
        )
        .orderBy("at_ms", "node")
    )
