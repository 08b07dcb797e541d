"""The hot path of ingest decides what the general one decides, byte for byte."""

from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest
from cluster_settings import LANES, PARTITIONS, REQUEST_LIMITS
from cluster_settings import SETTINGS as CLUSTER
from hypothesis import given, settings
from hypothesis import strategies as st
from random_requests import Mixture, record

from delayd.bus import Headers, Record
from delayd.node.replica.fast_ingest import NAMES_MAX, REMEMBERED_MAX, FastIngest
from delayd.node.replica.ingest_batch import IngestBatch
from delayd.request import parse
from delayd.wheel.frame import PackedFrame, packed
from delayd.wheel.id_memory import IdMemory
from delayd.wheel.storage import Wheel
from replication.frontier import Frontier, first_frontier
from replication.ingest import LogState
from replication.rank import Rank

SEED: Final = 7
APPEND_MS: Final = 1_700_000_000_000
BYTES_MAX: Final = 900
LIMITS: Final = replace(REQUEST_LIMITS, record_bytes_max=BYTES_MAX, partitions=PARTITIONS)
TOPIC: Final = ("delayd-topic", b"orders")
DELAY: Final = ("delayd-delay", b"10s")
FAST: Final[dict[str, Headers]] = {
    "due": [TOPIC, ("delayd-due", b"1700000010000")],
    "due just before what seconds are": [TOPIC, ("delayd-due", b"999999999")],
    "due just behind what seconds are": [TOPIC, ("delayd-due", b"10000000000")],
    "due in the past": [TOPIC, ("delayd-due", b"0")],
    "due in RFC 3339": [TOPIC, ("delayd-due", b"2023-11-14T22:13:20.0001Z")],
    "due with zeros in front": [TOPIC, ("delayd-due", b"001700000010000")],
    "due at the end of max_delay": [TOPIC, ("delayd-due", b"%d" % (APPEND_MS + 86_400_000))],
    "delay": [TOPIC, DELAY],
    "level": [("delayd-level", b"3"), TOPIC],
    "target partition": [TOPIC, DELAY, ("delayd-partition", b"0")],
    "headers of the user in front": [("a", b"1"), ("b", b""), TOPIC, DELAY],
    "headers of the user behind": [TOPIC, DELAY, ("a", b"1"), ("a", b"1"), ("b", b"2")],
    "headers of the user in between": [("a", b"1"), TOPIC, ("", b"2"), DELAY, ("a", b"3")],
    "a header that is nearly delayd's": [TOPIC, DELAY, ("Delayd-id", b"a"), ("delayd", b"b")],
}
NOT_FAST: Final[dict[str, Headers]] = {
    "nothing": [],
    "no target": [DELAY],
    "no time": [TOPIC],
    "two times": [TOPIC, DELAY, ("delayd-level", b"3")],
    "the target twice": [TOPIC, TOPIC, DELAY],
    "no topic": [("delayd-topic", b"a/b"), DELAY],
    "a topic of delayd's": [("delayd-topic", b"delayd-dead"), DELAY],
    "a topic that is not UTF-8": [("delayd-topic", b"\xff"), DELAY],
    "an empty target": [("delayd-topic", b""), DELAY],
    "a null target": [("delayd-topic", None), DELAY],
    "a null header of the user": [TOPIC, DELAY, ("a", None)],
    "a name that is not ASCII": [TOPIC, DELAY, ("\xfc", b"a")],
    "a name that is not UTF-8": [TOPIC, DELAY, ("\udc80", b"a")],
    "a day that is in no calendar": [TOPIC, ("delayd-due", b"2023-02-29T22:13:20Z")],
    "a due time in other digits": [TOPIC, ("delayd-due", "\u0661".encode())],
    "a due time with a sign": [TOPIC, ("delayd-due", b"+1")],
    "a due time with a space": [TOPIC, ("delayd-due", b" 1")],
    "a due time in seconds": [TOPIC, ("delayd-due", b"1700000010")],
    "the first due time in seconds": [TOPIC, ("delayd-due", b"1000000000")],
    "an empty due time": [TOPIC, ("delayd-due", b"")],
    "a due time of 16 digits": [TOPIC, ("delayd-due", b"0001700000010000")],
    "beyond the year 9999": [TOPIC, ("delayd-due", b"253402300800000")],
    "beyond max_delay": [TOPIC, ("delayd-due", b"%d" % (APPEND_MS + 86_400_001))],
    "a delay beyond max_delay": [TOPIC, ("delayd-delay", b"2d")],
    "a delay that is none": [TOPIC, ("delayd-delay", b"10")],
    "a level that is none": [TOPIC, ("delayd-level", b"19")],
    "a partition that is none": [TOPIC, DELAY, ("delayd-partition", b"-1")],
    "an empty partition": [TOPIC, DELAY, ("delayd-partition", b"")],
    "an id": [TOPIC, DELAY, ("delayd-id", b"k")],
    "an operation": [TOPIC, DELAY, ("delayd-op", b"schedule")],
    "a key to deliver": [TOPIC, DELAY, ("delayd-key", b"k")],
    "a redrive": [TOPIC, DELAY, ("delayd-redrive", b"0/1")],
    "the master's own": [TOPIC, DELAY, ("delayd-continues", b"1")],
    "an unknown header of delayd's": [TOPIC, DELAY, ("delayd-x", b"1")],
    "a wish": [TOPIC, DELAY, ("delayd-receipt", b"yes")],
    "a lateness": [("delayd-late", b"1h"), TOPIC, DELAY],
    "a window": [TOPIC, ("delayd-window", b"1h"), DELAY],
    "a group": [TOPIC, DELAY, ("delayd-group", b"g")],
    "a longest wait": [TOPIC, DELAY, ("delayd-max-wait", b"1h")],
    "a debounce": [
        *(TOPIC, DELAY, ("delayd-max-wait", b"1h"), ("delayd-op", b"debounce")),
        ("delayd-id", b"k"),
    ],
}


