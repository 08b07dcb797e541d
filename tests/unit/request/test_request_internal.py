"""The records that the master itself writes to the buffer (docs/design, wire contract)."""

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from cluster_settings import REQUEST_LIMITS
from hypothesis import given
from hypothesis import strategies as st

from delayd.bus import Headers, Record
from delayd.bus.murmur2 import partition_of
from delayd.request import (
    BufferRecord,
    Op,
    Reason,
    Reject,
    Request,
    RequestLimits,
    Turn,
    continuation,
    delivered,
    message_body,
    parse,
    size_of,
    turn_of,
)
from delayd.request.headers import INTERNAL_HEADERS
from delayd.request.internal import INTERNAL_MARGIN_BYTES
from delayd.request.proof import proof_of

APPEND_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LIMITS = replace(REQUEST_LIMITS, max_delay_ms=30 * DAY_MS, partitions=8)
USER: Headers = [("b", b"2"), ("a", None), ("b", b"1")]
KEY = b"order-4711"
HOME = partition_of(KEY, LIMITS.partitions)
OFFSET = 77
DUE_MS = APPEND_MS + 10_000
NEXT_MS = APPEND_MS + 40_000

Body = Any


def body_of(*headers: tuple[str, bytes | None], key: bytes | None = KEY) -> Body:
    """The body of a user's schedule, as it comes back from the wheel."""
    asked: Headers = [*USER, ("delayd-topic", b"orders"), ("delayd-delay", b"10s"), *headers]
    request = parse(Record(HOME, OFFSET, 0, APPEND_MS, key, b"v", asked), LIMITS)
    assert isinstance(request, Request), request
    return stored(request)


def continued(body: Body, **changed: Any) -> BufferRecord:
    """What requeues this body, with these arguments changed."""
    arguments: dict[str, Any] = {
        "partition": HOME,
        "offset": OFFSET,
        "rank_due_ms": DUE_MS,
        "next_due_ms": NEXT_MS,
        "limits": LIMITS,
        **changed,
    }
    return continuation(body, **arguments)


def stored(request: Request) -> Body:
    """The body of a request, as it comes back from the wheel."""
    return msgpack.unpackb(msgpack.packb(message_body(request), use_bin_type=True))


def read(written: BufferRecord, limits: RequestLimits = LIMITS, **changed: Any) -> Request | Reject:
    """The outcome of the written record, appended with these fields changed."""
    record = Record(written.partition, 500, 3, DUE_MS + 5, *written[1:])
    return parse(record._replace(**changed), limits)


def signed(*headers: tuple[str, bytes | None], key: bytes | None = KEY) -> BufferRecord:
    """A record with a right proof, whatever its headers are."""
    listed = list(headers)
    listed.append(("delayd-proof", proof_of(LIMITS, HOME, key, b"v", listed)))
    return BufferRecord(HOME, key, b"v", listed)


def reason_of(outcome: Request | Reject) -> Reason:
    assert isinstance(outcome, Reject), outcome
    return outcome.reason


WITH_ID = ("delayd-id", KEY)


def test_a_continuation_is_this_record() -> None:
    body = body_of(WITH_ID, ("delayd-key", b"k"), ("delayd-partition", b"3"))
    partition, key, value, headers = continued(body)
    assert (partition, key, value) == (HOME, KEY, b"v")
    assert headers[:-1] == [
        *USER,
        ("delayd-topic", b"orders"),
        ("delayd-due", b"1700000010000"),
        ("delayd-id", KEY),
        ("delayd-key", b"k"),
        ("delayd-partition", b"3"),
        ("delayd-digest", body[7].hex().encode()),
        ("delayd-continues", b"77"),
        ("delayd-continues-due", b"1700000010000"),
        ("delayd-next-due", b"1700000040000"),
        ("delayd-origin", f"{HOME}/77".encode()),
        ("delayd-attempt", b"1"),
    ]
    name, proof = headers[-1]
    assert name == "delayd-proof"
    assert proof is not None and len(bytes.fromhex(proof.decode())) == 32


