"""The grammar of times: `delayd-due`, `delayd-delay`, `delayd-level`.

    due      = digits                                  Unix ms, at most DUE_MS_MAX
             | date ("T"|"t") time [ "." digits ] zone RFC 3339; below 1 ms rounds up
    zone     = "Z" | "z" | ("+"|"-") hh ":" mm
    delay    = digits unit                             unit = "ms" | "s" | "m" | "h" | "d"
    late     = delay                                   1ms to 365d
    window   = delay                                   1ms to 1d
    by       = ("+"|"-") delay
    max-wait = delay
    until    = due, but no unit that is not ms
    local    = date ("T"|"t") hh ":" mm [ ":" ss [ "." digits ] ]   with `delayd-zone`
    level    = digits                                  1..18, RocketMQ's table
    digits   = 1*DIGIT                                 ASCII, no sign, at most DIGITS_MAX

A number that is a time of the years 2001 to 2286 in another unit is refused (`OTHER_UNITS`).
Nothing is clamped or guessed; all functions raise RefusedError and nothing else.
"""

import re
from datetime import date
from typing import Final

from delayd.request.reasons import Reason, RefusedError, quoted

DUE_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999 in UTC, the end of what RFC 3339 can say."""

DIGITS_MAX: Final = 15
"""Digits of DUE_MS_MAX; also keeps the cost of a hostile number constant."""

OTHER_UNITS: Final = (
    (range(10**9, 10**10), "seconds", "multiply it by 1,000"),
    (range(10**15, 10**16), "microseconds", "divide it by 1,000"),
    (range(10**18, 10**19), "nanoseconds", "divide it by 1,000,000"),
)
"""Unix times from 2001-09-09 to 2286-11-20 in units other than ms, and what to do. As ms, those in
seconds are of January to April 1970, the others beyond the year 9999."""

UNIT_DIGITS_MAX: Final = 19
SECONDS: Final = OTHER_UNITS[0][0]

LATE_MS_MAX: Final = 365 * 86_400_000
"""The longest `delayd-late`: a year."""

WINDOW_MS_MAX: Final = 86_400_000
"""The longest `delayd-window`: a day."""

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

LEVELS: Final = (
    *("1s", "5s", "10s", "30s", "1m", "2m", "3m", "4m", "5m"),
    *("6m", "7m", "8m", "9m", "10m", "20m", "30m", "1h", "2h"),
)
"""RocketMQ's delay levels; the first is level 1."""

_DELAY = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)")
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))?"
)
_LOCAL = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?"
)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_RFC3339_EXAMPLE = "2026-01-31T23:59:59.250+01:00"
LOCAL_EXAMPLE: Final = "2027-03-28T09:00"


def due_ms_of(text: str, *, refuses_units: bool = True) -> int:
    """Return the Unix ms of a `delayd-due`.

    `refuses_units`: refuse a number that looks like another unit, as rules versions since 4 do.
    """
    if text.isdigit() and text.isascii():
        if refuses_units and len(text) <= UNIT_DIGITS_MAX:
            _refuse_other_unit(text)
        if len(text) <= DIGITS_MAX and (due_ms := int(text)) <= DUE_MS_MAX:
            return due_ms
        raise RefusedError(
            Reason.BAD_DUE,
            f"delayd-due {quoted(text)} is beyond the year 9999: it is read as Unix milliseconds",
        )
    return _rfc3339_ms(text)


def is_local(text: str) -> bool:
    """Return whether a `delayd-due` is a date and a time of day, and nothing else."""
    return _LOCAL.fullmatch(text) is not None


def clock_ms_of(text: str) -> int:
    """Return the Unix ms of a local time, if the clock is that of UTC."""
    clock_s, fraction_ms = clock_of(text)
    return _in_range(text, clock_s * 1_000 + fraction_ms)


def clock_of(text: str) -> tuple[int, int]:
    """Return the Unix seconds of a local time, if the clock is that of UTC, and the ms of its
    fraction, rounded up: 1000 at most."""
    match = _LOCAL.fullmatch(text)
    if match is None:
        raise _bad_due(text, f"is no date and time of day: write it like {LOCAL_EXAMPLE}")
    *fields, fraction = match.groups()
    year, month, day, hour, minute, second = fields
    _check_time_of_day(text, hour, minute, second or "00")
    minutes = _minutes_of(text, year, month, day, hour, minute)
    return minutes * 60 + int(second or 0), _fraction_ms(fraction or "")


def until_ms_of(text: str) -> int:
    """Return the Unix ms of a `delayd-until`."""
    try:
        return due_ms_of(text)
    except RefusedError as refusal:
        detail = refusal.detail.replace("delayd-due", "delayd-until", 1)
        raise RefusedError(Reason.BAD_UNTIL, detail) from refusal


def _refuse_other_unit(text: str) -> None:
    number = int(text)
    for times, unit, remedy in OTHER_UNITS:
        if number in times:
            raise _bad_due(text, f"looks like {unit}: it is read as Unix milliseconds, so {remedy}")


def delay_ms_of(text: str) -> int:
    """Return the milliseconds of a `delayd-delay`."""
    match = _DELAY.fullmatch(text)
    if match is None:
        raise RefusedError(
            Reason.BAD_DELAY,
            f"delayd-delay {quoted(text)} is not an integer of at most {DIGITS_MAX} digits followed"
            " by ms, s, m, h or d: write it like 250ms, 10s, 5m, 2h or 30d",
        )
    return int(match[1]) * _UNIT_MS[match[2]]


