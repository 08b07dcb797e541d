"""A message that goes on as a record of the master (docs/design, wire contract)."""

from dataclasses import replace

import pytest
from continuations import (
    APPEND_MS,
    DUE_MS,
    HOME,
    KEY,
    LIMITS,
    NEXT_MS,
    OFFSET,
    USER,
    WITH_ID,
    body_of,
    continued,
    read,
    reason_of,
    signed,
    stored,
)
from hypothesis import given
from hypothesis import strategies as st

from delayd.bus import Headers, Record
from delayd.bus.murmur2 import partition_of
from delayd.request import (
    Op,
    Reason,
    Request,
    Turn,
    delivered,
    message_body,
    parse,
    size_of,
    turn_of,
)
from delayd.request.internal import INTERNAL_MARGIN_BYTES


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
