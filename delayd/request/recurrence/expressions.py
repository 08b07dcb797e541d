"""Cron expressions: what comes after a time, and what came last before one.

Five fields, six with seconds first, or a name such as `@daily`. cronsim reads them and knows the
calendar; time zones are added here, so that what happens where clocks are put forward or back is
defined in one place (docs/reference/requests.md, "Summer time"):

- an expression that names times of day (`names_times_of_day`) comes once for each: one that is
  skipped comes when the clock has been put forward, one that is shown twice comes the first time;
- all others come whenever the clock shows what they say: not where it skips that, and twice where
  it shows it twice.

Invariant: both functions depend on the time alone, not on where an iteration began, so that a
successor goes on as its predecessor would have.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from delayd.request.recurrence.zones import UnknownZoneError, zone_of

NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Expressions by their names."""

STEP_MS: Final = 1_000
"""Occurrences are whole seconds: no two are closer."""

SEARCHES_MAX: Final = 64
"""More than a bisection of all the milliseconds up to the year 9999 takes."""

REMEMBERED: Final = 10_000
"""Answers: a step asks for the same again, to know whether an occurrence is the last one."""

_LOOK: Final = timedelta(days=7)
"""No zone changes its offset twice in so short a time."""
_SECOND: Final = timedelta(seconds=1)


class BadSeriesError(ValueError):
    """Raised for an expression or a zone that cannot be read, with what is wrong in words."""


@lru_cache(REMEMBERED)
def next_after(cron: str, zone: str, after_ms: int) -> int | None:
    """Return the first occurrence after a time (Unix ms); None if there is none within 50 years.

    Takes some 0.1 ms, and up to 50 ms where occurrences are years apart. Raises BadSeriesError.
    """
    try:
        tz = zone_of(zone)
    except UnknownZoneError as error:
        raise BadSeriesError(
            f"the time zone {zone!r} is not in tzdata: use an IANA name such as Europe/Berlin"
        ) from error
    expression = NAMED.get(cron, cron)
    try:
        if len(expression.split()) not in (5, 6):
            raise CronSimError("wrong number of fields")
        after = datetime.fromtimestamp(after_ms // STEP_MS, UTC)
        find = _next_named if names_times_of_day(expression) else _next_shown
        found = find(expression, tz, after)
    except CronSimError as error:
        raise BadSeriesError(
            f"the cron expression {cron!r} has no meaning ({error}): write minute, hour, day,"
            " month, weekday, like 0 9 * * MON-FRI, or seconds before them; a day must exist in"
            " one of the months"
        ) from error
    except (OverflowError, ValueError):
        return None  # beyond the year 9999
    return None if found is None else int(found.timestamp()) * STEP_MS


def names_times_of_day(expression: str) -> bool:
    """Return whether minute and hour do not begin with `*`, and the second, if there is one, is a
    number: whoever writes so means times of the day."""
    *seconds, minute, hour, _, _, _ = expression.split()
    is_exact = all(second.isdecimal() for second in seconds)
    return is_exact and not minute.startswith("*") and not hour.startswith("*")


def latest_between(cron: str, zone: str, after_ms: int, until_ms: int) -> int | None:
    """Return the last occurrence after a time and not after another; None if there is none.

    A bisection by `next_after`: at most SEARCHES_MAX evaluations, however many lie between.
    """
    latest_ms = next_after(cron, zone, after_ms)
    if latest_ms is None or latest_ms > until_ms:
        return None
    end_ms = until_ms
    for _ in range(SEARCHES_MAX):
        following_ms = next_after(cron, zone, latest_ms)
        if following_ms is None or following_ms > until_ms:
            break
        latest_ms = following_ms
        middle_ms = (latest_ms + end_ms) // 2
        found_ms = next_after(cron, zone, middle_ms)
        if found_ms is None or found_ms > until_ms:
            end_ms = middle_ms
        else:
            latest_ms = found_ms
    return latest_ms


def _walls(expression: str, wall: datetime) -> Iterator[datetime]:
    """Yield the wall times of an expression after one, without a zone."""
    return iter(CronSim(expression, wall))


def _next_named(expression: str, tz: ZoneInfo, after: datetime) -> datetime | None:
    """Return the first time of day that comes after a time."""
    for wall in _walls(expression, after.astimezone(tz).replace(tzinfo=None)):
        found = wall.replace(tzinfo=tz).astimezone(UTC)
        if found.astimezone(tz).replace(tzinfo=None) != wall:
            # Skipped. The first of the two offsets makes it a time after the change.
            found = change_before(tz, found)
        if found > after:  # a time that is shown twice is the first one, which may have been
            return found
    return None


def _next_shown(expression: str, tz: ZoneInfo, after: datetime) -> datetime | None:
    """Return the first time after another at which the clock shows what an expression says."""
    wall = after.astimezone(tz).replace(tzinfo=None)
    while True:
        offset = _offset(tz, after)
        found_wall = next(_walls(expression, wall), None)
        found = None if found_wall is None else (found_wall - offset).replace(tzinfo=UTC)
        change = _change_after(tz, after, found)
        if change is None:
            return found
        # The clock shows other times from then on: a second before the first of them.
        after, wall = change, (change + _offset(tz, change) - _SECOND).replace(tzinfo=None)


def _offset(tz: ZoneInfo, moment: datetime) -> timedelta:
    offset = moment.astimezone(tz).utcoffset()
    assert offset is not None, "a zone has an offset at any time"
    return offset


def _change_after(tz: ZoneInfo, after: datetime, until: datetime | None) -> datetime | None:
    """Return when the offset changes next, not later than `until`; None if it does not."""
    if until is None:
        return None
    before, low = _offset(tz, after), after
    while low < until:
        high = min(low + _LOOK, until)
        if _offset(tz, high) != before:
            return _first_of(tz, low, high)
        low = high
    return None


def change_before(tz: ZoneInfo, moment: datetime) -> datetime:
    """Return when the offset changed last before a time that lies within a day of that."""
    return _first_of(tz, moment - timedelta(days=1), moment)


def _first_of(tz: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """Return the second from which on the offset is that of `high`, which differs from `low`'s."""
    offset = _offset(tz, high)
    while high - low > _SECOND:
        middle = low + (high - low) // 2
        middle = middle.replace(microsecond=0)
        if _offset(tz, middle) == offset:
            high = middle
        else:
            low = middle
    return high
