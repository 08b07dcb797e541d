"""`delayd recover frontier` on twins: nothing is lost and nothing doubled.

Source: docs/design/recovering.md.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moves import HOUR_MS, Kill, KilledError
from one_node import Maker
from recoveries import Lost, cluster_in

from delayd.bus import Headers
from delayd.cluster.topics import create_topics, last_frontier
from delayd.commands.recover.frontier import recovering
from delayd.commands.recover.frontier.showing import is_fine, recovered_json, recovered_lines
from delayd.commands.recover.frontier.working_out import Found, work_out
from delayd.errors import FrontierError, RecoverError
from replication.record import decode, encode

CALLS_MAX = 30


@pytest.fixture(params=[1, 2], ids=["one-shard", "two-shards"])
def lost(tmp_path: Path, make: Maker, request: pytest.FixtureRequest) -> Lost:
    return cluster_in(tmp_path, make, shards=request.param)


def fill(lost: Lost) -> set[str]:
    """Messages that are delivered, cancelled, replaced, retried and rejected behind the last
    checkpoint, and pending ones; return the values that are still to come."""
    for n in range(4):
        lost.send(f"soon-{n}", 1_000, id=f"id-{n}" if n % 2 else None, partition=n % 2)
        lost.send(f"later-{n}", HOUR_MS + n, id=f"late-{n}" if n % 2 else None, partition=n % 2)
    lost.send("cancelled", 10_000, id="gone")
    lost.send("old", 10_000, id="new")
    lost.send("retried", 500, id="again", topic="absent")
    lost.checkpoint()
    lost.send("", 0, id="gone", op="cancel")
    lost.send("new", 12_000, id="new", op="replace")
    lost.send("quick", 900)
    lost.node.kafka.append("delayd-buffer", 1, None, b"bad", [("delayd-due", b"never")])
    lost.go_on(2_000)
    lost.go_on(20_000)
    return {f"later-{n}" for n in range(4)}


def deliver_all(lost: Lost) -> None:
    lost.start()
    lost.go_on(2 * HOUR_MS, 8)


def test_what_was_delivered_behind_the_checkpoint_is_not_delivered_again(lost: Lost) -> None:
    rest = fill(lost)
    before = lost.arrived()
    assert {"soon-0", "quick", "new"} <= before.keys() and not rest & before.keys()
    lost.stop()
    lost.lose()
    plan = lost.recover(is_dry=True)
    assert is_fine(plan) and plan.is_lost and plan.written is None
    assert last_frontier(lost.node.bus, "delayd-frontier") is None, "it was only shown"
    assert plan.found.delivered == 6 and plan.found.pending == 5, "4 and the retried one"
    assert plan.found.killed == 2 and plan.found.requeued >= 1
    done = lost.recover()
    assert done.written is not None and is_fine(done)
    assert json.loads(json.dumps(recovered_json(done)))["ok"]
    assert any("Start the nodes" in line for line in recovered_lines(done))
    deliver_all(lost)
    after = lost.arrived()
    assert set(after) - set(before) == rest
    assert set(after.values()) == {1}
    letters = lost.node.read("delayd-dead")
    assert sum(letter.value == b"bad" for letter in letters) == 1


def test_a_cancel_that_was_answered_stays_true(lost: Lost) -> None:
    fill(lost)
    lost.stop()
    lost.lose()
    lost.recover()
    lost.start()
    lost.send("", 0, id="gone", op="cancel")
    lost.send("", 0, id="id-1", op="cancel")
    lost.go_on(1_000, 6)
    told = [json.loads(record.value or b"") for record in lost.node.read("delayd-receipts")]
    assert [each["verdict"] for each in told if each["id"] == "gone"] == ["cancelled"] * 2
    assert [each["verdict"] for each in told if each["id"] == "id-1"] == ["too-late"]
    assert "cancelled" not in lost.arrived()


def test_a_second_run_finds_nothing_lost_and_a_node_goes_on(lost: Lost) -> None:
    fill(lost)
    lost.stop()
    lost.lose()
    first = lost.recover()
    again = lost.recover()
    assert first.written is not None and not again.is_lost and again.written is None
    deliver_all(lost)
    lost.checkpoint()
    lost.stop()
    assert not lost.recover().is_lost


def test_a_frontier_that_is_not_lost_is_left_alone(lost: Lost) -> None:
    fill(lost)
    lost.stop()
    before = lost.node.read("delayd-frontier")
    found = lost.recover()
    assert not found.is_lost and is_fine(found)
    assert lost.node.read("delayd-frontier") == before


@pytest.mark.parametrize("is_after", [False, True])
def test_a_run_that_is_killed_at_any_call_is_made_again(
    tmp_path: Path, make: Maker, is_after: bool
) -> None:
    lost = cluster_in(tmp_path, make)
    rest = fill(lost)
    before = lost.arrived()
    lost.stop()
    lost.lose()
    kills = 0
    for at in range(CALLS_MAX):
        try:
            found = lost.recover(kill=Kill(at, is_after=is_after))
        except KilledError:
            kills += 1
            continue
        break
    assert kills >= 5
    assert found.written is not None or not found.is_lost
    deliver_all(lost)
    assert set(lost.arrived()) - set(before) == rest and set(lost.arrived().values()) == {1}


def test_term_and_step_are_beyond_all_former_ones(lost: Lost) -> None:
    fill(lost)
    last = lost.node.replica.newest
    assert last is not None
    lost.stop()
    lost.lose()
    written = lost.recover().written
    assert written is not None
    assert written.term > last.record.frontier.term and written.step > last.record.frontier.step


def test_records_of_another_cluster_are_no_deliveries_of_this_one(lost: Lost) -> None:
    source = lost.send("mine", HOUR_MS)
    lost.checkpoint()
    lost.stop()
    lost.lose()
    lost.node.clock.now_ms += 2 * HOUR_MS
    theirs: Headers = [
        ("delayd-due", b"%d" % (lost.node.clock.now_ms - HOUR_MS)),
        ("delayd-fired", b"%d" % lost.node.clock.now_ms),
        ("delayd-source", source.encode()),
    ]
    lost.node.kafka.append("orders", 0, None, b"theirs", theirs)
    letter: Headers = [("delayd-reason", b"dead"), ("delayd-detail", b""), theirs[2]]
    lost.node.kafka.append("delayd-dead", 0, None, b"of a former cluster", letter)
    found = lost.recover().found
    assert (found.delivered, found.dead, found.pending) == (0, 0, 1)


def test_a_wheel_of_another_cluster_fences_nobody(lost: Lost) -> None:
    lost.checkpoint()
    kill = Kill()
    with pytest.raises(RecoverError, match="not to 'other'"):
        lost.recover(cluster="other", kill=kill)
    lost.node.kafka.delete_topic("delayd-buffer")
    lost.node.kafka.create_topic("delayd-buffer", 2, {"message.timestamp.type": "LogAppendTime"})
    lost.node.replica.close()
    with pytest.raises(RecoverError, match="is another topic"):
        lost.recover(kill=kill)
    assert kill.calls == []


def test_a_node_that_is_alive_keeps_it_from_everything(lost: Lost) -> None:
    lost.checkpoint()
    lost.stop()
    lost.lose()
    lease = lost.node.etcd.grant_lease(60)
    lost.node.etcd.put_member("n-1", "{}", lease.id)
    kill = Kill()
    with pytest.raises(RecoverError, match="n-1"):
        lost.recover(kill=kill)
    assert kill.calls == []


def test_two_histories_are_told_apart(lost: Lost, tmp_path: Path, make: Maker) -> None:
    fill(lost)
    shutil.copytree(lost.folder, tmp_path / "old")
    lost.stop()
    lost.lose()
    lost.send("since", 1_000)
    create_topics(
        lost.node.bus, cluster="c", cluster_key="a key that is long enough", adopt_buffer=True,
        partitions=2,
    )  # fmt: skip
    shutil.rmtree(lost.folder)
    lost.start()
    lost.go_on(2_000)
    lost.stop()
    kill = Kill()
    with pytest.raises(RecoverError, match="another history"):
        lost.recover(folder=tmp_path / "old", kill=kill)
    assert kill.calls == []


def test_a_topic_that_lost_its_last_steps_is_recovered(lost: Lost) -> None:
    lost.send("one", 1_000)
    lost.checkpoint()
    records = lost.node.read("delayd-frontier")
    lost.go_on(2_000)
    lost.stop()
    lost.node.kafka.delete_topic("delayd-frontier")
    lost.node.kafka.create_topic(
        "delayd-frontier", 1,
        {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact",
         "min.compaction.lag.ms": "86400000"},
    )  # fmt: skip
    for record in records:
        lost.node.kafka.append("delayd-frontier", 0, record.key, record.value, record.headers)
    assert lost.recover().written is not None
    deliver_all(lost)
    assert lost.arrived()["one"] == 1


def told(lost: Lost, id: str) -> list[str]:
    """The verdicts under an id."""
    receipts = [json.loads(record.value or b"") for record in lost.node.read("delayd-receipts")]
    return [each["verdict"] for each in receipts if each["id"] == id]


@pytest.mark.parametrize("is_read", [True, False])
def test_a_repeated_replace_kills_nothing(lost: Lost, is_read: bool) -> None:
    due_ms = lost.node.clock.now_ms + HOUR_MS
    lost.send("old", HOUR_MS, id="a")
    if not is_read:
        lost.checkpoint()
    for _ in range(2):
        lost.node.send("orders", due_ms, id="a", op="replace", value=b"new")
        if is_read:
            lost.checkpoint()
        lost.go_on(1_000, 2)
    assert told(lost, "a") == ["replaced"] * 2
    lost.stop()
    lost.lose()
    found = lost.recover().found
    assert found.killed == 1 and not found.missing.count
    deliver_all(lost)
    assert lost.arrived()["new"] == 1 and "old" not in lost.arrived()


def test_a_redrive_without_an_id_goes_out_once(lost: Lost) -> None:
    lost.node.kafka.append("delayd-buffer", 0, b"k", b"again", [("delayd-due", b"never")])
    lost.go_on(1_000)
    [letter] = lost.node.read("delayd-dead")
    source = dict(letter.headers)["delayd-source"] or b""
    lost.checkpoint()
    headers: Headers = [
        ("delayd-topic", b"orders"),
        ("delayd-due", b"%d" % (lost.node.clock.now_ms + HOUR_MS)),
        ("delayd-redrive", source),
    ]
    lost.node.kafka.append("delayd-buffer", 0, b"k", b"again", headers)
    lost.go_on(1_000)
    assert told(lost, source.decode()) == ["scheduled"]
    lost.stop()
    lost.lose()
    assert lost.recover().found.pending == 1, "its receipt is no delivery"
    deliver_all(lost)
    assert lost.arrived()["again"] == 1
    assert told(lost, source.decode()) == ["scheduled"]


def test_a_foreign_transaction_that_stays_open_is_named(lost: Lost) -> None:
    lost.checkpoint()
    lost.stop()
    lost.lose()
    user = lost.node.bus.transactional_producer("user")
    user.init_transactions(1_000)
    user.begin()
    user.send("delayd-buffer", key=None, value=b"open", headers=[], partition=1)
    user.flush(1_000)
    plan = lost.recover(is_dry=True)
    assert plan.open_transactions and not is_fine(plan)
    with pytest.raises(RecoverError, match="a transaction is open in delayd-buffer/1"):
        lost.recover()


def test_a_buffer_that_was_trimmed_beyond_the_wheel_is_refused(lost: Lost) -> None:
    lost.checkpoint()
    for n in range(4):
        lost.send(f"m-{n}", HOUR_MS)
    lost.stop()
    lost.lose()
    log = lost.node.kafka.topics["delayd-buffer"].partitions[0]
    log.delete_before(log.end_offset - 1)
    with pytest.raises(RecoverError, match="what came in between is gone"):
        lost.recover()


def test_a_topic_that_goes_on_behind_what_was_read_gets_no_record(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost.checkpoint()
    lost.stop()
    lost.lose()
    made = recovering._record

    def slow(*what: object) -> object:
        lost.node.kafka.append("delayd-frontier", 0, b"stray", b"", [])
        return made(*what)  # type: ignore[arg-type]

    monkeypatch.setattr(recovering, "_record", slow)
    with pytest.raises(RecoverError, match="frontier/0 was read up to offset 0, and goes on to 1"):
        lost.recover()
    assert last_frontier(lost.node.bus, "delayd-frontier") is None


def test_a_conflict_behind_the_wheel_says_nothing_of_its_rank(lost: Lost) -> None:
    lost.send("first", 2 * HOUR_MS, id="a")
    lost.send("plain", HOUR_MS)
    lost.checkpoint()
    lost.send("second", 3 * HOUR_MS, id="a")
    lost.go_on(1_000)
    assert [record.value for record in lost.node.read("delayd-dead")] == [b"second"]
    lost.stop()
    lost.lose()
    found = lost.recover().found
    assert (found.pending, found.missing.count, found.dead) == (2, 0, 0)


def test_a_node_that_slept_through_the_recovery_delivers_nothing(lost: Lost, make: Maker) -> None:
    fill(lost)
    lost.checkpoint()
    lost.node.stop_leading()
    slept = lost.node.replica
    lost.lose()
    shutil.copytree(lost.folder, lost.folder.parent / "copy")
    (lost.folder.parent / "copy" / "catalogue" / "LOCK").unlink()
    lost.recover(folder=lost.folder.parent / "copy")
    seen = last_frontier(lost.node.bus, "delayd-frontier")
    assert seen is not None
    with pytest.raises(FrontierError, match="the frontier was recovered meanwhile"):
        slept.observe(seen)


def test_a_topic_that_was_emptied_and_used_anew_is_another_history(lost: Lost) -> None:
    fill(lost)
    lost.stop()
    read = lost.node.read("delayd-frontier")
    [first, *_, last] = [each for each in read if each.partition == 0]
    record = decode(last.value or b"")
    strange = replace(
        record.frontier,
        offsets=(0, record.frontier.offsets[1] + 9),
        step=3,
        cursors=decode(first.value or b"").frontier.cursors,
    )
    log = lost.node.kafka.topics["delayd-frontier"].partitions[0]
    log.truncate(0)
    value = encode(replace(record, frontier=strange))
    lost.node.kafka.append("delayd-frontier", 0, last.key, value, [])
    with pytest.raises(RecoverError, match="another history"):
        lost.recover()


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_master_that_etcd_has_forgotten_is_seen_at_work(
    lost: Lost, monkeypatch: pytest.MonkeyPatch, *, is_dry: bool
) -> None:
    """etcd came back empty, and the nodes are not listed yet."""
    fill(lost)

    def work_out_slowly(*given: Any, **more: Any) -> Found:
        lost.node.step()
        return work_out(*given, **more)

    monkeypatch.setattr(recovering, "work_out", work_out_slowly)
    shutil.copytree(lost.folder, copy := lost.folder.parent / "copy")
    before = last_frontier(lost.node.bus, "delayd-frontier")
    lost.node.clock.now_ms += HOUR_MS
    with pytest.raises(RecoverError, match="a master takes steps"):
        lost.recover(is_dry=is_dry, folder=copy)
    after = last_frontier(lost.node.bus, "delayd-frontier")
    assert before and after and after.record.owner == before.record.owner, "nobody was fenced"
