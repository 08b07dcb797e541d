"""What a step of one master writes, record by record, over Kafka in memory."""

import json
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest
from manual_clock import START_MS
from one_node import CLUSTER_KEY, TIMEOUT_MS, Maker, OneNode

from delayd.cluster.topics import create_topics, load_settings, transactional_id
from delayd.errors import BufferPositionError
from delayd.node.delivery.step_sizing import StepSizing
from delayd.node.replica.cancel_marks import cancel_marker_of
from delayd.node.startup_checks import check_positions
from delayd.node.targets.checks import ABSENT_MAX
from delayd.node.targets.quarantine import DEFER_MS_MAX
from delayd.node.trimmed_start import provable_beginnings, starts_beyond
from delayd.wheel import FrameKind
from delayd.wheel.storage import Wheel
from replication.ids import KilledMessage
from replication.rank import lane_of
from replication.record import FrontierRecord, decode
from replication.verdict import CancelMarker


def verdicts(node: OneNode) -> list[tuple[str, str]]:
    told = [json.loads(record.value or b"") for record in node.read("delayd-receipts")]
    return [(receipt["id"], receipt["verdict"]) for receipt in told]


def frontiers(node: OneNode) -> list[FrontierRecord]:
    return [decode(record.value or b"") for record in node.read("delayd-frontier")]


def test_a_cancelled_message_is_counted_and_never_delivered(make: Maker) -> None:
    """docs/design/frontier.md, Step: all of Done' - Done that is not killed.

    Rules: step-contents, killed-at-o, verdict-killed
    """
    node = make("orders")
    node.send("orders", START_MS + 100, id="a")
    node.send("orders", START_MS + 100, value=b"other")
    node.send("orders", id="a", op="cancel")
    node.ingest()
    node.lead()
    node.clock.now_ms += 100
    node.step()
    assert [record.value for record in node.read("orders")] == [b"other"]
    assert verdicts(node) == [("a", "cancelled")]
    counts = frontiers(node)[-1].counts
    assert (counts.delivered, counts.killed, counts.answers) == (1, 1, 1)


def test_a_mark_beyond_what_the_step_takes_in_comes_too_late(make: Maker) -> None:
    """docs/design/frontier.md, Verdicts: a mark counts if and only if it lies below O'.

    Rules: killed-at-o, o-cut-by-few, verdict-too-late
    """
    node = make("orders")
    node.send("orders", START_MS + 100, id="a")
    for _ in range(3):
        node.kafka.append("delayd-buffer", 0, None, b"no request")
    node.send("orders", id="a", op="cancel")
    node.ingest()
    node.step_sizing = StepSizing(1, 10**6)
    node.lead()
    node.clock.now_ms += 100
    node.step()
    assert frontiers(node)[-1].frontier.offsets == (2,), "one reject cuts O' below the mark"
    assert len(node.read("orders")) == 1
    for _ in range(5):
        node.step()
    assert verdicts(node) == [("a", "too-late")]


def test_a_mark_keeps_all_that_its_verdict_needs_through_a_crash(make: Maker) -> None:
    """docs/design/frontier.md, Verdicts: its offset, its time, what it killed, and what was before.

    Rules: marker-kept
    """
    node = make("orders")
    node.send("orders", START_MS + 9_000, id="a")
    node.clock.now_ms += 50
    node.send("orders", START_MS + 8_000, id="a", op="replace")
    node.clock.now_ms -= 20
    node.send("orders", id="a", op="cancel")
    node.ingest()
    node.replica.checkpoint()
    folder = Path(node.replica.wheel.root)
    node.replica.close()
    with closing(Wheel.open(folder, partitions=1)) as wheel:
        waiting = wheel.read(wheel.pending_replies((0,)))
        first, second = [
            cancel_marker_of(frame) for frame in waiting if frame.kind == FrameKind.CANCEL_MARKER
        ]
    killed = [KilledMessage(START_MS + 9_000, 0, lane_of("orders", node.settings.lanes))]
    assert first == (
        CancelMarker(True, 0, 1, START_MS + 50, tuple(killed), ()),
        "a",
        START_MS + 8_000,
    )
    replaced = KilledMessage(START_MS + 8_000, 1, killed[0].lane)
    assert second == (
        CancelMarker(False, 0, 2, START_MS + 30, (replaced,), tuple(killed)),
        "a",
        None,
    )


