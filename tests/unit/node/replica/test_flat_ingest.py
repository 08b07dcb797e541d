"""The native path of ingest cannot be told from Python's: same wheel, log time and positions."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from cluster_settings import LANES, PARTITIONS
from cluster_settings import SETTINGS as CLUSTER
from flat_pair import RATED, SETTINGS, Pair
from hypothesis import given, settings
from hypothesis import strategies as st
from random_requests import Mixture, record
from test_fast_ingest import (
    APPEND_MS,
    FAST,
    LIMITS,
    NOT_FAST,
    a_record,
    bytes_of,
    requests,
)

from delayd.bus import Headers, Record
from delayd.bus.flat import FlatRecords, flattened
from delayd.bus.murmur2 import partition_of
from delayd.node.replica.flat_ingest import PLAIN_RUN_MIN, FlatIngest
from delayd.node.replica.ingest_batch import IngestBatch
from delayd.node.replica.request_rates import RequestRates
from delayd.request import RequestLimits, parse
from delayd.request.headers import size_of
from delayd.request.quotas import gate_record
from delayd.runtime import native
from delayd.runtime.native.packing import (
    PACKED_MAX,
    ROOM_KEPT_BYTES,
    TOPICS_MAX,
    PackRules,
    Run,
)
from replication.frontier import Frontier, first_frontier
from replication.ingest import LogState
from replication.log_time import PROOF_TRAILS, log_time_after
from replication.quotas import Gate
from replication.rank import Rank
from replication.settings import DAY_MS

pytestmark = pytest.mark.usefixtures("the_library_runs")

HOUR_MS: Final = 3_600_000
TRAIL_MS: Final = 60_000
PLAIN: Final = [a_record(FAST["delay"], offset) for offset in range(PLAIN_RUN_MIN)]
FIT: Final = size_of(b"k", b"v", FAST["delay"])
LEFT: Final = ("due in RFC 3339", "due with zeros in front")
"""Which the fast path takes, and the native one leaves to it."""


RULES: Final = PackRules(1, 10**12, 0, 0, 0, 0, None, False)


def run_of(limits: RequestLimits, records: list[Record], rules: PackRules = RULES) -> Run | int:
    """What the packer of a cluster with these limits makes of records."""
    packer = FlatIngest(limits, LANES, DAY_MS)._packer
    assert packer is not None
    data = flattened(records)
    return packer.pack(data, 0, len(data), rules)


@pytest.mark.parametrize("what", FAST)
def test_what_is_plain_is_taken_natively(pair: Pair, what: str) -> None:
    before = pair.runs
    for key, value in ((b"k", b"v"), (b"", b""), (None, None), (b"\xff", b"\x00" * 300)):
        pair.take([a_record(FAST[what], n, key, value) for n in range(PLAIN_RUN_MIN)])
    assert pair.runs - before == (0 if what in LEFT else 4)


@pytest.mark.parametrize("what", NOT_FAST)
def test_what_is_not_plain_is_left_to_python_in_its_place(pair: Pair, what: str) -> None:
    odd = a_record(NOT_FAST[what])
    before = pair.runs
    pair.take([*PLAIN, odd, *PLAIN])
    assert pair.runs - before == 2
    pair.take([odd, *PLAIN[:-1], odd, *PLAIN])
    assert pair.runs - before == 3, "fewer in a row are not worth a call"


@pytest.mark.parametrize("several", [True, False], ids=["in one batch", "in several"])
def test_what_is_for_a_full_topic_is_refused_on_every_path(new_pair: Pair, several: bool) -> None:
    """Behind a gate of its partition, and before the next one.

    Rules: quota-refused
    """
    limits = new_pair.listed.limits

    def gate(is_full: bool) -> Record:
        said = Gate("orders", APPEND_MS, is_full, 5, 5)
        return a_record(gate_record(1, said, limits).headers, 0, None, None)

    keyed = [
        a_record([*FAST["delay"], ("delayd-id", key)], 0, key)
        for key in (b"%d" % number for number in range(1_000))
        if partition_of(key, PARTITIONS) == 1
    ]
    other = [a_record([("delayd-topic", b"bills"), *FAST["delay"][1:]])] * PLAIN_RUN_MIN
    elsewhere = [each._replace(partition=0) for each in PLAIN]
    full = [*PLAIN, *keyed[:3], *other, *keyed[3:5], *elsewhere, *PLAIN[:3]]
    records = [*PLAIN, gate(True), *full, gate(False), *PLAIN, *keyed[5:8]]
    for some in [records] if several else [[each] for each in records]:
        new_pair.take(some)
    topics = new_pair.flat.wheel.counts.topics
    stored = {"orders": 2 * len(PLAIN) + 3 + len(elsewhere), "bills": len(other)}
    assert topics == stored
    replies = new_pair.flat.wheel.pending_replies([0] * PARTITIONS)
    assert len(replies) == len(PLAIN) + 5 + 3
    assert new_pair.flat.limits.full == new_pair.listed.limits.full == {}


def test_requests_of_a_topic_with_a_rate_are_counted_by_their_seconds(new_pair: Pair) -> None:
    """In a run, in rows and one by one; what a cancel, another topic or a refusal brings does not
    count. A run that straddles a second becomes rows.

    Rules: quota-rate
    """
    second = APPEND_MS // 1000
    later = [each._replace(append_ms=APPEND_MS + 1_000) for each in PLAIN]
    key = next(key for key in (b"%d" % n for n in range(99)) if partition_of(key, PARTITIONS) == 1)
    keyed = a_record([*FAST["delay"], ("delayd-id", key)], 0, key)
    cancel = a_record([("delayd-op", b"cancel"), ("delayd-id", key)], 0, key, None)
    bills = a_record([("delayd-topic", b"bills"), *FAST["delay"][1:]])
    wrong = a_record([("delayd-topic", b"orders")])
    new_pair.take([*PLAIN, keyed, keyed, cancel, bills, wrong])
    assert new_pair.runs == 1
    new_pair.take([*PLAIN, *later])
    assert new_pair.runs == 1, "which of them came when is in the rows"
    new_pair.take(later)
    assert new_pair.runs == 2
    counted = {"orders": {second: 2 * len(PLAIN) + 2, second + 1: 2 * len(PLAIN)}}
    for replica in (new_pair.flat, new_pair.listed):
        assert replica.arrivals.rates._taken == counted


def test_what_is_too_old_to_be_counted_stays_native(new_pair: Pair) -> None:
    """So a node that catches up is no slower for a rate."""
    later = [each._replace(append_ms=APPEND_MS + 1_000) for each in PLAIN]
    new_pair.flat.arrivals.rates.watch({"orders": RATED}, APPEND_MS + 21_000)
    new_pair.take([*PLAIN, *later])
    assert new_pair.runs == 0, "its last second may count yet"
    new_pair.flat.arrivals.rates.watch({"orders": RATED}, APPEND_MS + 22_000)
    new_pair.take([*PLAIN, *later])
    assert new_pair.runs == 1


def test_a_run_of_which_not_all_is_stored_is_counted_row_by_row() -> None:
    """It has tallies of what is stored alone."""
    rates = RequestRates()
    rates.watch({"orders": RATED}, APPEND_MS)
    run = run_of(LIMITS, PLAIN, PackRules(1, 0, 0, 0, 0, TRAIL_MS, None, False))
    assert isinstance(run, Run)
    assert not rates.straddles(run, APPEND_MS, TRAIL_MS)
    covered = run._replace(stored=0, tallies=(), append_ms=0)
    assert rates.straddles(covered, APPEND_MS, TRAIL_MS)
    rates.watch({"orders": RATED}, APPEND_MS + 21_000)
    assert not rates.straddles(covered, APPEND_MS, TRAIL_MS), "no step counts it"


@settings(max_examples=100, deadline=None)
@given(
    records=st.lists(
        requests | st.integers(1, 40).map(lambda n: [PLAIN[0]] * n), min_size=1, max_size=12
    ),
    told_ms=st.integers(APPEND_MS - 20, APPEND_MS + 20_000),
)
def test_any_batch_leaves_the_same(pair: Pair, records: list[Any], told_ms: int) -> None:
    flat = [one for each in records for one in (each if isinstance(each, list) else [each])]
    pair.take(flat, told_ms)


@pytest.mark.long
def test_20_000_records_of_any_kind_leave_the_same(new_pair: Pair) -> None:
    random, mixture = Random(7), Mixture(new_pair.listed.limits, noise=0.02, retries=0.02)
    for _ in range(100):
        records = [record(random, mixture) for _ in range(100)]
        for place in range(0, 100, random.choice((10, 30, 50))):
            records[place:place] = PLAIN * random.randrange(3)
        new_pair.take(records)
    assert new_pair.runs > 100


append_times = st.lists(
    st.integers(0, 60_000)
    | st.sampled_from([HOUR_MS, 3 * HOUR_MS, 40 * DAY_MS, -HOUR_MS])
    | st.integers(0, 15).map(lambda trails: trails * TRAIL_MS),
    min_size=PLAIN_RUN_MIN,
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(steps=append_times, trail_ms=st.sampled_from([0, 1, TRAIL_MS]), ahead=st.booleans())
def test_log_time_follows_the_same_rule(steps: list[int], trail_ms: int, ahead: bool) -> None:
    """docs/design/frontier.md, "Log time"."""
    append_ms, log_ms, leap_ms = 50 * DAY_MS, 0, 0
    records: list[Record] = []
    if not ahead:
        log_ms = append_ms
    started = log_ms, leap_ms
    for step in steps:
        append_ms = max(0, append_ms + step)
        records.append(a_record(FAST["delay"], len(records))._replace(append_ms=append_ms))
        if leap_ms or append_ms - trail_ms > log_ms:
            log_ms, leap_ms = log_time_after(log_ms, leap_ms, append_ms, trail_ms)
    run = run_of(LIMITS, records, PackRules(1, 0, 0, *started, trail_ms, None, False))
    assert isinstance(run, Run)
    assert (run.log_ms, run.leap_ms) == (log_ms, leap_ms)


@pytest.mark.parametrize("over_ms", range(-1, 3))
def test_a_leap_is_believed_or_replaced_at_the_same_millisecond(over_ms: int) -> None:
    """docs/design/frontier.md, "Log time"."""
    log_ms, leap_ms = DAY_MS, 2 * DAY_MS
    for step_ms in (0, TRAIL_MS):
        append_ms = leap_ms + PROOF_TRAILS * TRAIL_MS + step_ms + over_ms
        wanted = log_time_after(log_ms, leap_ms, append_ms, TRAIL_MS)
        asked = a_record(FAST["delay"])._replace(append_ms=append_ms)
        rules = PackRules(1, 0, 0, log_ms, leap_ms, TRAIL_MS, None, False)
        run = run_of(LIMITS, [asked], rules)
        assert isinstance(run, Run) and (run.log_ms, run.leap_ms) == wanted


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_what_is_covered_ends_at_the_same_offset(over: int) -> None:
    everything = Rank(APPEND_MS + DAY_MS, 0, 0)
    covered = (20 + over, (everything,) * LANES)
    rules = PackRules(1, 10**12, 0, 0, 0, 0, covered, False)
    run = run_of(LIMITS, [a_record(FAST["delay"], 20)], rules)
    assert isinstance(run, Run) and run.taken == 1
    assert run.stored == (1 if over < 1 else 0)


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_an_hour_begins_at_the_same_slot(over: int) -> None:
    slot = (APPEND_MS + 10_000) // 1_000
    rules = PackRules(1, slot + over, 0, 0, 0, 0, None, False)
    run = run_of(LIMITS, PLAIN, rules)
    assert isinstance(run, Run) and run.groups[0].is_hour is (over < 1)


@pytest.mark.parametrize("counts_slots", [False, True])
def test_far_messages_are_counted_by_slot_only_where_some_are_not_counted(
    counts_slots: bool,
) -> None:
    slot = (APPEND_MS + 10_000) // 1_000
    run = run_of(LIMITS, PLAIN, PackRules(1, 0, 0, 0, 0, 0, None, counts_slots))
    counted = slot if counts_slots else slot // 3600 * 3600
    assert isinstance(run, Run) and list(run.tallies) == [(counted, "orders", PLAIN_RUN_MIN)]


def test_a_node_that_catches_up_counts_nothing_that_is_passed(new_pair: Pair) -> None:
    """Its hours are far yet, and the frontier has passed some of them."""
    for replica in (new_pair.listed, new_pair.flat):
        with replica.changed:
            replica.wheel.counts.pass_to(
                (APPEND_MS + 20 * HOUR_MS) // 1_000 + 1_800, lambda _first, _last: ()
            )
    headers: Headers = [("delayd-topic", b"orders"), ("delayd-delay", b"20h")]
    later: Headers = [("delayd-topic", b"orders"), ("delayd-delay", b"1250m")]
    new_pair.take([a_record(headers, n) for n in range(20)] + [a_record(later) for _ in range(20)])
    assert new_pair.runs == 1 and new_pair.flat.wheel.counts.total == 20


@pytest.mark.parametrize("hours", [0, 1, 2, 3, 30])
def test_what_is_due_in_near_and_far_hours_goes_where_it_goes(new_pair: Pair, hours: int) -> None:
    for ahead_ms in (0, HOUR_MS, 5 * HOUR_MS):
        at_ms = APPEND_MS + ahead_ms
        due = ("delayd-delay", b"%dh" % hours) if hours < 24 else ("delayd-delay", b"1d")
        headers: Headers = [("delayd-topic", b"orders"), due]
        new_pair.take([a_record(headers, n)._replace(append_ms=at_ms + n) for n in range(40)])
    assert new_pair.runs >= 3


@settings(max_examples=60, deadline=None)
@given(cursor_ms=st.integers(-5, 15), passed=st.integers(0, 400), lane=st.integers(0, LANES - 1))
def test_what_an_old_frontier_covers_is_not_stored(
    pair: Pair, cursor_ms: int, passed: int, lane: int
) -> None:
    first = first_frontier(0, PARTITIONS, LANES)
    cursors = [Rank(APPEND_MS + cursor_ms * 1_000, 0, 0)] * LANES
    cursors[lane] = Rank(APPEND_MS + 10_000, 1, pair.flat.ingested[1] + 8)
    offsets = tuple(offset - 200 + passed for offset in pair.flat.ingested)
    covered = Frontier(0, tuple(cursors), offsets, first.own_writes, 1, 1)
    with pytest.MonkeyPatch.context() as patch:
        for replica in (pair.listed, pair.flat):
            patch.setattr(type(replica.retention), "covered", property(lambda _self: covered))
        mixed = [replace_topic(each, n) for n, each in enumerate(PLAIN * 3)]
        pair.take(mixed)


def replace_topic(each: Record, n: int) -> Record:
    return each._replace(headers=[("delayd-topic", b"t%d" % (n % 7)), *each.headers[1:]])


def test_more_targets_than_one_call_takes_are_taken_by_several(pair: Pair) -> None:
    before = pair.runs
    pair.take([replace_topic(PLAIN[0], n) for n in range(PLAIN_RUN_MIN)])
    many = [
        PLAIN[0]._replace(headers=[("delayd-topic", b"t%d" % n), *PLAIN[0].headers[1:]])
        for n in range(3 * TOPICS_MAX)
    ]
    pair.take(many)
    assert pair.runs - before == 4


def test_more_records_than_one_call_takes_are_taken_by_several(pair: Pair) -> None:
    before = pair.runs
    pair.take([PLAIN[0]] * (2 * PACKED_MAX + PLAIN_RUN_MIN))
    assert pair.runs - before == 3


def test_no_room_is_kept_of_a_large_batch(library: native.Library, tmp_path: Path) -> None:
    """A node does not keep for ever what its largest batch took."""
    pair = Pair(tmp_path, library, replace(SETTINGS, record_bytes_max=10**6))
    value = b"v" * 100_000
    plain = [a_record(FAST["delay"], value=value)] * (ROOM_KEPT_BYTES // 2 // len(value) + 1)
    id = next(b"id-%d" % n for n in range(9) if partition_of(b"id-%d" % n, PARTITIONS) == 1)
    keyed = [a_record([*FAST["delay"], ("delayd-id", id)], key=id, value=value)] * len(plain)
    ingest = pair.flat._flat_ingest
    assert ingest._packer is not None
    for records in (plain, keyed):
        pair.take(records)
        assert len(ingest._packer._frames) <= ROOM_KEPT_BYTES >= len(ingest._reader._frames)
    assert pair.runs and pair.rows
    pair.close()


@pytest.mark.parametrize("count", [15, 16, 17, 1_000])
def test_as_many_headers_as_one_likes(pair: Pair, count: int) -> None:
    limits = replace(LIMITS, record_bytes_max=10**7)
    more: Headers = [(f"h{n}", b"x" * (n % 40)) for n in range(count)]
    asked = a_record([*FAST["delay"], *more], value=bytes(70_000))
    run = run_of(limits, [asked])
    assert isinstance(run, Run) and len(run.groups) == 1
    batch = IngestBatch(
        pair.flat.wheel.ids, CLUSTER, [LogState(0, 0)] * PARTITIONS, None, limits.rules
    )
    batch.add(asked, parse(asked, limits))
    [frame] = bytes_of(batch)
    assert run.groups[0].frames == frame.data


def test_a_record_that_comes_twice_is_a_bug_that_is_found(new_pair: Pair) -> None:
    records = [a_record(FAST["delay"], offset) for offset in (*range(20), 19)]
    flat = FlatRecords(new_pair.surveyor, flattened(records))
    with pytest.raises(AssertionError, match="offset 19 came after 19"):
        new_pair.flat.take(flat)
    assert new_pair.flat.ingested[1] == 20


def test_a_run_is_packed_again_when_an_hour_has_become_near(
    new_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its messages would go to the file of an hour that does not grow any more."""
    replica = new_pair.flat
    given_rules = replica.pack_rules
    asked: list[PackRules] = []

    def pack_rules(partition: int, offset: int) -> PackRules:
        asked.append(given_rules(partition, offset))
        if len(asked) == 1:
            replica.wheel.advance(APPEND_MS)
        return asked[-1]

    monkeypatch.setattr(replica, "pack_rules", pack_rules)
    flat = FlatRecords(new_pair.surveyor, flattened(PLAIN))
    replica.take(flat)
    assert asked[0].near_slot == 0 and len(asked) >= 3
    assert not replica.wheel.hours() and replica.ingested_count == PLAIN_RUN_MIN


@pytest.mark.parametrize(
    ("least", "below"),
    [
        (replace(LIMITS, max_delay_ms=10_000), replace(LIMITS, max_delay_ms=9_999)),
        (replace(LIMITS, record_bytes_max=FIT), replace(LIMITS, record_bytes_max=FIT - 1)),
        (replace(LIMITS, prefix="orders-"), replace(LIMITS, prefix="order")),
    ],
    ids=["longest delay", "largest record", "delayd's own topics"],
)
def test_the_cluster_s_limits_are_kept(least: RequestLimits, below: RequestLimits) -> None:
    assert isinstance(run_of(least, PLAIN), Run)
    assert run_of(below, PLAIN) == PLAIN_RUN_MIN


def test_a_run_s_own_append_time_makes_hours_near(new_pair: Pair) -> None:
    """A new wheel believes no time yet: every hour is far until the first frame is stored."""
    new_pair.take(PLAIN)
    assert not new_pair.flat.wheel.hours() and len(new_pair.flat.wheel.slots()) == 1
