"""Wishes: which records may have them, what they come to, and what carries them on.

Source: docs/design/wishes.md.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from continuations import HOME, KEY, LIMITS, OFFSET, USER, WITH_ID, body_of, continued, read

from delayd.bus import Headers, Record
from delayd.request import (
    Reason,
    Reject,
    Request,
    RequestLimits,
    Turn,
    Wishes,
    dead_body,
    dead_letter,
    delivered,
    message_body,
    parse,
    turn_of,
    wishes_of,
    worth_until_ms_of,
)
from delayd.request.arrivals import arrival_of
from delayd.request.bodies import PLAIN_FIELDS, planned_of
from delayd.request.headers import WISH_HEADERS
from delayd.request.spreading import planned_ms_of
from replication.rules import Barrier, Rules
from replication.settings import STEADY_RULES, WISHES_RULES

APPEND_MS = 1_700_000_000_000
ASKED: Headers = [("delayd-topic", b"orders"), ("delayd-delay", b"10s")]
TOLD: tuple[str, bytes | None] = ("delayd-receipt", b"yes")
LATE: tuple[str, bytes | None] = ("delayd-late", b"5000ms")
WINDOW: tuple[str, bytes | None] = ("delayd-window", b"60000ms")
OLDER = replace(LIMITS, rules=Rules(STEADY_RULES))


def outcome(
    *headers: tuple[str, bytes | None],
    limits: RequestLimits = LIMITS,
    offset: int = 7,
    asked: Headers = ASKED,
) -> Request | Reject:
    record = Record(3, offset, 0, APPEND_MS, None, b"v", [*asked, *headers])
    return parse(record, limits)


def accepted(*headers: tuple[str, bytes | None], **changed: Any) -> Request:
    request = outcome(*headers, **changed)
    assert isinstance(request, Request), request
    return request


def refused(*headers: tuple[str, bytes | None], **changed: Any) -> Reject:
    reject = outcome(*headers, **changed)
    assert isinstance(reject, Reject), reject
    return reject


def test_a_message_without_wishes_is_stored_as_before() -> None:
    request = accepted()
    assert request.wishes is None
    assert len(message_body(request)) == PLAIN_FIELDS == 10


def test_wishes_are_behind_the_turn_of_a_body() -> None:
    body = message_body(accepted(TOLD))
    assert len(body) == 12 and wishes_of(body).is_told and turn_of(body) is None
    again = continued(body, turn=Turn(5, 6))
    request = read(again)
    assert isinstance(request, Request)
    body = message_body(request)
    assert (turn_of(body), wishes_of(body).is_told) == (Turn(5, 6), True)


def test_a_body_that_an_older_release_stored_has_fewer_wishes() -> None:
    assert wishes_of((*message_body(accepted()), None, [])) == Wishes()


@pytest.mark.parametrize(
    ("header", "reason", "detail"),
    [
        (
            "delayd-receipt",
            Reason.UNKNOWN_HEADER,
            "the header 'delayd-receipt' is unknown, and names that start with delayd- are"
            " reserved: known are delayd-topic, delayd-due, delayd-delay, delayd-level,"
            " delayd-key, delayd-partition, delayd-op, delayd-id, delayd-redrive",
        ),
        (
            "delayd-late",
            Reason.NOT_SUPPORTED,
            "the header delayd-late is not supported by rules version 4, which this cluster runs:"
            " leave it out, or upgrade the cluster",
        ),
        *(
            (
                name,
                Reason.UNKNOWN_HEADER,
                f"the header '{name}' is unknown, and names that start with delayd- are reserved:"
                " known are delayd-topic, delayd-due, delayd-delay, delayd-level, delayd-key,"
                " delayd-partition, delayd-op, delayd-id, delayd-redrive",
            )
            for name in ("delayd-window", "delayd-planned")
        ),
    ],
)
def test_older_rules_refuse_them_as_ever_word_for_word(
    header: str, reason: Reason, detail: str
) -> None:
    """A replica of an older release stores these very bytes.

    Rules: wishes-by-rules
    """
    reject = refused((header, b"yes"), limits=OLDER)
    assert (reject.reason, reject.detail, reject.id) == (reason, detail, None)


def test_what_is_nearly_a_wish_is_told_so_by_the_rules_that_know_it() -> None:
    nearly = ("delayd-receipts", b"yes")
    assert "did you mean delayd-receipt?" in refused(nearly).detail
    for limits in (LIMITS, OLDER):
        assert "did you mean delayd-late?" in refused(("delayd-lat", b"1s"), limits=limits).detail
    assert "known are delayd-topic" in refused(nearly, limits=OLDER).detail


def test_a_barrier_decides_by_the_place_of_the_record() -> None:
    """Rules: wishes-by-rules"""
    switched = replace(LIMITS, rules=Rules(STEADY_RULES, (Barrier(3, 7, WISHES_RULES),)))
    for header in WISH_HEADERS:
        for offset in (6, 7):  # the barrier itself is ruled by the older ones
            reject = refused((header, b"yes"), limits=switched, offset=offset)
            assert reject == refused((header, b"yes"), limits=OLDER, offset=offset)
    assert accepted(TOLD, limits=switched, offset=8).is_told


@pytest.mark.parametrize("text", [b"no", b"Yes", b" yes", b"yes\n", b"1", b"true", b"all"])
def test_a_receipt_is_asked_for_in_one_way(text: bytes) -> None:
    reject = refused(("delayd-receipt", text))
    assert reject.reason is Reason.BAD_RECEIPT and "is not yes" in reject.detail
    assert reject.id is None


def test_a_reject_is_told_under_its_source_if_it_asks_for_receipts() -> None:
    """Rules: receipts-asked"""
    no_topic: Headers = [("delayd-due", b"0")]
    assert refused(TOLD, asked=no_topic).id == "3/7"
    assert refused(TOLD, TOLD, asked=no_topic).id is None
    assert refused(TOLD, ("delayd-redrive", b"3/1"), asked=no_topic).id == "3/1"
    too_large = replace(LIMITS, record_bytes_max=10)
    assert refused(TOLD, limits=too_large).id == "3/7"
    assert refused(asked=no_topic).id is None


@pytest.mark.parametrize(
    ("text", "late_ms"), [("1ms", 1), ("250ms", 250), ("10m", 600_000), ("365d", 31_536_000_000)]
)
def test_lateness_is_a_span(text: str, late_ms: int) -> None:
    body = message_body(accepted(("delayd-late", text.encode())))
    assert wishes_of(body) == Wishes(late_ms=late_ms)
    assert worth_until_ms_of(body, 3, 7) == APPEND_MS + 10_000 + late_ms


@pytest.mark.parametrize("text", ["0ms", "0d", "366d", "10", "s", "1.5s", "-1s", "1 s", "9" * 16])
def test_no_other_lateness_is_taken(text: str) -> None:
    reject = refused(("delayd-late", text.encode()))
    assert reject.reason is Reason.BAD_LATE and "from 1ms to 365d" in reject.detail


@pytest.mark.parametrize("text", ["0ms", "25h", "2d", "10", "s", "1.5s", "-1s", "1 s", "9" * 16])
def test_no_other_window_is_taken(text: str) -> None:
    reject = refused(("delayd-window", text.encode()))
    assert reject.reason is Reason.BAD_WINDOW and "from 1ms to 1d" in reject.detail


@pytest.mark.parametrize(("name", "number"), [("order-4711", 0x173D0DDB), ("3/17", 0x9C681E51)])
def test_a_place_in_a_window_is_the_share_that_the_name_has_of_32_bits(
    name: str, number: int
) -> None:
    """The numbers are those of `printf NAME | sha256sum`.

    Rules: window-by-name
    """
    for window_ms in (1, 50, 60_000, 86_400_000):
        planned_ms = planned_ms_of(APPEND_MS, window_ms, name)
        assert planned_ms == APPEND_MS + window_ms * number // 2**32
        assert APPEND_MS <= planned_ms < APPEND_MS + window_ms
    assert planned_ms_of(APPEND_MS, None, name) == APPEND_MS


@pytest.mark.parametrize("form", ["order-{}", "2/{}"])
def test_a_crowd_is_spread_evenly(form: str) -> None:
    """Rules: window-by-name"""
    count, seconds = 60_000, 60
    places = Counter(
        planned_ms_of(0, seconds * 1_000, form.format(n)) // 1_000 for n in range(count)
    )
    assert places.keys() == {*range(seconds)}
    assert max(places.values()) < 1.15 * count / seconds
    assert min(places.values()) > 0.85 * count / seconds


def test_a_window_moves_the_rank_and_not_the_due_time_that_is_told() -> None:
    """Rules: window-by-name"""
    request = accepted(WINDOW, offset=17)
    due_ms = APPEND_MS + 10_000
    planned_ms = planned_ms_of(due_ms, 60_000, "3/17")
    assert (request.asked_due_ms, request.due_ms) == (due_ms, planned_ms)
    body = message_body(request)
    assert planned_of(body, 3, 17) == planned_ms != due_ms
    headers = dict(delivered(body, fired_ms=planned_ms, source="3/17").headers)
    assert headers["delayd-due"] == b"%d" % due_ms
    assert headers["delayd-planned"] == b"%d" % planned_ms
    late = accepted(WINDOW, LATE, offset=17)
    assert worth_until_ms_of(message_body(late), 3, 17) == planned_ms + 5_000


def test_under_an_id_the_place_is_the_same_however_often_it_is_sent() -> None:
    """Rules: window-by-name"""
    asked: Headers = [*ASKED[:1], ("delayd-due", b"%d" % APPEND_MS), WITH_ID, WINDOW]
    planned = set()
    for offset in (7, 8):
        request = parse(Record(HOME, offset, 0, APPEND_MS, KEY, b"v", asked), LIMITS)
        assert isinstance(request, Request)
        planned.add(request.due_ms)
    assert planned == {planned_ms_of(APPEND_MS, 60_000, KEY.decode())}


def test_the_longest_delay_holds_for_the_end_of_the_window() -> None:
    """So no name, and no place in the log, decides whether a request is taken.

    Rules: window-by-name
    """
    for beyond_ms, kind in ((0, Request), (1, Reject)):
        delay = b"%dms" % (LIMITS.max_delay_ms - 60_000 + beyond_ms)
        longest: Headers = [ASKED[0], ("delayd-delay", delay)]
        outcomes = {type(outcome(WINDOW, asked=longest, offset=offset)) for offset in range(20)}
        assert outcomes == {kind}


def test_what_continues_a_message_is_planned_as_that_was() -> None:
    """Rules: window-by-name, wishes-kept"""
    for more in ([], [WITH_ID]):
        body = body_of(WINDOW, *more)
        request = read(continued(body))
        assert isinstance(request, Request)
        again = message_body(request)
        assert planned_of(again, HOME, 500) == planned_of(body, HOME, OFFSET)
        written = delivered(again, fired_ms=5, source=f"{HOME}/500")
        record = Record(0, 0, 0, 0, written.key, written.value, written.headers)
        arrival = arrival_of(record)
        assert arrival is not None and arrival.headers == USER
        assert arrival.asked_due_ms == APPEND_MS + 10_000


def test_a_request_may_not_say_when_it_is_planned() -> None:
    reject = refused(("delayd-planned", b"1"))
    assert reject.reason is Reason.UNKNOWN_HEADER
    assert "one that delayd writes" in reject.detail


def digest_with(*headers: tuple[str, bytes | None]) -> bytes:
    record = Record(HOME, 7, 0, APPEND_MS, KEY, b"v", [*ASKED, WITH_ID, *headers])
    request = parse(record, LIMITS)
    assert isinstance(request, Request), request
    return request.digest


def test_a_receipt_does_not_tell_requests_apart() -> None:
    """Who asks again, and for receipts this time, is told that it is a duplicate."""
    assert digest_with(TOLD) == digest_with()


def test_lateness_tells_requests_apart_as_it_was_sent() -> None:
    texts = (b"1s", b"1000ms", b"2s")
    for name in ("delayd-late", "delayd-window"):
        assert len({digest_with(), *(digest_with((name, text)) for text in texts)}) == 4
    assert digest_with(("delayd-late", b"1s")) != digest_with(("delayd-window", b"1s"))


def test_what_continues_a_message_keeps_its_wishes() -> None:
    """Rules: wishes-kept"""
    for more in ([], [WITH_ID]):
        body = body_of(TOLD, LATE, WINDOW, *more)
        request = read(continued(body))
        assert isinstance(request, Request)
        assert request.wishes == wishes_of(body) != Wishes()


def test_a_dead_letter_asks_for_them_again() -> None:
    """Rules: wishes-kept"""
    dead = dead_body(
        body_of(TOLD, LATE, WINDOW), reason=Reason.DEAD, detail="x", origin="3/7", attempts=1
    )
    letter = dead_letter(dead, source="3/9")
    assert {TOLD, LATE, WINDOW} <= {*letter.headers}
