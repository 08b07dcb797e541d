"""The times of a cron expression, read a second time: by hours of the clock and offsets of a zone.

It shares nothing with `delayd.request.recurrence` but where time zones come from. An hour is
looked at as a whole: which times an expression gives it, and which moments show these.

Source: docs/reference/requests.md, "Series".
"""

import re
from calendar import monthrange
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from itertools import product
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from delayd.request.recurrence.zones import zone_of

DAYS_MAX: Final = 51 * 366
"""An expression without a time for so long has none."""

_NAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS: Final = (
    *("JAN", "FEB", "MAR", "APR", "MAY", "JUN"),
    *("JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
)
DIGITS_MAX: Final = 9
HOUR_S: Final = 3_600
DAY_S: Final = 24 * HOUR_S
NEAR_S: Final = 5 * HOUR_S
"""A change of the clock is by less, and none is so near another."""
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()


class Times(NamedTuple):
    """An expression, read."""

    seconds: list[int]
    minutes: list[int]
    hours: list[int]
    days: str
    months: set[int]
    weekdays: str
    names_times: bool
    """It comes once for each time of day, whatever the clock does."""

    def fall_on(self, day: date) -> bool:
        """Return whether there are times on this day."""
        if day.month not in self.months:
            return False
        by_day, by_weekday = _is_day(self.days, day), _is_weekday(self.weekdays, day)
        if self.days.startswith("*") or self.weekdays.startswith("*"):
            return by_day and by_weekday
        return by_day or by_weekday


def read(cron: str) -> Times:
    """Return an expression, read. ValueError if it cannot be."""
    fields = _NAMES.get(cron, cron).upper().split()
    if len(fields) == 5:
        fields.insert(0, "0")
    second, minute, hour, day, month, weekday = fields
    is_exact = second.isdecimal() and minute[0] != "*" and hour[0] != "*"
    months = {*_numbers(_renamed(month, _MONTHS, 1), 1, 12)}
    for part in day.split(","):
        _is_day(part, date.min)
    for part in weekday.split(","):
        _is_weekday(part, date.min)
    return Times(
        _numbers(second, 0, 59),
        _numbers(minute, 0, 59),
        _numbers(hour, 0, 23),
        day,
        months,
        weekday,
        is_exact,
    )


def times_after(cron: str, zone: str, after_ms: int) -> Iterator[int]:
    """Yield the times of an expression after one, in order; all are Unix ms."""
    times, tz = read(cron), zone_of(zone)
    last_s, held = after_ms // 1000, list[int]()
    hour_s = (last_s + _offset(tz, last_s)) // HOUR_S * HOUR_S
    if not _is_steady(tz, last_s):
        hour_s -= NEAR_S
    end_s = hour_s + DAYS_MAX * DAY_S
    # Hours as the clock of the zone shows them. Near a change moments are looked at one by one, and
    # held until no later hour can come before them.
    while hour_s < end_s:
        day = date.fromordinal(_EPOCH_DAY + hour_s // DAY_S)
        about_s = hour_s - _offset(tz, hour_s - _offset(tz, hour_s))
        is_steady = _is_steady(tz, about_s)
        is_meant = times.fall_on(day) and hour_s % DAY_S // HOUR_S in times.hours
        if is_meant and not is_steady:
            held = sorted({*held, *_shown(times, tz, hour_s)})
        while held and (is_steady or held[0] < about_s - NEAR_S):
            due_s = held.pop(0)
            if due_s > last_s:
                last_s = due_s
                yield due_s * 1000
        if is_meant and is_steady:
            begin_s = hour_s - _offset(tz, about_s)
            for minute, second in product(times.minutes, times.seconds):
                due_s = begin_s + 60 * minute + second
                if due_s > last_s:
                    last_s = due_s
                    yield due_s * 1000
        is_over = is_steady and not times.fall_on(day)
        hour_s = (hour_s // DAY_S + 1) * DAY_S if is_over else hour_s + HOUR_S


def moment_of(clock: str, zone: str) -> int:
    """Return the Unix ms at which the clock of a zone shows a date and a time of day: where it does
    twice the first time, where it never does when it has gone on. KeyError or ValueError if there
    is no such zone."""
    tz = zone_of(zone)
    day, time = clock.upper().split("T")
    hour, minute, *second = time.split(":")
    whole, _, fraction = (second or ["0"])[0].partition(".")
    wall_s = (date.fromisoformat(day).toordinal() - _EPOCH_DAY) * DAY_S
    wall_s += (int(hour) * 60 + int(minute)) * 60 + int(whole)
    around = range(wall_s - 2 * DAY_S, wall_s + 2 * DAY_S, HOUR_S // 4)
    offsets = sorted({_offset(tz, each) for each in around}, reverse=True)
    for offset in offsets:
        if _offset(tz, wall_s - offset) == offset:
            thousandths = int(fraction[:3].ljust(3, "0")) + bool(fraction[3:].strip("0"))
            return max(0, (wall_s - offset) * 1_000 + thousandths)
    return max(0, _shown_next(tz, wall_s, offsets) * 1_000)


def _shown(times: Times, tz: ZoneInfo, hour_s: int) -> list[int]:
    """Return the moments near a change of the clock at which it shows the times of an hour."""
    around = range(hour_s - 2 * DAY_S, hour_s + 2 * DAY_S, HOUR_S)
    offsets = sorted({_offset(tz, each) for each in around}, reverse=True)
    found = []
    for minute, second in product(times.minutes, times.seconds):
        wall_s = hour_s + 60 * minute + second
        shown = [wall_s - each for each in offsets if _offset(tz, wall_s - each) == each]
        if times.names_times:
            found.append(shown[0] if shown else _shown_next(tz, wall_s, offsets))
        else:
            found += shown
    return found


def _shown_next(tz: ZoneInfo, wall_s: int, offsets: list[int]) -> int:
    """Return the first moment at which the clock shows something later than a time it skips."""
    moment_s = wall_s // 60 * 60 - offsets[0]
    while moment_s + _offset(tz, moment_s) < wall_s:
        moment_s += 60
    return moment_s


def _is_steady(tz: ZoneInfo, moment_s: int) -> bool:
    """Return whether the clock is not changed near a moment."""
    return _offset(tz, moment_s - NEAR_S) == _offset(tz, moment_s + NEAR_S)


def _offset(tz: ZoneInfo, moment_s: int) -> int:
    offset = datetime.fromtimestamp(moment_s, tz).utcoffset()
    assert offset is not None, "a zone has an offset at any time"
    return int(offset.total_seconds())


def _is_day(text: str, day: date) -> bool:
    last = monthrange(day.year, day.month)[1]
    for part in text.split(","):
        base, _, step = part.partition("/")
        if base in ("L", "LW") and step:
            _number(step, 1)
        if base == "L":
            is_it = day.day == last
        elif base == "LW":
            end = date(day.year, day.month, last)
            is_it = day == end - timedelta(days=max(0, end.weekday() - 4))
        else:
            is_it = day.day in _numbers(part, 1, 31)
        if is_it:
            return True
    return False


def _is_weekday(text: str, day: date) -> bool:
    names = {day.isoweekday(), day.isoweekday() % 7}
    last = monthrange(day.year, day.month)[1]
    for part in _renamed(text, _WEEKDAYS, 0).split(","):
        if part.endswith("L"):
            is_it = _number(part[:-1], 0, 7) in names and day.day > last - 7
        elif "#" in part:
            number, nth = part.split("#")
            week = (day.day - 1) // 7 + 1
            is_it = (_number(number, 0, 7) in names) & (week == _number(nth, 1, 5))
        else:
            is_it = not names.isdisjoint(_numbers(part, 0, 7))
        if is_it:
            return True
    return False


def _renamed(text: str, names: tuple[str, ...], first: int) -> str:
    numbers = {name: str(number) for number, name in enumerate(names, first)}
    return re.sub("[A-Z]+", lambda found: numbers.get(found[0], found[0]), text)


def _numbers(text: str, least: int, most: int) -> list[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, has_step, step = part.partition("/")
        if span == "*":
            low, high = least, most
        elif "-" in span:
            low, high = (_number(each, least, most) for each in span.split("-"))
            if high < low:
                raise ValueError(f"{span} is backwards")
        else:
            low = _number(span, least, most)
            high = most if has_step else low
        found.update(range(low, high + 1, _number(step, 1) if has_step else 1))
    return sorted(found)


def _number(text: str, least: int, most: int | None = None) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > DIGITS_MAX:
        raise ValueError(f"{text!r} is no number")
    number = int(text)
    if number < least or (most is not None and number > most):
        raise ValueError(f"{number} is out of range")
    return number
