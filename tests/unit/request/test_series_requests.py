"""Series in requests: which records ask for one, and what carries it on.

Source: docs/reference/requests.md, "Series"; docs/design/series.md.
"""

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from continuations import HOME, KEY, LIMITS, OFFSET, USER
from hypothesis import given
from hypothesis import strategies as st

from delayd.bus import Headers, Record
from delayd.request import (
    Reason,
    Reject,
    Request,
    RequestLimits,
    Series,
    SeriesState,
    Wishes,
    continuation,
    dead_body,
    dead_letter,
    delivered,
    message_body,
    occurrence_body,
    parse,
    series_of,
    wishes_of,
)
from delayd.request.arrivals import arrival_of
from delayd.request.bodies import is_occurrence, series_again
from delayd.request.headers import SERIES_HEADERS
from delayd.request.letters import letter_of
from delayd.request.recurrence.expressions import NAMED
from replication.rules import Barrier, Rules
from replication.settings import SERIES_RULES, WISHES_RULES

APPEND_MS = 1_700_000_000_000
DUE_MS = APPEND_MS + 60_000
NEWER: RequestLimits = replace(LIMITS, rules=Rules(SERIES_RULES))
CRON = ("delayd-cron", b"0 9 * * MON-FRI")
ASKED: Headers = [("delayd-topic", b"orders"), CRON]


def outcome(*headers: tuple[str, bytes | None], limits: RequestLimits = NEWER, **of: Any) -> Any:
    fields = {"asked": ASKED, "key": None, "partition": 3, "offset": OFFSET, **of}
    asked = [*USER, *fields["asked"], *headers]
    record = Record(fields["partition"], fields["offset"], 0, APPEND_MS, fields["key"], b"v", asked)
    return parse(record, limits)


def accepted(*headers: tuple[str, bytes | None], **of: Any) -> Request:
    request = outcome(*headers, **of)
    assert isinstance(request, Request), request
    return request


def refused(*headers: tuple[str, bytes | None], **of: Any) -> Reject:
    reject = outcome(*headers, **of)
    assert isinstance(reject, Reject), reject
    return reject


def stored(request: Request) -> Any:
    return msgpack.unpackb(msgpack.packb(message_body(request), use_bin_type=True))


def test_it_is_stored_unresolved_and_ranks_by_its_append_time() -> None:
    request = accepted()
    assert request.series == Series("0 9 * * MON-FRI", "UTC", None, False)
    assert request.asked_due_ms == request.due_ms == APPEND_MS
    assert series_of(stored(request)) == request.series and not is_occurrence(stored(request))


def test_its_headers_are_read() -> None:
    request = accepted(
        ("delayd-zone", b"Europe/Berlin"),
        ("delayd-until", b"2027-01-01T00:00:00Z"),
        ("delayd-catchup", b"all"),
        ("delayd-late", b"5m"),
    )
    until_ms = 1_798_761_600_000
    assert request.series == Series("0 9 * * MON-FRI", "Europe/Berlin", until_ms, True)
    assert wishes_of(stored(request)) == Wishes(late_ms=300_000)
    assert accepted(("delayd-catchup", b"once")).series == accepted().series


@pytest.mark.parametrize(
    ("headers", "reason", "detail"),
    [
        ([("delayd-due", b"0")], Reason.SEVERAL_DUES, "delayd-due and delayd-cron"),
        ([("delayd-delay", b"1s")], Reason.SEVERAL_DUES, "delayd-delay and delayd-cron"),
        ([("delayd-level", b"1")], Reason.SEVERAL_DUES, "delayd-level and delayd-cron"),
        ([("delayd-window", b"1s")], Reason.UNEXPECTED_HEADER, "delayd-window and delayd-cron"),
        ([("delayd-zone", b"../x")], Reason.BAD_ZONE, "no name of a time zone"),
        ([("delayd-until", b"1700000000")], Reason.BAD_UNTIL, "delayd-until '1700000000' looks"),
        ([("delayd-until", b"soon")], Reason.BAD_UNTIL, "delayd-until 'soon'"),
        ([("delayd-catchup", b"skip")], Reason.BAD_CATCHUP, "neither once nor all"),
    ],
)
def test_what_does_not_go_together_names_both(
    headers: Headers, reason: Reason, detail: str
) -> None:
    reject = refused(*headers)
    assert reject.reason is reason and detail in reject.detail


@pytest.mark.parametrize("name", ["delayd-zone", "delayd-until", "delayd-catchup"])
def test_its_other_headers_have_no_meaning_alone(name: str) -> None:
    asked = [("delayd-topic", b"orders"), ("delayd-delay", b"1s")]
    reject = refused((name, b"UTC"), asked=asked)
    assert reject.reason is Reason.UNEXPECTED_HEADER
    assert name in reject.detail and "delayd-cron" in reject.detail


def test_the_names_that_the_parser_lets_through_are_those_that_have_a_meaning() -> None:
    topic = ("delayd-topic", b"orders")
    for name in (*NAMED, "@noon", "@reboot"):
        found = outcome(asked=[topic, ("delayd-cron", name.encode())])
        assert isinstance(found, Request) == (name in NAMED)