def a_record(
    headers: Headers, offset: int = 7, key: bytes | None = b"k", value: bytes | None = b"v"
) -> Record:
    return Record(1, offset, 0, APPEND_MS, key, value, headers)


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of a new wheel: nothing is remembered, and nothing of what is ingested here is applied."""
    wheel = Wheel.open(tmp_path_factory.mktemp("wheel"), partitions=PARTITIONS)
    yield wheel.ids
    wheel.close()


def generally(
    ids: IdMemory, records: list[Record], covered: Frontier | None = None
) -> tuple[list[PackedFrame], list[LogState]]:
    """Frames in their order and states after them, of the general path alone."""
    batch = IngestBatch(ids, CLUSTER, [LogState(0, 0)] * PARTITIONS, covered, LIMITS.rules)
    for each in records:
        batch.add(each, parse(each, LIMITS))
    return bytes_of(batch), batch.states


def with_the_hot_path(
    ids: IdMemory, records: list[Record], fast: FastIngest, covered: Frontier | None = None
) -> tuple[list[PackedFrame], list[LogState]]:
    """The same of a node."""
    batch = IngestBatch(ids, CLUSTER, [LogState(0, 0)] * PARTITIONS, covered, LIMITS.rules)
    frames = fast.pack(records)
    others = {
        place: parse(records[place], LIMITS) for place, frame in enumerate(frames) if frame is None
    }
    batch.add_all(frames, lambda place: (records[place], others[place]))
    return bytes_of(batch), batch.states


def bytes_of(batch: IngestBatch) -> list[PackedFrame]:
    return [each if isinstance(each, PackedFrame) else packed(each) for each in batch.frames]


def in_order(records: list[Record]) -> list[Record]:
    """With the offsets that a log would give them."""
    return [each._replace(offset=10 + place * 3) for place, each in enumerate(records)]


@pytest.mark.parametrize("what", FAST)
def test_what_is_plain_is_packed_as_the_general_path_packs_it(ids: IdMemory, what: str) -> None:
    for key, value in ((b"k", b"v"), (b"", b""), (None, None), (b"\xff", b"\x00" * 300)):
        asked = a_record(FAST[what], key=key, value=value)
        [frame] = FastIngest(LIMITS, LANES).pack([asked])
        assert frame is not None, "a plain record was left to the general path"
        assert [frame] == generally(ids, [asked])[0]


@pytest.mark.parametrize("what", NOT_FAST)
def test_what_is_not_plain_is_left_to_the_general_path(what: str) -> None:
    asked = a_record(NOT_FAST[what])
    fast = FastIngest(LIMITS, LANES)
    good = a_record(FAST["delay"])
    assert [frame is None for frame in fast.pack([good, asked, good])] == [False, True, False]


@pytest.mark.parametrize("headers", [FAST["delay"], FAST["headers of the user in between"]])
def test_a_record_may_have_just_so_many_bytes(headers: Headers) -> None:
    least = 128 + sum(10 + len(name) + len(content or b"") for name, content in headers)
    for key in (None, b"", b"key"):
        room = BYTES_MAX - least - len(key or b"")
        fits, is_too_large = (a_record(headers, key=key, value=b"v" * n) for n in (room, room + 1))
        frames = FastIngest(LIMITS, LANES).pack([fits, is_too_large])
        assert [frame is None for frame in frames] == [False, True]


@pytest.mark.long
def test_30_000_records_of_any_kind_become_the_same_frames(ids: IdMemory) -> None:
    """docs/design/frontier.md, Ingest: all replicas decide alike."""
    random, fast = Random(SEED), FastIngest(LIMITS, LANES)
    mixture = Mixture(LIMITS, noise=0.1, retries=0.1)
    met = 0
    for _ in range(300):
        records = in_order([record(random, mixture) for _ in range(100)])
        met += sum(frame is not None for frame in fast.pack(records))
        assert with_the_hot_path(ids, records, fast) == generally(ids, records), f"seed {SEED}"
    # That this could have found anything: most have an id, a key of their own, or are spoilt.
    assert met > 100, f"only {met} were packed"


texts = st.sampled_from(
    [b"orders", b"payments", b"10s", b"2d", b"3", b"0", b"1700000010000", b"", b"\xff", None]
) | st.binary(max_size=20)
names = st.sampled_from(
    ["delayd-topic", "delayd-due", "delayd-delay", "delayd-level", "delayd-partition", "a", "b"]
) | st.text(max_size=3)
whens = st.sampled_from(
    [DELAY, ("delayd-level", b"1"), ("delayd-due", b"1700000010000"), ("delayd-delay", b"0ms")]
)
spoilt = st.lists(st.tuples(names, texts), max_size=3)
requests = st.builds(
    lambda partition, append_ms, key, value, headers: Record(
        partition, 0, 0, APPEND_MS + append_ms, key, value, headers
    ),
    st.integers(0, PARTITIONS - 1),
    st.integers(-20, 20),
    st.none() | st.binary(max_size=3),
    st.none() | st.binary(max_size=3) | st.integers(680, 760).map(lambda n: b"v" * n),
    st.builds(lambda when, more: [TOPIC, when, *more], whens, spoilt).flatmap(st.permutations),
)


@settings(max_examples=500, deadline=None)
@given(
    records=st.lists(requests, max_size=8),
    cursor_ms=st.integers(-5, 15),
    passed=st.none() | st.integers(0, 30),
)
def test_any_batch_leaves_the_same_frames_and_states(
    ids: IdMemory, records: list[Record], cursor_ms: int, passed: int | None
) -> None:
    """What an old frontier covers is not stored, whichever way it takes."""
    covered = None
    if passed is not None:
        first = first_frontier(0, PARTITIONS, LANES)
        cursor = Rank(APPEND_MS + cursor_ms * 1_000, 0, 0)
        covered = Frontier(0, (cursor,) * LANES, (passed,) * PARTITIONS, first.own_writes, 1, 1)
    records = in_order(records)
    fast = FastIngest(LIMITS, LANES)
    expected = generally(ids, records, covered)
    assert with_the_hot_path(ids, records, fast, covered) == expected
    # Once more, with all that was remembered.
    assert with_the_hot_path(ids, records, fast, covered) == expected


def test_a_record_that_comes_twice_is_a_bug_that_is_found(ids: IdMemory) -> None:
    records = [a_record(FAST["delay"], offset) for offset in (5, 6, 6)]
    with pytest.raises(AssertionError, match="offset 6 came after 6"):
        with_the_hot_path(ids, records, FastIngest(LIMITS, LANES))


def test_what_is_remembered_is_bounded(ids: IdMemory) -> None:
    fast = FastIngest(LIMITS, LANES)
    for number in range(2 * REMEMBERED_MAX + 10):
        headers: Headers = [
            ("delayd-topic", b"t%d" % number),
            ("delayd-delay", b"%dms" % number),
            ("delayd-partition", b"%d" % number),
            (f"h{number}", b""),
        ]
        asked = a_record(headers)
        assert fast.pack([asked]) == generally(ids, [asked])[0]
    assert [len(known) for known in fast.remembered] == [10] * 4


def test_of_many_or_long_names_nothing_is_remembered() -> None:
    fast = FastIngest(LIMITS, LANES)
    for headers in (
        [(f"h{n}", b"") for n in range(NAMES_MAX + 1)],
        [("h" * 2_000, b"")],
        [("delayd-topic", b"t" * 2_000)],
    ):
        assert fast.pack([a_record([*headers, DELAY])]) == [None]
    assert len(fast.remembered[0]) == 1 and not any(fast.remembered[1:])
