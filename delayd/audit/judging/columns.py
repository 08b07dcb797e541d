"""Columns that several judgements share."""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from delayd.audit.judging.faults import Fault
from delayd.audit.tables import FINDINGS
from replication.frontier import Frontier


def source_text(partition: Column, offset: Column) -> Column:
    """Return `partition/offset`, as `delayd-source` has it; null if one of them is."""
    return F.concat(partition.cast("string"), F.lit("/"), offset.cast("string"))


def is_done(
    frontier: Frontier, lane: Column, rank_ms: Column, partition: Column, offset: Column
) -> Column:
    """Return whether a message is in Done(K, O) of this frontier."""
    rank = F.struct(
        rank_ms.cast("long").alias("due"),
        partition.cast("long").alias("partition"),
        offset.cast("long").alias("offset"),
    )
    return (rank < _cursor_of(frontier, lane)) & is_below(frontier.offsets, partition, offset)


def is_below(offsets: Sequence[int], partition: Column, offset: Column) -> Column:
    """Return whether the offset is below the one of its partition."""
    return offset < F.element_at(_longs(offsets), partition.cast("int") + 1)


def of_partition(values: Sequence[int], partition: Column) -> Column:
    """Return the value of this partition; null of one that there is not."""
    return F.get(_longs(values), partition.cast("int"))


def _cursor_of(frontier: Frontier, lane: Column) -> Column:
    index = lane.cast("int") + 1
    dues, partitions, offsets = zip(*frontier.cursors, strict=True)
    return F.struct(
        F.element_at(_longs(dues), index).alias("due"),
        F.element_at(_longs(partitions), index).alias("partition"),
        F.element_at(_longs(offsets), index).alias("offset"),
    )


def _longs(values: Sequence[int]) -> Column:
    return F.array(*(F.lit(value).cast("long") for value in values))


def findings(rows: DataFrame, fault: Fault, reason: Column, **columns: Column) -> DataFrame:
    """Return each of `rows` as a finding; columns of tables.FINDINGS that are not given are
    null."""
    return findings_of_job(rows, fault.job, F.lit(fault.slug), reason, **columns)


def findings_of_job(
    rows: DataFrame, job: str, fault: Column, reason: Column, **columns: Column
) -> DataFrame:
    """Do the same for rows of several faults of one job; `fault` is the slug of each."""
    return _as_findings(rows, {"job": F.lit(job), "fault": fault, "reason": reason, **columns})


def several_findings(
    rows: DataFrame, reasons: Mapping[Fault, Column], **columns: Column
) -> DataFrame:
    """Do as `findings` in one pass: return each of `rows` as a finding for each of `reasons` not
    null."""
    each = F.array(
        *(
            F.struct(
                F.lit(fault.job).alias("job"), F.lit(fault.slug).alias("fault"), why.alias("reason")
            )
            for fault, why in reasons.items()
        )
    )
    named = rows.select(
        F.explode(F.filter(each, lambda one: one["reason"].isNotNull())).alias("found"),
        *(column.alias(name) for name, column in columns.items()),
    )
    found = {name: F.col("found")[name] for name in ("job", "fault", "reason")}
    return _as_findings(named, {name: F.col(name) for name in columns} | found)


def as_table(rows: DataFrame, table: StructType, **columns: Column) -> DataFrame:
    """Return rows as this table: its columns as given, else as the rows have them."""
    assert columns.keys() <= set(table.fieldNames()), "a column that the table has not"
    return rows.select(
        *(
            columns.get(field.name, F.col(field.name)).cast(field.dataType).alias(field.name)
            for field in table.fields
        )
    )


def _as_findings(rows: DataFrame, columns: dict[str, Column]) -> DataFrame:
    nothing = {name: F.lit(None) for name in FINDINGS.fieldNames()}
    return as_table(rows, FINDINGS, **(nothing | columns))
