"""What a node says of itself: alive, ready, and its figures. Over Kafka in memory.

Source: docs/reference/http.md, "Admin port".
"""

import asyncio
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from httpx import ASGITransport, AsyncClient, Response
from manual_clock import START_MS, ManualClock
from one_node import CLUSTER_KEY, TIMEOUT_MS, DeliveryDesk, wait_for

from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.member_proof import MemberCheck, MemberKeys
from delayd.config.node import NodeConfig
from delayd.node.comparing.service import Comparisons
from delayd.node.delivery.delivery_context import DeliveryOptions
from delayd.node.delivery.mastership import Grant
from delayd.node.export.exporter import Exporter
from delayd.node.ingest_watch import DEAF_MS, IngestWatch
from delayd.node.kafka_health import KafkaHealth
from delayd.node.monitoring.http import build_app
from delayd.node.monitoring.node_view import CHECKPOINT_LATE_MS, STALL_LIMIT_MS, NodeView
from delayd.node.replica.ingest_loop import IngestLoop
from delayd.node.snapshots.donor import Donor
from delayd.request import Reason
from delayd.runtime.clock import Clock, SystemClock
from delayd.wheel.disk import SystemDisk
from replication.election_facts import State

FREE_MIN_BYTES = 1_000


class Standing:
    """A node that has never taken part in an election."""

    state = State.FOLLOWER
    master_name: str | None = "somebody"
    lease_margin_ms: int | None = None
    won_count = 0
    found_dead_count = 0
    ended: dict[str, int] = {}  # noqa: RUF012  # nobody changes it
    etcd_failures = 0
    etcd_problem: str | None = None


class Disk(SystemDisk):
    """As large as a test says."""

    free = 10**9

    def free_bytes(self, path: str) -> int:
        return self.free


class Desk(DeliveryDesk):
    """A node's parts without its election; threads run once they are started."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.clock = clock
        self.disk = Disk()
        super().__init__(
            folder / "wheel",
            clock,
            DeliveryOptions(idle_interval_ms=50, clock_drift_max_ms=500),
            partitions=2,
            export_hold_ms=600_000,
            disk_free_min_bytes=FREE_MIN_BYTES,
            disk=self.disk,
        )
        config = NodeConfig(
            bootstrap="nowhere:1",
            etcd=("http://nowhere:1",),
            cluster="c",
            cluster_key=CLUSTER_KEY,  # type: ignore[arg-type]
            data_dir=folder,
            disk_free_min_bytes=FREE_MIN_BYTES,
        )
        self.failures: list[BaseException] = []
        self.ingestion = IngestLoop(self.bus, self.replica, clock, 10, self.failures.append)
        self.watch = KafkaHealth(self.bus, self.settings, clock, lambda: self.replica.reached)
        self.hearing = IngestWatch(
            self.bus, "delayd-buffer", clock, lambda: self.ingestion.read_to, lambda: True
        )
        self.view = NodeView(
            config,
            clock,
            self.replica,
            self.ingestion,
            self.delivery,
            Standing(),  # type: ignore[arg-type]
            Exporter(self.replica, clock, folder=folder / "exports", node="n"),
            self.watch,
            self.hearing,
            Donor(self.replica, clock, node="n", bytes_per_s=2**30),
            MemberCheck(MemberKeys(CLUSTER_KEY.encode(), "c"), "life", clock),
            Comparisons(
                self.replica,
                self.bus,
                dict,
                MemberKeys(CLUSTER_KEY.encode(), "c"),
                clock,
                node="n",
                interval_s=600,
                is_master=lambda: False,
                on_damage=self.failures.append,
            ),
        )
        # FastAPI remembers routes for ever: the wheel must not be among what they lead to.
        self._app = build_app(weakref.proxy(self.view))

    def start(self) -> None:
        self.ingestion.start()
        self.delivery.start()

    def stop(self) -> None:
        self.ingestion.stop(10)
        super().stop()

    def heard(self) -> tuple[int | None, ...]:
        with closing(self.bus.cluster()) as cluster:
            self.hearing.look(cluster)
        return self.hearing.unread

    def probe(self, path: str) -> tuple[int, str]:
        answer = self.get(path)
        return answer.status_code, answer.json().get("problem", "")

    def get(self, path: str) -> Response:
        return asyncio.run(self._get(path))

    def shows(self, metric: str, value: float) -> bool:
        lines = (line.rpartition(" ") for line in self.get("/metrics").text.splitlines())
        return any(name == metric and float(shown) == value for name, _, shown in lines)

    async def _get(self, path: str) -> Response:
        async with AsyncClient(transport=ASGITransport(self._app), base_url="http://n") as client:
            return await client.get(path)


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
