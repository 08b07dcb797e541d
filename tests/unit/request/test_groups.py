"""Groups: which records may name one, what stores it, and what carries it on.

Source: docs/design/wishes.md.
"""

from dataclasses import replace

import pytest
from continuations import HOME, KEY, LIMITS, OFFSET, WITH_ID, body_of, continued, read

from delayd.bus import Headers, Record
from delayd.request import (
    Reason,
    Reject,
    Request,
    RequestLimits,
    Wishes,
    dead_body,
    dead_letter,
    delivered,
    group_of,
    message_body,
    parse,
    wishes_of,
)
from delayd.request.bodies import WISHES
from delayd.request.internal import moved_body
from replication.rules import Barrier, Rules
from replication.settings import RESCHEDULE_RULES, SERIES_RULES, STEADY_RULES

GROUP: tuple[str, bytes | None] = ("delayd-group", b"customer-42")
ASKED: Headers = [("delayd-topic", b"orders"), ("delayd-delay", b"10s")]
NAMED: Headers = [*ASKED, WITH_ID]


def outcome(
    *headers: tuple[str, bytes | None],
    asked: Headers = NAMED,
    limits: RequestLimits = LIMITS,
    offset: int = OFFSET,
) -> Request | Reject:
    return parse(Record(HOME, offset, 0, 1_700_000_000_000, KEY, b"v", [*asked, *headers]), limits)


def accepted(*headers: tuple[str, bytes | None], asked: Headers = NAMED) -> Request:
    request = outcome(*headers, asked=asked)
    assert isinstance(request, Request), request
    return request


def refused(
    *headers: tuple[str, bytes | None],
    asked: Headers = NAMED,
    limits: RequestLimits = LIMITS,
    offset: int = OFFSET,
) -> Reject:
    reject = outcome(*headers, asked=asked, limits=limits, offset=offset)
    assert isinstance(reject, Reject), reject
    return reject


def test_a_group_is_one_more_field_of_the_wishes_and_of_nothing_else() -> None:
    """Rules: group-stored"""
    assert message_body(accepted(GROUP))[WISHES] == (False, None, None, "customer-42")
    assert message_body(accepted(("delayd-late", b"1s")))[WISHES] == (False, 1_000, None)
    assert group_of(message_body(accepted())) is None


@pytest.mark.parametrize("name", [b"g", "grün".encode(), b"g" * 256, KEY])
def test_its_name_is_as_an_id(name: bytes) -> None:
    assert group_of(message_body(accepted(("delayd-group", name)))) == name.decode()


def test_one_that_is_too_long_is_refused() -> None:
    reject = refused(("delayd-group", "ü".encode() * 128 + b"g"))
    assert reject.reason is Reason.BAD_GROUP and "has 257 bytes" in reject.detail


@pytest.mark.parametrize("receipt", [[], [("delayd-receipt", b"yes")]])
def test_without_an_id_it_is_refused_and_both_are_named(receipt: Headers) -> None:
    """Rules: group-needs-id"""
    reject = refused(GROUP, *receipt, asked=ASKED)
    assert reject.reason is Reason.MISSING_ID
    assert "delayd-group needs delayd-id" in reject.detail


@pytest.mark.parametrize("op", ["cancel", "fire", "reschedule"])
def test_an_operation_without_a_message_is_told_what_to_do(op: str) -> None:
    reject = refused(GROUP, asked=[("delayd-op", op.encode()), WITH_ID])
    assert reject.reason is Reason.UNEXPECTED_HEADER
    assert f"delayd {op} --group" in reject.detail


@pytest.mark.parametrize("version", [STEADY_RULES, SERIES_RULES])
def test_older_rules_do_not_know_it(version: int) -> None:
    """Rules: group-by-rules"""
    older = replace(LIMITS, rules=Rules(version))
    reject = refused(GROUP, limits=older)
    assert reject.reason is Reason.UNKNOWN_HEADER
    assert "known are delayd-topic" in reject.detail and ", delayd-group" not in reject.detail
    switched = replace(LIMITS, rules=Rules(version, (Barrier(HOME, 7, RESCHEDULE_RULES),)))
    assert refused(GROUP, limits=switched, offset=7) == reject
    assert isinstance(outcome(GROUP, limits=switched, offset=8), Request)


def test_it_tells_two_requests_apart() -> None:
    """Rules: group-compared"""
    names = [None, b"a", b"b"]
    more: list[Headers] = [[] if name is None else [("delayd-group", name)] for name in names]
    assert len({accepted(*each).digest for each in more}) == len(names)


def test_a_retry_an_occurrence_and_what_is_moved_keep_it() -> None:
    """Rules: wishes-kept"""
    series: Headers = [("delayd-topic", b"orders"), ("delayd-cron", b"@daily"), WITH_ID, GROUP]
    for body in (body_of(WITH_ID, GROUP), message_body(accepted(asked=series))):
        for again in (continued(body), continued(moved_body(body, 5), moved_by=9)):
            request = read(again)
            assert isinstance(request, Request), request
            assert request.wishes == Wishes(group="customer-42")
            assert group_of(message_body(request)) == "customer-42"


def test_it_is_delivered_behind_the_id() -> None:
    """Rules: group-delivered"""
    headers = delivered(body_of(WITH_ID, GROUP), fired_ms=1, source="0/1").headers
    own = [header for header in headers if header[0].startswith("delayd-")]
    assert own[:2] == [WITH_ID, GROUP]
    plain = delivered(body_of(WITH_ID), fired_ms=1, source="0/1").headers
    assert "delayd-group" not in dict(plain)


def test_a_dead_letter_asks_for_it_again() -> None:
    """Rules: wishes-kept"""
    body = body_of(WITH_ID, GROUP)
    dead = dead_body(body, reason=Reason.DEAD, detail="d", origin="0/1", attempts=1)
    assert GROUP in dead_letter(dead, source="0/1").headers


def test_a_body_of_an_older_release_has_none() -> None:
    body = (*message_body(accepted())[:10], None, (True, None, None))
    assert wishes_of(body) == Wishes(is_told=True) and group_of(body) is None
