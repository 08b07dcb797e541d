"""The requests that are watched, as a table in files: a base, and changes that were made since.

    state/base-<batch>/     all rows, as of the end of that batch
    state/change-<batch>/   rows that the batch added or changed; of a row, its last one counts

A batch writes one new folder; which folders count is in the journal. When the changes have grown
the batch writes a base instead, and forgets what is over for longer than the horizon.

Invariants: a folder is never changed once the journal names it; memory does not grow with it.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from pyarrow.parquet import read_metadata
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from delayd.audit.following.batch_context import HORIZON_MS, REDRIVE_MEMORY_MS
from delayd.audit.judging.columns import table_of
from delayd.audit.tables import REQUESTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FACTS: Final = (
    StructField("stored", BooleanType()),
    StructField("is_refused", BooleanType()),
    StructField("killed_by", LongType()),
    StructField("continued_by", LongType()),
    StructField("is_followed", BooleanType()),
)
"""What the rules about ids say of a request; tables.LOGGED says what they mean."""

FATE: Final = (
    # null: open. before killed refused rejected mark continued delivered dead lost unproven
    StructField("kind", StringType()),
    StructField("covered_ms", LongType()),  # append time of the first frontier seen to cover it
    StructField("ended_ms", LongType()),  # since when it is not open
    StructField("fired_ms", LongType()),  # of its delivery
    StructField("claimed_ms", LongType()),  # `at_ms` of the receipt that says it was killed
)

WATCHED: Final = StructType([*REQUESTS.fields, *FACTS, *FATE])

CHANGES_MAX: Final = 24
"""Folders of changes: each is one more to read in every batch."""

CHANGED_SHARE: Final = 4
CHANGED_MIN: Final = 50_000
"""A base is due when the changes have a quarter of its rows, and more than these."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders that make up the table, and how many rows are in them."""

    base: str | None = None
    base_rows: int = 0
    changes: tuple[str, ...] = ()
    change_rows: int = 0

    @property
    def is_base_due(self) -> bool:
        """Return whether the next folder should be a base."""
        limit = max(CHANGED_MIN, self.base_rows // CHANGED_SHARE)
        return len(self.changes) >= CHANGES_MAX or self.change_rows > limit

    def with_change(self, name: str, rows: int) -> Self:
        """Return the folders with one more change."""
        return replace(self, changes=(*self.changes, name), change_rows=self.change_rows + rows)

    @property
    def names(self) -> frozenset[str]:
        """Return the names of all folders."""
        return frozenset(self.changes) | ({self.base} if self.base is not None else set())


class Watched:
    """The table, in a folder of its own."""

    def __init__(self, spark: "SparkSession", root: Path) -> None:
        self._spark = spark
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def read(self, folders: Folders) -> DataFrame:
        """Return WATCHED, one row for each request."""
        base = self._read([folders.base] if folders.base is not None else [])
        if not folders.changes:
            return base.drop("version")
        of_row = Window.partitionBy("partition", "offset").orderBy(F.desc("version"))
        newest = (
            self._read(folders.changes)
            .withColumn("rank", F.row_number().over(of_row))
            .where(F.col("rank") == 1)
            .drop("rank", "version")
        )
        keys = newest.select("partition", "offset")
        return (
            base.drop("version")
            .join(keys, ["partition", "offset"], "left_anti")
            .unionByName(newest)
        )

    def write(self, rows: DataFrame, name: str, batch: int) -> int:
        """Write rows into a folder and return how many there are; columns besides WATCHED stay
        unread later. Replaces one that was left half-written."""
        file = self._root / name
        rows.withColumn("version", F.lit(batch).cast("long")).write.mode("overwrite").parquet(
            str(file)
        )
        return sum(read_metadata(part).num_rows for part in file.glob("*.parquet"))

    def read_all(self, name: str, table: StructType) -> DataFrame:
        """Return one folder, with the columns of this table."""
        return self._spark.read.schema(table).parquet(str(self._root / name))

    def keep(self, names: Iterable[str]) -> None:
        """Remove all other folders."""
        kept = frozenset(names)
        for file in self._root.iterdir():
            if file.name not in kept:
                shutil.rmtree(file, ignore_errors=True)

    def _read(self, names: Iterable[str]) -> DataFrame:
        schema = StructType([*WATCHED.fields, StructField("version", LongType())])
        paths = [str(self._root / name) for name in names]
        if not paths:
            return table_of(self._spark, schema)
        return self._spark.read.schema(schema).parquet(*paths)


def remembered(rows: DataFrame, at_ms: int) -> DataFrame:
    """Return rows without what has been over for longer than the horizon."""
    memory_ms = F.when(F.col("redrive").isNotNull(), REDRIVE_MEMORY_MS).otherwise(HORIZON_MS)
    return rows.where(F.col("kind").isNull() | (F.col("ended_ms") + memory_ms >= at_ms))
