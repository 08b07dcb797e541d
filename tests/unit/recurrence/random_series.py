"""Random expressions of any form, zones whose clocks change in any way, and when they do."""

from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from typing import Final

from delayd.request.recurrence.zones import zone_of

ZONES: Final = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # by half an hour
    "Africa/Casablanca",  # four times a year, around Ramadan
    "Africa/Cairo",  # at midnight
)
WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@cache
def changes_of(zone: str, from_year: int, until_year: int) -> list[int]:
    """Return when the clock of a zone is put forward or back, Unix ms."""
    tz, found = zone_of(zone), []
    moment, end = datetime(from_year, 1, 1, tzinfo=UTC), datetime(until_year, 1, 1, tzinfo=UTC)
    while moment < end:
        following = moment + timedelta(minutes=30)
        if moment.astimezone(tz).utcoffset() != following.astimezone(tz).utcoffset():
            found.append(int(following.timestamp()) * 1000)
        moment = following
    return found


def random_cron(random: Random) -> str:
    """Return an expression that comes at most every few minutes, and at least once a year."""
    minute = random.choice(["0", "30", f"{random.randrange(60)}", "*/20", "7,37", "5-50/15"])
    hour = random.choice(["0", "2", "1,2,3", f"{random.randrange(24)}", "*", "*/3", "8-17"])
    day, weekday = "*", "*"
    match random.randrange(6):
        case 0:
            day = random.choice(["1", "15", "28", "L", "LW", "1-7", "*/10"])
        case 1:
            weekday = random.choice(WEEKDAYS)
        case 2:
            weekday = random.choice(["MON-FRI", "1,3,5", "SUN#1", "5L", "6-7", "0"])
        case 3:
            day, weekday = "13", "FRI"
    month = random.choice(["*", "*", "*", "*/2", "MAR,OCT", f"{random.randrange(1, 13)}"])
    seconds = random.choice(["", "", "", "0 ", "15 ", "*/30 "])
    return f"{seconds}{minute} {hour} {day} {month} {weekday}"