def test_a_continuation_without_an_id_has_the_key_to_deliver_and_no_digest() -> None:
    for key in (None, b"", b"\xff"):
        record = continued(body_of(key=key))
        assert record.key == key
        names = {name for name, _ in record.headers}
        assert not names & {"delayd-id", "delayd-key", "delayd-digest", "delayd-partition"}


def test_a_continuation_is_read_as_the_message_that_goes_on() -> None:
    body = body_of(WITH_ID, ("delayd-key", b"k"), ("delayd-partition", b"3"))
    assert read(continued(body)) == Request(
        op=Op.CONTINUE,
        topic="orders",
        asked_due_ms=DUE_MS,
        due_ms=NEXT_MS,
        key=b"k",
        value=b"v",
        headers=USER,
        partition=3,
        id=KEY.decode(),
        digest=body[7],
        origin=f"{HOME}/77",
        attempt=1,
        continues=(DUE_MS, OFFSET),
        redrive=None,
    )


def test_what_is_smoothed_carries_its_turn_and_since_when_it_waits() -> None:
    """docs/design/frontier.md, Smoothing."""
    turn = Turn(NEXT_MS - 7, DUE_MS)
    body = body_of(WITH_ID)
    written = continued(body, is_retry=False, turn=turn)
    assert written.headers[-2] == ("delayd-turn", b"%d/%d" % (NEXT_MS - 7, DUE_MS))
    request = read(written)
    assert isinstance(request, Request)
    assert (request.turn, request.attempt) == (turn, 0)
    smoothed = stored(request)
    assert turn_of(smoothed) == turn
    assert turn_of(body) is None, "the user's own request has none"
    retried = read(continued(smoothed))
    assert isinstance(retried, Request) and retried.turn is None, "a retry asks for another"
    assert delivered(smoothed, fired_ms=NEXT_MS, source="0/1").headers[-1][0] == "delayd-origin"


@pytest.mark.parametrize("text", [b"1", b"1/", b"/1", b"1/2/3", b"a/1", b"1/-2"])
def test_a_turn_that_is_not_as_written_is_refused(text: bytes) -> None:
    written = continued(body_of(WITH_ID))
    headers = [*written.headers[:-1], ("delayd-turn", text)]
    assert reason_of(read(signed(*headers))) is Reason.BAD_PROOF


def test_a_turn_alone_makes_no_record_internal() -> None:
    """As it was before there were turns: no outcome depends on the version of the package."""
    asked: Headers = [("delayd-topic", b"orders"), ("delayd-due", b"5"), ("delayd-turn", b"1/2")]
    outcome = parse(Record(HOME, 1, 0, APPEND_MS, KEY, b"v", asked), LIMITS)
    assert reason_of(outcome) is Reason.UNKNOWN_HEADER


def test_a_second_retry_remembers_the_users_own_request() -> None:
    first = read(continued(body_of(WITH_ID)))
    assert isinstance(first, Request)
    again = continued(message_body(first), offset=500, rank_due_ms=NEXT_MS, next_due_ms=NEXT_MS + 1)
    second = read(again)
    assert isinstance(second, Request)
    assert (second.origin, second.attempt, second.continues) == (f"{HOME}/77", 2, (NEXT_MS, 500))
    assert (second.digest, second.asked_due_ms) == (first.digest, DUE_MS)


def test_a_retry_may_be_due_later_than_any_user_may_ask() -> None:
    late = continued(body_of())
    assert isinstance(read(late, limits=replace(LIMITS, max_delay_ms=0)), Request)


