"""The moment that a local time is, by the tzdata package.

Where the clock of the zone is put forward or back it is as an expression that names a time of day
(`expressions.py`): a time that is skipped is the moment when the clock has been put forward, one
that is shown twice the first of both.

Source: docs/design/local-times.md.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from delayd.request.recurrence import zones
from delayd.request.recurrence.expressions import change_before
from delayd.request.times import clock_ms_of, clock_of

_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


def resolved_ms(text: str, zone: str) -> int:
    """Return the Unix ms of a local time, not below 0. Raises zones.UnknownZoneError."""
    tz = zones.zone_of(zone)
    # The second is resolved, and the fraction added: rounded up, it may be in the next second,
    # which the clock may show an hour later.
    clock_s, fraction_ms = clock_of(text)
    wall = _EPOCH + timedelta(seconds=clock_s)
    try:
        # Of two moments the first; of a time that is skipped one after the change.
        found = wall.replace(tzinfo=tz).astimezone(UTC)
        if found.astimezone(tz).replace(tzinfo=None) != wall:
            found, fraction_ms = change_before(tz, found), 0
    except OverflowError:  # at the end of the year 9999
        return clock_ms_of(text)
    return max(0, (found - _EPOCH_UTC) // _MS + fraction_ms)


def problem_of(zone: str) -> str | None:
    """Return why a local time cannot be resolved, in words; None if it can be."""
    if zones.is_zone(zone):
        return None
    return f"the time zone {zone!r} is not in tzdata: use an IANA name such as Europe/Berlin"
