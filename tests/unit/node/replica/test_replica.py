"""A replica over a real wheel: ingest, restarts, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import one_node
import pytest
from cluster_settings import LANES, PARTITIONS
from exporting_node import BEGIN_MS, SETTINGS, cut
from replica_records import NOTHING_DONE, PLENTY, Opener, deliver_all, reject, request
from step_pieces import messages_of

from delayd.bus import Position
from delayd.config.cluster_key import fingerprint
from delayd.errors import DiskError, FrontierError, WrongClusterKeyError
from delayd.node.delivery.planner import Planner
from delayd.wheel.storage import Wheel
from replication.log_time import trail_ms_of
from replication.rank import Rank
from replication.record import decode, encode
from replication.settings import DAY_MS, RULES_VERSION, Topic

# --- Ingest


def test_what_is_ingested_is_planned_and_read_back_whole(open_replica: Opener) -> None:
    """docs/design/frontier.md, Ingest: applied to the node's state, in memory or on disk."""
    replica = open_replica()
    replica.take([request(3, BEGIN_MS + 500), request(4, BEGIN_MS + 100)])
    planner = Planner.of(replica, NOTHING_DONE)
    replica.take([request(0, BEGIN_MS + 300, partition=1), request(9, BEGIN_MS + 9_000)])
    plan = planner.plan(BEGIN_MS + 500, replica.ingested, PLENTY)
    messages = messages_of(planner.begin(plan).pieces)
    assert [(frame.partition, frame.offset) for frame in messages] == [(0, 4), (1, 0), (0, 3)]
    assert [frame.body[3] for frame in messages] == [b"4", b"0", b"3"]
    assert plan.frontier.offsets == replica.ingested == (10, 1)
    assert planner.frontier == plan.frontier


def test_a_reject_waits_as_an_answer_for_the_step_that_passes_it(open_replica: Opener) -> None:
    """docs/design/frontier.md, Ingest and Step.

    Rules: reject-answered
    """
    replica = open_replica()
    [rejected] = replica.take([request(0, BEGIN_MS), reject(1)])
    assert (rejected.partition, rejected.offset) == (0, 1)
    assert rejected.reject.reason.slug == "missing-due"
    assert deliver_all(replica, NOTHING_DONE, BEGIN_MS) == [(0, 0), (0, 1)]


def test_a_record_that_comes_twice_is_a_bug(open_replica: Opener) -> None:
    """docs/design/frontier.md, Ingest: records go in once, in offset order."""
    replica = open_replica()
    replica.take([request(0, BEGIN_MS)])
    with pytest.raises(AssertionError, match="came after 0"):
        replica.take([request(0, BEGIN_MS)])


def test_a_master_knows_when_something_is_due(open_replica: Opener) -> None:
    """docs/design/frontier.md, Step: a master sleeps until a slot must be opened."""
    replica = open_replica()
    planner = Planner.of(replica, NOTHING_DONE)
    assert planner.next_due_ms(BEGIN_MS) is None
    replica.take([request(0, BEGIN_MS + 60_500)])
    assert planner.next_due_ms(BEGIN_MS) == BEGIN_MS + 60_000 - 200
    planner.plan(BEGIN_MS + 60_000, replica.ingested, PLENTY)
    assert planner.next_due_ms(BEGIN_MS + 60_000) == BEGIN_MS + 60_500


def test_a_batch_that_fails_halfway_counts_as_not_ingested(open_replica: Opener) -> None:
    """docs/design/frontier.md, Ingest: what is counted as ingested is in the wheel."""
    replica = open_replica()
    replica.take([request(5, BEGIN_MS)])
    with pytest.raises(AssertionError, match="came after"):
        replica.take(
            [request(0, BEGIN_MS, partition=1), request(6, BEGIN_MS), request(6, BEGIN_MS)]
        )
    assert replica.ingested == (6, 0) and replica.wheel.stats().frames == 1


# --- Restarts


