"""Runs of schedules under new ids, packed in C: the same wheel, ids and replies as of Python."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

import pytest
from cluster_settings import LANES, PARTITIONS
from flat_pair import SETTINGS, Pair
from hypothesis import given, settings
from hypothesis import strategies as st
from test_row_ingest import (
    APPEND_MS,
    CANCELS,
    DELAY,
    FOR_PYTHON,
    LIMITS,
    SCHEDULES,
    TOPIC,
    P,
    with_id,
)

from delayd.bus import Headers, Record
from delayd.bus.flat import FlatRecords, flattened
from delayd.bus.murmur2 import partition_of
from delayd.node.replica.flat_ingest import PLAIN_RUN_MIN
from delayd.request import Request, parse
from delayd.runtime import native
from delayd.runtime.native.packing import (
    PACKED_MAX,
    Packer,
    PackRules,
    Run,
    digest_rules_of,
    limits_of,
)
from delayd.runtime.native.rows import KEYED
from delayd.wheel import FrameKind
from delayd.wheel.catalogue import Catalogue
from delayd.wheel.id_memory import IdMemory, id_name
from replication.frontier import Frontier, first_frontier
from replication.ingest import first_of_id
from replication.rank import Rank, lane_of
from replication.settings import DAY_MS, RECEIPTS_ALL, TRACING_HEADERS
from replication.trimmed import UNTRIMMED, Beginning

pytestmark = pytest.mark.usefixtures("the_library_runs")

RUN: Final = 3 * PLAIN_RUN_MIN
UINTS: Final = [bound + over for bound in (2**7, 2**8, 2**16, 2**32, 2**47) for over in (-1, 0)]


def ids() -> Iterator[bytes]:
    """Yield ids whose records are in partition P."""
    return (id for id in (b"id-%d" % n for n in count()) if partition_of(id, PARTITIONS) == P)


def new(number: int, headers: Headers | None = None, first: int = 0) -> list[Record]:
    """Of so many ids, in one partition."""
    made: Headers = [TOPIC, DELAY] if headers is None else headers
    found = ids()
    return [with_id(made, next(found)) for _ in range(first + number)][first:]


def packer_of(library: native.Library, keep_ms: int = DAY_MS) -> Packer:
    limits = limits_of(
        max_delay_ms=LIMITS.max_delay_ms,
        record_bytes_max=10**6,
        partitions=PARTITIONS,
        prefix=LIMITS.prefix,
    )
    digest = digest_rules_of((*TRACING_HEADERS, *LIMITS.tracing_headers))
    return Packer(library, limits, lanes=LANES, run_min=1, keep_ms=keep_ms, digest=digest)


def run_of(packer: Packer, records: list[Record], takes_ids: bool = True) -> Run | int:
    data = flattened(records)
    rules = PackRules(P, 10**12, 0, 0, 0, 0, None, False, takes_ids)
    return packer.pack(data, 0, len(data), rules)


def lines_of(record: Record, keep_ms: int) -> tuple[bytes, bytes, bytes]:
    """What Python remembers of the first message of an id: key, value, and line of the queue."""
    asked = parse(record, replace(LIMITS, record_bytes_max=10**6))
    assert isinstance(asked, Request) and asked.id is not None and asked.topic is not None
    memory = IdMemory(cast(Catalogue, None), lambda _kills: None)
    due_ms = max(asked.due_ms, record.append_ms)
    state = first_of_id(due_ms, record.offset, lane_of(asked.topic, LANES), asked.digest)
    memory.remember(P, id_name(asked.id), state, keep_ms, {record.offset: asked.topic})
    (key, value), (end, nothing) = memory.capture().items()
    assert value is not None and nothing == b""
    return key, value, end


@pytest.mark.parametrize("what", SCHEDULES)
def test_the_lines_of_an_id_are_those_that_python_writes(
    library: native.Library, what: str
) -> None:
    """docs/design/storage.md, "Catalogue"."""
    for keep_ms in (1, DAY_MS):
        for value in (b"v", None, b"y" * 300):
            asked = with_id(SCHEDULES[what], offset=7, value=value)
            run = run_of(packer_of(library, keep_ms), [asked])
            assert isinstance(run, Run) and run.firsts.records == [0]
            [key], [state], [end], _ = run.firsts
            assert (key, state, end) == lines_of(asked, keep_ms)


def test_numbers_and_texts_of_any_length_are_written_in_python_s_form(
    library: native.Library,
) -> None:
    """msgpack has a form for each length."""
    packer, found = packer_of(library), ids()
    headers = [("delayd-topic", b"t" * length) for length in (1, 31, 32, 248, 249)]
    for topic in headers:
        for offset in UINTS:
            for append_ms in (0, 5, offset):
                when: Any = ("delayd-delay", b"%dms" % (offset % 1_000))
                asked = with_id([topic, when], next(found), offset)._replace(append_ms=append_ms)
                run = run_of(packer, [asked])
                assert isinstance(run, Run) and run.taken == 1
                [key], [state], [end], _ = run.firsts
                assert (key, state, end) == lines_of(asked, DAY_MS)


def test_a_full_call_has_room_for_the_longest_ids_and_targets(library: native.Library) -> None:
    names = (b"%0256d" % n for n in count())
    here = (name for name in names if partition_of(name, PARTITIONS) == P)
    asked: Headers = [("delayd-topic", b"t" * 249), DELAY]
    records = [with_id(asked, next(here), offset) for offset in range(PACKED_MAX + 1)]
    run = run_of(packer_of(library), records)
    assert isinstance(run, Run) and run.taken == len(run.firsts.keys) == PACKED_MAX
    lines = list(zip(*run.firsts[:3], strict=True))
    assert lines[-1] == lines_of(records[PACKED_MAX - 1], DAY_MS)


def test_a_run_has_no_more_records_than_are_asked_for(library: native.Library) -> None:
    packer, data = packer_of(library), flattened(new(RUN))
    rules = PackRules(P, 10**12, 0, 0, 0, 0, None, False, takes_ids=True)
    for number in range(1, RUN):
        records = flattened([each._replace(offset=n) for n, each in enumerate(new(RUN))])
        run = packer.pack(records, 0, len(records), rules, number)
        assert isinstance(run, Run) and run.taken == len(run.firsts.keys) == number
    assert packer.pack(data, 0, len(data), rules, takes_ids=False) == RUN
    assert run_of(packer, new(RUN), takes_ids=False) == RUN


def test_new_ids_are_taken_in_runs(new_pair: Pair) -> None:
    plain = [Record(P, 0, 0, APPEND_MS, b"k", b"v", [TOPIC, DELAY])] * RUN
    new_pair.take([*new(RUN), *plain, *new(RUN, first=RUN)])
    assert (new_pair.runs, new_pair.firsts) == (1, 2 * RUN) and not new_pair.rows
    new_pair.checkpoint()
    new_pair.take([*new(RUN, CANCELS["cancel"]), *new(RUN)])
    assert new_pair.flat.wheel.counts.total == 3 * RUN


@pytest.mark.parametrize("known", ["in memory", "on its way", "on disk"])
@pytest.mark.parametrize("at", [0, 3, PLAIN_RUN_MIN, RUN - 1])
def test_a_known_id_is_decided_by_the_rules_and_the_others_stay_in_runs(
    new_pair: Pair, known: str, at: int
) -> None:
    """docs/design/frontier.md, "Ids": never a silent replace."""
    new_pair.take(new(1, first=at))
    for replica in (new_pair.listed, new_pair.flat):
        if known == "on its way":
            replica.wheel.ids.capture()
        elif known == "on disk":
            replica.checkpoint()
    before = new_pair.rows[KEYED]
    new_pair.take(
        [with_id([TOPIC, ("delayd-delay", b"11s")], each.key or b"") for each in new(RUN)]
    )
    short = sum(left for left in (at, RUN - at - 1) if left < PLAIN_RUN_MIN)
    assert new_pair.rows[KEYED] - before == 1 + short
    assert new_pair.firsts == RUN - 1 - short
    [reply] = new_pair.flat.wheel.pending_replies([0] * PARTITIONS)
    assert reply.kind == FrameKind.PENDING_REPLY


@pytest.mark.parametrize("again", [0, 5, RUN - 1])
def test_an_id_twice_in_a_run_is_a_duplicate(new_pair: Pair, again: int) -> None:
    """docs/design/frontier.md, "Ids"."""
    records = new(RUN)
    new_pair.take([*records, records[again], *new(RUN, first=RUN)])
    assert new_pair.firsts == 2 * RUN and new_pair.rows[KEYED] == 1
    assert len(new_pair.flat.wheel.pending_replies([0] * PARTITIONS)) == 1
    assert new_pair.flat.wheel.counts.total == 2 * RUN


def test_where_most_ids_are_known_all_become_rows(new_pair: Pair) -> None:
    """They are not asked for twice."""
    new_pair.take(new(RUN))
    new_pair.take(new(RUN + PLAIN_RUN_MIN))
    assert new_pair.firsts == RUN and new_pair.rows[KEYED] == RUN + PLAIN_RUN_MIN


def test_an_id_that_was_forgotten_since_the_checkpoint_is_new(new_pair: Pair) -> None:
    new_pair.take(new(RUN))
    new_pair.checkpoint()
    for replica in (new_pair.listed, new_pair.flat):
        for each in new(RUN):
            assert each.key is not None
            replica.wheel.ids._layers.put(b"i" + P.to_bytes(2) + b"i" + each.key, None)
    new_pair.take(new(RUN))
    assert new_pair.firsts == 2 * RUN and not new_pair.rows


def test_a_run_of_ids_is_forgotten_as_others_are(new_pair: Pair) -> None:
    """docs/design/frontier.md, "Forgetting": the queue tells of each id, and is read from the first
    of its lines on, also where all before was deleted."""
    far_ms = APPEND_MS + 3 * DAY_MS
    first = first_frontier(0, PARTITIONS, LANES)
    cursors = (Rank(far_ms, 0, 0),) * LANES
    cut = Frontier(0, cursors, (3 * RUN,) * PARTITIONS, first.own_writes, 1, 1)
    for number in range(3):
        new_pair.take(new(RUN))
        assert new_pair.firsts == (number + 1) * RUN, "nothing is known of them any more"
        new_pair.checkpoint()
        for replica in (new_pair.listed, new_pair.flat):
            assert not replica.wheel.ids.forget(cut, (far_ms,) * PARTITIONS, far_ms)
        new_pair.checkpoint()


def test_what_an_old_frontier_covers_is_remembered_and_not_stored(new_pair: Pair) -> None:
    first = first_frontier(0, PARTITIONS, LANES)
    cursors = (Rank(APPEND_MS + DAY_MS, 0, 0),) * LANES
    offsets = tuple(offset + 20 for offset in new_pair.flat.ingested)
    covered = Frontier(0, cursors, offsets, first.own_writes, 1, 1)
    with pytest.MonkeyPatch.context() as patch:
        for replica in (new_pair.listed, new_pair.flat):
            replica.arrivals.rates.watch({}, APPEND_MS)  # else it is counted row by row
            patch.setattr(type(replica.retention), "covered", property(lambda _self: covered))
        new_pair.take(new(RUN))
    assert new_pair.firsts == RUN
    assert new_pair.flat.wheel.stats().frames == RUN - 20


def test_where_each_schedule_is_answered_there_are_no_runs_of_ids(
    library: native.Library, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, library, replace(SETTINGS, receipts_written=RECEIPTS_ALL))
    pair.take(new(RUN))
    assert not pair.firsts and pair.rows[KEYED] == RUN
    assert len(pair.flat.wheel.pending_replies([0] * PARTITIONS)) == RUN
    pair.close()


def test_by_rules_before_4_there_are_no_runs_of_ids(
    library: native.Library, tmp_path: Path
) -> None:
    """Tracing headers count there."""
    pair = Pair(tmp_path, library, replace(SETTINGS, rules_version=3))
    pair.take(new(RUN))
    assert not pair.firsts and not pair.rows
    pair.close()


def test_where_a_trimmed_record_may_decide_there_are_no_runs_of_ids(new_pair: Pair) -> None:
    """docs/design/trimmed.md, "What decides later"."""
    begins = [UNTRIMMED] * PARTITIONS
    begins[P] = Beginning(10, APPEND_MS - 40 * DAY_MS, 12, has_letters=False)
    for replica in (new_pair.listed, new_pair.flat):
        replica.begin_at(begins, ())
    assert not new_pair.flat.pack_rules(P, 10).takes_ids


def test_a_run_is_counted_for_the_rate_of_its_topic(new_pair: Pair) -> None:
    """Rules: quota-rate"""
    new_pair.take(new(RUN))
    later = [each._replace(append_ms=APPEND_MS + 1_000) for each in new(2 * RUN, first=RUN)]
    new_pair.take([*new(RUN, first=RUN), *later[RUN:]])
    assert new_pair.firsts == RUN and new_pair.rows[KEYED] == 2 * RUN
    counted = {"orders": {APPEND_MS // 1000: 2 * RUN, APPEND_MS // 1000 + 1: RUN}}
    for replica in (new_pair.flat, new_pair.listed):
        assert replica.arrivals.rates._taken == counted


def test_what_was_taken_in_a_run_is_there_after_a_crash(new_pair: Pair, tmp_path: Path) -> None:
    """With the checkpoint, or not at all: frames and ids become durable together."""
    new_pair.take(new(RUN))
    new_pair.checkpoint()
    new_pair.take(new(RUN, first=RUN))
    flat = FlatRecords(new_pair.surveyor, flattened(new(1)))
    new_pair.close()
    again = Pair(tmp_path, native.library)  # type: ignore[arg-type]
    assert len(flat) == 1 and again.flat.ingested[P] == RUN
    assert again.flat.wheel.stats().frames == RUN
    again.take(new(2 * RUN))
    assert again.rows[KEYED] >= RUN and again.flat.wheel.counts.total == 2 * RUN
    again.close()


kinds = st.sampled_from([*SCHEDULES.values()] * 4 + [*CANCELS.values(), *FOR_PYTHON.values()])
stretches = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 30), kinds, st.integers(-20, 20)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(
    asked=stretches, told_ms=st.integers(APPEND_MS - 20, APPEND_MS + 20_000), writes=st.booleans()
)
def test_any_batch_leaves_the_same(
    pair: Pair, asked: list[tuple[int, int, Headers, int]], told_ms: int, writes: bool
) -> None:
    """Over ids of which some are known, twice there, or cancelled."""
    many = 1_000 + 37 * pair.runs % 400  # so that there are always new ones
    records = [
        each._replace(append_ms=APPEND_MS + late_ms)
        for first, number, headers, late_ms in asked
        for each in new(number, headers, many + first)
    ]
    pair.take(records, told_ms)
    if writes:
        pair.checkpoint()
