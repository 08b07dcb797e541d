"""Local times in requests: which records ask for one, and what carries it on.

Source: docs/reference/requests.md, "Local times"; docs/design/local-times.md.
"""

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from continuations import HOME, KEY, LIMITS, OFFSET, USER

from delayd.bus import Headers, Record
from delayd.request import (
    LocalState,
    LocalTime,
    Reason,
    Reject,
    Request,
    RequestLimits,
    continuation,
    dead_body,
    dead_letter,
    delivered,
    local_of,
    message_body,
    moved_body,
    parse,
    resolved_body,
    series_of,
)
from delayd.request.arrivals import arrival_of
from delayd.request.bodies import asked_due_of, series_again
from delayd.request.letters import letter_of
from delayd.request.local_times import local_in
from replication.rules import Barrier, Rules
from replication.settings import LOCAL_TIME_RULES, SERIES_RULES, WISHES_RULES

APPEND_MS = 1_700_000_000_000
DUE_MS = 1_806_217_200_000  # in Berlin the clock is put forward on that day
NEWER: RequestLimits = replace(LIMITS, rules=Rules(LOCAL_TIME_RULES), max_delay_ms=1 << 50)
TEXT = "2027-03-28T09:00"
DUE = ("delayd-due", TEXT.encode())
ZONE = ("delayd-zone", b"Europe/Berlin")
TOPIC = ("delayd-topic", b"orders")
LOCAL = LocalTime(TEXT, "Europe/Berlin")


def outcome(*headers: tuple[str, bytes | None], limits: RequestLimits = NEWER, **of: Any) -> Any:
    fields = {"key": None, "partition": 3, "offset": OFFSET, **of}
    asked = [*USER, TOPIC, *headers]
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
    request = accepted(DUE, ZONE)
    assert request.local == LOCAL and LOCAL.goes_on
    assert request.asked_due_ms == request.due_ms == APPEND_MS
    assert local_of(stored(request)) == LOCAL and series_of(stored(request)) is None


@pytest.mark.parametrize(
    "text",
    [
        *("2027-03-28T09:00:00", "2027-03-28t09:00", "2027-03-28T09:00:59.9999999"),
        *("1970-01-01T00:00", "2028-02-29T23:59"),
    ],
)
def test_a_date_and_a_time_of_day_are_enough(text: str) -> None:
    request = accepted(("delayd-due", text.encode()), ZONE)
    assert request.local == LocalTime(text, "Europe/Berlin")


@pytest.mark.parametrize(
    ("headers", "reason", "names"),
    [
        ([ZONE], Reason.UNEXPECTED_HEADER, ("delayd-zone", "delayd-due", "delayd-cron")),
        (
            [ZONE, ("delayd-delay", b"1s")],
            Reason.UNEXPECTED_HEADER,
            ("delayd-zone", "delayd-delay"),
        ),
        ([ZONE, ("delayd-level", b"1")], Reason.UNEXPECTED_HEADER, ("delayd-zone", "delayd-level")),
        ([ZONE, ("delayd-due", b"0")], Reason.UNEXPECTED_HEADER, ("delayd-zone", "delayd-due")),
        (
            [ZONE, ("delayd-due", b"2027-03-28T09:00:00Z")],
            Reason.UNEXPECTED_HEADER,
            ("delayd-zone", "delayd-due"),
        ),
        ([ZONE, DUE, ("delayd-delay", b"1s")], Reason.SEVERAL_DUES, ("delayd-due", "delayd-delay")),
        ([ZONE, DUE, ("delayd-level", b"1")], Reason.SEVERAL_DUES, ("delayd-due", "delayd-level")),
        (
            [ZONE, DUE, ("delayd-cron", b"@daily")],
            Reason.SEVERAL_DUES,
            ("delayd-due", "delayd-cron"),
        ),
        (
            [ZONE, DUE, ("delayd-until", b"0")],
            Reason.UNEXPECTED_HEADER,
            ("delayd-until", "delayd-cron"),
        ),
        ([("delayd-zone", b"../x"), DUE], Reason.BAD_ZONE, ("delayd-zone",)),
        ([DUE], Reason.BAD_DUE, ("delayd-due", "RFC 3339")),
        ([("delayd-local", b"x"), DUE, ZONE], Reason.UNKNOWN_HEADER, ("delayd writes",)),
    ],
)
def test_what_does_not_go_together_names_both(
    headers: Headers, reason: Reason, names: tuple[str, ...]
) -> None:
    reject = refused(*headers)
    assert reject.reason is reason and all(name in reject.detail for name in names), reject