def test_a_frontier_record_tells_what_its_step_delivered(make: Maker) -> None:
    """docs/design/frontier.md, Step: what audits check each step against.

    Rules: step-recorded
    """
    node = make("orders")
    sources = [node.send("orders", START_MS + 10).offset for _ in range(3)]
    node.send("orders", START_MS + 10_000)
    node.ingest()
    node.lead()
    node.clock.now_ms += 10
    node.step()
    *before, last = frontiers(node)
    assert last.counts.delivered == 3 and last.frontier.step == before[-1].frontier.step + 1
    assert last.digest == sum(crc32(b"0/%d" % offset) for offset in sources)
    assert {record.settings for record in (*before, last)} == {node.settings}
    assert last.owner == "n/1" and last.now_ms == node.clock.now_ms


def test_a_failing_message_is_retried_with_each_delay_and_then_dead(make: Maker) -> None:
    """docs/design/frontier.md, Targets: the cluster's retry delays, then a dead letter.

    Rules: retried-then-dead, own-writes-acknowledged, never-created
    """
    node = make(retry_delays_ms=(10_000, 30_000))
    asked = node.send("nowhere", START_MS, id="a")
    node.ingest()
    node.lead()
    waits = []
    for _ in range(3):
        begun_ms = node.clock.now_ms
        written = len(node.read("delayd-buffer"))
        while len(node.read("delayd-buffer")) == written and not node.read("delayd-dead"):
            node.step()
            node.ingest()
            node.clock.now_ms += 1_000
        waits.append(node.clock.now_ms - begun_ms)
    assert [round(wait, -4) for wait in waits] == [0, 10_000, 30_000]
    retries = [dict(record.headers) for record in node.read("delayd-buffer")[1:]]
    assert [headers["delayd-attempt"] for headers in retries] == [b"1", b"2"]
    own = [record.frontier.own_writes[0] for record in frontiers(node)]
    assert set(own) == {-1, *(record.offset for record in node.read("delayd-buffer")[1:])}
    [dead] = node.read("delayd-dead")
    assert dict(dead.headers)["delayd-reason"] == b"dead"
    assert dict(dead.headers)["delayd-origin"] == b"%d/%d" % (asked.partition, asked.offset)
    assert verdicts(node) == [("a", "dead")]
    assert "nowhere" not in node.kafka.topics


def test_a_failing_target_counts_each_message_once_and_each_retry(make: Maker) -> None:
    """docs/operations.md, "Failing targets"."""
    node = make(retry_delays_ms=(10_000, 30_000, 30_000))
    node.send("nowhere", START_MS)
    node.send("nowhere", START_MS)
    node.ingest()
    node.lead()
    counted = []
    for _ in range(90):
        node.step()
        node.ingest()
        node.clock.now_ms += 1_000
        [failing] = node.targets.failures.report()
        if (failing.messages, failing.attempts) not in counted:
            counted.append((failing.messages, failing.attempts))
    assert counted == [(2, 2), (2, 4), (2, 6), (2, 8)]


def test_a_new_master_counts_what_its_predecessor_requeued(make: Maker) -> None:
    """docs/operations.md, "Failing targets": its list begins empty."""
    node = make(retry_delays_ms=(10_000, 30_000))
    node.send("nowhere", START_MS)
    node.ingest()
    node.lead()
    node.step()
    node.ingest()
    node.targets.failures._failing.clear()
    node.clock.now_ms += 11_000
    node.step()
    [failing] = node.targets.failures.report()
    assert (failing.messages, failing.attempts) == (1, 1)


def test_a_flood_of_names_that_do_not_exist_is_asked_for_step_by_step(make: Maker) -> None:
    """docs/design/frontier.md, Targets: known targets go on, and nobody is given up unasked.

    Rules: unknown-names-bounded
    """
    node = make("orders", records_max=100_000)
    node.send("orders")
    node.ingest()
    node.lead()
    node.step()
    for number in range(5 * ABSENT_MAX):
        node.send(f"flood-{number}", START_MS + 100)
    node.send("orders", START_MS + 100)
    node.ingest()
    node.clock.now_ms += 100
    node.targets.forget()  # as a failed step does
    asked = node.kafka.surveys_count
    node.step()
    assert len(node.read("orders")) == 2
    assert node.kafka.surveys_count <= asked + 2
    retried, deferred = (node.counters.messages[fate] for fate in ("retried", "deferred"))
    assert retried + deferred == 5 * ABSENT_MAX and ABSENT_MAX <= retried <= 2 * ABSENT_MAX
    node.ingest()
    node.kafka.create_topic(
        f"flood-{5 * ABSENT_MAX - 1}", 1, {"message.timestamp.type": "LogAppendTime"}
    )
    for _ in range(5):
        node.clock.now_ms += DEFER_MS_MAX
        node.step()
        node.step()
        node.ingest()
    [late] = node.read(f"flood-{5 * ABSENT_MAX - 1}")
    assert "delayd-attempt" not in dict(late.headers), "a deferral is no attempt"


