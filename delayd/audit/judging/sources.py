"""Sources in SQL: `partition/offset` of a record of the buffer, written in exactly one way."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

_SOURCE: Final = r"\A(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,18})\z"


def is_source(text: Column) -> Column:
    """Return whether it is a source; False for null."""
    return F.coalesce(
        text.rlike(_SOURCE)
        & F.split_part(text, F.lit("/"), F.lit(2)).try_cast("bigint").isNotNull(),
        F.lit(False),
    )


def partition_of_source(text: Column) -> Column:
    """Return its partition (bigint); null if it is no source."""
    return F.when(is_source(text), _part(text, 1))


def offset_of_source(text: Column) -> Column:
    """Return its offset (bigint); null if it is no source."""
    return F.when(is_source(text), _part(text, 2))


def _part(text: Column, number: int) -> Column:
    return F.split_part(text, F.lit("/"), F.lit(number)).try_cast("bigint")