def test_a_retry_of_the_largest_request_fits_the_margin() -> None:
    """A user's own headers may be all there is, with the longest id, key and numbers."""
    id = b"i" * 256
    home = partition_of(id, LIMITS.partitions)
    headers: Headers = [
        ("delayd-topic", b"t" * 249),
        ("delayd-level", b"1"),
        ("delayd-id", id),
        ("delayd-key", b"k" * 256),
        ("delayd-partition", b"2147483647"),
    ]
    room = LIMITS.record_bytes_max - size_of(id, b"", headers)
    request = parse(Record(home, OFFSET, 0, APPEND_MS, id, b"v" * room, headers), LIMITS)
    assert isinstance(request, Request)
    retry = request._replace(origin=f"{2**31 - 1}/{2**63 - 1}", attempt=10**9)
    far = {"offset": 2**63 - 1, "rank_due_ms": 2**62, "next_due_ms": 2**62}
    record = continued(message_body(retry), partition=home, **far)
    assert size_of(*record[1:]) > LIMITS.record_bytes_max
    assert size_of(*record[1:]) - LIMITS.record_bytes_max < 1024 < INTERNAL_MARGIN_BYTES
    assert isinstance(read(record), Request)


def test_beyond_the_margin_a_record_is_too_large_whoever_wrote_it() -> None:
    largest = LIMITS.record_bytes_max + INTERNAL_MARGIN_BYTES
    small = continued([*body_of()[:3], b"", *body_of()[4:]])
    room = largest - size_of(*small[1:])
    fits = continued([*body_of()[:3], b"v" * room, *body_of()[4:]])
    assert isinstance(read(fits), Request)
    large = continued([*body_of()[:3], b"v" * (room + 1), *body_of()[4:]])
    assert reason_of(read(large)) is Reason.TOO_LARGE


# Proofs.


@pytest.mark.parametrize("name", INTERNAL_HEADERS)
@pytest.mark.parametrize("content", [None, b"", b"7", b"\xff", b"0" * 64])
def test_a_header_of_the_masters_needs_the_masters_proof(name: str, content: bytes | None) -> None:
    """Rules: continuation-proof"""
    good: Headers = [("delayd-topic", b"t"), ("delayd-delay", b"1s")]
    for headers in ([*good, (name, content)], [(name, content), *good], [(name, content)]):
        reject = parse(Record(0, 1, 0, APPEND_MS, b"k", b"v", headers), LIMITS)
        assert isinstance(reject, Reject)
        assert reject.reason is Reason.BAD_PROOF
        assert name in reject.detail
        assert "'c'" in reject.detail


def test_without_its_proof_nothing_else_of_a_record_counts() -> None:
    headers: Headers = [
        *(("delayd-nonsense", b"x"), ("delayd-topic", None), ("delayd-continues", b"7")),
        *(("a\ud800", b"x"), ("delayd-op", b"cancel")),
    ]
    assert reason_of(read(BufferRecord(HOME, KEY, b"v", headers))) is Reason.BAD_PROOF


def test_a_dead_letter_sent_back_is_told_to_drop_its_headers() -> None:
    """delayd-origin and delayd-attempt alone make no record internal."""
    for name in ("delayd-origin", "delayd-attempt", "delayd-reason", "delayd-source"):
        headers: Headers = [("delayd-topic", b"t"), ("delayd-delay", b"1s"), (name, b"1")]
        reject = read(BufferRecord(HOME, KEY, b"v", headers))
        assert isinstance(reject, Reject)
        assert reject.reason is Reason.UNKNOWN_HEADER
        assert "drop its delayd-* headers" in reject.detail


def test_a_proof_holds_for_one_cluster_one_key_and_one_partition() -> None:
    record = continued(body_of())
    assert isinstance(read(record), Request)
    elsewhere = (HOME + 1) % LIMITS.partitions
    assert reason_of(read(record, partition=elsewhere)) is Reason.BAD_PROOF
    for other in (
        replace(LIMITS, cluster="d"),
        replace(LIMITS, proof_key=b"another key"),
        replace(LIMITS, proof_key=b""),
    ):
        assert reason_of(read(record, limits=other)) is Reason.BAD_PROOF
    with pytest.raises(AssertionError):
        continued(body_of(), limits=replace(LIMITS, proof_key=b""))


