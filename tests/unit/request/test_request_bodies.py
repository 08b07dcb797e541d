"""What is stored of a request and what is produced from it (docs/design, wire contract)."""

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from cluster_settings import REQUEST_LIMITS
from hypothesis import given
from hypothesis import strategies as st

from delayd.bus import Headers, Record
from delayd.request import (
    DeadLetter,
    Delivery,
    Op,
    Reason,
    Reject,
    Request,
    ToldMessage,
    asked_due_of,
    attempt_of,
    conflict_body,
    dead_body,
    dead_letter,
    delivered,
    id_of,
    message_body,
    order_of,
    origin_of,
    parse,
    pending_reply_body,
    quota_of,
    reject_body,
    size_of,
    source_of,
    told_message_of,
)
from delayd.request.bodies import TRUNCATED_KEPT_BYTES_MAX

APPEND_MS = 1_700_000_000_000
USER: Headers = [("b", b"2"), ("a", None), ("b", b"1")]
DUE_MS = APPEND_MS + 10_000
SCHEDULE = Request(Op.SCHEDULE, "orders", DUE_MS, DUE_MS, b"k", b"v", USER, 3)
RETRY = SCHEDULE._replace(op=Op.CONTINUE, due_ms=DUE_MS + 10_000, origin="2/70", attempt=3)
LIMITS = replace(REQUEST_LIMITS, record_bytes_max=1_000_000)


def stored(body: tuple[Any, ...], *, use_list: bool = True) -> Any:
    """A body as it comes back from the wheel."""
    return msgpack.unpackb(msgpack.packb(body, use_bin_type=True), use_list=use_list)


def dead(body: Any, detail: str = "x", attempts: int = 1) -> tuple[Any, ...]:
    return dead_body(body, reason=Reason.DEAD, detail=detail, origin="2/70", attempts=attempts)


@pytest.mark.parametrize("use_list", [True, False])
def test_a_delivered_record_has_the_users_headers_first_and_then_delayds(use_list: bool) -> None:
    body = stored(message_body(SCHEDULE), use_list=use_list)
    assert delivered(body, fired_ms=APPEND_MS + 10_001, source=source_of(2, 77)) == Delivery(
        topic="orders",
        partition=3,
        key=b"k",
        value=b"v",
        headers=[
            *USER,
            ("delayd-due", b"1700000010000"),
            ("delayd-fired", b"1700000010001"),
            ("delayd-source", b"2/77"),
        ],
    )


@pytest.mark.parametrize("use_list", [True, False])
def test_a_retry_is_delivered_with_its_origin_and_its_attempt_last(use_list: bool) -> None:
    body = stored(message_body(RETRY._replace(id="id-ü", digest=b"d" * 16)), use_list=use_list)
    headers = delivered(body, fired_ms=APPEND_MS + 99_999, source="2/99").headers
    assert headers[len(USER) :] == [
        ("delayd-id", "id-ü".encode()),
        ("delayd-due", b"1700000010000"),
        ("delayd-fired", b"1700000099999"),
        ("delayd-source", b"2/99"),
        ("delayd-origin", b"2/70"),
        ("delayd-attempt", b"3"),
    ]


def test_the_origin_of_a_users_own_message_is_its_source_and_a_retry_remembers_it() -> None:
    assert origin_of(stored(message_body(SCHEDULE)), 2, 77) == "2/77"
    assert origin_of(stored(message_body(RETRY)), 2, 77) == "2/70"


def test_a_message_body_keeps_what_a_later_step_or_retry_needs() -> None:
    request = RETRY._replace(id="i", digest=b"d" * 16, key=b"other")
    assert message_body(request) == (
        *("orders", DUE_MS, b"other", b"v", USER, 3, "i", b"d" * 16, "2/70", 3),
    )
    body = stored(message_body(request))
    assert (asked_due_of(body), id_of(body), attempt_of(body)) == (DUE_MS, "i", 3)


