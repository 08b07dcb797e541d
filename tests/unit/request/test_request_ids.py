"""Requests about an id: its form, its place, its operations (docs/design, wire contract)."""

from dataclasses import replace

import pytest
from cluster_settings import REQUEST_LIMITS
from hypothesis import given
from hypothesis import strategies as st

from delayd.bus import Headers, Record
from delayd.bus.murmur2 import partition_of
from delayd.request import Op, Reason, Reject, Request, RequestLimits, parse, size_of
from delayd.request.headers import REDRIVE_MARGIN_BYTES
from delayd.request.internal import INTERNAL_MARGIN_BYTES
from replication.rules import Rules

APPEND_MS = 1_700_000_000_000
PARTITIONS = 8
LIMITS = replace(REQUEST_LIMITS, partitions=PARTITIONS)
ID = "order-4711"
KEY = ID.encode()
HOME = partition_of(KEY, PARTITIONS)
TOPIC = ("delayd-topic", b"orders")
DELAY = ("delayd-delay", b"10s")
WITH_ID = ("delayd-id", KEY)
CANCEL = ("delayd-op", b"cancel")
REPLACE = ("delayd-op", b"replace")


def outcome(
    *headers: tuple[str, bytes | None],
    key: bytes | None = KEY,
    value: bytes | None = b"v",
    partition: int | None = None,
    limits: RequestLimits | None = None,
) -> Request | Reject:
    """Of a record in the partition of its key, unless another is given."""
    if partition is None:
        partition = partition_of(key or b"", PARTITIONS)
    asked = Record(partition, 77, 5, APPEND_MS, key, value, list(headers))
    return parse(asked, limits or LIMITS)


def accepted(*headers: tuple[str, bytes | None], key: bytes | None = KEY) -> Request:
    request = outcome(*headers, key=key)
    assert isinstance(request, Request), request
    return request


def rejected(
    *headers: tuple[str, bytes | None],
    key: bytes | None = KEY,
    partition: int | None = None,
) -> Reject:
    reject = outcome(*headers, key=key, partition=partition)
    assert isinstance(reject, Reject), reject
    return reject


# The id.


def test_a_schedule_with_an_id_is_delivered_under_the_id_as_its_key() -> None:
    request = accepted(TOPIC, DELAY, WITH_ID)
    assert (request.op, request.id, request.key) == (Op.SCHEDULE, ID, KEY)
    assert len(request.digest) == 16
    assert (request.origin, request.attempt, request.continues) == ("", 0, None)


def test_the_key_header_gives_another_key_to_deliver_beside_an_id() -> None:
    request = accepted(TOPIC, DELAY, WITH_ID, ("delayd-key", b"customer-9"))
    assert (request.id, request.key) == (ID, b"customer-9")


@pytest.mark.parametrize("id", ["x", "x" * 256, "ü" * 128, " ", "a\nb\0c", "3/4"])
def test_any_text_of_1_to_256_bytes_is_an_id(id: str) -> None:
    key = id.encode()
    assert accepted(TOPIC, DELAY, ("delayd-id", key), key=key).id == id


@pytest.mark.parametrize("id", ["x" * 257, "ü" * 129])
def test_a_longer_id_is_bad_and_nobody_is_told_by_receipt(id: str) -> None:
    key = id.encode()
    reject = rejected(TOPIC, DELAY, ("delayd-id", key), key=key)
    assert reject.reason is Reason.BAD_ID
    assert str(len(key)) in reject.detail
    assert reject.id is None


@pytest.mark.parametrize("key", [None, b"", b"order-4712", KEY + b"\0", KEY.upper()])
def test_an_id_that_is_not_the_records_key_byte_for_byte_is_bad(key: bytes | None) -> None:
    reject = rejected(TOPIC, DELAY, WITH_ID, key=key)
    assert reject.reason is Reason.BAD_ID
    assert ("null" in reject.detail) == (key is None)
    assert reject.id == ID


def test_a_wrong_partition_is_told_the_right_one_and_the_setting() -> None:
    wrong = (HOME + 1) % PARTITIONS
    reject = rejected(TOPIC, DELAY, WITH_ID, partition=wrong)
    assert reject.reason is Reason.WRONG_PARTITION
    assert f"is in partition {wrong} " in reject.detail
    assert f"belong in partition {HOME} " in reject.detail
    assert "partitioner=murmur2_random" in reject.detail
    assert reject.id == ID


def test_without_an_id_any_partition_will_do_and_there_is_no_digest() -> None:
    for partition in range(PARTITIONS):
        request = outcome(TOPIC, DELAY, partition=partition)
        assert isinstance(request, Request)
        assert (request.id, request.digest) == (None, b"")