def max_wait_ms_of(text: str, delay_ms: int) -> int:
    """Return the milliseconds of a `delayd-max-wait`, beside a delay that is not longer."""
    match = _DELAY.fullmatch(text)
    if match is None:
        raise RefusedError(
            Reason.BAD_MAX_WAIT,
            f"delayd-max-wait {quoted(text)} is not an integer of at most {DIGITS_MAX} digits"
            " followed by ms, s, m, h or d: write it like 250ms, 10s, 5m, 2h or 30d",
        )
    wait_ms = int(match[1]) * _UNIT_MS[match[2]]
    if wait_ms < delay_ms:
        raise RefusedError(
            Reason.BAD_MAX_WAIT,
            f"delayd-max-wait {quoted(text)} is shorter than delayd-delay, so that would never"
            " count: give a longer one, or the same to send the last request once in that time",
        )
    return wait_ms


def by_ms_of(text: str) -> int:
    """Return the milliseconds of a `delayd-by`, negative if it is earlier."""
    match = _DELAY.fullmatch(text[1:]) if text[:1] in ("+", "-") else None
    by_ms = 0 if match is None else int(match[1]) * _UNIT_MS[match[2]]
    if match is None or by_ms > DUE_MS_MAX:
        raise RefusedError(
            Reason.BAD_BY,
            f"delayd-by {quoted(text)} is not + or - and an integer followed by ms, s, m, h or d,"
            " of less than 8,000 years: write it like +10m or -1h",
        )
    return by_ms if text[0] == "+" else -by_ms


def late_ms_of(text: str) -> int:
    """Return the milliseconds of a `delayd-late`."""
    late_ms = _span_ms(text)
    if not 1 <= late_ms <= LATE_MS_MAX:
        raise RefusedError(
            Reason.BAD_LATE,
            f"delayd-late {quoted(text)} is not an integer followed by ms, s, m, h or d, from 1ms"
            " to 365d: write it like 250ms, 10s, 5m, 2h or 30d",
        )
    return late_ms


def window_ms_of(text: str) -> int:
    """Return the milliseconds of a `delayd-window`."""
    window_ms = _span_ms(text)
    if not 1 <= window_ms <= WINDOW_MS_MAX:
        raise RefusedError(
            Reason.BAD_WINDOW,
            f"delayd-window {quoted(text)} is not an integer followed by ms, s, m, h or d, from 1ms"
            " to 1d: write it like 250ms, 10s, 5m, 2h or 1d",
        )
    return window_ms


def _span_ms(text: str) -> int:
    """Return the milliseconds of a span; 0 if it is none."""
    match = _DELAY.fullmatch(text)
    return 0 if match is None else int(match[1]) * _UNIT_MS[match[2]]


def level_delay_ms_of(text: str) -> int:
    """Return the milliseconds of a `delayd-level`."""
    if text.isdigit() and text.isascii() and len(text) <= DIGITS_MAX:
        level = int(text)
        if 1 <= level <= len(LEVELS):
            return delay_ms_of(LEVELS[level - 1])
    raise RefusedError(
        Reason.BAD_LEVEL,
        f"delayd-level {quoted(text)} is not one of 1 to {len(LEVELS)} (1 is {LEVELS[0]},"
        f" {len(LEVELS)} is {LEVELS[-1]}): use delayd-delay for any other time",
    )


def _rfc3339_ms(text: str) -> int:
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise _bad_due(
            text, f"is neither Unix milliseconds nor RFC 3339: write it like {_RFC3339_EXAMPLE}"
        )
    year, month, day, hour, minute, second, fraction, utc, sign, zone_hour, zone_minute = (
        match.groups()
    )
    if utc is None and sign is None:
        raise _bad_due(text, "has no offset: end it with Z or with an offset such as +01:00")
    _check_time_of_day(text, hour, minute, second)
    offset_minutes = 0
    if sign is not None:
        if zone_hour > "23" or zone_minute > "59":
            raise _bad_due(text, "has an offset that does not exist: -23:59 to +23:59")
        offset_minutes = int(zone_hour) * 60 + int(zone_minute)
        if sign == "-":
            offset_minutes = -offset_minutes
    minutes = _minutes_of(text, year, month, day, hour, minute) - offset_minutes
    due_s = minutes * 60 + int(second)
    return _in_range(text, due_s * 1_000 + _fraction_ms(fraction or ""))


def _check_time_of_day(text: str, hour: str, minute: str, second: str) -> None:
    if second == "60":
        raise _bad_due(text, "names a leap second, which Unix time does not have: use :59 or :00")
    if hour > "23" or minute > "59" or second > "59":
        raise _bad_due(text, "names a time of day that does not exist: 00:00:00 to 23:59:59")


def _minutes_of(text: str, year: str, month: str, day: str, hour: str, minute: str) -> int:
    """Return the minutes from 1970 on to a time of the same clock."""
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise _bad_due(text, "names a day that is in no calendar") from error
    return (days * 24 + int(hour)) * 60 + int(minute)


def _in_range(text: str, due_ms: int) -> int:
    if not 0 <= due_ms <= DUE_MS_MAX:
        raise _bad_due(text, "is outside 1970-01-01T00:00:00Z to 9999-12-31T23:59:59.999Z")
    return due_ms


def _fraction_ms(digits: str) -> int:
    """Return the milliseconds of a decimal fraction of a second, rounded up: never early."""
    milliseconds = int(digits[:3].ljust(3, "0"))
    return milliseconds + 1 if digits[3:].strip("0") else milliseconds


def _bad_due(text: str, problem: str) -> RefusedError:
    return RefusedError(Reason.BAD_DUE, f"delayd-due {quoted(text)} {problem}")
