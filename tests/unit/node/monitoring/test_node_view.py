"""What a node says of itself: alive, ready, and its figures. Over Kafka in memory.

Source: docs/reference/http.md, "Admin port".
"""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from manual_clock import START_MS, ManualClock
from monitored_node import FREE_MIN_BYTES, Desk
from one_node import TIMEOUT_MS, wait_for

from delayd.cluster.frontier_log import SeenFrontier
from delayd.node.delivery.grant import Grant
from delayd.node.ingest_watch import DEAF_MS
from delayd.node.monitoring.node_view import CHECKPOINT_LATE_MS, STALL_LIMIT_MS
from delayd.request import Reason
from delayd.runtime.clock import SystemClock
from replication.rank import Rank
from replication.record import LastStep
from replication.shards import first_of_shard, joint_frontier


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Desk]:
    """Threads are not started, and the clock is the test's."""
    desk = Desk(tmp_path, ManualClock())
    yield desk
    desk.stop()


@pytest.fixture
def turning(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, SystemClock())
    desk.start()
    yield desk
    desk.stop()


def clock_of(desk: Desk) -> ManualClock:
    assert isinstance(desk.clock, ManualClock)
    return desk.clock


# --- Alive


def test_a_node_whose_loops_turn_is_alive_and_ready(turning: Desk) -> None:
    assert turning.probe("/livez") == turning.probe("/readyz") == (200, "")


@pytest.mark.parametrize("loop", ["ingest", "delivery"])
def test_a_loop_that_stands_still_ends_life_and_says_which(still: Desk, loop: str) -> None:
    clock = clock_of(still)
    clock.now_ms += STALL_LIMIT_MS
    assert still.probe("/livez") == (200, "")
    clock.now_ms += 1
    if loop == "ingest":
        still.delivery.progressed_ms = clock.now_ms
    else:
        still.ingestion.progressed_ms = clock.now_ms
    status, problem = still.probe("/livez")
    assert status == 503 and f"the {loop} loop" in problem


def test_loops_turn_while_kafka_is_away_so_that_nobody_restarts_the_node(turning: Desk) -> None:
    turning.bus.link.up = False
    turning.watch.problem = "nobody answers"
    before = turning.ingestion.progressed_ms, turning.delivery.progressed_ms
    wait_for(lambda: turning.ingestion.progressed_ms > before[0] + 50)
    wait_for(lambda: turning.delivery.progressed_ms > before[1] + 50)
    assert turning.probe("/livez") == turning.probe("/readyz") == (200, "")
    assert turning.view.status()["kafka_problem"] == "nobody answers"
    assert turning.shows("delayd_kafka_up", 0)


def test_a_node_shows_what_will_be_lost_if_nobody_mends_it(turning: Desk) -> None:
    assert turning.view.status()["topic_warnings"] == () and turning.shows(
        "delayd_topic_warnings", 0
    )
    turning.watch.warnings = ("retention.ms is too short",)
    assert turning.view.status()["topic_warnings"] == turning.watch.warnings
    assert turning.shows("delayd_topic_warnings", 1)


# --- Ready


def test_a_node_is_ready_once_it_has_ingested_what_the_frontier_took_into_account(
    still: Desk,
) -> None:
    newest = still.replica.newest
    assert newest is not None
    frontier = newest.record.frontier
    passed = replace(frontier, step=frontier.step + 1, offsets=(1, 0))
    record = replace(newest.record, frontier=passed)
    still.replica.observe(SeenFrontier(record, newest.offset + 1, newest.append_ms))
    status, problem = still.probe("/readyz")
    assert status == 503 and "has not reached" in problem
    assert still.probe("/livez") == (200, "")
    assert "delayd_ready 0" in still.get("/metrics").text
    still.send("orders", START_MS)
    consumer = still.bus.consumer("delayd-buffer")
    consumer.assign(still.replica.positions)
    still.replica.take(consumer.poll(10, 0))
    assert still.probe("/readyz") == (200, "")