# The digest as sent.


def digest(*headers: tuple[str, bytes | None], value: bytes | None = b"v") -> bytes:
    request = outcome(*headers, WITH_ID, value=value)
    assert isinstance(request, Request), request
    return request.digest


def test_the_digest_depends_on_each_part_of_the_message_as_sent() -> None:
    user: Headers = [("a", b"1"), ("b", b"2")]
    different = [
        digest(TOPIC, DELAY),
        digest(TOPIC, DELAY, value=None),
        digest(TOPIC, DELAY, value=b""),
        digest(("delayd-topic", b"order"), DELAY),
        digest(TOPIC, ("delayd-delay", b"10000ms")),
        digest(TOPIC, ("delayd-due", b"1700000010000")),
        digest(TOPIC, ("delayd-due", b"2023-11-14T22:13:30Z")),
        digest(TOPIC, ("delayd-level", b"3")),
        digest(TOPIC, ("delayd-due", b"3")),
        digest(TOPIC, DELAY, ("delayd-key", b"k")),
        digest(TOPIC, DELAY, ("delayd-partition", b"0")),
        digest(TOPIC, DELAY, ("delayd-partition", b"1")),
        digest(TOPIC, DELAY, *user),
        digest(TOPIC, DELAY, *reversed(user)),
        digest(TOPIC, DELAY, user[0]),
        digest(TOPIC, DELAY, user[0], user[0]),
        digest(TOPIC, DELAY, ("a", None)),
        digest(TOPIC, DELAY, ("a", b"")),
        digest(TOPIC, DELAY, ("", b"a")),
        digest(TOPIC, DELAY, ("a1", b"")),
    ]
    assert len(set(different)) == len(different)


@pytest.mark.parametrize(
    "name",
    [
        *("traceparent", "tracestate", "baggage", "b3", "x-b3-traceid", "X-B3-TraceId"),
        *("sentry-trace", "uber-trace-id", "x-datadog-trace-id", "elastic-apm-traceparent"),
        *("x-mine", "x-ours-", "X-Ours-1"),
    ],
)
def test_tracing_headers_do_not_tell_requests_apart(name: str) -> None:
    """docs/reference/requests.md, Ids: a retry of an application has another trace."""
    limits = replace(LIMITS, tracing_headers=("x-mine", "x-ours-*"))
    sent = [
        outcome(TOPIC, DELAY, WITH_ID, ("a", b"1"), *more, limits=limits)
        for more in ((), ((name, b"1"),), ((name, b"2"), (name, None)))
    ]
    assert len({request.digest for request in sent if isinstance(request, Request)}) == 1
    assert [request.headers for request in sent if isinstance(request, Request)][1] == [
        ("a", b"1"),
        (name, b"1"),
    ], "it arrives"


@pytest.mark.parametrize("name", ["traceparent2", "my-b3", "x-b3", "b33", "x-mine-", "a"])
def test_all_other_headers_do(name: str) -> None:
    limits = replace(LIMITS, tracing_headers=("x-mine",))
    sent = [outcome(TOPIC, DELAY, WITH_ID, *more, limits=limits) for more in ((), ((name, b"1"),))]
    assert len({request.digest for request in sent if isinstance(request, Request)}) == 2


def test_before_rules_version_4_all_headers_do() -> None:
    limits = replace(LIMITS, rules=Rules(3))
    sent = [
        outcome(TOPIC, DELAY, WITH_ID, ("traceparent", trace), limits=limits)
        for trace in (b"1", b"2")
    ]
    assert len({request.digest for request in sent if isinstance(request, Request)}) == 2


def test_the_digest_does_not_depend_on_where_and_how_often_it_was_sent() -> None:
    once = accepted(TOPIC, DELAY, WITH_ID, ("a", b"1")).digest
    assert once == accepted(DELAY, ("a", b"1"), WITH_ID, TOPIC).digest
    assert once == accepted(TOPIC, DELAY, WITH_ID, ("a", b"1"), ("delayd-key", KEY)).digest
    assert once == accepted(TOPIC, DELAY, WITH_ID, ("a", b"1"), REPLACE).digest
    record = Record(HOME, 99, 6, APPEND_MS + 1, KEY, b"v", [TOPIC, DELAY, WITH_ID, ("a", b"1")])
    later = parse(record, LIMITS)
    assert isinstance(later, Request)
    assert later.digest == once


