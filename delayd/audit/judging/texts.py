"""Texts of headers in SQL: numbers, due times and sources, as docs/reference/requests.md has them,
written a second time.

Every function takes text that may be anything (or null) and gives null for what the grammar does
not know; nothing here raises, whatever `spark.sql.ansi.enabled` says.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from delayd.audit.judging.columns import is_true

DUE_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999 in UTC."""

DIGITS_MAX: Final = 15
NUMBER_DIGITS_MAX: Final = 19

_SOURCE: Final = r"\A(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,18})\z"
"""`partition/offset` of a record of the buffer, written in exactly one way."""

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_LEVELS_MS: Final = (
    *(1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000),
    *(360_000, 420_000, 480_000, 540_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000),
)

_DATE_TIME: Final = (
    r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"(\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])\z"
)


_LOCAL: Final = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?\z"
_MINUTE_CHARS: Final = 16


def whole_number(text: Column, digits_max: int = NUMBER_DIGITS_MAX) -> Column:
    """Return the number that 1 to `digits_max` digits write (bigint)."""
    return F.when(text.rlike(rf"\A[0-9]{{1,{digits_max}}}\z"), text.try_cast("bigint"))


def is_source(text: Column) -> Column:
    """Return whether a text is a source; False for null."""
    return is_true(text.rlike(_SOURCE) & _part(text, 2).isNotNull())


def partition_of_source(text: Column) -> Column:
    """Return the partition of a source (bigint); null if it is no source."""
    return F.when(is_source(text), _part(text, 1))


def offset_of_source(text: Column) -> Column:
    """Return the offset of a source (bigint); null if it is no source."""
    return F.when(is_source(text), _part(text, 2))


def _part(text: Column, number: int) -> Column:
    return F.split_part(text, F.lit("/"), F.lit(number)).try_cast("bigint")


def due_ms_of(text: Column, *, refuses_seconds: Column) -> Column:
    """Unix ms that a `delayd-due` names; by rules 4 none if it looks like seconds."""
    number = text.try_cast("bigint")
    is_number = (F.length(text) <= DIGITS_MAX) & (number <= DUE_MS_MAX)
    is_number &= ~(refuses_seconds & number.between(1_000_000_000, 9_999_999_999))
    return F.when(text.rlike(r"\A[0-9]+\z"), F.when(is_number, number)).when(
        text.rlike(_DATE_TIME), _date_time_ms(text)
    )


def is_local(text: Column) -> Column:
    """Return whether a `delayd-due` is a date and a time of day without an offset."""
    return text.rlike(_LOCAL)


def clock_ms_of(text: Column) -> Column:
    """Unix ms of a local time, if the clock is that of UTC."""
    whole = F.concat(text, F.when(F.length(text) == _MINUTE_CHARS, ":00Z").otherwise("Z"))
    return F.when(is_local(text) & whole.rlike(_DATE_TIME), _date_time_ms(whole))


def is_delay(text: Column) -> Column:
    """Does a `delayd-delay` follow the grammar, however long it is?"""
    return text.rlike(r"\A[0-9]{1,15}(ms|s|m|h|d)\z")


def delay_ms_of(text: Column) -> Column:
    """Milliseconds that a `delayd-delay` names; null too if they are beyond 63 bits."""
    number = F.regexp_extract(text, r"\A([0-9]{1,15})", 1).try_cast("bigint")
    unit = F.regexp_extract(text, "([a-z]+)", 1)
    factor = F.lit(None).cast("bigint")
    for name, unit_ms in _UNITS_MS.items():
        factor = F.when(unit == name, F.lit(unit_ms).cast("bigint")).otherwise(factor)
    return F.try_multiply(number, factor)


def exact_ms_of(text: Column) -> Column:
    """Milliseconds that a `delayd-delay` names, however many (decimal)."""
    number = F.regexp_extract(text, r"\A([0-9]{1,15})", 1).try_cast("decimal(15,0)")
    unit = F.regexp_extract(text, "([a-z]+)", 1)
    factor = F.lit(None).cast("decimal(9,0)")
    for name, unit_ms in _UNITS_MS.items():
        factor = F.when(unit == name, F.lit(unit_ms).cast("decimal(9,0)")).otherwise(factor)
    return number * factor


def level_ms_of(text: Column) -> Column:
    """Milliseconds that a `delayd-level` stands for."""
    level = whole_number(text, DIGITS_MAX)
    table = F.array(*(F.lit(level_ms).cast("bigint") for level_ms in _LEVELS_MS))
    return F.when(level.between(1, len(_LEVELS_MS)), F.get(table, (level - 1).cast("int")))


def _date_time_ms(text: Column) -> Column:
    """Unix ms of an RFC 3339 time whose fields are where they belong; null if the day is in no
    calendar, or outside of 1970 to 9999."""
    fraction = F.regexp_extract(text, r"\.([0-9]+)", 1)
    fields = F.struct(
        _at(text, 1, 4).alias("year"),
        _at(text, 6, 2).alias("month"),
        _at(text, 9, 2).alias("day"),
        ((_at(text, 12, 2) * 60 + _at(text, 15, 2)) * 60 + _at(text, 18, 2)).alias("second"),
        F.when(F.substring(text, -6, 6).rlike("[+-]"), F.substring(text, -6, 6)).alias("zone"),
        fraction.alias("fraction"),
    )
    # Lambdas only to name what is used more than once.
    ms = F.get(F.transform(F.array(fields), _fields_ms), F.lit(0))
    return F.get(F.filter(F.array(ms), lambda each: each.between(0, DUE_MS_MAX)), F.lit(0))


def _fields_ms(time: Column) -> Column:
    year, month, day, fraction = time["year"], time["month"], time["day"], time["fraction"]
    is_leap = ((year % 4 == 0) & (year % 100 != 0)) | (year % 400 == 0)
    days_of_month = (
        F.when(month == 2, F.when(is_leap, 29).otherwise(28))
        .when(month.isin(4, 6, 9, 11), 30)
        .otherwise(31)
    )
    # Days since 1970-01-01 by the length of whole years and of the months that are over; years
    # begin in March here, so that the leap day is the last one.
    years = F.when(month <= 2, year - 1).otherwise(year)
    months = F.when(month <= 2, month + 9).otherwise(month - 3)
    days = (
        years * 365
        + F.floor(years / 4)
        - F.floor(years / 100)
        + F.floor(years / 400)
        + F.floor((months * 153 + 2) / 5)
        + day
        - 719_469
    )
    sign = F.when(time["zone"].startswith("-"), -1).otherwise(1)
    zone_minutes = sign * (_at(time["zone"], 2, 2) * 60 + _at(time["zone"], 5, 2))
    seconds = days * 86_400 + time["second"] - F.coalesce(zone_minutes, F.lit(0)) * 60
    thousandths = F.rpad(F.substring(fraction, 1, 3), 3, "0").try_cast("bigint")
    more = F.when(fraction.rlike(r"\A[0-9]{3}[0-9]*[1-9]"), 1).otherwise(0)
    is_day = month.between(1, 12) & day.between(1, days_of_month) & (year >= 1)
    return F.when(is_day, seconds * 1000 + thousandths + more)


def _at(text: Column, position: int, length: int) -> Column:
    return F.substring(text, position, length).try_cast("bigint")
