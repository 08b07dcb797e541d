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
    PLACE,
    as_table,
    findings,
    is_below,
    is_done,
    looked_up,
    of_partition,
    source_text,
    table_of,
)
from delayd.audit.judging.faults import Fault
from delayd.audit.report import NodeState
from delayd.audit.tables import NODE_PROBLEMS, PENDING
from replication.rank import SLOT_MS

LOG: Final = ""
"""In place of a node: what the log says."""

NODES_MAX: Final = 62
"""Exports that are compared: each is a bit of a number, one is the log's."""
DIFFERING_MAX: Final = 200_000
"""So many that differ are sent to everyone, to look at them again; more are joined."""

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
    offsets = bounds.frontier.offsets
    is_killed = is_below(offsets, "killed_by")
    pending = logged.where(
        F.col("stored") & is_below(offsets) & ~is_done(bounds.frontier) & ~is_killed
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
    return outcome.unionByName(_compare(held.join(differing, PLACE), present))


def _absent(expected: DataFrame, nodes: Sequence[NodeState]) -> DataFrame:
    told = [(state.node, state.problem) for state in nodes if state.problem is not None]
    rows = table_of(expected.sparkSession, NODE_PROBLEMS, told)
    return findings(rows, {Fault.REPLICA_ABSENT: F.col("problem")}, "node")


def _differing(held: DataFrame, present: Sequence[str], bounds: Bounds) -> DataFrame:
    """Sources that are not alike everywhere. One shuffle of narrow rows."""
    bits = {node: 1 << number for number, node in enumerate((LOG, *present))}
    is_log = F.col("node") == LOG
    # The log cannot say a digest, only whether there is one.
    digest = F.when(~is_log & F.col("digest").isNotNull(), F.xxhash64("digest"))
    has_digest = F.when(is_log, F.col("id").isNotNull()).otherwise(F.col("digest").isNotNull())
    marks = [
        F.when(F.col(name).isNull(), number).otherwise(0)
        for number, name in enumerate(("id", "topic"), start=1)
    ]
    said = F.xxhash64(*(name for name, _ in _COMPARED), *marks, has_digest)
    start = of_partition(bounds.buffer_starts)
    return (
        held.withColumns({"bit": looked_up(bits, "node"), "said": said, "digest": digest})
        .groupBy(*PLACE)
        .agg(
            F.sum("bit").alias("bits"),
            F.count("*").alias("holders"),
            (F.min("said") != F.max("said")).alias("is_other"),
            (F.min("digest") != F.max("digest")).alias("is_other_digest"),
        )
        .where(
            (F.col("bits") != sum(bits.values()))
            | (F.col("holders") != len(bits))
            | F.col("is_other")
            | F.col("is_other_digest")
        )
        # Of what Kafka has deleted from the buffer the log says nothing.
        .where(F.col("offset") >= F.coalesce(start, "offset"))
        .select(*PLACE)
    )


def _compare(seen: DataFrame, present: Sequence[str]) -> DataFrame:
    """Return the findings among sources that differ somewhere."""
    fields = F.struct("node", "digest", *(name for name, _ in _COMPARED))
    is_log = F.col("node") == LOG
    sources = seen.groupBy(*PLACE).agg(
        F.max(F.when(is_log, fields)).alias("log"),
        F.array_sort(F.collect_list(F.when(~is_log, fields))).alias("copies"),
    )
    own = F.filter("copies", lambda copy: copy["node"] == F.col("node"))
    it = F.coalesce("log", "first")
    judged = (
        sources.withColumn("usual", _usual_digest(F.transform("copies", lambda it: it["digest"])))
        .withColumn("node", F.explode(F.array(*map(F.lit, present))))
        .withColumns({"count": F.size(own), "first": F.get(own, F.lit(0))})
        .withColumn("wrong", _wrong_fields(F.col("log"), F.col("first"), F.col("usual")))
        .select("*", *(it[name].alias(name) for name in ("slot", "id", "topic", "due_ms")))
    )
    is_wanted, count = F.col("log").isNotNull(), F.col("count")
    is_changed = is_wanted & (count == 1) & (F.size("wrong") > 0)
    wrong = F.concat(F.lit("has it with another value of "), F.array_join("wrong", ", "))
    reasons = {
        Fault.REPLICA_MISSING: F.when(count == 0, "lacks it"),
        Fault.REPLICA_EXTRA: F.when(~is_wanted, "holds it, but it is not pending").when(
            count > 1, "holds it more than once"
        ),
        Fault.REPLICA_CHANGED: F.when(is_changed, wrong),
    }
    slot = F.concat(F.lit("slot "), F.col("slot").cast("string"), F.lit(" "))
    return findings(
        judged.where(is_wanted | (count > 0)),
        {fault: F.concat(slot, reason) for fault, reason in reasons.items()},
        *("id", "topic", "node", "due_ms"),
        source=source_text(),
    )


def _usual_digest(digests: Column) -> Column:
    """Return the digest that most copies have; of equally many the one of the first node."""

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