def test_the_cluster_key_is_not_shown() -> None:
    assert "the key of the cluster" not in repr(LIMITS)


def test_a_proof_does_not_depend_on_where_in_the_partition_it_stands() -> None:
    record = continued(body_of())
    first = read(record)
    assert isinstance(first, Request)
    assert read(record, offset=501, leader_epoch=9, append_ms=0) == first


def test_the_proof_is_the_same_for_ever() -> None:
    """Nodes of two releases read each other's records: a change is a new rules version."""
    proof = b"067ba0cccf76dae24fc1462dbde7db62cf554f59c2f6fbda5af35e27bf02457d"
    assert continued(body_of(WITH_ID)).headers[-1] == ("delayd-proof", proof)


CHANGES = st.tuples(st.integers(0, 100), st.sampled_from(["name", "content", "drop", "repeat"]))


@given(CHANGES, st.text(max_size=10), st.none() | st.binary(max_size=40))
def test_any_change_of_a_header_breaks_the_proof(
    change: tuple[int, str], name: str, content: bytes | None
) -> None:
    """Rules: continuation-proof"""
    at, kind = change
    record = continued(body_of(WITH_ID, ("delayd-key", b"k"), ("delayd-partition", b"3")))
    headers = list(record.headers)
    at %= len(headers)
    if kind == "name":
        headers[at] = (name, headers[at][1])
    elif kind == "content":
        headers[at] = (headers[at][0], content)
    elif kind == "drop":
        del headers[at]
    else:
        headers.insert(at, headers[at])
    outcome = read(record._replace(headers=headers))
    if headers == record.headers:
        assert isinstance(outcome, Request)
    else:
        assert reason_of(outcome) is Reason.BAD_PROOF


@given(st.none() | st.binary(max_size=40))
def test_any_change_of_key_or_value_breaks_the_proof(content: bytes | None) -> None:
    record = continued(body_of(WITH_ID))
    if content != record.key:
        assert reason_of(read(record._replace(key=content))) is Reason.BAD_PROOF
    if content != record.value:
        assert reason_of(read(record._replace(value=content))) is Reason.BAD_PROOF


def test_a_changed_order_or_another_cut_of_the_same_bytes_breaks_the_proof() -> None:
    """Lengths are signed too: no byte can move from one part to its neighbour."""
    record = continued(body_of(WITH_ID))
    headers = record.headers
    for i in range(len(headers) - 1):
        swapped = [*headers[:i], headers[i + 1], headers[i], *headers[i + 2 :]]
        assert reason_of(read(record._replace(headers=swapped))) is Reason.BAD_PROOF
    assert record[1:3] == (KEY, b"v")
    assert reason_of(read(record._replace(key=KEY + b"v", value=b""))) is Reason.BAD_PROOF
    moved: Headers = [("", b"b2"), *headers[1:]]
    assert reason_of(read(record._replace(headers=moved))) is Reason.BAD_PROOF


# Right proofs over what the master never writes: a bug, or someone else has the key.

GOOD: Headers = [
    ("delayd-topic", b"orders"),
    ("delayd-due", b"1700000010000"),
    ("delayd-id", KEY),
    ("delayd-digest", b"0f" * 16),
    ("delayd-continues", b"77"),
    ("delayd-continues-due", b"1700000010000"),
    ("delayd-next-due", b"1700000040000"),
    ("delayd-origin", b"3/77"),
    ("delayd-attempt", b"1"),
]


