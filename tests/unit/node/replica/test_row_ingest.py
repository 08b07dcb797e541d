"""Schedules with an id and cancels, read in C: the same wheel, ids and replies as of Python."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from cluster_settings import LANES, PARTITIONS, REQUEST_LIMITS
from flat_pair import SETTINGS, Pair
from hypothesis import given, settings
from hypothesis import strategies as st
from random_requests import Mixture, record

from delayd.bus import Headers, Record
from delayd.bus.flat import FlatRecords, flattened
from delayd.bus.murmur2 import partition_of
from delayd.errors import LogNotEnoughError
from delayd.node.replica.row_ingest import RowPiece
from delayd.request import Request, RequestLimits, message_body, parse
from delayd.request.internal import barrier
from delayd.request.request import Switch
from delayd.runtime import native
from delayd.runtime.native.packing import TOPICS_MAX, digest_rules_of, limits_of
from delayd.runtime.native.rows import CANCEL, KEYED, OTHER, PLAIN, ROWS_MAX, RowReader, Rows
from delayd.wheel import Frame, FrameKind
from delayd.wheel.frame import packed
from replication.ids import NOTHING
from replication.ingest import Asked, Known, LogState, Op, first_of_id, ingest
from replication.log_time import PROOF_TRAILS, trail_ms_of
from replication.rank import Rank
from replication.settings import RECEIPTS_ALL, TRACING_HEADERS
from replication.trimmed import UNTRIMMED, Beginning

pytestmark = pytest.mark.usefixtures("the_library_runs")

APPEND_MS: Final = 1_700_000_000_000
TOPIC: Final[tuple[str, bytes | None]] = ("delayd-topic", b"orders")
DELAY: Final[tuple[str, bytes | None]] = ("delayd-delay", b"10s")
OWN_TRACING: Final = ("x-own-*", "tenant-trace")
ID: Final = b"order-4711"
P: Final = partition_of(ID, PARTITIONS)
LIMITS: Final = replace(
    REQUEST_LIMITS, partitions=PARTITIONS, record_bytes_max=1_000, tracing_headers=OWN_TRACING
)

SCHEDULES: Final[dict[str, Headers]] = {
    "delay": [TOPIC, DELAY],
    "due": [TOPIC, ("delayd-due", b"1700000010000")],
    "due in the past": [TOPIC, ("delayd-due", b"0")],
    "level": [("delayd-level", b"3"), TOPIC],
    "target partition": [TOPIC, DELAY, ("delayd-partition", b"17")],
    "an operation": [("delayd-op", b"schedule"), TOPIC, DELAY],
    "a key to deliver": [TOPIC, ("delayd-key", b"k"), DELAY],
    "headers of the user": [("a", b"1"), TOPIC, ("", b""), DELAY, ("a", b"\xff" * 40)],
    "many headers": [*((f"h{n}", b"%d" % n) for n in range(17)), TOPIC, DELAY],
    "tracing headers": [("TraceParent", b"1"), TOPIC, ("x-b3-flags", b"1"), DELAY, ("b3x", b"1")],
    "the cluster's tracing headers": [TOPIC, ("X-OWN-A", b"1"), DELAY, ("tenant-trace", b"2")],
    "nearly tracing headers": [TOPIC, ("x-ow", b"1"), DELAY, ("tenant-trace1", b"2")],
}
CANCELS: Final[dict[str, Headers]] = {
    "cancel": [("delayd-op", b"cancel")],
    "cancel with headers of the user": [("a", b"1"), ("delayd-op", b"cancel"), ("b", b"")],
}
FOR_PYTHON: Final[dict[str, Headers]] = {
    "replace": [("delayd-op", b"replace"), TOPIC, DELAY],
    "a cancel with a target": [("delayd-op", b"cancel"), TOPIC],
    "a cancel with a time": [("delayd-op", b"cancel"), DELAY],
    "a cancel with a partition": [("delayd-op", b"cancel"), ("delayd-partition", b"1")],
    "a cancel with a key": [("delayd-op", b"cancel"), ("delayd-key", b"k")],
    "an operation that is none": [("delayd-op", b"Cancel")],
    "two operations": [("delayd-op", b"cancel"), ("delayd-op", b"cancel")],
    "a null header of the user": [TOPIC, DELAY, ("a", None)],
    "a key that is not ASCII": [TOPIC, DELAY, ("delayd-key", "\xfc".encode())],
    "an empty key": [TOPIC, DELAY, ("delayd-key", b"")],
    "two keys": [TOPIC, DELAY, ("delayd-key", b"k"), ("delayd-key", b"k")],
    "two ids": [TOPIC, DELAY, ("delayd-id", ID)],
    "a redrive": [TOPIC, DELAY, ("delayd-redrive", b"0/1")],
    "no time": [TOPIC],
    "no target": [DELAY],
    "an unknown header": [TOPIC, DELAY, ("delayd-x", b"1")],
    "a wish": [TOPIC, DELAY, ("delayd-receipt", b"yes")],
    "a lateness": [("delayd-late", b"1h"), TOPIC, DELAY],
    "a window": [TOPIC, ("delayd-window", b"1h"), DELAY],
    "a group": [TOPIC, DELAY, ("delayd-group", b"g")],
}


def with_id(headers: Headers, id: bytes = ID, offset: int = 0, value: Any = b"v") -> Record:
    partition = partition_of(id, PARTITIONS)
    return Record(partition, offset, 0, APPEND_MS, id, value, [*headers, ("delayd-id", id)])


def rows_of(library: native.Library, records: list[Record], limits: RequestLimits = LIMITS) -> Rows:
    reader = RowReader(
        library,
        limits_of(
            max_delay_ms=limits.max_delay_ms,
            record_bytes_max=limits.record_bytes_max,
            partitions=limits.partitions,
            prefix=limits.prefix,
        ),
        lanes=LANES,
        digest=digest_rules_of((*TRACING_HEADERS, *limits.tracing_headers)),
    )
    data = bytearray(b"?" * 3) + flattened(records)
    return reader.read(data, 3, len(data))


def kinds_of(library: native.Library, records: list[Record]) -> list[int]:
    return [row[3] for row in rows_of(library, records).rows]


@pytest.mark.parametrize("what", SCHEDULES)
def test_a_schedule_with_an_id_is_read_as_python_reads_it(
    library: native.Library, what: str
) -> None:
    """docs/design/frontier.md, "Ids": the digest tells two requests apart."""
    for value in (b"v", b"", None, b"\x00" * 127, b"x" * 128, b"y" * 300):
        asked = with_id(SCHEDULES[what], offset=7, value=value)
        read = rows_of(library, [asked])
        [row] = read.rows
        request = parse(asked, LIMITS)
        assert isinstance(request, Request) and row[3] == KEYED
        due_ms = max(request.due_ms, APPEND_MS)
        frame = packed(
            Frame(due_ms, P, 7, row[6], FrameKind.MESSAGE, APPEND_MS, message_body(request))
        )
        assert (row[0], row[1], row[2], row[4], row[5]) == (7, APPEND_MS, due_ms, P, 0)
        assert row[14] == request.digest
        assert bytes(read.frames[row[11] : row[11] + row[12]]) == frame.data
        assert row[13] == frame.crc and read.topics[row[7]] == "orders"


@pytest.mark.parametrize("what", CANCELS)
def test_a_cancel_is_read(library: native.Library, what: str) -> None:
    read = rows_of(library, [with_id(CANCELS[what], offset=9)])
    [row] = read.rows
    assert row[3] == CANCEL and row[0] == 9
    at = read.begin + row[9]
    assert read.data[at : at + row[10]] == ID


@pytest.mark.parametrize("what", FOR_PYTHON)
def test_what_is_unusual_is_left_to_python(library: native.Library, what: str) -> None:
    assert kinds_of(library, [with_id(FOR_PYTHON[what])]) == [OTHER]


def test_an_id_is_the_record_s_key_where_the_key_belongs(library: native.Library) -> None:
    good = with_id([TOPIC, DELAY])
    cancel = with_id(CANCELS["cancel"])
    for each in (good, cancel):
        wrong = [
            each._replace(key=b"order-4712"),
            each._replace(key=None),
            each._replace(partition=1 - P),
            each._replace(headers=[*each.headers[:-1], ("delayd-id", b"")]),
            each._replace(headers=[*each.headers[:-1], ("delayd-id", None)]),
            with_id(each.headers[:-1], "\xfc".encode()),
            with_id(each.headers[:-1], b"x" * 257),
        ]
        kinds = kinds_of(library, [each, *wrong, with_id(each.headers[:-1], b"x" * 256)])
        assert kinds == [kinds[0], *[OTHER] * len(wrong), kinds[0]] and kinds[0] != OTHER


def test_without_an_id_a_record_has_no_operation_and_no_key(library: native.Library) -> None:
    plain = Record(0, 0, 0, APPEND_MS, b"k", b"v", [TOPIC, DELAY])
    more = [[*plain.headers, each] for each in (("delayd-op", b"schedule"), ("delayd-key", b"k"))]
    cancel = plain._replace(headers=[("delayd-op", b"cancel"), ("a", b"1")])
    records = [plain, *(plain._replace(headers=each) for each in more), cancel]
    assert kinds_of(library, records) == [PLAIN, OTHER, OTHER, OTHER]


@pytest.mark.parametrize("what", ["delay", "cancel"])
def test_a_record_may_have_just_so_many_bytes(library: native.Library, what: str) -> None:
    headers = (SCHEDULES | CANCELS)[what]
    room = (
        1_000
        - 128
        - len(ID)
        - sum(
            10 + len(name) + len(content or b"") for name, content in [*headers, ("delayd-id", ID)]
        )
    )
    fits, over = (with_id(headers, value=b"v" * n) for n in (room, room + 1))
    kinds = kinds_of(library, [fits, over])
    assert kinds[0] != OTHER and kinds[1] == OTHER


def test_a_call_takes_so_many_records_and_targets(library: native.Library) -> None:
    plain = Record(0, 0, 0, APPEND_MS, b"k", b"v", [TOPIC, DELAY])
    read = rows_of(library, [plain] * (ROWS_MAX + 1))
    assert len(read.rows) == ROWS_MAX and read.end < len(read.data)
    many = [plain._replace(headers=[("delayd-topic", b"t%d" % n), DELAY]) for n in range(99)]
    read = rows_of(library, many)
    assert len(read.rows) == len(read.topics) == TOPICS_MAX and read.end < len(read.data)


def test_bytes_that_are_no_records_are_refused(library: native.Library) -> None:
    data = flattened([with_id([TOPIC, DELAY])] * 2)
    reader = RowReader(
        library,
        limits_of(max_delay_ms=1, record_bytes_max=1, partitions=1, prefix="d"),
        lanes=1,
        digest=digest_rules_of(()),
    )
    for end in (1, 39, len(data) - 1):
        with pytest.raises(ValueError, match="no flat records"):
            reader.read(data, 0, end)


@pytest.mark.parametrize("digest", [b"d" * 16, b""])
@pytest.mark.parametrize("late_ms", [-5, 0, 5])
def test_the_first_of_an_id_is_decided_as_any_schedule(digest: bytes, late_ms: int) -> None:
    """docs/design/frontier.md, "Ingest"."""
    asked = Asked(Op.SCHEDULE, APPEND_MS - late_ms, 3, True, digest)
    decision = ingest(LogState(4, 0), 1, 4, APPEND_MS, asked, Known(NOTHING), 3_600_000)
    due_ms = max(APPEND_MS, APPEND_MS - late_ms)
    assert decision.rank == Rank(due_ms, 1, 4)
    assert decision.id == first_of_id(due_ms, 4, 3, digest)


def some(count: int, first: int = 0, headers: Headers | None = None) -> list[Record]:
    """Of so many ids."""
    made: Headers = [TOPIC, DELAY] if headers is None else headers
    return [with_id(made, b"id-%d" % n) for n in range(first, first + count)]


def test_new_ids_and_their_cancels_come_as_rows(new_pair: Pair) -> None:
    new_pair.take(some(40))
    new_pair.checkpoint()
    new_pair.take(some(60))  # 40 of them again
    new_pair.take(some(80, headers=CANCELS["cancel"]))  # 20 of them unknown
    new_pair.checkpoint()
    new_pair.take(some(80, headers=CANCELS["cancel"]))
    new_pair.take(some(30))
    assert new_pair.rows[CANCEL] == 160
    assert new_pair.rows[KEYED] + new_pair.firsts == 130, "some have neighbours of their partition"


def test_an_id_twice_in_a_batch_is_a_duplicate_or_a_conflict(new_pair: Pair) -> None:
    """docs/design/frontier.md, "Ids": never a silent replace."""
    again = with_id([TOPIC, DELAY])
    other = with_id([TOPIC, ("delayd-delay", b"11s")])
    new_pair.take([again, again, other, with_id(CANCELS["cancel"]), other, again])
    replies = new_pair.flat.wheel.pending_replies([0] * PARTITIONS)
    assert [reply.kind for reply in replies] == [
        FrameKind.PENDING_REPLY,
        FrameKind.PENDING_REPLY,
        FrameKind.CANCEL_MARKER,
        FrameKind.PENDING_REPLY,
    ]


@pytest.mark.parametrize("then", ["its cancel", "a cancel of another", "a record for Python"])
def test_what_follows_a_new_id_in_its_batch_finds_it(new_pair: Pair, then: str) -> None:
    cancel = with_id(CANCELS["cancel"])
    after = {
        "its cancel": [cancel],
        "a cancel of another": [with_id(CANCELS["cancel"], b"another"), cancel],
        "a record for Python": [with_id([TOPIC, DELAY, ("delayd-op", b"replace")]), cancel],
    }
    new_pair.take([with_id([TOPIC, DELAY]), *some(3), *after[then], with_id([TOPIC, DELAY])])
    new_pair.checkpoint()
    new_pair.take([cancel])


def test_a_tracing_header_does_not_tell_requests_apart(new_pair: Pair) -> None:
    for content in (b"1", b"2"):
        new_pair.take([with_id([TOPIC, DELAY, ("traceparent", content)])])
    [reply] = new_pair.flat.wheel.pending_replies([0] * PARTITIONS)
    assert reply.kind == FrameKind.PENDING_REPLY


def test_a_cluster_that_writes_all_receipts_writes_these(
    library: native.Library, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, library, replace(SETTINGS, receipts_written=RECEIPTS_ALL))
    pair.take(some(3))
    assert pair.rows == {KEYED: 3}
    assert len(pair.flat.wheel.pending_replies([0] * PARTITIONS)) == 3
    pair.close()


def test_a_cancel_is_judged_as_of_log_time(new_pair: Pair) -> None:
    """docs/design/frontier.md, "Log time"."""
    trail_ms = trail_ms_of(SETTINGS, SETTINGS.rules_version)
    proved_ms = APPEND_MS + PROOF_TRAILS * trail_ms + 1
    schedules = [with_id([TOPIC, DELAY], b"id-%d" % n) for n in range(8)]
    new_pair.take(schedules)
    new_pair.take([each._replace(append_ms=proved_ms) for each in schedules])
    assert new_pair.flat.log_ms[P] == proved_ms - trail_ms > APPEND_MS
    new_pair.take([with_id(CANCELS["cancel"])])
    new_pair.take([with_id([TOPIC, DELAY])])
    new_pair.take([with_id(CANCELS["cancel"])] * 2)
    assert new_pair.rows[CANCEL] == 3


def test_a_cancel_that_a_trimmed_record_may_decide_stops_the_node(new_pair: Pair) -> None:
    """docs/design/trimmed.md, "What decides later"."""
    begins = [UNTRIMMED] * PARTITIONS
    begins[P] = Beginning(10, APPEND_MS, 12, has_letters=False)
    cancel = [with_id(CANCELS["cancel"], offset=10)]
    flat = FlatRecords(new_pair.surveyor, flattened(cancel))
    for replica, records in ((new_pair.listed, cancel), (new_pair.flat, flat)):
        replica.begin_at(begins, ())
        with pytest.raises(LogNotEnoughError, match=f"what becomes of {P}/10"):
            replica.take(records)
    assert new_pair.rows == {CANCEL: 1}


def test_a_switch_rules_what_is_behind_it(library: native.Library, tmp_path: Path) -> None:
    """docs/design/frontier.md, "Rules switch": by older rules tracing headers count."""
    old = replace(SETTINGS, rules_version=3)
    pair = Pair(tmp_path, library, old)
    switch = switch_of(pair, P)
    traced = [with_id([TOPIC, DELAY, ("b3", b"%d" % n)]) for n in range(2)]
    pair.take([*traced, switch, *traced])
    assert not pair.rows, "C reads by newer rules alone"
    pair.take([*traced, *some(4)])
    assert not pair.rows, "another partition is not switched yet"
    pair.take([switch_of(pair, 1 - P)])
    pair.take([*traced, *some(4)])
    assert pair.rows == {KEYED: 6}
    pair.close()


def test_a_piece_ends_behind_a_switch(library: native.Library, tmp_path: Path) -> None:
    """docs/design/frontier.md, "Rules switch"."""
    pair = Pair(tmp_path, library, replace(SETTINGS, rules_version=3))
    switch = switch_of(pair, P)._replace(offset=1)
    source = rows_of(library, [with_id([TOPIC, DELAY]), switch, with_id([TOPIC, DELAY], offset=2)])
    piece = RowPiece(source, pair.flat.limits)
    assert piece.count == 2 and piece.end < source.end
    assert piece.limits.rules.version_at(P, 2) == 4 > pair.flat.rules.version_at(P, 2)
    pair.close()


def switch_of(pair: Pair, partition: int) -> Record:
    made = barrier(partition, Switch(4, "0.2.0"), pair.flat.limits)
    return Record(partition, 0, 0, APPEND_MS, made.key, made.value, made.headers)


def test_a_switch_once_more_changes_nothing(new_pair: Pair) -> None:
    new_pair.take([with_id([TOPIC, DELAY]), switch_of(new_pair, P), *some(3)])
    assert new_pair.rows == {KEYED: 4, OTHER: 1}


ids = st.sampled_from([b"a", b"b", b"order-1", b"order-2", "\xfc".encode()])
asked = st.builds(
    lambda headers, id, append_ms, value: with_id(headers, id, value=value)._replace(
        append_ms=APPEND_MS + append_ms
    ),
    st.sampled_from([*SCHEDULES.values(), *CANCELS.values(), *FOR_PYTHON.values()]),
    ids,
    st.integers(-20, 20) | st.sampled_from([9_999, 10_000, 10_001, 4_000_000, 40_000_000]),
    st.sampled_from([b"v", b"w", None]),
)


@settings(max_examples=150, deadline=None)
@given(
    records=st.lists(asked, min_size=1, max_size=24),
    told_ms=st.integers(APPEND_MS - 20, APPEND_MS + 20_000),
    writes=st.booleans(),
)
def test_any_batch_leaves_the_same(
    pair: Pair, records: list[Record], told_ms: int, writes: bool
) -> None:
    pair.take(records, told_ms)
    if writes:
        pair.checkpoint()


@pytest.mark.long
def test_20_000_records_about_ids_leave_the_same(new_pair: Pair) -> None:
    names = tuple(b"id-%d" % n for n in range(40))
    mixture = Mixture(new_pair.listed.limits, ids=names, noise=0.02, retries=0.1)
    random = Random(11)
    for batch in range(200):
        at_ms = APPEND_MS + batch * 2_000
        new_pair.take([record(random, mixture)._replace(append_ms=at_ms) for _ in range(100)])
        if batch % 7 == 0:
            new_pair.checkpoint()
    assert min(new_pair.rows[kind] for kind in (KEYED, CANCEL, OTHER)) > 500, new_pair.rows