def test_a_users_open_transaction_holds_up_its_own_partition_only(make: Maker) -> None:
    """docs/design/frontier.md, Ingest: only committed records, and each partition by itself.

    Rules: open-transaction, pure-ingest
    """
    node = make("orders", partitions=2)
    user = node.bus.transactional_producer("a-user")
    user.init_transactions(TIMEOUT_MS)
    user.begin()
    headers = [("delayd-topic", b"orders"), ("delayd-due", b"%d" % START_MS)]
    user.send("delayd-buffer", key=None, value=b"inside", headers=[*headers], partition=0)
    node.send("orders", partition=0, value=b"behind")
    node.send("orders", partition=1, value=b"elsewhere")
    node.ingest()
    node.lead()
    node.step()
    assert [record.value for record in node.read("orders")] == [b"elsewhere"]
    user.commit(TIMEOUT_MS)
    node.ingest()
    node.step()
    assert sorted(record.value or b"" for record in node.read("orders")) == [
        b"behind",
        b"elsewhere",
        b"inside",
    ]


def test_who_is_not_master_delivers_nothing(make: Maker) -> None:
    """docs/design/frontier.md, Takeover: without one there is nothing to plan by.

    Rules: followers-follow
    """
    node = make("orders")
    node.send("orders")
    node.ingest()
    node.replica.checkpoint()
    assert node.read("orders") == []
    with pytest.raises(AssertionError, match="only a master plans"):
        node.new_mastership().advance()


def test_a_cluster_and_shard_have_one_transactional_id() -> None:
    """docs/design/frontier.md, Fence: the same for every node and every life of it.

    Rules: fence
    """
    assert transactional_id("c", 0) == "delayd-c-shard-0"
    assert len({transactional_id(name, n) for name in ("c", "d") for n in (0, 1)}) == 4


def test_a_second_cluster_of_the_same_name_fences_nobody(make: Maker) -> None:
    """docs/design/election.md, Realm.

    Rules: realm
    """
    node = make("orders")
    node.step()
    create_topics(node.bus, cluster="c", cluster_key=CLUSTER_KEY, prefix="b-", partitions=1)
    node.send("orders")
    node.ingest()
    node.clock.now_ms += 1_000
    node.step()
    assert len(node.read("orders")) == 1 and not node.failures


def test_a_node_goes_on_only_where_the_log_still_has_all_that_it_needs(make: Maker) -> None:
    """docs/design/trimmed.md, When it starts.

    Rules: snapshot-and-log
    """
    node = make("orders")
    for _ in range(3):
        node.send("orders")
    log = node.kafka.log("delayd-buffer", 0)
    assert starts_beyond(node.bus, node.replica, TIMEOUT_MS) == {}
    check_positions(node.bus, node.replica, TIMEOUT_MS)
    seen, settings = load_settings(node.bus, "c", "delayd-", TIMEOUT_MS), node.replica.settings
    for start, lack in ((1, "has come to offset 0"), (3, "holds no record")):
        log.delete_before(start)
        starts = starts_beyond(node.bus, node.replica, TIMEOUT_MS)
        assert starts == {0: start}
        with pytest.raises(BufferPositionError, match=f"begins at offset {start}.*{lack}"):
            provable_beginnings(node.bus, settings, starts, seen, node.clock, TIMEOUT_MS)
    with pytest.raises(BufferPositionError, match="was trimmed up to offset 3"):
        check_positions(node.bus, node.replica, TIMEOUT_MS)


@pytest.mark.parametrize(("first", "end"), [(3, None), (0, 2)])
def test_a_checkpoint_outside_of_the_log_stops_the_node(
    make: Maker, first: int, end: int | None
) -> None:
    """docs/design/frontier.md, Ingest: positions must lie in the log.

    Rules: snapshot-and-log
    """
    node = make("orders")
    for _ in range(2):
        node.send("orders")
    node.ingest()
    log = node.kafka.log("delayd-buffer", 0)
    for _ in range(2):
        node.send("orders")
    check_positions(node.bus, node.replica, TIMEOUT_MS)
    if end is None:
        log.delete_before(first)
    else:
        log.truncate(1)
    said = "trimmed up to offset 3" if end is None else "checkpoint is at offset 2"
    with pytest.raises(BufferPositionError, match=said):
        check_positions(node.bus, node.replica, TIMEOUT_MS)