def test_the_good_headers_are_good_and_their_names_utf8() -> None:
    assert isinstance(read(signed(*GOOD)), Request)
    assert reason_of(read(signed(("a\ud800", b"x"), *GOOD))) is Reason.NOT_UTF8


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("delayd-topic", b"a b", Reason.BAD_TOPIC),
        ("delayd-topic", b"delayd-buffer", Reason.FORBIDDEN_TOPIC),
        ("delayd-due", b"soon", Reason.BAD_PROOF),
        ("delayd-due", b"-1", Reason.BAD_PROOF),
        ("delayd-due", None, Reason.NULL_HEADER),
        ("delayd-due", b"9" * 5000, Reason.BAD_PROOF),
        ("delayd-id", b"another", Reason.BAD_ID),
        ("delayd-digest", b"0f", Reason.BAD_PROOF),
        ("delayd-digest", b"xx" * 16, Reason.BAD_PROOF),
        ("delayd-continues", b"1.5", Reason.BAD_PROOF),
        ("delayd-continues-due", b"\xff", Reason.NOT_UTF8),
        ("delayd-next-due", b"", Reason.EMPTY_HEADER),
        ("delayd-origin", b"3-77", Reason.BAD_PROOF),
        ("delayd-attempt", b"-1", Reason.BAD_PROOF),
        ("delayd-partition", b"-1", Reason.BAD_PARTITION),
        ("delayd-op", b"cancel", Reason.UNKNOWN_HEADER),
        ("delayd-proof", b"x", Reason.REPEATED_HEADER),
    ],
)
def test_a_right_proof_does_not_make_a_field_right(
    name: str, content: bytes | None, reason: Reason
) -> None:
    headers = [header for header in GOOD if header[0] != name]
    assert reason_of(read(signed(*headers, (name, content)))) is reason


@pytest.mark.parametrize("name", [name for name, _ in GOOD])
def test_a_right_proof_does_not_make_up_for_a_field_that_is_missing(name: str) -> None:
    missing = read(signed(*(header for header in GOOD if header[0] != name)))
    wanted = Reason.MISSING_TOPIC if name == "delayd-topic" else Reason.BAD_PROOF
    assert reason_of(missing) is wanted


def test_a_right_proof_in_the_wrong_partition_of_its_id_is_a_reject() -> None:
    elsewhere = (HOME + 1) % LIMITS.partitions
    proof = proof_of(LIMITS, elsewhere, KEY, b"v", GOOD)
    record = BufferRecord(elsewhere, KEY, b"v", [*GOOD, ("delayd-proof", proof)])
    assert reason_of(read(record)) is Reason.WRONG_PARTITION


# Any message at all.

TEXT = st.text(max_size=8).filter(lambda name: not name.startswith("delayd-"))
BYTES = st.none() | st.binary(max_size=50)
TIMES = st.integers(0, 2**62)


@given(
    st.lists(st.tuples(TEXT, BYTES), max_size=6),
    BYTES,
    BYTES,
    st.none() | st.text(min_size=1, max_size=20),
    st.none() | st.text(min_size=1, max_size=20),
    st.none() | st.integers(0, 2**31 - 1),
    st.tuples(TIMES, TIMES, TIMES, TIMES),
    st.integers(0, 10**6),
)
def test_whatever_a_message_is_it_goes_on_as_it_was(
    headers: Headers,
    key: bytes | None,
    value: bytes | None,
    id: str | None,
    delivered_key: str | None,
    target_partition: int | None,
    times: tuple[int, int, int, int],
    attempt: int,
) -> None:
    asked_due_ms, rank_due_ms, next_due_ms, offset = times
    if id is not None:
        key = (delivered_key or id).encode()
    home = 3 if id is None else partition_of(id.encode(), LIMITS.partitions)
    request = Request(
        *(Op.SCHEDULE, "orders", asked_due_ms, asked_due_ms, key, value, headers),
        *(target_partition, id, b"" if id is None else b"d" * 16),
        *("" if attempt == 0 else f"{home}/1", attempt),
    )
    ranked = {"offset": offset, "rank_due_ms": rank_due_ms, "next_due_ms": next_due_ms}
    record = continued(stored(request), partition=home, **ranked)
    assert record.partition == home
    assert read(record) == request._replace(
        op=Op.CONTINUE,
        due_ms=next_due_ms,
        origin=request.origin or f"{home}/{offset}",
        attempt=attempt + 1,
        continues=(rank_due_ms, offset),
    )
