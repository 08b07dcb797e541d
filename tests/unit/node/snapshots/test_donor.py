"""What a node bears that gives its wheel: snapshots are few, bounded, and in nobody's way."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from exporting_node import BEGIN_MS, ExportingNode, cut, schedule
from giving_node import Giver
from manual_clock import ManualClock

from delayd.node.snapshots import donor as donors
from delayd.node.snapshots.donor import Donor
from delayd.runtime.clock import SystemClock


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Giver]:
    made = Giver(tmp_path / "1", "n1")
    yield made
    made.close()


def test_pins_are_few_and_end(one: Giver, monkeypatch: pytest.MonkeyPatch) -> None:
    files = one.node.replica.wheel._segments.files
    first = one.donor.begin("a")["snapshot"]
    assert one.donor.begin("a")["snapshot"] != first, "a node has one at a time"
    assert files.holds == 1
    one.donor.begin("b")
    with pytest.raises(Exception, match="2 other nodes"):
        one.donor.begin("c")
    one.donor.give_way()
    assert files.holds == 0 and one.donor.shown() == []
    monkeypatch.setattr(donors, "IDLE_S", 0.05)
    one.donor.begin("a")
    deadline = threading.Event()
    for _ in range(1_000):
        if not one.donor.shown():
            break
        deadline.wait(0.02)
    assert files.holds == 0, "nobody asked for anything of it"


def test_a_copy_that_advances_keeps_its_snapshot(
    one: Giver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/storage.md, Snapshots.

    Rules: pins-bounded
    """
    monkeypatch.setattr(donors, "CHUNK_BYTES", 1_000)
    clock = ManualClock(10**12)
    donor = Donor(one.node.replica, clock, node="n", bytes_per_s=2**30)
    id = donor.begin("a")["snapshot"]

    def is_kept_after(position: int) -> bool:
        """Is the snapshot kept when that is read after a while?"""
        clock.now_ms += donors.IDLE_S * 900
        donor.bytes_at(id, position)
        donor._look(donor._pins[id])
        return id in donor._pins

    assert all(is_kept_after(1_000 * n) for n in range(50))
    assert donor.shown()[0]["age_ms"] > donors.PIN_S * 1_000
    # The same again is no advance.
    assert is_kept_after(0)
    assert not is_kept_after(0)
    # What advances ends, too.
    id = donor.begin("a")["snapshot"]
    donor._pins[id].began_ms -= donors.PIN_MAX_S * 1_000
    assert not is_kept_after(0)
    donor.stop()


def test_a_disk_that_gets_short_ends_them(tmp_path: Path) -> None:
    node = ExportingNode(tmp_path, free_min_bytes=1_000)
    node.see(cut(0, append_ms=0))
    node.take(schedule(0, BEGIN_MS))
    node.replica.checkpoint()
    donor = Donor(node.replica, SystemClock(), node="n", bytes_per_s=2**30)
    donor.begin("a")
    node.disk.free = 1_100
    node.replica.checkpoint()
    assert donor.shown() == []
    with pytest.raises(Exception, match="short"):
        donor.begin("a")
    donor.stop()
    node.close()


def test_the_rate_is_kept(one: Giver) -> None:
    donor = Donor(one.node.replica, ManualClock(10**12), node="n", bytes_per_s=1_000)
    assert [donor.pause_s(500) for _ in range(4)] == [0, 0.5, 1.0, 1.5]


def test_the_lock_is_held_for_less_than_10_ms(one: Giver) -> None:
    """Whatever a snapshot does, ingest and delivery go on."""
    lock, longest = one.node.replica.changed, [0]
    clock = SystemClock()

    class Watched:
        def __enter__(self) -> None:
            lock.__enter__()
            self.since = clock.monotonic_ns()

        def __exit__(self, *error: object) -> None:
            longest[0] = max(longest[0], clock.monotonic_ns() - self.since)
            lock.__exit__(None, None, None)

    one.node.replica.changed = Watched()  # type: ignore[assignment]
    id = one.donor.begin("a")["snapshot"]
    one.donor.lines_after(id, b"")
    one.donor.bytes_at(id, 0)
    one.donor.end(id)
    one.node.replica.changed = lock
    assert 0 < longest[0] < 10_000_000