def test_the_digest_is_the_same_for_ever() -> None:
    """It is kept on disk and compared after upgrades: a change is a new rules version."""
    headers: Headers = [("a", b"1"), ("b", None), ("delayd-partition", b"3")]
    assert digest(TOPIC, DELAY, *headers).hex() == "5beaaa27b64db72127912e864646c37d"


# Operations.


def test_a_cancel_is_its_id_and_no_message() -> None:
    request = outcome(("trace", b"1"), CANCEL, WITH_ID, value=b"ignored")
    assert request == Request(Op.CANCEL, None, 0, 0, None, None, [], None, ID)


@pytest.mark.parametrize(
    "header",
    [
        TOPIC,
        DELAY,
        ("delayd-due", b"1"),
        ("delayd-level", b"1"),
        ("delayd-key", b"k"),
        ("delayd-partition", b"0"),
        ("delayd-redrive", b"0/0"),
    ],
)
def test_a_cancel_takes_no_other_request_header(header: tuple[str, bytes | None]) -> None:
    reject = rejected(CANCEL, WITH_ID, header)
    assert reject.reason is Reason.UNEXPECTED_HEADER
    assert header[0] in reject.detail
    assert "cancel" in reject.detail
    assert (reject.id, reject.op) == (ID, Op.CANCEL)


def test_a_replace_is_a_schedule_in_place_of_another() -> None:
    request = accepted(TOPIC, DELAY, WITH_ID, REPLACE)
    assert request == accepted(TOPIC, DELAY, WITH_ID)._replace(op=Op.REPLACE)


@pytest.mark.parametrize("op", [CANCEL, REPLACE])
def test_cancel_and_replace_need_an_id(op: tuple[str, bytes | None]) -> None:
    reject = rejected(op) if op is CANCEL else rejected(op, TOPIC, DELAY)
    assert reject.reason is Reason.MISSING_ID
    assert reject.id is None
    assert reject.op.slug.encode() == op[1]


@pytest.mark.parametrize("op", [CANCEL, REPLACE])
def test_cancel_and_replace_need_a_good_id_in_its_partition(op: tuple[str, bytes | None]) -> None:
    others = () if op is CANCEL else (TOPIC, DELAY)
    assert rejected(op, WITH_ID, *others, key=b"k").reason is Reason.BAD_ID
    elsewhere = (HOME + 1) % PARTITIONS
    reject = rejected(op, WITH_ID, *others, partition=elsewhere)
    assert reject.reason is Reason.WRONG_PARTITION


def test_a_receipt_names_each_operation_as_its_user_knows_it() -> None:
    assert [op.slug for op in Op] == [
        *("schedule", "cancel", "replace", "schedule", "redrive", "switch", "settle"),
        *("reschedule", "fire", "debounce", "hold", "quota", "gate"),
    ]


# Redrives.


@pytest.mark.parametrize("offset", [0, 7, 10**18, 2**63 - 1])
def test_a_redrive_is_a_schedule_that_names_a_dead_letter_of_its_partition(offset: int) -> None:
    source = f"{HOME}/{offset}"
    request = accepted(TOPIC, DELAY, ("delayd-redrive", source.encode()))
    assert request == accepted(TOPIC, DELAY)._replace(op=Op.REDRIVE, redrive=source)


def test_a_redrive_may_have_an_id_and_may_say_that_it_is_a_schedule() -> None:
    redrive = ("delayd-redrive", b"%d/7" % HOME)
    request = accepted(TOPIC, DELAY, WITH_ID, redrive, ("delayd-op", b"schedule"))
    assert (request.op, request.id, request.redrive) == (Op.REDRIVE, ID, f"{HOME}/7")
    assert request.digest == accepted(TOPIC, DELAY, WITH_ID).digest


@pytest.mark.parametrize(
    "source",
    [
        *(b"x", b"/", b"%d", b"%d/", b"/7", b"-1/7", b"%d/-7", b"%d/07", b"0%d/7", b"+%d/7"),
        *(b" %d/7", b"%d/7 ", b"%d/7\n", b"%d/7/7", b"%d/7.0", b"99999999999/7"),
        *(b"%d/9223372036854775808", b"%d/" + b"9" * 5000, "%d/\u0667".encode()),
    ],
)
def test_what_is_no_source_is_no_redrive(source: bytes) -> None:
    """There is one way to write a source: by its text a second redrive is found."""
    reject = rejected(TOPIC, DELAY, ("delayd-redrive", source.replace(b"%d", b"%d" % HOME)))
    assert reject.reason is Reason.BAD_REDRIVE
    assert "delayd-source" in reject.detail
    assert reject.op is Op.REDRIVE