@pytest.mark.parametrize(
    "text",
    [
        *("2027-02-29T09:00", "2027-03-28T24:00", "2027-03-28T09:60", "2027-03-28T09:00:60"),
        *("2027-03-28 09:00", "2027-03-28", "09:00", "1969-12-31T23:59", "2027-3-28T09:00"),
    ],
)
def test_what_no_clock_shows_is_a_bad_due_time(text: str) -> None:
    reject = refused(("delayd-due", text.encode()), ZONE)
    assert reject.reason is Reason.BAD_DUE and text in reject.detail


@pytest.mark.parametrize("op", [b"reschedule", b"fire", b"cancel"])
def test_an_operation_about_what_is_pending_takes_no_zone(op: bytes) -> None:
    headers: Headers = [("delayd-op", op), ("delayd-id", KEY), DUE, ZONE]
    record = Record(HOME, OFFSET, 0, APPEND_MS, KEY, None, headers)
    reject = parse(record, NEWER)
    assert isinstance(reject, Reject) and reject.reason is Reason.UNEXPECTED_HEADER
    assert f"delayd-op {op.decode()}" in reject.detail


def test_it_is_too_far_where_it_would_be_in_any_zone() -> None:
    # In Kiritimati, 14 h ahead, the clock shows it as early as nowhere else.
    distance_ms = DUE_MS + 2 * 3_600_000 - 14 * 3_600_000 - APPEND_MS
    near = replace(NEWER, max_delay_ms=distance_ms)
    assert accepted(DUE, ZONE, limits=near).local is not None
    far = replace(NEWER, max_delay_ms=distance_ms - 1)
    assert refused(DUE, ZONE, limits=far).reason is Reason.TOO_FAR
    window = ("delayd-window", b"1ms")
    assert refused(DUE, ZONE, window, limits=near).reason is Reason.TOO_FAR


@pytest.mark.parametrize(
    ("version", "reason"),
    [(SERIES_RULES, Reason.UNEXPECTED_HEADER), (WISHES_RULES, Reason.NOT_SUPPORTED)],
)
def test_a_barrier_decides_by_the_place_of_the_record(version: int, reason: Reason) -> None:
    rules = Rules(version, (Barrier(3, OFFSET, LOCAL_TIME_RULES),))
    switched = replace(NEWER, rules=rules)
    assert refused(DUE, ZONE, limits=switched).reason is reason
    assert accepted(DUE, ZONE, limits=switched, offset=OFFSET + 1).local == LOCAL
    assert refused(DUE, limits=replace(NEWER, rules=Rules(version))).reason is Reason.BAD_DUE


def named(*headers: tuple[str, bytes | None], **of: Any) -> Request:
    return accepted(*headers, ("delayd-id", KEY), key=KEY, partition=HOME, **of)


def test_text_and_zone_tell_two_requests_apart() -> None:
    again, other = named(DUE, ZONE), named(DUE, ("delayd-zone", b"Europe/Paris"))
    spelt = named(("delayd-due", TEXT.encode() + b":00"), ZONE)
    assert named(DUE, ZONE).digest == again.digest
    assert len({again.digest, other.digest, spelt.digest}) == 3


