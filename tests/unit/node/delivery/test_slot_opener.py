"""What a master looks for in its wheel, in turns so small that each takes many of them."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cluster_settings import LANES, PARTITIONS, SETTINGS
from long_tests import long_ones
from step_pieces import decoded, messages_of
from wheel_reading import checkpoint

from delayd.node.delivery import planner as planner_module
from delayd.node.delivery import slot_opener
from delayd.node.delivery.planner import Planner
from delayd.wheel import Entry, Frame, FrameKind, slot_index
from delayd.wheel.storage import Wheel
from replication.delivery_queue import OpenLimits, Plan, StepLimits
from replication.frontier import Frontier, first_frontier
from replication.rank import Rank

NOTHING_DONE = first_frontier(0, PARTITIONS, LANES)
SMALL = OpenLimits(lane_max=40, total_max=60, share=4)
PLENTY = StepLimits()
EVERYTHING = (10**9,) * PARTITIONS
TURNS_MAX = 3_000
BODY = ("t", None, None, b"v", None, None, None)


@pytest.fixture(autouse=True)
def _small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in [
        (slot_opener, "TURN_WORK_MAX", 60),
        (slot_opener, "SLOT_WORK", 1),
        (slot_opener, "SLICE_FRAMES", 20),
        (slot_opener, "INDEXED_FRAMES_MAX", 250),
        (planner_module, "PIECE_FRAMES", 7),
        (slot_index, "SLICE_BYTES_MIN", 100),
        (slot_index, "LEAF_PLACES_MAX", 10),
    ]:
        monkeypatch.setattr(module, name, value)


def message(offset: int, due_ms: int, *, partition: int = 0, lane: int = 0) -> Frame:
    return Frame(due_ms, partition, offset, lane, FrameKind.MESSAGE, 1, BODY)


def rank(item: Frame | Entry) -> Rank:
    return Rank(item.due_ms, item.partition, item.offset)


def step(planner: Planner, now_ms: int, limits: StepLimits = PLENTY) -> tuple[Plan, list[Rank]]:
    plan = planner.plan(now_ms, EVERYTHING, limits)
    return plan, [rank(frame) for frame in messages_of(planner.begin(plan).pieces)]


def deliver_all(planner: Planner, now_ms: int) -> list[Rank]:
    """Step by step until nothing is left to do at that time."""
    delivered: list[Rank] = []
    for _ in range(TURNS_MAX):
        plan, produced = step(planner, now_ms, StepLimits(records_max=30))
        delivered += produced
        due_ms = planner.next_due_ms(now_ms)
        if plan.is_empty and (due_ms is None or due_ms > now_ms):
            return delivered
    raise AssertionError("it never ends")


def test_a_crowded_millisecond_is_delivered_in_rank_order_by_lanes_that_hold_little(
    wheel: Wheel,
) -> None:
    """docs/design/frontier.md, Full steps: memory is bounded whatever one second holds.

    Rules: full-step
    """
    frames = [message(n, 5_500) for n in range(1_000)]
    wheel.append(frames)
    planner = Planner(wheel, SETTINGS, NOTHING_DONE, SMALL)
    delivered = []
    for _ in range(TURNS_MAX):
        plan, produced = step(planner, 6_000)
        assert len(plan.deliveries) <= SMALL.lane_max
        delivered += produced
        if len(delivered) == len(frames):
            break
    assert delivered == [rank(frame) for frame in frames]


def test_a_large_slot_is_indexed_ahead_of_its_time_and_flows_at_once(wheel: Wheel) -> None:
    """docs/design/storage.md, Reading a slot: the next slots are prefetched."""
    wheel.append([message(n, 9_000) for n in range(200)])
    planner = Planner(wheel, SETTINGS, NOTHING_DONE, SMALL)
    early_ms = 9_000 - slot_opener.PREFETCH_AHEAD_MS
    step(planner, early_ms - 1_000)
    assert planner.next_due_ms(early_ms - 1_000) == 9_000 - slot_opener.OPEN_AHEAD_MS
    turns = 0
    while turns == 0 or planner.next_due_ms(early_ms) == early_ms:
        assert step(planner, early_ms)[1] == []
        turns += 1
    assert turns > 3, "one turn did it all"
    assert planner.next_due_ms(early_ms) == 9_000 - slot_opener.OPEN_AHEAD_MS
    assert len(step(planner, 9_000)[1]) == SMALL.lane_max


def test_a_slot_that_was_forgotten_and_filled_again_is_indexed_anew(wheel: Wheel) -> None:
    """docs/design/storage.md, Forgetting: its frames are gone, whoever still has their places."""
    wheel.append([message(n, 9_000) for n in range(200)])
    planner = Planner(wheel, SETTINGS, NOTHING_DONE, SMALL)
    while step(planner, 8_000)[1] or planner.next_due_ms(8_000) == 8_000:
        pass
    wheel.forget([9])
    wheel.append([message(200, 9_100)])
    assert deliver_all(planner, 9_500) == [Rank(9_100, 0, 200)]


def test_a_turn_is_bounded_though_a_slot_holds_nothing_of_the_lanes_that_want_it(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/frontier.md, Full steps: a turn holds the lock for a bounded time."""
    wheel.append([message(n, 5_000 + n % 1_000) for n in range(2_000)])
    planner = Planner(wheel, SETTINGS, NOTHING_DONE, SMALL)
    costs: list[int] = []
    run = slot_index.SlotIndex.run

    def counted(*arguments: Any) -> slot_index.Run:
        found = run(*arguments)
        costs.append(found.cost)
        return found

    monkeypatch.setattr(slot_index.SlotIndex, "run", counted)
    while len(costs) < 100:
        before = len(costs)
        planner.plan(7_000, EVERYTHING, PLENTY)  # Never begun: the lane with messages stays full.
        assert sum(costs[before:]) <= slot_opener.TURN_WORK_MAX + 2 * slot_index.LEAF_PLACES_MAX
        if costs and not planner._slot_opener.is_busy:
            break
    assert planner._queue.opened_to < Rank(6_000, 0, 0), "the full lane has not gone on"
    assert planner._queue.wanted(Rank(8_000, 0, 0)) is None, "all others have seen all of it"


