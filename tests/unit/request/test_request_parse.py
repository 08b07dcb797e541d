"""What a buffer record asks for, header by header (docs/design, wire contract)."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delayd import __version__
from delayd.bus import UNREADABLE_HEADERS, Headers, Record
from delayd.bus.unreadable import TOO_LARGE, unreadable_batch
from delayd.request import (
    Op,
    Reason,
    Reject,
    Request,
    RequestLimits,
    dead_letter,
    parse,
    reject_body,
    size_of,
)
from delayd.request.headers import (
    INTERNAL_HEADERS,
    PLANNED_BEFORE_SERIES,
    REDRIVE_MARGIN_BYTES,
    SUPPORTED_HEADERS,
    WRITTEN_HEADERS,
)
from delayd.request.letters import Letter
from delayd.request.reasons import DETAIL_CHARS_MAX
from delayd.request.redrives import Correction, NoRedrive, redrive_of_letter
from replication.rules import Rules
from replication.settings import WISHES_RULES

APPEND_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LIMITS = RequestLimits(
    max_delay_ms=30 * DAY_MS, record_bytes_max=10_000, partitions=4, cluster="c", proof_key=b"key"
)
TOPIC = ("delayd-topic", b"orders")
DELAY = ("delayd-delay", b"10s")


def record(
    *headers: tuple[str, bytes | None], key: bytes | None = b"k", value: bytes | None = b"v"
) -> Record:
    return Record(2, 77, 5, APPEND_MS, key, value, list(headers))


def accepted(*headers: tuple[str, bytes | None], key: bytes | None = b"k") -> Request:
    outcome = parse(record(*headers, key=key), LIMITS)
    assert isinstance(outcome, Request), outcome
    return outcome


def rejected(*headers: tuple[str, bytes | None], limits: RequestLimits = LIMITS) -> Reject:
    outcome = parse(record(*headers), limits)
    assert isinstance(outcome, Reject), outcome
    return outcome


def test_a_schedule_has_target_due_key_value_and_the_users_headers() -> None:
    trace: tuple[str, bytes | None] = ("trace", b"1")
    empty: tuple[str, bytes | None] = ("null", None)
    assert accepted(trace, TOPIC, empty, ("delayd-due", b"1700000010000"), trace) == Request(
        op=Op.SCHEDULE,
        topic="orders",
        asked_due_ms=1_700_000_010_000,
        due_ms=1_700_000_010_000,
        key=b"k",
        value=b"v",
        headers=[trace, empty, trace],
        partition=None,
        id=None,
        digest=b"",
        origin="",
        attempt=0,
        continues=None,
        redrive=None,
    )


def test_a_delay_and_a_level_count_from_the_append_time() -> None:
    assert accepted(TOPIC, DELAY).asked_due_ms == APPEND_MS + 10_000
    assert accepted(TOPIC, ("delayd-level", b"18")).asked_due_ms == APPEND_MS + 7_200_000


@pytest.mark.parametrize("due", [b"0", b"170000000", b"1969-12-31T23:00:00-01:00"])
def test_a_due_time_in_the_past_is_accepted_as_asked(due: bytes) -> None:
    assert accepted(TOPIC, ("delayd-due", due)).asked_due_ms < APPEND_MS


def test_the_longest_delay_is_accepted_and_one_ms_more_is_too_far() -> None:
    longest = LIMITS.max_delay_ms
    assert accepted(TOPIC, ("delayd-due", b"%d" % (APPEND_MS + longest)))
    assert accepted(TOPIC, ("delayd-delay", b"30d")).asked_due_ms == APPEND_MS + longest
    for header in [
        ("delayd-due", b"%d" % (APPEND_MS + longest + 1)),
        ("delayd-delay", b"%dms" % (longest + 1)),
    ]:
        reject = rejected(TOPIC, header)
        assert reject.reason is Reason.TOO_FAR
        assert str(longest) in reject.detail


def test_a_level_beyond_the_clusters_longest_delay_is_too_far() -> None:
    limits = replace(LIMITS, max_delay_ms=1_000)
    assert rejected(TOPIC, ("delayd-level", b"2"), limits=limits).reason is Reason.TOO_FAR


@pytest.mark.parametrize(
    "name", [b"a", b"A.b_c-9", b"x" * 249, b"...", b"_x", b"delayed", b"delayd"]
)
def test_any_legal_topic_name_is_a_target(name: bytes) -> None:
    assert accepted(("delayd-topic", name), DELAY).topic == name.decode()


def test_the_forbidden_prefix_is_the_clusters() -> None:
    limits = replace(LIMITS, prefix="later.")
    reject = rejected(("delayd-topic", b"later.buffer"), DELAY, limits=limits)
    assert reject.reason is Reason.FORBIDDEN_TOPIC
    outcome = parse(record(("delayd-topic", b"delayd-x"), DELAY), limits)
    assert isinstance(outcome, Request)


def test_the_key_header_replaces_the_record_key() -> None:
    assert accepted(TOPIC, DELAY, ("delayd-key", "schlüssel".encode())).key == "schlüssel".encode()
    assert accepted(TOPIC, DELAY, ("delayd-key", b"k2"), key=None).key == b"k2"


@pytest.mark.parametrize(("text", "partition"), [(b"0", 0), (b"7", 7), (b"2147483647", 2**31 - 1)])
def test_a_target_partition_is_an_int32_from_zero(text: bytes, partition: int) -> None:
    assert accepted(TOPIC, DELAY, ("delayd-partition", text)).partition == partition


def test_the_operation_schedule_may_be_named() -> None:
    assert accepted(TOPIC, DELAY, ("delayd-op", b"schedule")).op is Op.SCHEDULE


@pytest.mark.parametrize("name", PLANNED_BEFORE_SERIES)
@pytest.mark.parametrize("content", [b"x", b"", None])
def test_headers_of_a_later_version_say_so(name: str, content: bytes | None) -> None:
    """Rules: nothing-unresolved"""
    older = replace(LIMITS, rules=Rules(WISHES_RULES))
    reject = rejected(TOPIC, DELAY, (name, content), limits=older)
    assert reject.reason is Reason.NOT_SUPPORTED
    assert name in reject.detail
    assert f"rules version {WISHES_RULES}," in reject.detail


def test_a_detail_never_depends_on_the_version_of_the_package() -> None:
    """Nodes of two releases store the same bytes: replicas agree during a rolling upgrade."""
    details = [
        rejected(TOPIC, DELAY, (name, b"x")).detail
        for name in (*PLANNED_BEFORE_SERIES, *WRITTEN_HEADERS, "delayd-x")
    ]
    assert not [detail for detail in details if __version__ in detail]


def test_a_delivered_record_sent_back_is_told_which_headers_to_drop() -> None:
    reject = rejected(TOPIC, DELAY, ("delayd-fired", b"1700000000000"))
    assert reject.reason is Reason.UNKNOWN_HEADER
    assert "delayd-fired" in reject.detail
    assert "drop its delayd-* headers" in reject.detail


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("delayd-topci", "delayd-topic"),
        ("delayd-DUE", "delayd-due"),
        ("delayd-dleay", "delayd-delay"),
        ("delayd-canceled-id-please-now", "known are"),
        ("delayd-", "known are"),
    ],
)
def test_an_unknown_header_is_named_with_the_nearest_known_one(name: str, nearest: str) -> None:
    reject = rejected(TOPIC, DELAY, (name, b"x"))
    assert reject.reason is Reason.UNKNOWN_HEADER
    assert repr(name) in reject.detail
    assert nearest in reject.detail


@pytest.mark.parametrize("name", ["delay-due", "Delayd-Due", "delayd", "X-delayd-due", ""])
def test_a_header_that_only_resembles_the_prefix_is_the_users(name: str) -> None:
    assert accepted(TOPIC, DELAY, (name, b"x")).headers == [(name, b"x")]


@pytest.mark.parametrize("name", SUPPORTED_HEADERS)
@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, Reason.NULL_HEADER), (b"", Reason.EMPTY_HEADER), (b"1\xff", Reason.NOT_UTF8)],
)
def test_a_request_header_needs_a_value_in_utf8(
    name: str, content: bytes | None, reason: Reason
) -> None:
    reject = rejected((name, content))
    assert reject.reason is reason
    assert name in reject.detail


def test_a_record_whose_headers_the_driver_cannot_read_is_a_reject_that_says_so() -> None:
    reject = rejected(*UNREADABLE_HEADERS)
    assert reject.reason is Reason.NOT_UTF8
    assert "none of its headers can be read" in reject.detail


def test_a_batch_that_cannot_be_read_is_one_reject_without_value() -> None:
    """Rules: batch-unreadable"""
    batch = unreadable_batch(3, 5, 104, 0, APPEND_MS, 100, "zstd", TOO_LARGE)
    reject = parse(batch, LIMITS)
    assert isinstance(reject, Reject) and (reject.id, reject.op) == (None, Op.SCHEDULE)
    assert reject.reason is Reason.UNREADABLE_BATCH
    assert "offsets 5 to 104 of partition 3 (100 records, codec zstd)" in reject.detail
    letter = dead_letter(reject_body(batch, reject), source="3/104")
    assert (letter.key, letter.value) == (None, None)
    assert letter.headers == [
        ("delayd-reason", b"unreadable-batch"),
        ("delayd-detail", reject.detail.encode()),
        ("delayd-source", b"3/104"),
    ]


def test_a_letter_of_a_batch_is_not_redriven_as_an_empty_message() -> None:
    letter = Letter("3/104", "unreadable-batch", "", APPEND_MS, None, None, [])
    outcome = redrive_of_letter(letter, LIMITS, APPEND_MS, Correction(topic="orders"))
    assert isinstance(outcome, NoRedrive) and "producer" in outcome.detail


def test_a_record_without_a_target_or_without_a_time_is_a_reject() -> None:
    assert rejected().reason is Reason.MISSING_TOPIC
    assert rejected(DELAY).reason is Reason.MISSING_TOPIC
    assert rejected(TOPIC).reason is Reason.MISSING_DUE


DUES: list[tuple[str, bytes | None]] = [("delayd-due", b"1"), DELAY, ("delayd-level", b"1")]


@pytest.mark.parametrize("left_out", [None, *DUES])
def test_more_than_one_time_is_a_reject_that_names_them(
    left_out: tuple[str, bytes | None] | None,
) -> None:
    given_ = [due for due in DUES if due != left_out]
    reject = rejected(TOPIC, *given_)
    assert reject.reason is Reason.SEVERAL_DUES
    assert all(name in reject.detail for name, _ in given_)


BAD: dict[Reason, list[tuple[str, bytes]]] = {
    Reason.BAD_TOPIC: [
        *(("delayd-topic", name) for name in (b".", b"..", b"a b", b"a/b", b"orders\n")),
        *(("delayd-topic", name) for name in (b"x" * 250, "bestellungen-ü".encode())),
    ],
    Reason.FORBIDDEN_TOPIC: [
        ("delayd-topic", name)
        for name in (b"delayd-buffer", b"delayd-anything", b"__consumer_offsets")
    ],
    Reason.BAD_PARTITION: [
        ("delayd-partition", text)
        for text in (b"-1", b"+1", b"1.0", b"2147483648", b" 1", b"x", b"9" * 5000)
    ],
    Reason.BAD_OP: [("delayd-op", name) for name in (b"Schedule", b"delete", b"schedule ")],
    Reason.BAD_DUE: [("delayd-due", b"soon")],
    Reason.BAD_DELAY: [("delayd-delay", b"10")],
    Reason.BAD_LEVEL: [("delayd-level", b"19")],
    Reason.NOT_UTF8: [("a\ud800", b"x"), ("delayd-\udcff", b"x")],
}


@pytest.mark.parametrize(
    ("reason", "header"), [(reason, header) for reason in BAD for header in BAD[reason]]
)
def test_a_header_outside_its_grammar_is_a_reject(
    reason: Reason, header: tuple[str, bytes]
) -> None:
    is_time = header[0] in [name for name, _ in DUES]
    others = [] if is_time else [DELAY]
    if header[0] != TOPIC[0]:
        others.append(TOPIC)
    assert rejected(*others, header).reason is reason


def test_a_repeated_request_header_is_a_reject_even_with_equal_values() -> None:
    assert rejected(TOPIC, DELAY, DELAY).reason is Reason.REPEATED_HEADER


def test_a_record_of_the_largest_size_is_accepted_and_one_byte_more_is_truncated() -> None:
    headers: Headers = [TOPIC, DELAY, ("naïve", b"x" * 9), ("null", None)]
    size = size_of(b"k", b"", headers)
    fits = parse(record(*headers, value=b"v" * (LIMITS.record_bytes_max - size)), LIMITS)
    assert isinstance(fits, Request)
    large = parse(record(*headers, value=b"v" * (LIMITS.record_bytes_max - size + 1)), LIMITS)
    assert isinstance(large, Reject)
    assert large.reason is Reason.TOO_LARGE
    assert large.truncated
    assert str(LIMITS.record_bytes_max + 1) in large.detail


def test_size_counts_names_in_utf8_and_an_allowance_for_each_header() -> None:
    assert size_of(None, None, []) == 128
    assert size_of(b"12", b"123", [("é", b"4"), ("n", None)]) == 128 + 2 + 3 + 3 + 1 + 2 * 10


def test_a_malformed_record_that_is_too_large_is_truncated_too() -> None:
    reject = rejected(("delayd-x", b"x" * 20_000))
    assert reject.reason is Reason.TOO_LARGE
    assert reject.truncated


def test_every_reason_has_a_slug_and_advice() -> None:
    assert len({reason.slug for reason in Reason}) == len(Reason)
    for reason in Reason:
        assert reason.slug == reason.name.lower().replace("_", "-")
        assert reason.advice.endswith(".")
        assert Reason(reason.slug) is reason


# Any input at all.

NAMES = st.sampled_from(
    [
        *(*SUPPORTED_HEADERS, *PLANNED_BEFORE_SERIES, *WRITTEN_HEADERS, *INTERNAL_HEADERS),
        *("delayd-", "trace", "ü"),
    ]
) | st.text(st.characters(exclude_categories=()), max_size=12)
CONTENTS = (
    st.sampled_from(
        [b"orders", b"10s", b"1700000010000", b"2023-11-14T22:13:20.5Z", b"3", b"cancel", b"__x"]
    )
    | st.none()
    | st.binary(max_size=40)
)
HEADERS = st.lists(st.tuples(NAMES, CONTENTS), max_size=8)
GOOD_HEADERS = st.tuples(
    st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=6),
    st.permutations([TOPIC, DELAY, ("delayd-key", b"dk")]),
    st.randoms(use_true_random=False),
)
BYTES = st.none() | st.binary(max_size=50)


@given(HEADERS, BYTES, BYTES, st.integers(0, 2**62), st.integers(150, 400))
@example([("delayd-due", b"\xff")], None, None, 0, 200)
@example([("delayd-\udc80", b"1")], None, None, 0, 200)
def test_any_record_has_exactly_one_outcome_and_the_same_on_every_replica(
    headers: Headers,
    key: bytes | None,
    value: bytes | None,
    append_ms: int,
    record_bytes_max: int,
) -> None:
    """Rules: pure-ingest"""
    limits = replace(LIMITS, record_bytes_max=record_bytes_max)
    asked = Record(0, 1, 0, append_ms, key, value, headers)
    outcome = parse(asked, limits)
    elsewhere = Record(0, 99, 7, append_ms, key, value, list(headers))
    assert parse(elsewhere, limits) == outcome
    size = size_of(key, value, headers)
    margin = REDRIVE_MARGIN_BYTES if any(name == "delayd-redrive" for name, _ in headers) else 0
    if isinstance(outcome, Reject):
        assert outcome.detail.isascii()
        assert outcome.detail.isprintable()
        assert 0 < len(outcome.detail) <= DETAIL_CHARS_MAX
        internal = any(name in INTERNAL_HEADERS for name, _ in headers)
        assert outcome.truncated == (size > record_bytes_max + margin and not internal)
    else:
        assert size <= record_bytes_max + margin
        assert outcome.asked_due_ms - append_ms <= limits.max_delay_ms
        assert outcome.due_ms == outcome.asked_due_ms
        if outcome.op is not Op.CANCEL:
            assert outcome.value == value
            assert outcome.headers == [h for h in headers if not h[0].startswith("delayd-")]


@given(GOOD_HEADERS, BYTES, BYTES)
def test_user_headers_arrive_untouched_wherever_the_request_headers_stand(
    parts: tuple[Headers, Headers, Random], key: bytes | None, value: bytes | None
) -> None:
    user, request, random = parts
    mixed = list(user)
    for header in request:
        mixed.insert(random.randint(0, len(mixed)), header)
    outcome = parse(Record(0, 1, 0, APPEND_MS, key, value, mixed), LIMITS)
    assert isinstance(outcome, Request)
    assert outcome.headers == user
    assert outcome.key == b"dk"
    assert outcome.value == value


@given(st.text(st.characters(exclude_categories=()), max_size=700))
def test_a_detail_stays_bounded_and_printable_whatever_it_quotes(text: str) -> None:
    name = "delayd-x" + text
    hostile = text.encode("utf-8", "surrogatepass")
    for headers in (
        [(name, b"x")],
        [("delayd-topic", b"/" + hostile)],
        [TOPIC, ("delayd-due", b"x" + hostile)],
    ):
        outcome = parse(record(*headers), replace(LIMITS, record_bytes_max=10**9))
        assert isinstance(outcome, Reject)
        assert len(outcome.detail) <= DETAIL_CHARS_MAX
        assert outcome.detail.isascii()
        assert outcome.detail.isprintable()


def test_no_detail_shows_a_key_or_a_value() -> None:
    secret = b"s3cr3t"
    for headers in (
        [],
        [TOPIC],
        [("delayd-key", secret), ("delayd-key", secret)],
        [("delayd-key", secret + b"\xff")],
        [TOPIC, DELAY, ("delayd-proof", secret)],
        [TOPIC, DELAY, ("delayd-id", secret + b"?")],
        [TOPIC, DELAY, ("delayd-id", secret * 99)],
        [TOPIC, DELAY, ("delayd-id", secret)],
        [("user", secret), ("delayd-x", secret)],
        [("user", secret * 9_000)],
    ):
        outcome = parse(record(*headers, key=secret, value=secret), LIMITS)
        assert isinstance(outcome, Reject)
        assert "s3cr3t" not in outcome.detail
