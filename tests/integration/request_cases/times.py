"""The cases of the due time, in its three forms. Data only."""

from collections.abc import Iterable

from request_cases.case import (
    Case,
    Due,
    Header,
    Moment,
    Span,
)
from request_cases.making import (
    DAY_MS,
    HOUR_MS,
    TOPIC,
    delivered,
    refused,
    refusing,
    spoilt,
    waits,
)


def due_cases() -> Iterable[Case]:
    name = "delayd-due"

    def good(says: str, content: bytes | Moment, due: Due) -> Case:
        return delivered(name, says, (name, content), due=due, implied=(TOPIC,))

    bad = refusing(name, "bad-due", implied=(TOPIC,))
    new_year_ms = 1_577_836_800_000
    for moment in (Moment(1_500), Moment(1_500, "Z"), Moment(1_500, "+05:30"), Moment(0)):
        how = "Unix milliseconds" if moment.form == "ms" else f"RFC 3339 with {moment.form}"
        yield good(f"{how}, now" if moment.in_ms == 0 else f"{how}, soon", moment, moment)
    yield good("the past, at once", b"1577836800000", new_year_ms)
    yield good("the first millisecond", b"0", 0)
    yield good("leading zeros, 15 digits", b"001577836800000", new_year_ms)
    yield good("RFC 3339", b"2020-01-01T00:00:00Z", new_year_ms)
    yield good("small letters", b"2020-01-01t00:00:00z", new_year_ms)
    yield good("an offset to the east", b"2020-01-01T05:30:00+05:30", new_year_ms)
    yield good("an offset to the west", b"2019-12-31T19:00:00-05:00", new_year_ms)
    yield good("the widest offset", b"2020-01-01T23:59:00+23:59", new_year_ms)
    yield good("milliseconds", b"2020-01-01T00:00:00.007Z", new_year_ms + 7)
    yield good("below a millisecond rounds up", b"2020-01-01T00:00:00.0070001Z", new_year_ms + 8)
    yield good("tenths", b"2020-01-01T00:00:00.5Z", new_year_ms + 500)
    yield good("a leap day", b"2024-02-29T00:00:00Z", 1_709_164_800_000)
    yield good("the first moment", b"1970-01-01T00:00:00Z", 0)
    yield waits(
        name, "just below the longest delay", b"due-39d", (name, Moment(40 * DAY_MS - HOUR_MS))
    )
    beyond = Moment(40 * DAY_MS + HOUR_MS)
    yield refused(
        name,
        "beyond the longest delay",
        (name, beyond),
        reason="too-far",
        detail="max_delay is 3456000000 ms: choose an earlier time",
        implied=(TOPIC,),
    )
    yield bad("the last millisecond of 9999", "253402300799999", "max_delay is", "too-far")
    yield bad("one more", "253402300800000", "beyond the year 9999")
    yield bad("16 digits", "0001577836800000", "beyond the year 9999")
    yield bad("Unix seconds", "1577836800", "looks like seconds: it is read as Unix milliseconds")
    yield bad("Unix microseconds", "1577836800000000", "looks like microseconds")
    yield bad("Unix nanoseconds", "1577836800000000000", "looks like nanoseconds")
    yield bad("before 1970", "1969-12-31T23:59:59Z", "outside 1970-01-01")
    yield bad("before 1970 by its offset", "1970-01-01T00:30:00+01:00", "outside 1970-01-01")
    yield bad("rounded up beyond 9999", "9999-12-31T23:59:59.9999Z", "outside 1970-01-01")
    yield bad("a year of five digits", "10000-01-01T00:00:00Z", "neither Unix milliseconds nor")
    yield bad("negative", "-1", "neither Unix milliseconds nor RFC 3339")
    yield bad("a sign", "+1577836800000", "write it like 2026-")
    yield bad("a fraction of a millisecond", "1577836800000.5", "neither Unix milliseconds")
    yield bad("an exponent", "15e11", "neither Unix milliseconds")
    yield bad("a space before it", " 0", "neither Unix milliseconds")
    yield bad("digits of another script", "\u0661\u0662\u0663", "neither Unix milliseconds")
    yield bad("a word", "tomorrow", "neither Unix milliseconds nor RFC 3339")
    yield bad("no offset", "2020-01-01T00:00:00", "has no offset: end it with Z")
    yield bad("a space for the T", "2020-01-01 00:00:00Z", "neither Unix milliseconds")
    yield bad("no time of day", "2020-01-01", "neither Unix milliseconds")
    yield bad("no seconds", "2020-01-01T00:00Z", "neither Unix milliseconds")
    yield bad("a leap second", "2016-12-31T23:59:60Z", "names a leap second")
    yield bad("hour 24", "2020-01-01T24:00:00Z", "a time of day that does not exist")
    yield bad("minute 60", "2020-01-01T00:60:00Z", "a time of day that does not exist")
    yield bad("a day that does not exist", "2023-02-29T00:00:00Z", "a day that is in no calendar")
    yield bad("month 13", "2020-13-01T00:00:00Z", "a day that is in no calendar")
    yield bad(
        "an offset of a day", "2020-01-01T00:00:00+24:00", "has an offset that does not exist"
    )
    yield bad("an offset without its colon", "2020-01-01T00:00:00+0100", "neither Unix milli")
    yield from spoilt(name, b"0", (TOPIC,))


