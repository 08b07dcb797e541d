"""Local times: three readings of the clock of a zone agree, around each of its changes.

Source: docs/reference/requests.md, "Local times".
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from chaos.clocks import moment_ms
from delayd.audit.judging.cron_times import moment_of
from delayd.request.recurrence.local_times import problem_of, resolved_ms
from delayd.request.recurrence.zones import UnknownZoneError

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Africa/Cairo")
YEARS = range(2020, 2030)
HALF_HOUR = timedelta(minutes=30)


def changes(zone: str) -> list[datetime]:
    """The hours of these years in which the clock of a zone is changed, in UTC."""
    tz, found = ZoneInfo(zone), []
    moment = datetime(YEARS[0], 1, 1, tzinfo=UTC)
    offset = moment.astimezone(tz).utcoffset()
    while moment.year < YEARS[-1] + 1:
        moment += HALF_HOUR
        before, offset = offset, moment.astimezone(tz).utcoffset()
        if offset != before:
            found.append(moment)
    return found


def brute_ms(wall: datetime, zone: str) -> int:
    """Return the first minute at which the clock shows a time, or something later: by looking at
    each."""
    tz = ZoneInfo(zone)
    moment = wall.replace(tzinfo=UTC) - timedelta(hours=15)
    shown = []
    for _ in range(30 * 60):
        moment += timedelta(minutes=1)
        clock = moment.astimezone(tz).replace(tzinfo=None)
        if clock == wall:
            return round(moment.timestamp() * 1_000)
        if clock > wall:
            shown.append(moment)
    return round(shown[0].timestamp() * 1_000)


@pytest.mark.parametrize("zone", ZONES)
def test_around_each_change_of_the_clock_all_readings_agree(zone: str) -> None:
    """Rules: local-times"""
    walls = {
        change.astimezone(ZoneInfo(zone)).replace(tzinfo=None) + minutes * timedelta(minutes=1)
        for change in changes(zone)
        for minutes in (-121, -90, -61, -60, -45, -30, -29, -1, 0, 1, 29, 30, 59, 60, 90)
    }
    walls |= {datetime(year, month, 15, 9, 30) for year in YEARS for month in (1, 4, 7, 10)}
    for wall in sorted(walls):
        text = wall.isoformat(timespec="minutes")
        found_ms = brute_ms(wall, zone)
        assert resolved_ms(text, zone) == found_ms, text
        assert moment_of(text, zone) == found_ms, text
        assert moment_ms(text, zone) == found_ms, text


@pytest.mark.parametrize(
    ("text", "zone", "moment"),
    [
        ("2027-03-28T09:00", "Europe/Berlin", "2027-03-28T07:00:00+00:00"),
        ("2027-03-28T02:30", "Europe/Berlin", "2027-03-28T01:00:00+00:00"),
        ("2027-03-28T02:30:59.5", "Europe/Berlin", "2027-03-28T01:00:00+00:00"),
        ("2027-10-31T02:30", "Europe/Berlin", "2027-10-31T00:30:00+00:00"),
        ("2027-10-31T02:30:00.0001", "Europe/Berlin", "2027-10-31T00:30:00.001+00:00"),
        ("2027-10-31T02:59:59.9995", "Europe/Berlin", "2027-10-31T01:00:00+00:00"),
        ("2027-04-03T23:59:59.9999999", "America/Santiago", "2027-04-04T03:00:00+00:00"),
        ("2026-10-04T02:15", "Australia/Lord_Howe", "2026-10-03T15:30:00+00:00"),
        ("2011-12-30T12:00", "Pacific/Apia", "2011-12-30T10:00:00+00:00"),
        ("1970-01-01T00:00", "Pacific/Kiritimati", "1970-01-01T10:40:00+00:00"),
        ("1970-01-01T00:00", "Asia/Tokyo", "1970-01-01T00:00:00+00:00"),
        ("2500-07-01T12:00", "Europe/Berlin", "2500-07-01T10:00:00+00:00"),
    ],
)
def test_a_skipped_time_is_the_change_and_one_shown_twice_the_first(
    text: str, zone: str, moment: str
) -> None:
    expected_ms = round(datetime.fromisoformat(moment).timestamp() * 1_000)
    found = (resolved_ms(text, zone), moment_of(text, zone), moment_ms(text, zone))
    assert found == (expected_ms,) * 3


def test_a_zone_that_there_is_not_is_said() -> None:
    with pytest.raises(UnknownZoneError):
        resolved_ms("2027-03-28T09:00", "Mars/Olympus")
    assert problem_of("Europe/Berlin") is None
    assert "'Mars/Olympus'" in (problem_of("Mars/Olympus") or "")
    assert moment_ms("2027-03-28T09:00", "Mars/Olympus") is None