def test_lanes_at_the_front_do_not_wait_for_one_that_lags(wheel: Wheel) -> None:
    """docs/design/frontier.md, Full steps: a lane that lags has its slot looked through again, and
    the others are served before it.

    Rules: fair-lanes
    """
    wheel.append([message(n, 5_000 + n, lane=0) for n in range(300)])
    planner = Planner(wheel, SETTINGS, NOTHING_DONE, SMALL)
    slowly = StepLimits(lanes_max={0: 1})
    offset, lagging = 300, []
    for slot in range(10, 60):
        now_ms = 1_000 * slot + 500
        quick = [message(offset + n, now_ms - n, lane=1) for n in range(5)]
        offset += len(quick)
        # Nobody tells the delivery queue: it finds them when it opens the slot.
        wheel.append(quick)
        produced: list[Rank] = []
        for _ in range(8):
            produced += step(planner, now_ms, slowly)[1]
        lagging += [r for r in produced if r.due_ms < 6_000]
        assert [r for r in produced if r.due_ms > 6_000] == sorted(rank(f) for f in quick)
    assert lagging == [Rank(5_000 + n, 0, n) for n in range(len(lagging))] != []


def test_large_slots_that_lanes_lag_in_are_indexed_once_however_much_passes_at_the_front(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/storage.md, Reading a slot: what a lane stands in is kept rather than what was
    passed, and that is no hindrance to indexing what comes ahead of its time."""
    front = range(10, 22)
    for lane, slot in enumerate((5, 6)):
        wheel.append([message(100 * lane + n, 1_000 * slot + n, lane=lane) for n in range(50)])
    quick = [message(100 * slot + n, 1_000 * slot, lane=2) for slot in front for n in range(21)]
    wheel.append(quick)
    made: list[int] = []
    index = wheel.index

    def counted(slot: int, *, keeps: bool) -> slot_index.SlotIndex | None:
        made.append(slot)
        return index(slot, keeps=keeps)

    monkeypatch.setattr(wheel, "index", counted)
    roomy = OpenLimits(lane_max=20, total_max=200, share=4)
    planner = Planner(wheel, SETTINGS, NOTHING_DONE, roomy)
    slowly = StepLimits(lanes_max={0: 1, 1: 1})
    produced: list[Rank] = []
    for slot in front:
        for _ in range(3):
            produced += step(planner, 1_000 * slot - 500, slowly)[1]
        assert slot in made, "it is indexed ahead of its time"
    assert {slot: made.count(slot) for slot in (5, 6)} == {5: 1, 6: 1}
    for slot in (5, 6):
        lagging = [r for r in produced if r.due_ms // 1_000 == slot]
        assert roomy.lane_max < len(lagging) < 50, "it was opened again, and lags"
    of_front = [r for r in produced if r.due_ms >= 10_000]
    assert of_front == [rank(frame) for frame in quick][: len(of_front)]
    assert len(of_front) >= len(quick) - 2 * 21


def test_a_slot_at_the_front_does_not_lose_its_index_to_one_that_lags(wheel: Wheel) -> None:
    """docs/design/storage.md, Reading a slot: only one of them has room."""
    lagging = [message(n, 5_000, lane=0) for n in range(200)]
    wheel.append(lagging)
    front = [message(200 + n, 10_000, lane=1) for n in range(200)]
    wheel.append(front)
    planner = Planner(wheel, SETTINGS, NOTHING_DONE, SMALL)
    delivered: list[Rank] = []
    while len(delivered) < SMALL.lane_max:
        delivered += step(planner, 5_500, StepLimits(records_max=1))[1]
    planner.plan(8_900, EVERYTHING, PLENTY)  # All lanes but that one come to the front.
    began = len(delivered)
    delivered += deliver_all(planner, 10_500)
    assert [r for r in delivered if r.due_ms == 10_000] == [rank(frame) for frame in front]
    assert [r for r in delivered if r.due_ms == 5_000] == [rank(frame) for frame in lagging]
    meanwhile = delivered[began : delivered.index(rank(front[-1]))]
    assert sum(r.due_ms == 5_000 for r in meanwhile) <= SMALL.lane_max, "what it held already"


def test_two_slots_that_lag_and_of_which_only_one_has_room_take_turns(wheel: Wheel) -> None:
    """docs/design/storage.md, Reading a slot: an index that was begun is finished and used."""
    frames = [
        message(200 * lane + n, 5_000 + 1_000 * lane, lane=lane)
        for lane in range(2)
        for n in range(200)
    ]
    wheel.append(frames)
    delivered = deliver_all(Planner(wheel, SETTINGS, NOTHING_DONE, SMALL), 20_500)
    first, second = ([rank(f) for f in frames if f.lane == lane] for lane in range(2))
    assert [r for r in delivered if r in first] == first
    assert [r for r in delivered if r in second] == second
    assert delivered.index(second[0]) < delivered.index(first[100])
    assert delivered.index(first[100]) < delivered.index(second[100])


def test_what_arrives_while_late_arrivals_are_looked_for_is_delivered_once(wheel: Wheel) -> None:
    """docs/design/frontier.md, Takeover: late arrivals at or beyond O, before the first step.

    Rules: late-arrival
    """
    frontier = replace(
        NOTHING_DONE, cursors=(Rank(6_000, 0, 0),) * LANES, offsets=(500, *NOTHING_DONE.offsets[1:])
    )
    wheel.append([message(n, 5_000 + n % 900) for n in range(600)])
    planner = Planner(wheel, SETTINGS, frontier, SMALL)
    waits = planner.plan(9_000, EVERYTHING, PLENTY)
    assert waits.is_empty
    assert waits.frontier == replace(frontier, step=frontier.step + 1), "O passes nothing yet"
    assert planner.next_due_ms(9_000) == 9_000
    planner.arrived(wheel.append([message(n, 5_000 + n % 900) for n in range(600, 620)]))
    delivered = deliver_all(planner, 9_000)
    assert sorted(delivered) == sorted(Rank(5_000 + n % 900, 0, n) for n in range(500, 620))


def test_a_slot_that_is_forgotten_while_late_arrivals_are_looked_for_is_left_out(
    wheel: Wheel,
) -> None:
    """docs/design/frontier.md, Forgetting: another master has passed it."""
    cursors = (Rank(7_000, 0, 0),) * LANES
    wheel.append([message(n, 5_000) for n in range(100)])
    wheel.append([message(100, 6_000)])
    planner = Planner(wheel, SETTINGS, replace(NOTHING_DONE, cursors=cursors), SMALL)
    assert planner.plan(9_000, EVERYTHING, PLENTY).is_empty
    wheel.forget([5])
    assert deliver_all(planner, 9_000) == [Rank(6_000, 0, 100)]


@pytest.mark.parametrize("seed", [*range(5), *long_ones(*range(5, 12))])
def test_whatever_arrives_and_however_small_the_turns_done_is_exact(
    wheel: Wheel, seed: int
) -> None:
    """docs/design/frontier.md, Step: exactly Done(K', O') - Done(K, O), each message once.

    Rules: exactly-done
    """
    chance = Random(seed)
    now_ms, ends = 100_000, [0] * PARTITIONS
    stored: list[Frame] = []
    frontier = NOTHING_DONE
    delivered: set[Rank] = set()

    def store(count: int) -> list[Entry]:
        frames = []
        for _ in range(count):
            partition = chance.randrange(PARTITIONS)
            due_ms = now_ms + chance.choice([-500, 0, 0, 40, 900, 1_500, 3_000])
            lane = chance.choice([0, 0, 0, 1, 2, LANES - 1])
            frames.append(message(ends[partition], due_ms, partition=partition, lane=lane))
            ends[partition] += 1
        stored.extend(frames)
        return wheel.append(frames)

    store(300)
    planner = Planner(wheel, SETTINGS, frontier, SMALL)
    for turn in range(150):
        if turn < 120:
            planner.arrived(store(chance.choice([0, 1, 5, 40])))
            now_ms += chance.choice([0, 10, 100, 600])
        else:
            now_ms += 1_000
        if chance.random() < 0.1:
            checkpoint(wheel)
        if chance.random() < 0.05:
            planner = Planner(wheel, SETTINGS, frontier, SMALL)
        limits = StepLimits(records_max=chance.choice([3, 40, 200]), lanes_max={0: 60})
        plan = planner.plan(now_ms, tuple(ends), limits)
        taken = planner.begin(plan)
        pieces = [*map(decoded, taken.pieces), taken.deferred]
        assert all(piece.killed_count == 0 for piece in pieces)
        dealt_with = [rank(frame) for piece in pieces for frame in piece.messages]
        newly_done = done(stored, plan.frontier) - done(stored, frontier)
        assert set(dealt_with) == newly_done and len(dealt_with) == len(newly_done)
        assert not newly_done & delivered
        delivered |= newly_done
        frontier = plan.frontier
        indexes = planner._slot_opener._indexes
        assert sum(index.count for index in indexes.values()) <= 250 or len(indexes) == 1
        held = sum(len(lane) for lane in planner._queue._lanes)
        assert held == planner._queue._held <= 2 * (SMALL.total_max + LANES * SMALL.share)
    delivered |= set(deliver_all(planner, now_ms))
    assert delivered == {rank(frame) for frame in stored}


def done(stored: list[Frame], frontier: Frontier) -> set[Rank]:
    return {rank(frame) for frame in stored if frontier.covers(frame.lane, rank(frame))}


def test_what_arrives_for_an_hour_that_is_opened_can_be_read(tmp_path: Path) -> None:
    """However short the horizon: lanes are opened a little ahead, into an hour that begins soon
    (seed 5 of the simulation, with faults of etcd only)."""
    wheel = Wheel.open(tmp_path, partitions=PARTITIONS, horizon_s=0)
    hour_ms = 3_600_000
    planner = Planner(wheel, SETTINGS, NOTHING_DONE, SMALL)
    planner.arrived(wheel.append([message(0, hour_ms - 50)]))
    step(planner, hour_ms - 100)
    planner.arrived(wheel.append([message(1, hour_ms + 20)]))
    assert deliver_all(planner, hour_ms + 100) == [(hour_ms - 50, 0, 0), (hour_ms + 20, 0, 1)]
    wheel.close()