def test_a_replace_has_no_due_time_of_its_own() -> None:
    replacing = ("delayd-op", b"replace")
    assert not named(DUE, ZONE, replacing).has_own_time
    assert named(("delayd-due", b"0"), replacing).has_own_time


def continued(state: LocalState, **of: Any) -> Request:
    body = resolved_body(stored(named(DUE, ZONE)), LOCAL._replace(state=state), DUE_MS)
    again = continuation(
        body,
        partition=HOME,
        offset=OFFSET,
        rank_due_ms=APPEND_MS,
        next_due_ms=DUE_MS - 1,
        limits=NEWER,
        **of,
    )
    record = Record(HOME, OFFSET + 1, 0, APPEND_MS, again.key, again.value, again.headers)
    request = parse(record, NEWER)
    assert isinstance(request, Request), request
    return request


@pytest.mark.parametrize("state", list(LocalState))
def test_a_continuation_is_read_back(state: LocalState) -> None:
    request = continued(state, is_retry=False)
    assert request.local == LOCAL._replace(state=state)
    assert (request.asked_due_ms, request.due_ms) == (DUE_MS, DUE_MS - 1)
    assert request.digest == named(DUE, ZONE).digest
    is_open = state in (LocalState.UNRESOLVED, LocalState.EXPECTED)
    assert request.local.goes_on == is_open


@pytest.mark.parametrize(
    ("local", "resolved"),
    [
        (b"2027-03-28T09:00", b"final"),
        (b"2027-03-28T09:00[]", b"final"),
        (b"soon[Europe/Berlin]", b"final"),
        (b"2027-03-28T09:00[Europe/Berlin]", b"perhaps"),
    ],
)
def test_what_a_master_does_not_write_is_no_local_time(local: bytes, resolved: bytes) -> None:
    assert local_in(local.decode(), resolved.decode()) is None


def test_what_is_delivered_says_both() -> None:
    body = message_body(continued(LocalState.FINAL))
    delivery = delivered(body, fired_ms=DUE_MS + 5, source="1/2")
    record = Record(0, 0, 0, DUE_MS, delivery.key, delivery.value, delivery.headers)
    arrival = arrival_of(record)
    assert arrival is not None
    assert (arrival.asked_due_ms, arrival.local) == (DUE_MS, "2027-03-28T09:00[Europe/Berlin]")
    assert arrival.headers == USER


@pytest.mark.parametrize(
    ("state", "is_as_sent"), [(LocalState.FINAL, False), (LocalState.OVER, True)]
)
def test_a_dead_letter_asks_for_it_again(state: LocalState, is_as_sent: bool) -> None:
    body = message_body(continued(state))
    reason = Reason.NO_OCCURRENCE if is_as_sent else Reason.EXPIRED
    dead = dead_body(body, reason=reason, detail="x", origin="1/2", attempts=0)
    key, value, headers = dead_letter(dead, source="1/3")
    letter = letter_of(Record(0, 0, 0, DUE_MS, key, value, headers))
    assert letter is not None
    again = parse(Record(HOME, OFFSET, 0, APPEND_MS, key, value, letter.headers), NEWER)
    assert isinstance(again, Request)
    assert (again.local, again.asked_due_ms) == (
        (LOCAL, APPEND_MS) if is_as_sent else (None, DUE_MS)
    )


def test_one_that_is_moved_is_none_any_more() -> None:
    body = moved_body(message_body(continued(LocalState.EXPECTED)), DUE_MS + 9)
    assert local_of(body) is None and asked_due_of(body) == DUE_MS + 9


def test_another_cluster_is_asked_for_it_as_it_was_sent() -> None:
    for state in LocalState:
        key, value, headers = series_again(message_body(continued(state)))
        again = parse(Record(HOME, OFFSET, 0, APPEND_MS, key, value, headers), NEWER)
        assert isinstance(again, Request) and again.local == LOCAL
        assert again.digest == named(DUE, ZONE).digest
