"""The proofs of the records that the master itself writes to the buffer (docs/design, wire
contract)."""

from dataclasses import replace

import pytest
from continuations import (
    APPEND_MS,
    HOME,
    KEY,
    LIMITS,
    WITH_ID,
    body_of,
    continued,
    read,
    reason_of,
    signed,
)
from hypothesis import given
from hypothesis import strategies as st

from delayd.bus import Headers, Record
from delayd.request import (
    BufferRecord,
    Reason,
    Reject,
    Request,
    parse,
)
from delayd.request.headers import INTERNAL_HEADERS
from delayd.request.proof import proof_of


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


def test_of_several_keys_the_first_signs_and_all_are_accepted() -> None:
    """docs/operations.md, "A new cluster key".

    Rules: continuation-proof
    """
    old, new = LIMITS.proof_key, b"the key that replaces it"
    both = replace(LIMITS, proof_key=new + b"\n" + old)
    by_new = continued(body_of(), limits=both)
    assert by_new == continued(body_of(), limits=replace(LIMITS, proof_key=new))
    for record in (continued(body_of()), by_new):
        assert isinstance(read(record, limits=both), Request)
    assert reason_of(read(by_new)) is Reason.BAD_PROOF, "a node that has the old key alone"
    strange = replace(LIMITS, proof_key=b"no key of this cluster")
    assert reason_of(read(continued(body_of(), limits=strange), limits=both)) is Reason.BAD_PROOF


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
