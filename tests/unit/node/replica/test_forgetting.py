"""A replica over a real wheel: what it may forget, and what it does not store at all."""

from dataclasses import replace
from itertools import count as count_up
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cluster_settings import PARTITIONS
from exporting_node import BEGIN_MS, cancel, cut, schedule
from replica_records import HOLD_MS, NOTHING_DONE, Opener, deliver_all, reject, request

from delayd.bus import Record
from delayd.bus.murmur2 import partition_of
from delayd.wheel.disk import SystemDisk
from replication.log_time import trail_ms_of
from replication.rank import Rank
from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE, RULES_VERSION


def free_now(folder: Path) -> int:
    return SystemDisk().free_bytes(str(folder))


COVERING: dict[str, Any] = {"cursor_ms": BEGIN_MS + 5_000, "offsets": (5, 1), "own_writes": (4, -1)}


@pytest.mark.parametrize(("held_ms", "left"), [(HOLD_MS, 0), (HOLD_MS - 1, 6)])
def test_what_a_frontier_of_before_the_hold_covers_is_forgotten(
    open_replica: Opener, held_ms: int, left: int
) -> None:
    """docs/design/frontier.md, Ingest: dropped only when a frontier at least `export_hold` old
    covers it and this node has ingested beyond that frontier's O and R.

    Rules: forget-by-old-frontier
    """
    replica = open_replica()
    replica.take([request(offset, BEGIN_MS + offset) for offset in range(4)])
    replica.take([reject(4), request(0, BEGIN_MS, partition=1)])
    replica.observe(cut(0, append_ms=BEGIN_MS - HOLD_MS))
    replica.observe(cut(1, **COVERING))
    replica.observe(cut(2, append_ms=BEGIN_MS + held_ms, **COVERING))
    replica.checkpoint()
    assert replica.wheel.stats().frames == left
    assert len(deliver_all(replica, NOTHING_DONE, BEGIN_MS + 9_000)) == left
    assert open_replica().wheel.stats().frames == left, "and it stays forgotten"


def test_the_last_frontier_before_an_idle_time_covers_what_it_covers(open_replica: Opener) -> None:
    """Others may lie so near before it that they are not all remembered."""
    replica = open_replica()
    replica.take([request(offset, BEGIN_MS + offset) for offset in range(4)])
    replica.take([reject(4), request(0, BEGIN_MS, partition=1)])
    for step, before_ms in enumerate((HOLD_MS, 200, 100)):
        replica.observe(cut(step, append_ms=BEGIN_MS - before_ms))
    replica.observe(cut(3, **COVERING))
    replica.observe(cut(4, append_ms=BEGIN_MS + HOLD_MS, **COVERING))
    replica.checkpoint()
    assert replica.wheel.stats().frames == 0


def test_the_newest_frontier_does_not_count_while_it_is_young(open_replica: Opener) -> None:
    """docs/design/frontier.md, Ingest: the old frontier covers, not the one that was read last.

    Rules: forget-by-old-frontier
    """
    replica = open_replica()
    replica.take([request(0, BEGIN_MS), request(1, BEGIN_MS + 3_000)])
    replica.observe(cut(1, cursor_ms=BEGIN_MS + 1_000, offsets=(1, 0)))
    replica.observe(
        cut(2, cursor_ms=BEGIN_MS + 9_000, offsets=(2, 0), append_ms=BEGIN_MS + HOLD_MS)
    )
    replica.checkpoint()
    assert replica.wheel.stats().frames == 1


def test_a_slot_with_one_message_that_is_not_done_stays(open_replica: Opener) -> None:
    """docs/design/frontier.md, Ingest: all that a slot holds must be covered.

    Rules: forget-by-old-frontier
    """
    replica = open_replica(hold_ms=0)
    replica.take([request(0, BEGIN_MS), request(1, BEGIN_MS + 1), request(2, BEGIN_MS + 5_000)])
    replica.observe(cut(1, cursor_ms=BEGIN_MS + 5_999, offsets=(1, 0)))
    replica.checkpoint()
    assert replica.wheel.stats().frames == 3
    replica.observe(cut(2, cursor_ms=BEGIN_MS + 5_999, offsets=(3, 0), append_ms=BEGIN_MS + 1))
    replica.checkpoint()
    assert replica.wheel.stats().frames == 1, "the cursor's own slot stays"