def test_an_answer_is_a_dead_letter_a_receipt_or_both() -> None:
    dead_part, receipt_part = ("dead",), ("receipt",)
    assert pending_reply_body(dead=dead_part, receipt=None) == (dead_part, None)
    assert pending_reply_body(dead=None, receipt=receipt_part) == (None, receipt_part)
    assert stored(pending_reply_body(dead=dead_part, receipt=receipt_part)) == [
        ["dead"],
        ["receipt"],
    ]
    with pytest.raises(AssertionError):
        pending_reply_body(dead=None, receipt=None)


@pytest.mark.parametrize("use_list", [True, False])
def test_a_reply_about_a_message_for_later_names_it_and_is_no_order(use_list: bool) -> None:
    message = ToldMessage(DUE_MS, "orders")
    body = pending_reply_body(dead=None, receipt=("receipt",), message=message)
    assert body == (None, ("receipt",), None, None, (DUE_MS, "orders"))
    read = stored(body, use_list=use_list)
    assert told_message_of(read) == message
    assert order_of(read) is None and quota_of(read) is None
    assert told_message_of(stored(pending_reply_body(dead=None, receipt=("receipt",)))) is None


@pytest.mark.parametrize("use_list", [True, False])
def test_the_dead_letter_of_a_conflict_is_the_record_itself(use_list: bool) -> None:
    headers: Headers = [("x", None), ("delayd-id", b"i"), ("delayd-topic", b"t"), ("x", b"")]
    record = Record(2, 77, 0, APPEND_MS, b"i", None, headers)
    body = stored(conflict_body(record, "2/70 is pending under this id"), use_list=use_list)
    assert dead_letter(body, source="2/77") == DeadLetter(
        b"i",
        None,
        [
            *headers,
            ("delayd-reason", b"conflict"),
            ("delayd-detail", b"2/70 is pending under this id"),
            ("delayd-source", b"2/77"),
        ],
    )


@pytest.mark.parametrize("use_list", [True, False])
def test_a_dead_letter_has_the_records_own_headers_and_then_the_reason(use_list: bool) -> None:
    headers: Headers = [("x", None), ("delayd-topic", b"__x"), ("delayd-delay", b"1s"), ("x", b"")]
    record = Record(2, 77, 0, APPEND_MS, None, b"v", headers)
    reject = parse(record, LIMITS)
    assert isinstance(reject, Reject)
    body = stored(reject_body(record, reject), use_list=use_list)
    assert dead_letter(body, source="2/77") == DeadLetter(
        None,
        b"v",
        [
            *headers,
            ("delayd-reason", b"forbidden-topic"),
            ("delayd-detail", reject.detail.encode()),
            ("delayd-source", b"2/77"),
        ],
    )


def test_the_dead_letter_of_a_too_large_record_has_its_size_instead_of_the_value() -> None:
    record = Record(0, 0, 0, APPEND_MS, b"k", b"v" * LIMITS.record_bytes_max, USER)
    reject = parse(record, LIMITS)
    assert isinstance(reject, Reject)
    letter = dead_letter(stored(reject_body(record, reject)), source="0/0")
    assert (letter.key, letter.value) == (b"k", None)
    assert letter.headers[: len(USER)] == USER
    assert [name for name, _ in letter.headers[len(USER) :]] == [
        *("delayd-reason", "delayd-detail", "delayd-source", "delayd-truncated")
    ]
    size = size_of(record.key, record.value, record.headers)
    assert letter.headers[-1] == ("delayd-truncated", b"%d" % size)


@pytest.mark.parametrize("key_bytes", [1, 2 * TRUNCATED_KEPT_BYTES_MAX])
@pytest.mark.parametrize("header_bytes", [1, 2 * TRUNCATED_KEPT_BYTES_MAX])
def test_the_dead_letter_of_a_too_large_record_always_fits(
    key_bytes: int, header_bytes: int
) -> None:
    """Compression lets any field be huge: what is kept of it must fit delayd's own topics."""
    headers: Headers = [("x", b"x" * header_bytes)]
    record = Record(0, 0, 0, APPEND_MS, b"k" * key_bytes, b"v" * 1_000_000, headers)
    reject = parse(record, LIMITS)
    assert isinstance(reject, Reject)
    letter = dead_letter(stored(reject_body(record, reject)), source="0/0")
    assert size_of(*letter) <= TRUNCATED_KEPT_BYTES_MAX + 2_000
    assert (letter.key == record.key) == (key_bytes == 1)
    assert (headers[0] in letter.headers) == (header_bytes == 1 and key_bytes == 1)