def test_after_a_crash_the_rest_is_read_again_without_doubles(open_replica: Opener) -> None:
    """docs/design/frontier.md, Ingest: the buffer is the write-ahead log.

    Rules: log-time, snapshot-and-log
    """
    before = open_replica()
    before.take([request(0, BEGIN_MS, epoch=3), request(1, BEGIN_MS + 50, epoch=4)])
    before.checkpoint()
    lost = [request(2, BEGIN_MS + 20), reject(3), request(5, BEGIN_MS + 10, partition=1)]
    before.take(lost)
    after = open_replica()
    assert after.positions == {0: Position(2, 4), 1: Position(0, -1)}
    trail_ms = trail_ms_of(after.settings, RULES_VERSION)
    assert after.log_ms == (BEGIN_MS - trail_ms, 0)
    after.take(lost)
    assert after.ingested == (4, 6)
    assert sorted(deliver_all(after, NOTHING_DONE, BEGIN_MS + 99)) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 5),
    ]


def test_a_checkpoint_whose_frontier_needs_a_newer_release_is_refused(
    open_replica: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/frontier.md, Optional fields.

    Rules: needed-features
    """
    before = open_replica()
    newest = cut(1)
    before.observe(newest)
    known = encode(newest.record)
    needing = json.dumps({**json.loads(known), "format": 3, "needs": {"later": "9.1.0"}})
    monkeypatch.setattr("delayd.node.replica.replica.encode", lambda _: needing.encode())
    before.checkpoint()
    with pytest.raises(FrontierError, match=r"checkpoint.*run delayd 9\.1\.0 or later"):
        open_replica()


def test_a_leap_of_the_append_times_survives_a_crash(open_replica: Opener) -> None:
    """docs/design/frontier.md, Log time: it decides with those behind it.

    Rules: log-time, leap-not-followed
    """
    ahead_ms = BEGIN_MS + DAY_MS
    before = open_replica()
    before.take([request(0, BEGIN_MS), request(1, ahead_ms)._replace(append_ms=ahead_ms)])
    before.checkpoint()
    after = open_replica()
    assert after.newest_append_ms == ahead_ms and after.log_ms == before.log_ms
    later_ms = ahead_ms + 2 * after.settings.id_memory_ms
    after.take([request(2, later_ms)._replace(append_ms=later_ms)])
    assert after.log_ms == (later_ms - trail_ms_of(after.settings, RULES_VERSION), 0)


def test_what_is_stamped_far_ahead_is_filed_by_the_hour(open_replica: Opener) -> None:
    """docs/design/storage.md, Hour files: no file for each second of the hours between."""
    replica = open_replica()
    ahead = request(1, BEGIN_MS)._replace(append_ms=BEGIN_MS + DAY_MS)
    replica.take([request(0, BEGIN_MS), ahead])
    replica.take([request(2, BEGIN_MS + DAY_MS // 2)])
    assert len(list(replica.wheel.hours())) == 2


def test_a_successor_finds_late_arrivals_in_the_wheel(open_replica: Opener) -> None:
    """docs/design/frontier.md, Takeover and Step: rank < K, offset >= O.

    Rules: late-arrival
    """
    replica = open_replica()
    replica.take([request(offset, BEGIN_MS + 1_500 * offset) for offset in range(6)])
    done = replace(NOTHING_DONE, cursors=(Rank(BEGIN_MS + 5_000, 0, 0),) * LANES, offsets=(2, 0))
    assert deliver_all(replica, done, BEGIN_MS + 5_000) == [(0, 2), (0, 3)]
    assert deliver_all(replica, done, BEGIN_MS + 60_000) == [(0, 2), (0, 3), (0, 4), (0, 5)]


def test_a_wheel_of_another_cluster_is_refused(open_replica: Opener) -> None:
    """docs/design/frontier.md, Ingest: offsets of another buffer mean nothing here."""
    replica = open_replica()
    replica.observe(cut(1))
    replica.checkpoint()
    replica.close()
    created_again = replace(SETTINGS, buffer=Topic("delayd-buffer", "id-9"))
    with pytest.raises(DiskError, match=r"belongs to the cluster 'c'.*own data_dir"):
        open_replica(settings=created_again)


def test_a_log_trimmed_up_to_what_was_read_is_no_loss(open_replica: Opener) -> None:
    """The tail of a partition may be a commit marker: it is read, but never ingested."""
    replica = open_replica()
    replica.take([request(28, BEGIN_MS)])
    replica.checkpoint(reached=(30, 0))
    replica = open_replica()
    assert replica.ingested == (29, 0) and replica.reached == (30, 0)
    replica.resume_at(0, 30)
    assert replica.positions[0] == Position(30) and replica.ingested == (29, 0)
    with pytest.raises(AssertionError, match="never read"):
        replica.resume_at(0, 31)


# --- Frontiers


def test_a_frontier_that_steps_back_is_refused(open_replica: Opener) -> None:
    """docs/design/frontier.md, Ingest: a committed frontier older than the newest seen.

    Rules: frontier-not-older
    """
    replica = open_replica()
    replica.observe(cut(5, cursor_ms=10, offsets=(5, 5)))
    with pytest.raises(FrontierError, match="steps back"):
        replica.observe(cut(6, cursor_ms=9, offsets=(5, 5)))
    with pytest.raises(FrontierError, match="steps back"):
        replica.observe(cut(7, cursor_ms=10, offsets=(5, 4)))
    assert replica.newest is not None and replica.newest.offset == 5


def test_a_frontier_that_was_read_before_changes_nothing(open_replica: Opener) -> None:
    """docs/design/frontier.md, Takeover: a master reads again what it followed."""
    replica = open_replica()
    replica.observe(cut(5, cursor_ms=10, offsets=(5, 5)))
    replica.observe(cut(4, cursor_ms=9, offsets=(4, 4)))
    replica.observe(cut(5, cursor_ms=10, offsets=(5, 5)))
    assert replica.newest is not None and replica.newest.offset == 5


def test_a_node_remembers_the_frontier_that_it_acted_on(open_replica: Opener) -> None:
    """docs/design/frontier.md, Ingest: a topic that lost records stops the node.

    Rules: frontier-not-older
    """
    replica = open_replica()
    replica.observe(cut(5, cursor_ms=10, offsets=(5, 5)))
    replica.checkpoint()
    with pytest.raises(FrontierError, match=r"ends at step 4.*already acted on step 5"):
        open_replica().observe(cut(4, cursor_ms=9, offsets=(4, 4)))
    open_replica().observe(cut(5, cursor_ms=10, offsets=(5, 5)))


def test_a_master_that_signs_by_an_unknown_key_stops_the_node(open_replica: Opener) -> None:
    """docs/design/frontier.md, Cluster keys: it would reject what that master requeues.

    Rules: keys-accepted
    """
    replica = open_replica()
    before, after = cut(5), cut(6)
    replica.observe(before)
    for key, is_known in ((one_node.CLUSTER_KEY, True), ("a key that it has not", False)):
        digits = fingerprint(key, SETTINGS.cluster)
        settings = replace(SETTINGS, key_fingerprint=digits)
        seen = after._replace(record=replace(after.record, settings=settings))
        if is_known:
            replica.observe(seen)
            after = cut(7)
            continue
        with pytest.raises(WrongClusterKeyError, match=digits):
            replica.observe(seen)


def test_a_restart_without_news_keeps_the_old_frontier(
    open_replica: Opener, tmp_path: Path
) -> None:
    """docs/design/frontier.md, Ingest."""
    replica = open_replica()
    replica.observe(cut(5))
    replica.checkpoint()
    again = open_replica()
    again.checkpoint()
    again.close()
    wheel = Wheel.open(tmp_path, partitions=PARTITIONS)
    try:
        assert wheel.progress is not None
        assert decode(wheel.progress.frontier).frontier.step == 5
    finally:
        wheel.close()


def test_who_waits_for_a_frontier_is_told_when_it_is_reached(open_replica: Opener) -> None:
    """docs/design/frontier.md, Takeover: let the own wheel reach O."""
    replica = open_replica()
    needed = replace(NOTHING_DONE, offsets=(2, 0))
    assert not replica.wait_ingested(needed, timeout_ms=0)
    replica.take([request(1, BEGIN_MS)])
    assert replica.wait_ingested(needed, timeout_ms=0)
