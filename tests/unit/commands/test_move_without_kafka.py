"""`delayd move` by a wheel alone, whose checkpoint is older than what the old cluster has done.

Source: docs/design/moving.md.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from moves import HOUR_MS, Kill, KilledError, MovingClock, Site, fill, site_in
from one_node import CLUSTER_KEY, Maker

from delayd.cluster.topics import create_topics
from delayd.commands.move import moving
from delayd.commands.move.commands import _stopped_ms
from delayd.commands.move.showing import is_fine, moved_json, moved_lines
from delayd.commands.move.source import Letter, Source
from delayd.errors import ConfigError, MoveError
from delayd.node.replica.replica import Replica
from delayd.runtime.clock import SystemClock
from delayd.wheel.stopped import locked, open_stopped


@pytest.fixture
def site(tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Three records a step."""
    monkeypatch.setattr(moving, "STEP_RECORDS", 3)
    return site_in(tmp_path, make)


def requeued_behind_the_checkpoint(site: Site, folder: Path, *, id: str | None) -> Path:
    """The wheel has taken in the continuation of a message, and knows no frontier that covers the
    message; return a copy of it."""
    now_ms = site.old.clock.now_ms
    site.old.send("missing", now_ms, id=id, value=b"retried")
    site.old.send("orders", now_ms + HOUR_MS, value=b"other")
    site.old.ingest()
    site.old.clock.now_ms += 1_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replica, "observe", lambda *_, **__: None)
        site.old.step()
        return site.copied(folder)


@pytest.mark.parametrize("id", [None, "id"])
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_message_and_what_continues_it_are_moved_as_one(
    tmp_path: Path, make: Maker, id: str | None, guarantee: str
) -> None:
    site = site_in(tmp_path, make, guarantee=guarantee)
    copy = requeued_behind_the_checkpoint(site, tmp_path / "copy", id=id)
    moved = site.move(folder=copy, knows_frontier=False, takes_doubles=True)
    assert moved.plan.pending == 2
    assert site.moved_values() == [b"other", b"retried"]


def test_a_message_is_over_whose_continuation_was_cancelled(tmp_path: Path, make: Maker) -> None:
    site = site_in(tmp_path, make)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Site, "copied", lambda site, folder: folder)
        requeued_behind_the_checkpoint(site, tmp_path / "copy", id="id")
        patch.undo()
    site.old.send("missing", id="id", op="cancel")
    copy = site.copied(tmp_path / "copy")
    site.move(folder=copy, knows_frontier=False, takes_doubles=True)
    assert site.moved_values() == [b"other"]


def test_what_may_have_been_cancelled_is_named_and_refused(site: Site, tmp_path: Path) -> None:
    """Its cancel is behind the checkpoint: neither wheel nor cut know of it."""
    due_ms = site.old.clock.now_ms + HOUR_MS
    site.old.send("orders", due_ms, id="x", value=b"x")
    site.old.send("orders", due_ms, value=b"nobody can cancel it")
    site.old.ingest()
    site.old.clock.now_ms += 1_000
    site.old.step()
    copy = site.copied(tmp_path / "copy")
    site.old.send("orders", id="x", op="cancel")
    site.old.ingest()
    site.old.clock.now_ms += 1_000
    for _ in range(3):
        site.old.step()
    assert b"cancelled" in (site.old.read("delayd-receipts")[-1].value or b"")
    now_ms = site.old.clock.now_ms
    dry = site.move(folder=copy, knows_frontier=False, is_dry=True, stopped_ms=now_ms)
    assert [each.id for each in dry.plan.revocable.names] == ["x"]
    assert dry.plan.doubtful.count == 0 and not is_fine(dry)
    assert any("may have been cancelled" in line for line in moved_lines(dry))
    assert moved_json(dry)["may_be_cancelled"]["count"] == 1
    with pytest.raises(MoveError, match="1 messages have an id, and may have been cancelled"):
        site.move(folder=copy, knows_frontier=False, stopped_ms=now_ms)
    assert site.moved_values() == []
    site.move(folder=copy, knows_frontier=False, stopped_ms=now_ms, takes_doubles=True)
    assert len(site.moved_values()) == 2
    known = site.move(folder=copy, is_dry=True, takes_doubles=True)
    assert known.plan.revocable.count == 0, "of a frontier that was read nothing is open"