def test_a_barrier_decides_by_the_place_of_the_record() -> None:
    switched = replace(LIMITS, rules=Rules(WISHES_RULES, (Barrier(3, OFFSET, SERIES_RULES),)))
    reject = refused(limits=switched)
    assert reject.reason is Reason.NOT_SUPPORTED and "rules version 5" in reject.detail
    assert accepted(limits=switched, offset=OFFSET + 1).series is not None
    assert refused(("delayd-catchup", b"all"), limits=switched, asked=ASKED[:1]).reason is (
        Reason.UNKNOWN_HEADER
    )


def named(*headers: tuple[str, bytes | None]) -> Request:
    return accepted(*headers, ("delayd-id", KEY), key=KEY, partition=HOME)


def test_series_are_compared_as_they_were_sent() -> None:
    digests = {
        named(*headers).digest
        for headers in (
            (),
            (("delayd-zone", b"UTC"),),
            (("delayd-zone", b"Europe/Berlin"),),
            (("delayd-until", b"1800000000000"),),
            (("delayd-catchup", b"all"),),
            (("delayd-late", b"5m"),),
        )
    }
    assert len(digests) == 6
    assert named().digest == named(("delayd-receipt", b"yes")).digest


def occurrence(number: int = 2, state: int = SeriesState.GOES_ON, **of: Any) -> Any:
    """The stored body of an occurrence."""
    body = stored(named(("delayd-late", b"5m"), ("delayd-until", b"1900000000000")))
    series = series_of(body)
    assert series is not None
    return occurrence_body(body, series._replace(occurrence=number, state=state), DUE_MS)


def test_a_delivery_tells_its_occurrence_and_is_read_back() -> None:
    topic, _, key, value, headers = delivered(occurrence(), fired_ms=DUE_MS, source="3/90")
    assert headers[-1] == ("delayd-occurrence", b"2")
    found = arrival_of(Record(0, 0, 0, DUE_MS, key, value, headers))
    assert found is not None and (found.occurrence, found.asked_due_ms) == (2, DUE_MS)
    assert found.headers == USER and topic == "orders"


def test_a_dead_occurrence_is_asked_for_alone() -> None:
    dead = dead_body(occurrence(), reason=Reason.DEAD, detail="x", origin="3/77", attempts=3)
    key, value, headers = dead_letter(dead, source="3/90")
    assert not {*SERIES_HEADERS} & dict(headers).keys()
    assert dict(headers)["delayd-due"] == b"%d" % DUE_MS
    letter = letter_of(Record(0, 0, 0, DUE_MS, key, value, headers))
    assert letter is not None and (letter.occurrence, letter.attempts) == (2, 3)


@pytest.mark.parametrize("number", [0, 3])
def test_one_that_is_over_is_asked_for_as_it_was(number: int) -> None:
    body = occurrence(number, SeriesState.OVER)
    dead = dead_body(body, reason=Reason.NO_OCCURRENCE, detail="x", origin="3/77", attempts=0)
    headers = dict(dead_letter(dead, source="3/90").headers)
    assert headers["delayd-cron"] == CRON[1] and "delayd-due" not in headers
    assert headers["delayd-until"] == b"1900000000000"
    assert headers["delayd-occurrence"] == b"%d" % number


def test_another_cluster_is_asked_for_the_whole_series() -> None:
    key, value, headers = series_again(occurrence())
    again = parse(Record(HOME, 5, 0, APPEND_MS, key, value, headers), NEWER)
    assert isinstance(again, Request) and again.series is not None
    assert again.series._replace(zone="UTC") == named(("delayd-until", b"1900000000000")).series


@given(
    st.sampled_from([*NAMED, "* * * * *", "0 9 * * MON-FRI", "*/5 1,2 3 L 4 5#1"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/Argentina/Ushuaia", "Etc/GMT+12"]),
    st.none() | st.integers(10**11, 253_402_300_799_999),
    st.booleans(),
    st.integers(0, 10**9),
    st.sampled_from(SeriesState),
    st.booleans(),
    st.booleans(),
)
def test_a_continuation_is_read_back_as_it_was_written(
    cron: str,
    zone: str,
    until_ms: int | None,
    catches_up: bool,
    number: int,
    state: SeriesState,
    follows: bool,
    is_retry: bool,
) -> None:
    """Rules: series-go-on"""
    series = Series(cron, zone, until_ms, catches_up, number, state)
    body = occurrence_body(stored(named()), series, DUE_MS)
    again = continuation(
        body,
        partition=HOME,
        offset=OFFSET,
        rank_due_ms=APPEND_MS,
        next_due_ms=DUE_MS + 5,
        limits=NEWER,
        is_retry=is_retry,
        follows=follows,
    )
    record = Record(HOME, OFFSET + 9, 0, DUE_MS, again.key, again.value, again.headers)
    read = parse(record, NEWER)
    assert isinstance(read, Request), read
    assert read.series == series and stored(read)[:4] == body[:4]
    assert (read.asked_due_ms, read.due_ms, read.attempt) == (DUE_MS, DUE_MS + 5, int(is_retry))
    assert read.digest == named().digest and read.origin == f"{HOME}/{OFFSET}"
    assert (("delayd-follows", b"yes") in again.headers) == follows