@pytest.mark.parametrize(
    ("ingested", "own_writes"),
    [
        pytest.param(4, (-1, -1), id="beyond R, but not at O"),
        # The shard's own writes may continue what was killed here.
        pytest.param(5, (5, -1), id="at O, but not beyond R"),
    ],
)
def test_a_node_that_is_behind_the_frontier_forgets_frames_and_keeps_who_was_killed(
    open_replica: Opener, ingested: int, own_writes: tuple[int, int]
) -> None:
    """docs/design/frontier.md, Forgetting: this node has itself ingested beyond O and R.

    Rules: forget-after-own-ingest
    """
    replica = open_replica(hold_ms=0)
    killed = schedule(0, BEGIN_MS, id="b")
    partition, rank = killed.partition, Rank(BEGIN_MS, killed.partition, 0)
    assert partition == 0
    replica.take([killed, cancel(1, "b")])
    replica.take([request(offset, BEGIN_MS) for offset in range(2, ingested)])
    replica.checkpoint()
    replica.observe(cut(1, cursor_ms=BEGIN_MS + 5_000, offsets=(5, 0), own_writes=own_writes))
    replica.checkpoint()
    assert replica.wheel.stats().frames == 0, "what it has of the slots is delivered"
    assert replica.wheel.ids.kill(rank) is not None, "a continuation must find it"
    replica.take([request(ingested, BEGIN_MS + 60_000)])
    replica.checkpoint()
    assert replica.wheel.ids.kill(rank) is None
    assert replica.wheel.stats().frames == 1


@pytest.mark.parametrize(("guarantee", "stays"), [(EXACTLY_ONCE, False), (AT_LEAST_ONCE, True)])
def test_without_a_fence_a_kill_is_kept_as_long_as_ids_are(
    open_replica: Opener, guarantee: str, stays: bool
) -> None:
    """A master that was superseded, and does not know it, may continue the message later: all nodes
    refuse that, or one of them delivers what was cancelled.

    Rules: forget-after-own-ingest
    """
    replica = open_replica(hold_ms=0)
    replica.settings = replace(replica.settings, guarantee=guarantee)
    rank = Rank(BEGIN_MS, 0, 0)
    replica.take([schedule(0, BEGIN_MS, id="b"), cancel(1, "b")])
    replica.checkpoint()
    replica.observe(cut(1, cursor_ms=BEGIN_MS + 5_000, offsets=(2, 0)))
    replica.take([request(2, BEGIN_MS + 60_000)])
    replica.checkpoint()
    assert (replica.wheel.ids.kill(rank) is not None) is stays


# --- Rebuilding


def test_a_node_that_begins_stores_nothing_that_was_done_by_then(open_replica: Opener) -> None:
    """docs/design/storage.md, Rebuilding: the frontier that it begins with counts at once. What
    that covers in one lane only, or below one offset only, is not done.

    Rules: covered-not-stored
    """
    replica = open_replica()
    replica.observe(cut(7, cursor_ms=BEGIN_MS + 5_000, offsets=(9, 1)))
    replica.take([request(offset, BEGIN_MS + 1_000 * offset) for offset in range(8)])
    replica.take([reject(8), request(9, BEGIN_MS), request(10, BEGIN_MS + 60_000)])
    replica.take([request(offset, BEGIN_MS, partition=1) for offset in range(3)])
    replica.checkpoint()
    stats = replica.wheel.stats()
    assert (stats.frames, stats.slots) == (3 + 2 + 2, 5)
    assert replica.pending().total == 3 + 1
    assert open_replica().retention.covered is not None, "a later life knows what is missing"


def test_after_a_short_stop_older_cuts_can_still_be_exported(open_replica: Opener) -> None:
    """docs/design/storage.md, Rebuilding: within `export_hold` nothing is given up."""
    for stopped_ms, is_kept in ((HOLD_MS - 1, True), (HOLD_MS, False)):
        replica = open_replica()
        replica.observe(cut(5))
        replica.checkpoint()
        after = cut(6, cursor_ms=BEGIN_MS, offsets=(1, 0))
        now_ms = cut(5).record.now_ms + stopped_ms
        again = open_replica()
        again.observe(after._replace(record=replace(after.record, now_ms=now_ms)))
        assert again.retention.pin(cut(5).record.frontier) is is_kept