def test_a_wheel_that_proves_that_requests_are_missing_is_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its frontier is ahead of what it has taken in."""
    site.old.send("orders", site.old.clock.now_ms + HOUR_MS, value=b"in it")
    copy = site.copied(tmp_path / "copy")
    init = Source.__init__

    def behind(source: Source, *arguments: object) -> None:
        init(source, *arguments)  # type: ignore[arg-type]
        offsets = tuple(offset + 2 for offset in source.progress.offsets)
        ahead = replace(source.known.frontier, offsets=offsets)
        source.known = replace(source.known, frontier=ahead)

    monkeypatch.setattr(Source, "__init__", behind)
    stopped_ms = site.old.clock.now_ms
    dry = site.move(folder=copy, knows_frontier=False, is_dry=True, stopped_ms=stopped_ms)
    assert dry.not_held == 4 and not is_fine(dry)
    with pytest.raises(MoveError, match="up to 4 requests that are not in it"):
        site.move(folder=copy, knows_frontier=False, stopped_ms=stopped_ms)
    assert site.moved_values() == []
    site.move(folder=copy, knows_frontier=False, stopped_ms=stopped_ms, takes_doubles=True)
    site.take_in()
    moved = site.move(folder=copy, knows_frontier=False, stopped_ms=stopped_ms, takes_doubles=True)
    assert moved.accepted is not None and moved.accepted.is_judged
    assert not is_fine(moved), "requests are missing"


def test_a_move_that_began_with_the_old_kafka_goes_on_without_it_and_without_doubts(
    site: Site,
) -> None:
    pending = fill(site)
    site.stop_old()
    with pytest.raises(KilledError):
        site.move(kill=Kill(20))
    assert site.moved_values()
    moved = site.move(knows_frontier=False)
    assert site.moved_values() == pending
    assert (moved.plan.doubtful.count, moved.plan.revocable.count, moved.not_held) == (0, 0, 0)


def test_requests_that_came_after_the_end_are_told_by_the_exit_code(site: Site) -> None:
    fill(site)
    site.stop_old()
    site.move()
    site.take_in()
    assert is_fine(site.move())
    site.old.send("orders", site.old.clock.now_ms + HOUR_MS, value=b"too late")
    moved = site.move()
    assert moved.not_held == 1 and not is_fine(moved)


def test_dead_letters_that_were_not_written_are_listed(site: Site) -> None:
    fill(site)
    site.old.send("delayd-orders", site.old.clock.now_ms + HOUR_MS, value=b"reserved")
    rejected = [record for record in site.old.read("delayd-buffer") if record.value == b"reserved"]
    [place] = [f"{record.partition}/{record.offset}" for record in rejected]
    site.stop_old()
    moved = site.move(is_dry=True)
    assert moved.plan.letters == [Letter(place, "forbidden-topic")]
    assert any(f"{place}  forbidden-topic" in line for line in moved_lines(moved))
    assert moved_json(moved)["dead_letters_not_moved"] == [
        {"source": place, "reason": "forbidden-topic"}
    ]


@pytest.mark.parametrize("ahead_ms", [2 * HOUR_MS, -2 * HOUR_MS])
def test_the_clock_of_the_machine_hides_no_conflict(
    site: Site, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    fill(site)
    site.stop_old()
    site.new.send("orders", site.new.clock.now_ms + HOUR_MS, id="id-5", value=b"taken")
    site.new.ingest()
    wall_ms = MovingClock.wall_ms
    monkeypatch.setattr(MovingClock, "wall_ms", lambda clock: wall_ms(clock) + ahead_ms)
    site.move()
    site.take_in()
    moved = site.move()
    assert moved.accepted is not None
    [conflict] = moved.accepted.not_taken.values()
    assert (conflict.id, conflict.why) == ("id-5", "conflict")


def test_what_the_wheel_has_seen_shrinks_no_doubt(site: Site, tmp_path: Path) -> None:
    """The cursor was there when this machine's clock, or a person, says that all was over."""
    now_ms = site.old.clock.now_ms
    site.old.send("orders", now_ms, value=b"delivered")
    site.old.ingest()
    site.old.clock.now_ms += 3_000
    site.old.step()
    site.old.send("orders", now_ms + 1_500, value=b"late")
    copy = site.copied(tmp_path / "copy")
    slow = site.move(folder=copy, knows_frontier=False, is_dry=True, stopped_ms=now_ms)
    assert slow.plan.pending == slow.plan.doubtful.count == 1
    with locked(copy) as layout, open_stopped(layout) as wheel:
        source = Source(wheel)
        assert now_ms + 1_500 < source.seen_ms <= site.old.clock.now_ms
        clock = SystemClock()
        assert _stopped_ms(source.seen_ms, source, clock) == source.seen_ms
        with pytest.raises(ConfigError, match="was alive at"):
            _stopped_ms(source.seen_ms - 1, source, clock)
        assert _stopped_ms(None, source, clock) <= clock.wall_ms()


@pytest.mark.parametrize("knows_frontier", [True, False])
@pytest.mark.parametrize("is_dry", [True, False])
def test_a_new_cluster_that_was_made_again_does_not_hold_what_was_moved(
    site: Site, knows_frontier: bool, is_dry: bool
) -> None:
    """Its topics were deleted, but for the progress."""
    fill(site)
    site.stop_old()
    site.move()
    settings = site.new.settings
    for topic in (settings.buffer, settings.frontier, settings.receipts, settings.dead):
        site.new.kafka.delete_topic(topic.name)
    create_topics(site.new.bus, cluster="n", cluster_key=CLUSTER_KEY, partitions=3)
    with pytest.raises(MoveError, match="the new cluster was made again"):
        site.move(knows_frontier=knows_frontier, is_dry=is_dry, takes_doubles=True)
    assert site.moved_values() == []
