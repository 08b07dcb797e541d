"""Debounces in requests: which records ask for one, and what is stored of it.

Source: docs/reference/requests.md, "Debounce".
"""

from dataclasses import replace
from typing import Any

import pytest
from continuations import LIMITS

from delayd.bus import Record
from delayd.bus.murmur2 import partition_of
from delayd.request import Op, Reason, Reject, Request, RequestLimits, Wishes, message_body, parse
from delayd.request.letters import letter_of
from delayd.request.redrives import NoRedrive, redrive_of_letter
from replication.rules import Barrier, Rules
from replication.settings import DEBOUNCE_RULES, SERIES_RULES

APPEND_MS = 1_700_000_000_000
NEWER: RequestLimits = replace(LIMITS, rules=Rules(DEBOUNCE_RULES), max_delay_ms=1 << 40)
ID = b"doc-7"
PARTITION = partition_of(ID, LIMITS.partitions)
OP, NAMED, TOPIC = ("delayd-op", b"debounce"), ("delayd-id", ID), ("delayd-topic", b"index")
DELAY, WAIT = ("delayd-delay", b"2s"), ("delayd-max-wait", b"5s")
ASKED = (OP, NAMED, TOPIC, DELAY, WAIT)


def outcome(*headers: tuple[str, bytes | None], limits: RequestLimits = NEWER, **of: Any) -> Any:
    fields = {"value": b"v", "offset": 7, **of}
    record = Record(
        PARTITION, fields["offset"], 0, APPEND_MS, ID, fields["value"], [("a", b"b"), *headers]
    )
    return parse(record, limits)


def accepted(*headers: tuple[str, bytes | None], **of: Any) -> Request:
    request = outcome(*headers, **of)
    assert isinstance(request, Request), request
    return request


def test_it_says_its_delay_and_its_longest_wait() -> None:
    request = accepted(*ASKED)
    assert (request.op, request.id, request.topic) == (Op.DEBOUNCE, "doc-7", "index")
    assert (request.due_ms, request.max_wait_ms) == (APPEND_MS + 2_000, 5_000)
    assert (request.value, request.headers, request.key) == (b"v", [("a", b"b")], ID)
    assert request.op.slug == "debounce" and not request.has_own_time


def test_it_may_have_wishes_a_key_and_a_partition() -> None:
    wishes = (("delayd-receipt", b"yes"), ("delayd-late", b"1s"), ("delayd-group", b"g"))
    request = accepted(*ASKED, *wishes, ("delayd-key", b"k"), ("delayd-partition", b"3"))
    assert request.wishes == Wishes(True, 1_000, None, "g")
    assert (request.key, request.partition) == (b"k", 3)


def test_what_is_stored_of_it_is_a_plain_message() -> None:
    request = accepted(*ASKED)
    body = message_body(request)
    assert body[:7] == ("index", request.due_ms, ID, b"v", [("a", b"b")], None, "doc-7")
    assert len(body) == 10, "so that nodes, retries and dead letters know nothing of runs"


def test_a_request_without_an_id_is_whole() -> None:
    """It is made past its constructor."""
    request = parse(Record(0, 7, 0, APPEND_MS, None, b"v", [TOPIC, DELAY]), NEWER)
    assert isinstance(request, Request) and len(request) == len(Request._fields)
    assert request.max_wait_ms == 0


def test_a_schedule_of_the_same_is_not_the_same_request() -> None:
    schedule = accepted(NAMED, TOPIC, DELAY)
    assert len({accepted(*ASKED).digest, schedule.digest}) == 2
    longer = accepted(OP, NAMED, TOPIC, DELAY, ("delayd-max-wait", b"6s"))
    assert longer.digest != accepted(*ASKED).digest


@pytest.mark.parametrize(
    "name", ["due", "level", "by", "window", "cron", "zone", "until", "catchup", "redrive"]
)
def test_a_header_that_does_not_go_with_it_is_named_with_it(name: str) -> None:
    reject = outcome(*ASKED, (f"delayd-{name}", b"1"))
    assert isinstance(reject, Reject) and reject.reason is Reason.UNEXPECTED_HEADER
    assert f"delayd-{name}" in reject.detail and "delayd-op debounce" in reject.detail
    assert reject.op is Op.DEBOUNCE


@pytest.mark.parametrize("op", ["schedule", "replace", "cancel", "fire", "reschedule"])
def test_a_longest_wait_goes_with_no_other_operation(op: str) -> None:
    reject = outcome(("delayd-op", op.encode()), NAMED, TOPIC, DELAY, WAIT)
    assert isinstance(reject, Reject) and reject.reason is Reason.UNEXPECTED_HEADER, reject


@pytest.mark.parametrize(
    ("headers", "reason", "said"),
    [
        ((OP, NAMED, TOPIC, DELAY), Reason.MISSING_DUE, "delayd-max-wait is missing"),
        ((OP, NAMED, TOPIC, WAIT), Reason.MISSING_DUE, "delayd-delay is missing"),
        ((OP, TOPIC, DELAY, WAIT), Reason.MISSING_ID, "delayd-op debounce needs the id"),
        ((OP, NAMED, DELAY, WAIT), Reason.MISSING_TOPIC, "delayd-topic"),
        ((*ASKED[:3], ("delayd-delay", b"6s"), WAIT), Reason.BAD_MAX_WAIT, "shorter than"),
        ((*ASKED[:4], ("delayd-max-wait", b"5")), Reason.BAD_MAX_WAIT, "not an integer"),
        ((*ASKED[:3], ("delayd-delay", b"2")), Reason.MISSING_DUE, "delayd-max-wait"),
        ((*ASKED[:3], ("delayd-delay", b"2"), WAIT), Reason.BAD_DELAY, "not an integer"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    headers: tuple[tuple[str, bytes], ...], reason: Reason, said: str
) -> None:
    reject = outcome(*headers)
    assert isinstance(reject, Reject) and reject.reason is reason and said in reject.detail


def test_it_is_put_off_no_further_than_the_longest_delay_but_may_wait_longer() -> None:
    limits = replace(NEWER, max_delay_ms=2_000)
    assert accepted(*ASKED, limits=limits).max_wait_ms == 5_000
    reject = outcome(*ASKED[:3], ("delayd-delay", b"3s"), WAIT, limits=limits)
    assert isinstance(reject, Reject) and reject.reason is Reason.TOO_FAR


def test_older_rules_know_neither_the_operation_nor_the_header() -> None:
    """Rules: debounce-by-rules"""
    older = replace(NEWER, rules=Rules(SERIES_RULES))
    assert outcome(*ASKED, limits=older).reason is Reason.UNKNOWN_HEADER
    assert outcome(*ASKED[:4], limits=older).reason is Reason.BAD_OP
    switched = Rules(SERIES_RULES, (Barrier(PARTITION, 9, DEBOUNCE_RULES),))
    limits = replace(NEWER, rules=switched)
    assert isinstance(outcome(*ASKED, limits=limits, offset=9), Reject)
    assert accepted(*ASKED, limits=limits, offset=10).op is Op.DEBOUNCE


def test_one_that_was_rejected_is_not_redriven() -> None:
    """It would be stored beside what it was to take the place of."""
    headers = [*ASKED, ("delayd-reason", b"too-far"), ("delayd-detail", b"d")]
    headers.append(("delayd-source", b"%d/7" % PARTITION))
    letter = letter_of(Record(0, 1, -1, APPEND_MS, ID, b"v", [*headers]))
    assert letter is not None
    found = redrive_of_letter(letter, NEWER, APPEND_MS)
    assert isinstance(found, NoRedrive) and "debounce again" in found.detail
