"""What `delayd recover frontier` does not know, and does not believe.

Source: docs/design/recovering.md, "What can be told of a message".
"""

from pathlib import Path

import pytest
from moves import HOUR_MS
from one_node import Maker
from recoveries import MINUTE_MS, Lost, cluster_in

from delayd.cluster.topics import last_frontier
from delayd.commands.recover.frontier.showing import is_fine
from delayd.errors import RecoverError


@pytest.fixture
def lost(tmp_path: Path, make: Maker) -> Lost:
    return cluster_in(tmp_path, make)


def deliver_all(lost: Lost) -> None:
    lost.start()
    lost.go_on(2 * HOUR_MS, 8)


def test_what_a_lost_target_had_received_is_in_doubt(lost: Lost) -> None:
    lost.send("due", 1_000)
    lost.send("later", HOUR_MS)
    lost.checkpoint()
    lost.go_on(2_000)
    lost.stop()
    lost.lose()
    lost.node.kafka.delete_topic("orders")
    plan = lost.recover(is_dry=True)
    assert not is_fine(plan)
    assert [each.source for each in plan.found.doubtful.names] == ["0/2"]
    assert plan.found.pending == 1, "what was not due yet is pending for sure"
    with pytest.raises(RecoverError, match="1 messages may have been delivered or not"):
        lost.recover()
    assert last_frontier(lost.node.bus, "delayd-frontier") is None
    assert lost.recover(takes_doubles=True).written is not None


def test_a_target_that_was_made_again_is_in_doubt_too(lost: Lost) -> None:
    lost.send("due", 1_000)
    lost.checkpoint()
    lost.go_on(2_000)
    lost.stop()
    lost.lose()
    lost.node.kafka.delete_topic("orders")
    lost.node.kafka.create_topic("orders", 1, {"message.timestamp.type": "LogAppendTime"})
    assert lost.recover(is_dry=True).found.doubtful.count == 1


def test_what_stopped_before_it_was_due_is_in_no_doubt(lost: Lost) -> None:
    lost.send("due", 10_000)
    lost.checkpoint()
    stopped_ms = lost.node.clock.now_ms + 5_000
    lost.stop()
    lost.lose()
    lost.node.kafka.delete_topic("orders")
    lost.node.clock.now_ms += MINUTE_MS
    assert lost.recover(is_dry=True).found.doubtful.count == 1
    assert lost.recover(stopped_ms=stopped_ms).written is not None


def test_a_step_that_was_undone_is_not_believed(lost: Lost) -> None:
    lost.send("undone", 1_000)
    lost.go_on(2_000, 1)
    log = lost.node.kafka.topics["orders"].partitions[0]
    newest = lost.node.replica.newest
    assert newest is not None and newest.record.counts.delivered == 1
    lost.checkpoint()
    lost.stop()
    lost.lose()
    [place] = [r.offset for r in lost.node.read("orders") if r.value == b"undone"]
    log.truncate(place)
    with pytest.raises(RecoverError, match="may have been undone: its step delivered 1"):
        lost.recover(takes_doubles=True)


def test_a_requeue_that_was_undone_is_not_believed_either(lost: Lost) -> None:
    lost.send("retried", 500, topic="absent")
    lost.go_on(1_000, 1)
    lost.checkpoint()
    lost.stop()
    lost.lose()
    log = lost.node.kafka.topics["delayd-buffer"].partitions[0]
    [place] = [r.offset for r in lost.node.read("delayd-buffer")
               if "delayd-continues" in dict(r.headers)]  # fmt: skip
    log.truncate(place)
    with pytest.raises(RecoverError, match="into the buffer, which is not there"):
        lost.recover(takes_doubles=True)


def test_what_is_nowhere_is_named_and_delivered_only_on_demand(lost: Lost) -> None:
    lost.send("one", 1_000)
    lost.send("two", 1_500)
    lost.send("three", 2_000)
    lost.checkpoint()
    lost.go_on(5_000)
    lost.stop()
    lost.lose()
    log = lost.node.kafka.topics["orders"].partitions[0]
    records = lost.node.read("orders")
    log.truncate(records[-3].offset)
    for record in (records[-3], records[-1]):
        lost.node.kafka.append("orders", 0, record.key, record.value, record.headers)
    with pytest.raises(RecoverError, match="1 that should have been are nowhere"):
        lost.recover()
    found = lost.recover(takes_doubles=True).found
    assert [each.source for each in found.missing.names] == ["0/3"]
    assert [each.source for each in found.again.names] == ["0/4"]
    deliver_all(lost)
    arrived = lost.arrived()
    assert (arrived["one"], arrived["two"], arrived["three"]) == (1, 1, 2)


def test_a_compacted_target_leaves_doubt(lost: Lost) -> None:
    lost.node.kafka.create_topic(
        "states", 1, {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"}
    )
    lost.send("state", 1_000, topic="states", id="s")
    lost.send("next", HOUR_MS, topic="states", id="s2")
    lost.checkpoint()
    lost.stop()
    lost.lose()
    lost.node.clock.now_ms += 2_000
    found = lost.recover(is_dry=True).found
    assert (found.doubtful.count, found.pending) == (1, 1)
    assert "compacted" in found.doubtful.names[0].problem


def test_dead_letters_that_were_deleted_leave_doubt(lost: Lost) -> None:
    lost.node.kafka.append("delayd-buffer", 0, None, b"bad", [("delayd-due", b"never")])
    lost.checkpoint()
    lost.send("due", 1_000)
    lost.checkpoint()
    lost.go_on(5_000)
    lost.node.kafka.append("orders", 0, None, b"noise", [])
    lost.stop()
    lost.lose()
    lost.node.kafka.topics["delayd-dead"].partitions[0].delete_before(1)
    lost.send("tail", 0)
    lost.node.clock.now_ms += 1_000
    assert lost.recover(is_dry=True).found.doubtful.count == 1