def delay_cases() -> Iterable[Case]:
    name = "delayd-delay"

    def good(says: str, text: bytes, ms: int) -> Case:
        return delivered(name, says, (name, text), due=Span(ms), implied=(TOPIC,))

    bad = refusing(name, "bad-delay", "write it like", (TOPIC,))
    yield good("milliseconds", b"250ms", 250)
    yield good("seconds", b"2s", 2_000)
    yield good("nothing", b"0s", 0)
    yield good("nothing, in days", b"0d", 0)
    yield good("leading zeros, 15 digits", b"000000000000900ms", 900)
    yield waits(name, "minutes", b"delay-5m", (name, b"5m"))
    yield waits(name, "hours", b"delay-2h", (name, b"2h"))
    yield waits(name, "days", b"delay-30d", (name, b"30d"))
    yield waits(name, "the longest delay", b"delay-40d", (name, b"40d"))
    yield waits(name, "the longest delay, in milliseconds", b"delay-max", (name, b"3456000000ms"))
    longest = "the due time is 3456000001 ms after the append time"
    yield bad("a millisecond more", "3456000001ms", longest, "too-far")
    yield bad("a day more", "41d", "max_delay is 3456000000 ms", "too-far")
    yield bad("15 digits of days", "999999999999999d", "max_delay is", "too-far")
    yield bad("16 digits", "0000000000000001s", "at most 15 digits")
    yield bad("no unit", "10", "followed by ms, s, m, h or d")
    yield bad("no number", "s")
    yield bad("capitals", "10S")
    yield bad("weeks", "1w")
    yield bad("two units", "1m30s")
    yield bad("a fraction", "1.5s", "is not an integer")
    yield bad("negative", "-5s")
    yield bad("a sign", "+5s")
    yield bad("a space between", "10 s")
    yield bad("a line feed behind", "10s\n")
    yield bad("ISO 8601", "PT10S")
    yield from spoilt(name, b"1s", (TOPIC,))


def level_cases() -> Iterable[Case]:
    name = "delayd-level"
    detail = "is not one of 1 to 18 (1 is 1s, 18 is 2h): use delayd-delay"
    bad = refusing(name, "bad-level", detail, (TOPIC,))
    yield delivered(name, "the lowest", (name, b"1"), due=Span(1_000), implied=(TOPIC,))
    yield delivered(name, "the second", (name, b"2"), due=Span(5_000), implied=(TOPIC,))
    yield delivered(name, "a leading zero", (name, b"01"), due=Span(1_000), implied=(TOPIC,))
    yield waits(name, "one in the middle", b"level-10", (name, b"10"))
    yield waits(name, "the highest", b"level-18", (name, b"18"))
    yield bad("above the highest", "19")
    yield bad("none", "0")
    yield bad("negative", "-1")
    yield bad("a fraction", "1.0")
    yield bad("a word", "one")
    yield bad("a delay", "1s")
    yield bad("16 digits", "0" * 15 + "1")
    yield from spoilt(name, b"1", (TOPIC,))


def several_due_cases() -> Iterable[Case]:
    section = "Due headers together"
    due: Header = ("delayd-due", b"0")
    delay: Header = ("delayd-delay", b"1s")
    level: Header = ("delayd-level", b"1")
    yield refused(
        section,
        "none of them",
        reason="missing-due",
        detail="no due time: add one",
        implied=(TOPIC,),
    )
    for shown in ((due, delay), (due, level), (delay, level), (due, delay, level)):
        names = " and ".join(str(name) for name, _ in shown)
        yield refused(
            section,
            "several" if len(shown) == 2 else "all three",
            *shown,
            reason="several-dues",
            detail=f"{names} contradict each other",
            implied=(TOPIC,),
        )
