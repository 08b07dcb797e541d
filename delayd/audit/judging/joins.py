"""Joins of a large table with one that is small as a rule, without shuffling the large one."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

FEW: Final = 200_000
"""Rows of a few numbers that every task may be handed: some 20 MB."""


def few(rows: DataFrame, count: int | None = None) -> DataFrame:
    """Return the rows, to be broadcast if they are few. Counts them, if `count` is not known."""
    if count is None:
        count = rows.limit(FEW + 1).count()
    return F.broadcast(rows) if count <= FEW else rows