def test_ids_of_what_is_not_stored_are_remembered_for_as_long_as_others(
    open_replica: Opener,
) -> None:
    """docs/design/storage.md, Rebuilding: a repeat of a delivered message is told from a new one,
    and an id is forgotten though the node is far behind.

    Rules: covered-not-stored, forget-ids-by-log-time
    """
    replica = open_replica(hold_ms=0)
    count, step_ms, delay_ms = 4_000, 10_000, 100_000
    end_ms = BEGIN_MS + count * step_ms
    replica.observe(cut(7, cursor_ms=end_ms + delay_ms, offsets=(2 * count, 0), append_ms=end_ms))

    ids = (id for n in count_up() if partition_of(id := b"id-%d" % n, PARTITIONS) == 0)
    names = list(islice(ids, count))

    def named(offset: int, number: int) -> Record:
        append_ms = BEGIN_MS + number * step_ms
        asked = [("delayd-topic", b"t"), ("delayd-delay", b"%dms" % delay_ms)]
        id = names[number]
        return Record(0, offset, 0, append_ms, id, b"v", [*asked, ("delayd-id", id)])

    for repeats, first in enumerate(range(0, count, 500)):
        replica.take([named(first + n + repeats, first + n) for n in range(500)])
        last = names[first + 499].decode()
        before = replica.know(0, last)
        # The last again, while it is pending by the log's time: a duplicate.
        replica.take([named(first + 500 + repeats, first + 499)])
        assert before is not None and replica.know(0, last) == before
        replica.checkpoint()
    replica.checkpoint()
    assert replica.wheel.stats().frames == 0
    remembered_ms = (
        replica.settings.id_memory_ms + trail_ms_of(replica.settings, RULES_VERSION) + delay_ms
    )
    known = sum(replica.know(0, id.decode()) is not None for id in names)
    assert remembered_ms // step_ms <= known <= remembered_ms // step_ms + 3 * 500


def test_what_is_covered_already_is_not_stored_when_it_is_read(open_replica: Opener) -> None:
    """docs/design/frontier.md, Ingest: what an old frontier covers is stored without payload.

    Rules: covered-not-stored
    """
    replica = open_replica(hold_ms=0)
    replica.observe(cut(1, cursor_ms=BEGIN_MS + 5_000, offsets=(3, 0)))
    replica.checkpoint()
    replica.take([request(0, BEGIN_MS), reject(1), request(2, BEGIN_MS + 5_000), reject(3)])
    assert replica.wheel.stats().frames == 2
    assert replica.ingested == (4, 0)


# --- Short of room, hours that are not indexed


def test_a_disk_that_is_nearly_full_gives_up_delivered_slots_first(
    open_replica: Opener, tmp_path: Path
) -> None:
    """docs/design/frontier.md, Ingest: `export_hold` is shorter below the disk's watermark.

    Rules: forget-early-when-short
    """
    replica = open_replica(free_min_bytes=free_now(tmp_path) + 2**30)
    replica.take([request(0, BEGIN_MS), request(1, BEGIN_MS + 9_000)])
    replica.observe(cut(1, cursor_ms=BEGIN_MS + 5_000, offsets=(2, 0)))
    replica.checkpoint()
    assert replica.wheel.stats().frames == 1, "only what is not delivered yet is still there"


def test_what_was_passed_while_its_hour_was_not_indexed_is_not_pending_afterwards(
    open_replica: Opener,
) -> None:
    """docs/design/storage.md, Counts: a node that starts reads the frontier first, and an idle
    master writes the next one after an hour.

    Rules: pending-counts
    """
    due_ms = BEGIN_MS + 4 * 3_600_000
    replica = open_replica()
    replica.take([request(0, due_ms)])
    replica.observe(cut(1))
    replica.checkpoint()
    replica = open_replica()
    replica.observe(cut(2, cursor_ms=due_ms + 60_000, offsets=(1, 0), append_ms=due_ms + 60_000))
    while replica.split_some(due_ms + 60_000):
        pass
    replica.checkpoint()
    assert replica.pending() == (0, {}, {})
