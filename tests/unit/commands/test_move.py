"""`delayd move` on twins: each pending message once, wherever a run is killed.

Source: docs/design/moving.md.
"""

import json
from pathlib import Path
from random import Random

import pytest
from moves import HOUR_MS, Kill, KilledError, Site, fill, site_in
from one_node import Maker

from delayd.cluster.frontier_log import FrontierLog
from delayd.commands.move import moving, planning
from delayd.commands.move.showing import is_fine, moved_json, moved_lines
from delayd.errors import FrontierError, MoveError
from replication.record import FrontierFormatError, decode

CALLS_MAX = 200


@pytest.fixture
def site(tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Three records a step."""
    monkeypatch.setattr(moving, "STEP_RECORDS", 3)
    return site_in(tmp_path, make)


def deliver_all(site: Site) -> list[bytes]:
    """The new node takes all in and delivers it; return the values in the target."""
    site.take_in()
    site.new.clock.now_ms = site.old.clock.now_ms + 2 * HOUR_MS
    for _ in range(5):
        site.new.step()
    return sorted(record.value or b"" for record in site.new.read("orders"))


def test_what_is_pending_arrives_once_with_its_id_and_due_time(site: Site) -> None:
    pending = fill(site)
    site.stop_old()
    moved = site.move()
    assert site.moved_values() == pending
    assert (moved.plan.pending, moved.written, moved.written_now) == (len(pending),) * 3
    assert moved.accepted is not None and not moved.accepted.is_judged
    assert not is_fine(moved), "no master has passed them"
    site.take_in()
    again = site.move()
    assert again.written_now == 0 and again.accepted is not None and again.accepted.is_judged
    assert is_fine(again) and json.loads(json.dumps(moved_json(again)))["accepted"] == len(pending)
    assert set(site.moved_values()) == set(pending), "one is requeued, as its target is missing"
    new = {record.value: dict(record.headers) for record in site.new.read("delayd-buffer")}
    assert new[b"value-3"]["delayd-id"] == b"id-3"
    assert new[b"value-3"]["trace"] == b"3"
    delivered = deliver_all(site)
    # The target of the retried one is missing here, too.
    assert delivered == sorted(set(pending) - {b"retried"})


def test_its_ids_can_be_cancelled_in_the_new_cluster(site: Site) -> None:
    fill(site)
    site.stop_old()
    site.move()
    site.new.send("orders", id="id-3", op="cancel")
    assert b"value-3" not in deliver_all(site)


@pytest.mark.parametrize("is_after", [False, True])
def test_a_move_that_is_killed_at_any_call_goes_on_without_doubles(
    tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch, is_after: bool
) -> None:
    monkeypatch.setattr(moving, "STEP_RECORDS", 3)
    monkeypatch.setattr(moving, "STEP_BYTES", 10**9)
    site = site_in(tmp_path, make)
    pending = fill(site)
    site.stop_old()
    kills = 0
    # Each run is killed a little later than the last one, until one comes to its end.
    for at in range(CALLS_MAX):
        try:
            moved = site.move(kill=Kill(at, is_after=is_after))
        except KilledError:
            kills += 1
            assert set(site.moved_values()) <= set(pending)
            assert len(site.moved_values()) == len(set(site.moved_values()))
            continue
        break
    assert kills > 10
    assert moved.written == len(pending)
    assert site.moved_values() == pending


def test_random_kills_of_many_runs_double_nothing(
    tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "STEP_RECORDS", 1)
    site = site_in(tmp_path, make)
    pending = fill(site)
    site.stop_old()
    random = Random(20)
    for _ in range(CALLS_MAX):
        try:
            site.move(kill=Kill(random.randrange(25), is_after=random.random() < 0.5))
        except KilledError:
            continue
        break
    assert site.moved_values() == pending


def test_an_old_master_that_wakes_up_or_is_started_again_delivers_nothing(
    site: Site, tmp_path: Path
) -> None:
    pending = fill(site)
    folder = site.copied(tmp_path / "copy")
    site.move(folder=folder)
    assert site.moved_values() == pending
    site.old.clock.now_ms += 2 * HOUR_MS
    site.old.step()
    assert site.old.failures, "it wakes up"
    for _ in range(3):
        with pytest.raises(FrontierError, match="was moved"):
            site.old.lead()
    assert [record.value for record in site.old.read("orders")] == [b"delivered"]


def test_an_old_cluster_that_is_not_at_rest_is_noticed_before_anything_is_moved(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node takes over between the fence and the end of the old cluster."""
    fill(site)
    folder = site.copied(tmp_path / "copy")
    from_messages = planning.plan_of

    def node_takes_over(*arguments: object, **more: object) -> object:
        site.old.stop_leading()
        site.old.lead()
        return from_messages(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(moving, "plan_of", node_takes_over)
    with pytest.raises(MoveError, match="took over meanwhile"):
        site.move(folder=folder)
    assert site.moved_values() == []
    monkeypatch.undo()
    # It delivers what is due, is stopped, and then the move begins anew.
    site.old.clock.now_ms += 2 * HOUR_MS
    for _ in range(4):
        site.old.step()
    site.stop_old()
    moved = site.move()
    delivered = [record.value for record in site.old.read("orders")]
    assert len(delivered) > 1 and not set(delivered) & set(site.moved_values())
    assert moved.written == len(site.moved_values()) == 1, "the one whose target is missing"


def test_the_second_of_two_runs_fences_the_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = fill(site)
    site.stop_old()
    steps_of = moving.steps_of
    is_first = True

    def second_run(*arguments: object) -> object:
        nonlocal is_first
        for step in steps_of(*arguments):  # type: ignore[arg-type]
            if is_first:
                is_first = False
                site.move()
            yield step

    monkeypatch.setattr(moving, "steps_of", second_run)
    with pytest.raises(MoveError, match="another run of this move has taken over"):
        site.move()
    assert site.moved_values() == pending


def test_another_source_is_noticed(site: Site, tmp_path: Path, make: Maker) -> None:
    """A wheel of the same cluster that holds something else."""
    fill(site)
    early = site.copied(tmp_path / "early")
    site.old.send("orders", site.old.clock.now_ms + HOUR_MS, value=b"later")
    site.stop_old()
    with pytest.raises(KilledError):
        site.move(kill=Kill(20))
    moved = site.moved_values()
    assert moved, "some were moved"
    with pytest.raises(MoveError, match="is not what this move began with"):
        site.move(folder=early)
    assert site.moved_values() == moved
    site.move()
    assert b"later" in site.moved_values()


def test_a_wheel_that_lacks_requests_of_the_old_buffer_is_refused(site: Site) -> None:
    fill(site)
    site.stop_old()
    site.old.send("orders", site.old.clock.now_ms + HOUR_MS, value=b"not in the wheel")
    with pytest.raises(MoveError, match="1 requests are missing"):
        site.move()
    assert site.moved_values() == []


def test_without_the_old_frontier_what_is_in_doubt_is_named(site: Site) -> None:
    fill(site)
    now_ms = site.old.clock.now_ms
    site.stop_old()
    dry = site.move(knows_frontier=False, is_dry=True, stopped_ms=now_ms + HOUR_MS)
    names = {each.id for each in dry.plan.doubtful.names}
    assert dry.plan.doubtful.count >= 4 and {"after", "retried"} & names
    assert not is_fine(dry)
    assert any("in doubt" in line for line in moved_lines(dry))
    with pytest.raises(MoveError, match="may have been delivered"):
        site.move(knows_frontier=False, stopped_ms=now_ms + HOUR_MS)
    assert site.moved_values() == []
    site.move(knows_frontier=False, stopped_ms=now_ms + HOUR_MS, takes_doubles=True)
    assert len(site.moved_values()) == dry.plan.pending
    assert site.move(knows_frontier=False, stopped_ms=now_ms, is_dry=True).plan.doubtful.count < 4


def test_a_dry_run_writes_nothing_and_fences_nobody(site: Site, tmp_path: Path) -> None:
    pending = fill(site)
    folder = site.copied(tmp_path / "copy")
    kill = Kill()
    dry = site.move(folder=folder, kill=kill, is_dry=True)
    assert kill.calls == []
    assert dry.plan.pending == len(pending)
    assert dry.plan.topics == {"orders": len(pending) - 1, "missing": 1}
    assert dry.plan.last_due_ms is not None
    assert "delayd-moved" not in site.new.kafka.topics
    site.old.step()
    assert not site.old.failures


def test_an_id_that_is_taken_in_the_new_cluster_is_listed(site: Site) -> None:
    fill(site)
    site.stop_old()
    due_ms = site.new.clock.now_ms + HOUR_MS
    site.new.send("orders", due_ms, id="id-5", value=b"taken")
    site.new.ingest()
    site.move()
    site.take_in()
    moved = site.move()
    assert moved.accepted is not None
    [conflict] = moved.accepted.not_taken.values()
    assert (conflict.id, conflict.why) == ("id-5", "conflict")
    assert not is_fine(moved)
    assert any("id-5" in line for line in moved_lines(moved))


def test_what_the_new_cluster_would_reject_is_refused_before_anything_is_written(
    site: Site,
) -> None:
    fill(site)
    site.old.send("delayd-orders", site.old.clock.now_ms + HOUR_MS, value=b"reserved here")
    now_ms = site.old.clock.now_ms
    far_ms = now_ms + site.new.settings.max_delay_ms + HOUR_MS
    site.new.clock.now_ms -= 2 * HOUR_MS
    site.old.send("orders", far_ms - 2 * HOUR_MS, id="far", value=b"far")
    site.stop_old()
    with pytest.raises(MoveError, match="would reject 1 messages, first far: too-far"):
        site.move()
    assert site.moved_values() == []
    assert b"moved" not in (site.old.read("delayd-frontier")[-1].value or b"")


def test_a_moved_clusters_last_record_stops_every_reader(site: Site) -> None:
    fill(site)
    site.stop_old()
    site.move()
    value = site.old.read("delayd-frontier")[-1].value or b""
    with pytest.raises(FrontierFormatError, match="was moved") as raised:
        decode(value)
    assert raised.value.moved == site.new.settings.realm
    assert decode(value, takes_moved=True).moved == site.new.settings.realm
    assert json.loads(value)["needs"] == {"moved": "0.2.0"}
    log = FrontierLog(site.old.bus, "delayd-frontier", 0)
    with pytest.raises(FrontierError, match=r"moving\.md"):
        log.open(1_000)
    log.close()


@pytest.mark.parametrize("applied", [False, True])
def test_a_transaction_of_unknown_outcome_ends_the_run_and_the_next_goes_on(
    site: Site, applied: bool
) -> None:
    pending = fill(site)
    site.stop_old()
    with pytest.raises(KilledError):
        site.move(kill=Kill(20))
    name = f"delayd-{site.new.settings.realm}-move-{site.old.settings.realm}"
    site.new.kafka.fail_next_commit(name, applied=applied)
    with pytest.raises(MoveError, match="run this again"):
        site.move()
    site.move()
    assert site.moved_values() == pending


def test_a_settlement_that_the_wheel_has_not_taken_in_hinders_nothing(
    site: Site, tmp_path: Path
) -> None:
    """The master goes on after the node has stopped: it settles cancels, and O passes that."""
    pending = fill(site)
    site.old.send("orders", id="id-5", op="cancel")
    pending.remove(b"value-5")
    folder = site.copied(tmp_path / "copy")
    for _ in range(4):
        site.old.ingest()
        site.old.clock.now_ms += 1_000
        site.old.step()
    names = [name for each in site.old.read("delayd-buffer") for name, _ in each.headers]
    assert "delayd-settles" in names
    assert site.move(folder=folder).not_held == 0
    assert site.moved_values() == pending
