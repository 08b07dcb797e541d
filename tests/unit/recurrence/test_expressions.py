"""Occurrences of expressions, against the audit's reading of them, which shares no code with it.

Source: docs/reference/requests.md, "Series".
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_tests import long_ones
from random_series import ZONES, changes_of, random_cron

from delayd.audit.judging.cron_times import times_after
from delayd.request.recurrence.expressions import (
    NAMED,
    BadSeriesError,
    latest_between,
    names_times_of_day,
    next_after,
)
from delayd.request.recurrence.zones import TZDATA_VERSION, UnknownZoneError, names, zone_of

YEAR = 2026
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LEAP_DAY = "5 2 29 2 *"
NAMED_TIMES = ("30 2 * * *", "0,30 1,2,3 * * *", "0 0 * * *", "15 0 1 * *", LEAP_DAY)
SHOWN_TIMES = ("*/15 * * * *", "*/10 1,2,3 * * *", "0 * * * SUN", "30 */2 * * *", "*/5 30 2 * * *")


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def shown(cron: str, zone: str, after: str, count: int) -> list[str]:
    """The next occurrences, as the clock of the zone shows them."""
    found, after_ms = [], ms(after)
    for _ in range(count):
        due_ms = next_after(cron, zone, after_ms)
        assert due_ms is not None
        after_ms = due_ms
        moment = datetime.fromtimestamp(due_ms // 1000, UTC).astimezone(zone_of(zone))
        found.append(moment.isoformat()[5:])
    return found


def test_a_time_of_day_that_is_skipped_comes_when_the_clock_has_been_put_forward() -> None:
    """Rules: series-summer-time"""
    assert shown("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00+00:00", 2) == [
        "03-29T03:00:00+02:00",
        "03-30T02:30:00+02:00",
    ]


def test_a_time_of_day_that_is_shown_twice_comes_the_first_time() -> None:
    """Rules: series-summer-time"""
    assert shown("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00+00:00", 2) == [
        "10-25T02:30:00+02:00",
        "10-26T02:30:00+01:00",
    ]
    between = "2026-10-25T02:10:00+01:00"  # when the clock shows 2:10 for the second time
    assert shown("30 2 * * *", "Europe/Berlin", between, 1) == ["10-26T02:30:00+01:00"]


def test_what_goes_by_the_clock_is_skipped_and_repeated_with_it() -> None:
    """Rules: series-summer-time"""
    assert shown("*/30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00+00:00", 3) == [
        "03-29T03:00:00+02:00",
        "03-29T03:30:00+02:00",
        "03-30T02:00:00+02:00",
    ]
    assert shown("*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00+00:00", 5) == [
        "10-25T02:00:00+02:00",
        "10-25T02:30:00+02:00",
        "10-25T02:00:00+01:00",
        "10-25T02:30:00+01:00",
        "10-26T02:00:00+01:00",
    ]


def test_a_change_by_half_an_hour_is_one_too() -> None:
    assert shown("*/20 1,2 * * *", "Australia/Lord_Howe", "2026-04-04T13:59:00+00:00", 7) == [
        "04-05T01:00:00+11:00",
        "04-05T01:20:00+11:00",
        "04-05T01:40:00+11:00",
        "04-05T01:40:00+10:30",
        "04-05T02:00:00+10:30",
        "04-05T02:20:00+10:30",
        "04-05T02:40:00+10:30",
    ]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("cron", [*NAMED_TIMES[:-1], *long_ones(LEAP_DAY), *SHOWN_TIMES])
def test_around_each_change_of_ten_years_an_independent_reading_agrees(
    zone: str, cron: str
) -> None:
    """Rules: series-summer-time"""
    changes = changes_of(zone, YEAR, YEAR + 10)
    for change_ms in changes or [ms("2028-02-28T00:00:00+00:00")]:
        for after_ms in (change_ms - DAY_MS, change_ms - HOUR_MS, change_ms + HOUR_MS // 2 + 1):
            expected = times_after(cron, zone, after_ms)
            for due_ms in islice(expected, 12 if cron in SHOWN_TIMES else 3):
                found = next_after(cron, zone, after_ms)
                assert found == due_ms, f"{cron} in {zone} after {after_ms}"
                after_ms = due_ms


@pytest.mark.parametrize("seed", range(40))
def test_random_expressions_agree_with_an_independent_reading(seed: int) -> None:
    random = Random(seed)
    cron, zone = random_cron(random), random.choice(ZONES)
    after_ms = ms("2026-01-01T00:00:00+00:00") + random.randrange(10 * 365 * DAY_MS)
    for due_ms in islice(times_after(cron, zone, after_ms), 40):
        assert next_after(cron, zone, after_ms) == due_ms, f"{cron} in {zone} after {after_ms}"
        after_ms = due_ms


@pytest.mark.parametrize("seed", range(20))
def test_the_latest_one_is_that_which_none_follows(seed: int) -> None:
    random = Random(seed)
    cron, zone = random_cron(random), random.choice(ZONES)
    after_ms = ms("2026-01-01T00:00:00+00:00") + random.randrange(10 * 365 * DAY_MS)
    until_ms = after_ms + random.choice([0, 1_000, HOUR_MS, 40 * DAY_MS, 900 * DAY_MS])
    latest_ms = latest_between(cron, zone, after_ms, until_ms)
    if latest_ms is None:
        first_ms = next_after(cron, zone, after_ms)
        assert first_ms is None or first_ms > until_ms
    else:
        following_ms = next_after(cron, zone, latest_ms)
        assert after_ms < latest_ms <= until_ms
        assert following_ms is None or following_ms > until_ms
        assert next_after(cron, zone, latest_ms - 1_000) == latest_ms


@pytest.mark.parametrize(
    ("cron", "first"),
    [
        ("@hourly", "2026-05-06T08:00:00"),
        ("@daily", "2026-05-07T00:00:00"),
        ("@midnight", "2026-05-07T00:00:00"),
        ("@weekly", "2026-05-10T00:00:00"),
        ("@monthly", "2026-06-01T00:00:00"),
        ("@yearly", "2027-01-01T00:00:00"),
        ("@annually", "2027-01-01T00:00:00"),
        ("0 9 * * MON-FRI", "2026-05-06T09:00:00"),
        ("0 9 L * *", "2026-05-31T09:00:00"),
        ("0 9 LW * *", "2026-05-29T09:00:00"),
        ("0 9 * * FRI#2", "2026-05-08T09:00:00"),
        ("0 9 * * 5L", "2026-05-29T09:00:00"),
        ("0 9 13 * FRI", "2026-05-08T09:00:00"),
        ("*/20 * * * * *", "2026-05-06T07:08:20"),
    ],
)
def test_what_expressions_mean(cron: str, first: str) -> None:
    after_ms = ms("2026-05-06T07:08:09+00:00") + 500
    assert next_after(cron, "UTC", after_ms) == ms(f"{first}+00:00")
    assert next(times_after(cron, "UTC", after_ms)) == ms(f"{first}+00:00")


def test_no_two_are_closer_than_a_second() -> None:
    """Rules: series-seconds"""
    after_ms = ms("2026-05-06T07:08:09+00:00")
    assert next_after("* * * * * *", "UTC", after_ms) == after_ms + 1_000
    assert next_after("* * * * * *", "UTC", after_ms + 1) == after_ms + 1_000
    assert next_after("* * * * * *", "UTC", after_ms + 999) == after_ms + 1_000


@pytest.mark.parametrize(
    "cron", ["0 0 30 2 *", "60 * * * *", "* * * *", "a b c d e", "*/0 * * * *"]
)
def test_what_cannot_be_read_is_named_in_words(cron: str) -> None:
    with pytest.raises(BadSeriesError, match="has no meaning"):
        next_after(cron, "UTC", 0)


def test_an_unknown_zone_is_named_in_words() -> None:
    with pytest.raises(BadSeriesError, match="'Europe/Bielefeld' is not in tzdata"):
        next_after("* * * * *", "Europe/Bielefeld", 0)
    with pytest.raises(UnknownZoneError):
        zone_of("../zones")


def test_one_that_never_comes_is_none() -> None:
    assert next_after("0 0 */31 2 MON#5", "UTC", 0) is None
    assert next_after("0 0 1 1 *", "UTC", ms("9999-06-01T00:00:00+00:00")) is None


def test_zones_are_of_the_package_and_say_of_which_version() -> None:
    assert len(names()) > 400 and "Europe/Berlin" in names()
    assert TZDATA_VERSION[:2] == "20"


def test_what_names_times_of_day() -> None:
    assert all(map(names_times_of_day, (*NAMED_TIMES, "0 30 2 * * *")))
    assert not any(map(names_times_of_day, (*SHOWN_TIMES, "*/5 30 2 * * *", NAMED["@hourly"])))


@given(
    st.lists(st.sampled_from([*"0123456789*/-,#LW", "MON", "FEB", "1-5"]), min_size=1, max_size=6),
    st.integers(0, 5),
)
def test_odd_expressions_raise_nothing_else(parts: list[str], place: int) -> None:
    fields = ["0", "0", "*", "*", "*", "*"]
    fields[place] = "".join(parts)
    try:
        found = next_after(" ".join(fields), "America/New_York", 1_700_000_000_000)
    except BadSeriesError:
        return
    assert found is None or found > 1_700_000_000_000


def test_a_second_reading_holds_what_a_day_may_overtake() -> None:
    start = datetime(2026, 10, 25, tzinfo=UTC) - timedelta(days=1)
    found = list(islice(times_after("*/30 * * * *", "Europe/Berlin", ms(start.isoformat())), 100))
    assert found == [ms(start.isoformat()) + n * HOUR_MS // 2 for n in range(1, 101)]


@pytest.mark.parametrize(
    "cron",
    [
        *("60 * * * *", "0,60 * * * *", "0 0-24 * * *", "0 0 0-5 * *", "0 0 1-32 * *"),
        *("0 0 * 0-12 *", "0 0 * * 1-8", "0 0 * * 8", "0 0 5-2 * *", "0 0 */0 * *", "5/0 * * * *"),
        *("0 0 L/0 * *", "0 0 * * FRIL", "0 0 * * MONTUE", "0 0 * * MON#6", "0 0 * * MON#0"),
        *("0 0 * * 5L/2", "0 0 * * 1#2/3", "+5 * * * *", "0 0 * * 1-5#2", "0 0 L-3 * *"),
        *(
            "0 0 1,,2 * *",
            "0 0 1- * *",
            "0 0 *-5 * *",
            "0 0 \u0663 * *",
            "0 0 * * MON,9",
            "0 0 0 * *",
        ),
        *("0 0 * * FRI-MON", "0 0 * 13 *", "0 0 * * L", "0 0 \u0663 * *"),
    ],
)
def test_both_readings_refuse_the_same(cron: str) -> None:
    """Else a misspelt expression would fail an audit."""
    with pytest.raises(BadSeriesError):
        next_after(cron, "UTC", 0)
    with pytest.raises(ValueError, match=r".+"):
        next(times_after(cron, "UTC", 0))


@pytest.mark.parametrize(
    "cron",
    [
        *("0 0 * * 5L", "0 0 L/2 * *", "0 0 LW/2 * *", "0 0 * * MON#2", "0 0 * JAN-MAR *"),
        *("0 0 * * 7", "0 0 * * 0-7", "0 0 1/40 * *", "0 0 * * MON-FRI/2", "0 0 */32 * *"),
    ],
)
def test_both_readings_take_the_same(cron: str) -> None:
    found = [*islice(times_after(cron, "UTC", 0), 30)]
    assert found == [*islice(_chain(cron), 30)]


def _chain(cron: str) -> Iterator[int]:
    after_ms = 0
    while (due_ms := next_after(cron, "UTC", after_ms)) is not None:
        yield due_ms
        after_ms = due_ms
