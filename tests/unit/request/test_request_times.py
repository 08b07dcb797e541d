"""The grammar of `delayd-due`, `delayd-delay` and `delayd-level` (docs/design, wire contract)."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.request.reasons import DETAIL_CHARS_MAX, Reason, RefusedError
from delayd.request.times import DUE_MS_MAX, LEVELS, delay_ms_of, due_ms_of, level_delay_ms_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS = timedelta(milliseconds=1)


def test_level_n_is_rocketmqs_level_n() -> None:
    table_s = [1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200]
    assert len(LEVELS) == 18
    for level, delay_s in enumerate(table_s, start=1):
        assert level_delay_ms_of(str(level)) == delay_s * 1000


@pytest.mark.parametrize("text", ["0", "19", "-1", "+1", "1.0", " 1", "one", "²", "١", "9" * 5000])
def test_a_level_outside_1_to_18_is_refused_not_clamped(text: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        level_delay_ms_of(text)
    assert refusal.value.reason is Reason.BAD_LEVEL


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("250ms", 250),
        ("10s", 10_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("30d", 2_592_000_000),
        ("0s", 0),
        ("007s", 7_000),
        ("999999999999999ms", 999_999_999_999_999),
    ],
)
def test_a_delay_is_an_integer_and_a_unit(text: str, expected_ms: int) -> None:
    assert delay_ms_of(text) == expected_ms


@pytest.mark.parametrize(
    "text",
    [
        *("10", "s", "-1s", "+1s", "1.5s", "1 s", " 1s", "1s ", "1S", "1M", "1w", "1h30m", "1e3s"),
        *("1_000s", "١s", "1s\n", "1000000000000000ms", "9" * 5000 + "s"),
    ],
)
def test_any_other_delay_is_refused(text: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        delay_ms_of(text)
    assert refusal.value.reason is Reason.BAD_DELAY


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("999999999", 999_999_999),  # no plausible time in another unit: long past, never guessed
        ("10000000000", 10_000_000_000),
        (str(DUE_MS_MAX), DUE_MS_MAX),
        ("1970-01-01T00:00:00Z", 0),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14t22:13:20z", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
        ("2023-11-14T16:28:20-05:45", 1_700_000_000_000),
        ("2023-11-14T22:13:20-00:00", 1_700_000_000_000),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
        ("2023-11-14T22:13:20.1Z", 1_700_000_000_100),
        ("2023-11-14T22:13:20.12Z", 1_700_000_000_120),
        ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
        ("2023-11-14T22:13:20.123000Z", 1_700_000_000_123),
        ("2023-11-14T22:13:20.1230001Z", 1_700_000_000_124),
        ("2023-11-14T22:13:20.0000000000000000000001Z", 1_700_000_000_001),
        ("2023-11-14T22:13:20." + "0" * 5000 + "Z", 1_700_000_000_000),
        ("2023-11-14T22:13:19.9990000001Z", 1_700_000_000_000),
        ("9999-12-31T23:59:59.999Z", DUE_MS_MAX),
        ("9999-12-31T23:59:59.999+00:01", DUE_MS_MAX - 60_000),
    ],
)
def test_a_due_time_is_unix_ms_or_rfc_3339_rounded_up(text: str, expected_ms: int) -> None:
    assert due_ms_of(text) == expected_ms


@pytest.mark.parametrize(
    ("text", "unit", "remedy"),
    [
        ("1700000000", "seconds", "multiply it by 1,000"),
        ("1000000000", "seconds", "multiply"),
        ("9999999999", "seconds", "multiply"),
        ("001700000000", "seconds", "multiply"),
        ("1700000000000000", "microseconds", "divide it by 1,000"),
        ("1700000000000000000", "nanoseconds", "divide it by 1,000,000"),
    ],
)
def test_a_due_time_in_another_unit_is_refused_with_what_to_do(
    text: str, unit: str, remedy: str
) -> None:
    """Rules: nothing-unresolved"""
    with pytest.raises(RefusedError) as refusal:
        due_ms_of(text)
    assert refusal.value.reason is Reason.BAD_DUE
    assert f"looks like {unit}:" in refusal.value.detail and remedy in refusal.value.detail


def test_rules_before_version_4_read_seconds_as_milliseconds() -> None:
    assert due_ms_of("1700000000", refuses_units=False) == 1_700_000_000
    with pytest.raises(RefusedError, match="beyond the year 9999"):
        due_ms_of("1700000000000000", refuses_units=False)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (str(DUE_MS_MAX + 1), "year 9999"),
        ("1700000000000000", "milliseconds"),
        ("9" * 5000, "year 9999"),
        ("-1", "neither"),
        ("+1", "neither"),
        ("1.7e12", "neither"),
        ("1700000000000.5", "neither"),
        (" 1700000000000", "neither"),
        ("1_700_000_000_000", "neither"),
        ("١٧٠٠", "neither"),
        ("²", "neither"),
        ("tomorrow", "neither"),
        ("2023-11-14", "neither"),
        ("2023-11-14T22:13Z", "neither"),
        ("2023-11-14 22:13:20Z", "neither"),
        ("2023-11-14T22:13:20,5Z", "neither"),
        ("2023-11-14T22:13:20.Z", "neither"),
        ("2023-11-14T22:13:20+0100", "neither"),
        ("2023-11-14T22:13:20Z\n", "neither"),
        ("2023-11-14T22:13:20Z+01:00", "neither"),
        ("2023-11-14T22:13:20", "no offset"),
        ("2023-11-14T22:13:20.5", "no offset"),
        ("2016-12-31T23:59:60Z", "leap second"),
        ("2023-11-14T24:00:00Z", "time of day"),
        ("2023-11-14T22:60:00Z", "time of day"),
        ("2023-11-14T22:13:61Z", "time of day"),
        ("2023-11-14T22:13:20+24:00", "offset"),
        ("2023-11-14T22:13:20+01:60", "offset"),
        ("2023-02-29T00:00:00Z", "calendar"),
        ("2023-13-01T00:00:00Z", "calendar"),
        ("2023-00-01T00:00:00Z", "calendar"),
        ("0000-01-01T00:00:00Z", "calendar"),
        ("1969-12-31T23:59:59.999Z", "outside 1970"),
        ("1970-01-01T00:00:00+00:01", "outside 1970"),
        ("0001-01-01T00:00:00+23:59", "outside 1970"),
        ("9999-12-31T23:59:59.9991Z", "outside 1970"),
        ("9999-12-31T23:59:59-00:01", "outside 1970"),
    ],
)
def test_any_other_due_time_is_refused_and_told_why(text: str, hint: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        due_ms_of(text)
    assert refusal.value.reason is Reason.BAD_DUE
    assert hint in refusal.value.detail
    assert len(refusal.value.detail) <= DETAIL_CHARS_MAX


ZONES = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda m: timezone(timedelta(minutes=m)))


@given(
    st.datetimes(min_value=datetime(1970, 1, 3), max_value=datetime(9999, 12, 29), timezones=ZONES)
)
def test_rfc_3339_agrees_with_datetime_to_the_millisecond_rounded_up(moment: datetime) -> None:
    rounded_up_ms = -((EPOCH - moment) // MS)
    assert due_ms_of(moment.isoformat()) == rounded_up_ms
    whole = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    assert due_ms_of(whole.isoformat(timespec="milliseconds")) == (whole - EPOCH) // MS


@given(st.text(max_size=60) | st.from_regex(r"[0-9TtZz:.+-]{0,40}"))
def test_no_text_makes_the_grammar_fail_otherwise_than_by_refusing(text: str) -> None:
    for read in (due_ms_of, delay_ms_of, level_delay_ms_of):
        try:
            milliseconds = read(text)
        except RefusedError as refusal:
            assert refusal.detail
        else:
            assert milliseconds >= 0