def test_a_disk_that_takes_no_checkpoints_is_not_ready_and_yet_alive(still: Desk) -> None:
    clock = clock_of(still)
    clock.now_ms += CHECKPOINT_LATE_MS + 1_000
    assert still.probe("/readyz") == (200, "")
    clock.now_ms += 1
    status, problem = still.probe("/readyz")
    assert status == 503 and "no checkpoint" in problem
    assert still.probe("/livez") == (200, "")


def test_a_node_short_of_room_says_so_and_could_take_over_until_its_disk_is_full(
    still: Desk,
) -> None:
    """docs/reference/http.md: `/readyz` asks whether the node could take over."""
    for free, room, status in (
        (FREE_MIN_BYTES, "enough", 200),
        (FREE_MIN_BYTES - 1, "short", 200),
        (FREE_MIN_BYTES // 4 - 1, "full", 503),
        (FREE_MIN_BYTES * 5 // 4, "enough", 200),
    ):
        still.disk.free = free
        still.replica.checkpoint()
        assert still.get("/status").json()["disk"] == {
            "room": room,
            "free_bytes": free,
            "free_min_bytes": FREE_MIN_BYTES,
        }
        found, problem = still.probe("/readyz")
        assert found == status and (status == 200 or "disk_free_min_bytes" in problem)
        assert still.probe("/livez") == (200, "")
        assert still.shows("delayd_disk_short", float(room != "enough"))


# --- Figures


def test_a_follower_shows_what_it_has_ingested_refused_and_still_holds(turning: Desk) -> None:
    far_ms = SystemClock().wall_ms() + 3_600_000
    for number in range(20):
        turning.send("orders", far_ms + 1_000 * number, partition=number % 2)
    turning.kafka.append("delayd-buffer", 0, None, b"v", [("delayd-topic", b"orders")])
    wait_for(lambda: turning.shows("delayd_ingested_records_total", 21))
    refused = f'delayd_rejects_total{{reason="{Reason.MISSING_DUE.slug}"}}'
    wait_for(lambda: turning.shows(refused, 1))
    wait_for(lambda: turning.shows("delayd_disk_free_bytes", 10**9))
    assert turning.shows("delayd_wheel_frames", 21) and turning.shows("delayd_pending_messages", 20)
    assert turning.shows('delayd_role{role="follower"}', 1)
    assert turning.shows('delayd_leader_info{master="somebody"}', 1)
    assert turning.ingestion.delay_ms is not None and 0 <= turning.ingestion.delay_ms < 20_000


def test_what_an_open_transaction_hides_is_shown_as_unread(turning: Desk) -> None:
    producer = turning.bus.transactional_producer("a user's")
    producer.init_transactions(TIMEOUT_MS)
    producer.begin()
    for partition in (0, 0, 1):
        producer.send("delayd-buffer", key=None, value=b"v", headers=[], partition=partition)
    wait_for(lambda: turning.heard() == (2, 1))
    assert turning.shows('delayd_ingest_lag_offsets{partition="0"}', 2)
    producer.commit(TIMEOUT_MS)
    wait_for(lambda: turning.heard() == (0, 0))
    assert turning.shows("delayd_ingested_records_total", 3)


def test_a_node_that_hears_nothing_says_so_and_one_that_cannot_ask_says_that(still: Desk) -> None:
    clock = clock_of(still)
    still.send("orders", 10**13)
    for _ in range(2):
        still.heard()
        clock.now_ms += DEAF_MS
    status = still.view.status()
    assert "is not read on" in status["ingest_problem"] and sum(status["ingest_lag"]) == 1
    assert still.shows("delayd_ingest_deaf", 1) and still.shows("delayd_kafka_up", 1)
    still.bus.link.up = False
    assert still.heard() == (None, None)
    assert still.view.status()["ingest_problem"] is None, "it cannot know"
    assert still.view.status()["kafka_problem"] and still.shows("delayd_kafka_up", 0)
    still.bus.link.up = True


def test_a_master_shows_what_it_has_delivered_and_has_not(turning: Desk) -> None:
    turning.kafka.create_topic("orders", 1, {"message.timestamp.type": "LogAppendTime"})
    now_ms = SystemClock().wall_ms()
    for number in range(25):
        turning.send("orders", now_ms + (3_600_000 if number < 5 else 0))
    turning.delivery.give(Grant("n/1", 10**15))
    wait_for(lambda: turning.shows('delayd_step_messages_total{fate="delivered"}', 20))
    wait_for(lambda: turning.shows("delayd_pending_messages", 5))
    assert turning.shows("delayd_wheel_frames", 25), "what was delivered is still held"
    assert turning.shows('delayd_lateness_seconds_count{topic="orders"}', 20)
    assert turning.shows('delayd_role{role="master"}', 1) and turning.shows("delayd_term", 1)
    wait_for(lambda: turning.view.delivery_lag_ms() < 10_000)


def test_a_new_cluster_lags_since_it_was_made_and_not_since_1970(still: Desk) -> None:
    clock_of(still).now_ms += 5_000
    assert still.view.delivery_lag_ms() == 5_000


def test_the_steps_have_come_as_far_as_those_of_the_last_shard(still: Desk) -> None:
    """`delayd dev advance` waits until they have come to where the clock stops."""
    newest = still.replica.newest
    assert newest is not None
    steps = (LastStep(1, 1, START_MS - 5_000, 0, 0), LastStep(1, 1, START_MS, 0, 0))
    record = replace(newest.record, last_steps=steps, now_ms=START_MS)
    frontier = replace(record.frontier, step=record.frontier.step + 1)
    record = replace(record, frontier=frontier)
    still.replica.observe(SeenFrontier(record, newest.offset + 1, newest.append_ms))
    assert still.view.status()["frontier"]["now_ms"] == START_MS - 5_000


def test_each_shard_lags_by_its_own_cursor(still: Desk) -> None:
    newest = still.replica.newest
    assert newest is not None
    lanes = newest.record.settings.lanes
    parts = [
        replace(
            first_of_shard(shard, 2, 2, lanes),
            cursors=(Rank(START_MS - late_ms, 0, 0), *[Rank(START_MS, 0, 0)] * (lanes - 1)),
            step=newest.record.frontier.step + 1,
        )
        for shard, late_ms in enumerate((250, 90_000))
    ]
    record = replace(newest.record, frontier=joint_frontier(parts))
    still.replica.observe(SeenFrontier(record, newest.offset + 1, newest.append_ms))
    assert still.view.shard_lags_ms() == [250, 90_000]
    assert still.view.delivery_lag_ms() == 90_000
    assert still.shows('delayd_shard_lag_seconds{shard="1"}', 90.0)


def test_a_node_says_which_shards_it_delivers(still: Desk) -> None:
    answer = still.get("/leader")
    assert answer.status_code == 503
    assert answer.json() == {"master": "somebody", "self": False, "shards": []}
    assert still.shows('delayd_shard_led{shard="0"}', 0.0)


def test_log_time_ahead_of_the_clock_is_shown(still: Desk) -> None:
    clock_of(still).now_ms += 7_000
    still.send("orders", START_MS)
    consumer = still.bus.consumer("delayd-buffer")
    consumer.assign(still.replica.positions)
    still.replica.take(consumer.poll(10, 0))
    assert still.view.log_ahead_ms() == 0
    clock_of(still).now_ms -= 7_000
    assert still.view.log_ahead_ms() == 7_000


def test_a_scrape_does_not_wait_for_the_replicas_lock(still: Desk) -> None:
    asked = threading.Thread(target=lambda: answers.append(still.get("/metrics").text))
    answers: list[str] = []
    with still.replica.changed:
        asked.start()
        asked.join(20)
        assert answers, "it waited"
    assert "delayd_ready 1" in answers[0]
