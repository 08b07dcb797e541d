"""A node short of room: what it takes in, what it goes on doing, and when it takes in all again.

Source: docs/design/storage.md, "Short of room".
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from exporting_node import BEGIN_MS, SETTINGS, SmallDisk, cut, schedule
from manual_clock import ManualClock
from one_node import DeliveryDesk, open_replica, wait_for
from structlog.testing import capture_logs

from delayd.node.delivery.delivery_context import DeliveryOptions
from delayd.node.replica.ingest_loop import IngestLoop
from delayd.node.replica.replica import Replica
from delayd.node.replica.room import Room

LIMIT = 1_000_000


@pytest.fixture
def disk() -> SmallDisk:
    return SmallDisk()


@pytest.fixture
def replica(tmp_path: Path, disk: SmallDisk) -> Iterator[Replica]:
    made = open_replica(tmp_path, SETTINGS, disk_free_min_bytes=LIMIT, disk=disk)
    yield made
    made.close()


def looked(*free_bytes: int, limit_bytes: int = 100) -> list[str]:
    room, states = Room(limit_bytes), []
    for free in free_bytes:
        room.look(free, is_refused=False)
        states.append(room.state.value)
    return states


def test_it_takes_a_quarter_more_than_the_limit_to_have_room_again() -> None:
    """Rules: short-takes-in-less"""
    states = looked(100, 99, 124, 125, 100, 24, 30, 31, 124, 125)
    assert states == [
        *("enough", "short", "short", "enough", "enough"),
        *("full", "full", "short", "short", "enough"),
    ]


def test_a_limit_of_zero_is_none() -> None:
    assert looked(0, limit_bytes=0) == ["enough"]


def test_a_refused_write_is_a_full_disk_whatever_is_free() -> None:
    room = Room(100)
    room.look(10**9, is_refused=True)
    assert room.state.value == "full" and room.may_checkpoint
    room.look(10**9, is_refused=False)
    assert room.state.value == "enough"


def test_one_line_says_that_it_begins_and_one_that_it_is_over() -> None:
    with capture_logs() as lines:
        looked(100, 99, 20, 50, 20, 99, 125, 200)
    assert [(line["event"], line["free_bytes"]) for line in lines] == [
        ("disk_short", 99),
        ("disk_has_room", 125),
    ]


def test_a_short_node_takes_in_what_the_newest_frontier_took_into_account(
    replica: Replica, disk: SmallDisk
) -> None:
    """Rules: short-takes-in-less"""
    disk.free = LIMIT - 1
    assert not replica.takes_in(), "no frontier is known"
    replica.observe(cut(1, (2, 0), own_writes=(3, -1)))
    for offset in range(4):
        assert replica.takes_in(), f"before {offset}"
        replica.take([schedule(offset, BEGIN_MS)])
    assert not replica.takes_in(), "it has passed O and R"
    disk.free = LIMIT // 4 - 1
    replica.observe(cut(2, (6, 0), own_writes=(3, -1)))
    assert not replica.takes_in(), "the disk is full"
    disk.free = LIMIT * 5 // 4
    assert replica.takes_in()


def test_without_room_for_it_no_checkpoint_is_made_until_there_is(
    replica: Replica, disk: SmallDisk
) -> None:
    replica.take([schedule(0, BEGIN_MS)])
    disk.free = LIMIT // 8 - 1
    assert not replica.checkpoint()
    assert replica.wheel.progress is None and replica.wheel.stats().tail_bytes > 0
    disk.free = LIMIT // 8 + replica.wheel.stats().tail_bytes
    assert replica.checkpoint()
    assert replica.wheel.progress is not None and replica.wheel.progress.offsets == (1, 0)


def test_what_waits_in_memory_is_not_counted_as_free(replica: Replica, disk: SmallDisk) -> None:
    disk.free = LIMIT
    assert replica.takes_in()
    replica.take([schedule(0, BEGIN_MS)])
    assert not replica.takes_in()


def test_the_ingest_loop_leaves_records_in_the_buffer_until_there_is_room(tmp_path: Path) -> None:
    """Rules: short-takes-in-less"""
    clock, disk = ManualClock(), SmallDisk()
    options = DeliveryOptions(idle_interval_ms=50, clock_drift_max_ms=500)
    desk = DeliveryDesk(tmp_path, clock, options, disk=disk, disk_free_min_bytes=LIMIT)
    ended: list[BaseException] = []
    ingestion = IngestLoop(desk.bus, desk.replica, clock, 0, ended.append)
    disk.free = LIMIT - 1
    desk.send("orders", clock.wall_ms())
    ingestion.start()
    # A loop with a checkpoint at each turn.
    begun_ms = clock.now_ms
    for _ in range(3):
        clock.now_ms += 1
        wait_for(lambda: ingestion.checkpointed_ms == clock.monotonic_ms())
    assert clock.now_ms == begun_ms + 3 and desk.replica.ingested == (0,)
    disk.free = LIMIT * 2
    wait_for(lambda: desk.replica.ingested == (1,))
    ingestion.stop(10)
    desk.stop()
    assert ended == []