def test_a_header_name_that_is_not_utf8_is_dead_lettered_escaped() -> None:
    record = Record(0, 0, 0, APPEND_MS, None, None, [("a\udcff", b"1")])
    reject = parse(record, LIMITS)
    assert isinstance(reject, Reject)
    letter = dead_letter(stored(reject_body(record, reject)), source="0/0")
    assert letter.headers[0] == ("a\\udcff", b"1")


def test_a_dead_message_carries_what_it_takes_to_send_it_again() -> None:
    body = dead(stored(message_body(SCHEDULE)), "no topic orders", attempts=17)
    letter = dead_letter(stored(body), source="2/77")
    assert (letter.key, letter.value) == (b"k", b"v")
    assert letter.headers == [
        *USER,
        ("delayd-topic", b"orders"),
        ("delayd-due", b"1700000010000"),
        ("delayd-partition", b"3"),
        ("delayd-reason", b"dead"),
        ("delayd-detail", b"no topic orders"),
        ("delayd-source", b"2/77"),
        ("delayd-origin", b"2/70"),
        ("delayd-attempt", b"17"),
    ]


def test_a_dead_message_with_an_id_has_the_id_as_its_key_again() -> None:
    schedule = SCHEDULE._replace(id="i", key=b"other", partition=None)
    key, _, headers, *_ = dead(message_body(schedule))
    assert key == b"i"
    assert headers[len(USER) :] == [
        ("delayd-topic", b"orders"),
        ("delayd-due", b"1700000010000"),
        ("delayd-id", b"i"),
        ("delayd-key", b"other"),
    ]
    _, _, headers, *_ = dead(message_body(schedule._replace(key=b"i")))
    assert "delayd-key" not in [name for name, _ in headers]


def test_a_brokers_error_is_bounded_and_printable_in_the_dead_letter() -> None:
    body = dead(message_body(SCHEDULE), "fehler: ü\n" * 1_000)
    headers = dict(dead_letter(stored(body), source="0/0").headers)
    detail = headers["delayd-detail"]
    assert detail is not None
    assert len(detail) <= 500
    assert detail.decode("ascii").isprintable()


BYTES = st.none() | st.binary(max_size=50)
USER_HEADERS = st.lists(
    st.tuples(st.text(max_size=8).filter(lambda n: not n.startswith("delayd-")), BYTES), max_size=6
)


@given(USER_HEADERS, BYTES, BYTES, st.integers(0, 2**31 - 1) | st.none())
def test_a_dead_message_sent_again_without_its_verdict_is_the_same_request(
    headers: Headers, key: bytes | None, value: bytes | None, partition: int | None
) -> None:
    schedule = Request(Op.SCHEDULE, "orders", APPEND_MS, APPEND_MS, key, value, headers, partition)
    body = dead(stored(message_body(schedule)), "last error")
    letter = dead_letter(stored(body), source="0/1")
    again = Record(0, 2, 0, APPEND_MS, letter.key, letter.value, letter.headers[:-5])
    assert parse(again, LIMITS) == schedule


@given(USER_HEADERS, BYTES, BYTES)
def test_key_value_and_user_headers_are_delivered_as_they_were_sent(
    headers: Headers, key: bytes | None, value: bytes | None
) -> None:
    request: Headers = [*headers, ("delayd-topic", b"t"), ("delayd-delay", b"1s")]
    schedule = parse(Record(0, 0, 0, APPEND_MS, key, value, request), LIMITS)
    assert isinstance(schedule, Request)
    delivery = delivered(stored(message_body(schedule)), fired_ms=1, source="0/0")
    assert (delivery.key, delivery.value, delivery.headers[:-3]) == (key, value, headers)
