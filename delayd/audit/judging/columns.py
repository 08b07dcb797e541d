"""Columns, findings and joins that several judgements share.

The name of a column stands for the column. Where none is given, a place is that of a request:
`partition` and `offset`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from delayd.audit.judging.faults import Fault
from delayd.audit.tables import FINDINGS
from replication.frontier import Frontier
from replication.quotas import Quota
from replication.rules import Rules
from replication.settings import STEADY_RULES, Settings

ColumnOrName: TypeAlias = Column | str

PLACE: Final = ["partition", "offset"]

NO_OCCURRENCE: Final = "no-occurrence"
"""The reason of the letter that a series without an occurrence becomes; its fate is `dead`."""

GIVEN_UP: Final = ("dead", "expired")
"""Fates of stored messages that end as dead letters; the letters' reasons, and verdicts, too."""

FEW: Final = 200_000
"""Rows of a few numbers that every task may be handed: some 20 MB."""


def column(named: ColumnOrName) -> Column:
    """Return the column itself."""
    return F.col(named) if isinstance(named, str) else named


def is_true(condition: Column) -> Column:
    """Return the condition, False where it is null."""
    return F.coalesce(condition, F.lit(False))


def quota_field(name: str, quota: ColumnOrName = "quota") -> Column:
    """Return a field of `replication.quotas.Quota` by its name, of an array of its numbers as
    frontier records have it."""
    return F.get(column(quota), F.lit(Quota._fields.index(name)))


def source_text(partition: ColumnOrName = "partition", offset: ColumnOrName = "offset") -> Column:
    """Return `partition/offset`, as `delayd-source` has it; null if one of them is."""
    return F.concat(column(partition).cast("string"), F.lit("/"), column(offset).cast("string"))


def named_place() -> tuple[Column, Column]:
    """Return the place of the request that a record names, as PLACE."""
    return F.col("source_partition").alias("partition"), F.col("source_offset").alias("offset")


def is_done(frontier: Frontier, offset: ColumnOrName = "offset") -> Column:
    """Return whether a message (lane, rank_ms, partition, `offset`) is in Done(K, O) of this
    frontier; False of what is no message."""
    lane = F.col("lane").cast("int") + 1
    if frontier.shards > 1:
        lane += shard_of(frontier.shards) * (len(frontier.cursors) // frontier.shards)
    parts = zip(*frontier.cursors, strict=True)
    rank = _rank(F.col("rank_ms"), F.col("partition"), column(offset))
    cursor = _rank(*(F.element_at(_longs(part), lane) for part in parts))
    return is_true(rank < cursor) & is_below(frontier.offsets, offset)


def _rank(*parts: Column) -> Column:
    names = ("due", "partition", "offset")
    return F.struct(*(p.cast("long").alias(name) for p, name in zip(parts, names, strict=True)))


def is_below(offsets: Sequence[int], offset: ColumnOrName = "offset") -> Column:
    """Return whether the offset is below the one of `partition`; False of null."""
    return is_true(column(offset) < F.element_at(_longs(offsets), F.col("partition") + 1))


def of_partition(values: Sequence[int], partition: ColumnOrName = "partition") -> Column:
    """Return the value of this partition; null of one that there is not."""
    return F.get(_longs(values), column(partition).cast("int"))


def shard_of(shards: int, partition: ColumnOrName = "partition") -> Column:
    """Return the shard of a partition of the buffer, one of so many."""
    if shards == 1:
        return F.lit(0)
    return F.pmod(column(partition).cast("int"), F.lit(shards))


def home_in(topic: Column, shard: Column, settings: Settings) -> Column:
    """Return the partition of a shard in which the orders about a topic stand."""
    shards = settings.shards
    home = F.pmod(F.crc32(topic.cast("binary")), F.lit(settings.partitions // shards))
    return home if shards == 1 else shard + home * shards


def of_shard(values: Sequence[int], shard: ColumnOrName = "shard") -> Column:
    """Return the value of this shard."""
    return F.lit(values[0]) if len(values) == 1 else of_partition(values, shard)


def is_steady_at(offset: ColumnOrName, rules: Rules, partitions: int) -> Column:
    """Return whether the record at this offset of `partition` is ruled by version 4 or later."""
    return is_ruled_at(offset, rules, partitions, STEADY_RULES)


def is_ruled_at(offset: ColumnOrName, rules: Rules, partitions: int, version: int) -> Column:
    """Return whether the record at this offset of `partition` is ruled by `version` or later."""
    starts = [rules.ruled_from(partition, version) for partition in range(partitions)]
    if starts == [0] * len(starts):
        return F.lit(True)
    never = 2**62
    starts_at = of_partition([never if start is None else start for start in starts])
    return is_true(column(offset) >= starts_at)


def looked_up(values: Mapping[str, int], key: ColumnOrName) -> Column:
    """Return the value of this key (bigint); null of one that there is not."""
    known = F.from_json(F.lit(json.dumps(dict(values))), "map<string,bigint>")
    return F.try_element_at(known, column(key))


def _longs(values: Sequence[int]) -> Column:
    return F.array(*(F.lit(value).cast("long") for value in values))


def findings(
    rows: DataFrame, reasons: Mapping[Fault, Column], *kept: str, **columns: Column
) -> DataFrame:
    """Return each of `rows` as a finding for each of `reasons` that is not null.

    Of tables.FINDINGS, `kept` are columns of the rows, and those that are not given are null.
    """
    each = F.array(
        *(
            F.struct(
                F.lit(fault.job).alias("job"), F.lit(fault.slug).alias("fault"), why.alias("reason")
            )
            for fault, why in reasons.items()
        )
    )
    found = F.filter(each, lambda one: one["reason"].isNotNull())
    named = rows.select(
        F.explode(found).alias("found"),
        *kept,
        *(column.alias(name) for name, column in columns.items()),
    )
    own = {name: F.col(f"found.{name}") for name in ("job", "fault", "reason")}
    return padded(named, FINDINGS, **own)


def table_of(
    spark: SparkSession, table: StructType, rows: Sequence[Sequence[Any]] = ()
) -> DataFrame:
    """Return a few rows as a table that is a part of plans: of one without rows Spark knows that it
    is empty, and plans nothing for it."""
    fields = to_arrow_schema(table)
    columns = zip(*rows, strict=True) if rows else ([] for _ in fields)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, fields, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=fields), table)


def as_table(rows: DataFrame, table: StructType, **columns: Column) -> DataFrame:
    """Return rows as this table: its columns as given, else as the rows have them."""
    assert columns.keys() <= set(table.fieldNames()), "a column that the table has not"
    return rows.select(
        *(
            columns.get(field.name, F.col(field.name)).cast(field.dataType).alias(field.name)
            for field in table.fields
        )
    )


def padded(rows: DataFrame, table: StructType, **columns: Column) -> DataFrame:
    """Return rows as this table, with null in the columns that neither they nor `columns` have."""
    nothing = {name: F.lit(None) for name in table.fieldNames() if name not in rows.columns}
    return as_table(rows, table, **(nothing | columns))


def few(rows: DataFrame, count: int | None = None) -> DataFrame:
    """Return rows that are few as a rule, to be broadcast if they are: a large table that is joined
    with them is not shuffled then. Counts them, if `count` is not known."""
    if count is None:
        count = rows.limit(FEW + 1).count()
    return F.broadcast(rows) if count <= FEW else rows