def test_a_redrive_from_another_partition_is_told_the_right_one() -> None:
    other = (HOME + 1) % PARTITIONS
    reject = rejected(TOPIC, DELAY, ("delayd-redrive", b"%d/7" % other))
    assert reject.reason is Reason.BAD_REDRIVE
    assert f"partition {other}:" in reject.detail


def test_a_replace_is_no_redrive() -> None:
    reject = rejected(TOPIC, DELAY, WITH_ID, REPLACE, ("delayd-redrive", b"%d/7" % HOME))
    assert reject.reason is Reason.UNEXPECTED_HEADER
    assert "delayd-redrive" in reject.detail


# Whom a receipt tells of a reject.


def test_a_reject_has_the_id_and_the_operation_that_could_be_read() -> None:
    reject = rejected(WITH_ID, REPLACE, DELAY)
    assert (reject.reason, reject.id, reject.op) == (Reason.MISSING_TOPIC, ID, Op.REPLACE)
    reject = rejected(WITH_ID, TOPIC, ("delayd-redrive", b"x"), DELAY)
    assert (reject.reason, reject.id, reject.op) == (Reason.BAD_REDRIVE, ID, Op.REDRIVE)
    reject = rejected(WITH_ID, ("delayd-op", b"purge"))
    assert (reject.reason, reject.id, reject.op) == (Reason.BAD_OP, ID, Op.SCHEDULE)
    reject = rejected(WITH_ID, CANCEL, CANCEL)
    assert (reject.reason, reject.id, reject.op) == (Reason.REPEATED_HEADER, ID, Op.SCHEDULE)


def test_a_rejected_redrive_without_an_id_is_told_under_its_source() -> None:
    """docs/reference/requests.md, Redrives: there is always a receipt."""
    source = f"{HOME}/7"
    redrive = ("delayd-redrive", source.encode())
    reject = rejected(redrive, TOPIC)
    assert (reject.reason, reject.id, reject.op) == (Reason.MISSING_DUE, source, Op.REDRIVE)
    assert rejected(redrive, TOPIC, ("delayd-id", b"i" * 257)).id == source
    assert rejected(("delayd-redrive", b"x"), TOPIC).id is None
    assert rejected(WITH_ID, redrive, TOPIC).id == ID


def test_a_redrive_may_be_larger_than_the_request_that_died() -> None:
    """docs/reference/requests.md, Redrives: else the largest messages could not be sent again."""
    redrive = ("delayd-redrive", b"%d/7" % HOME)
    largest = LIMITS.record_bytes_max + REDRIVE_MARGIN_BYTES
    room = largest - size_of(b"k", b"", [redrive, TOPIC, DELAY])
    for spare, fits in ((0, True), (1, False)):
        record = Record(HOME, 5, 0, APPEND_MS, b"k", b"v" * (room + spare), [redrive, TOPIC, DELAY])
        assert isinstance(parse(record, LIMITS), Request) is fits
    assert REDRIVE_MARGIN_BYTES + 1024 < INTERNAL_MARGIN_BYTES, "a redrive may be retried"
    plain = Record(HOME, 5, 0, APPEND_MS, b"k", b"v" * room, [TOPIC, DELAY])
    assert isinstance(parse(plain, LIMITS), Reject)


def test_a_record_that_is_too_large_still_has_its_id() -> None:
    reject = rejected(WITH_ID, REPLACE, ("x", b"x" * LIMITS.record_bytes_max))
    assert (reject.reason, reject.truncated) == (Reason.TOO_LARGE, True)
    assert (reject.id, reject.op) == (ID, Op.REPLACE)


@pytest.mark.parametrize(
    "ids", [[], [KEY, KEY], [KEY, b"x"], [None], [b""], [b"\xff"], [b"x" * 257]]
)
def test_an_id_that_cannot_be_read_is_told_nothing(ids: list[bytes | None]) -> None:
    headers: Headers = [("delayd-id", id) for id in ids]
    assert rejected(("delayd-x", b"first problem"), *headers).id is None


@given(st.binary(min_size=1, max_size=300), st.integers(0, PARTITIONS - 1))
def test_an_accepted_id_is_the_key_in_the_partition_of_the_key(key: bytes, partition: int) -> None:
    found = outcome(TOPIC, DELAY, ("delayd-id", key), key=key, partition=partition)
    if isinstance(found, Request):
        assert found.id is not None
        assert found.id.encode() == key
        assert partition == partition_of(key, PARTITIONS)
    else:
        assert found.reason in (Reason.NOT_UTF8, Reason.BAD_ID, Reason.WRONG_PARTITION)
