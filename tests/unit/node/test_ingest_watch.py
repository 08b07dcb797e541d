"""A node that reads nothing, though brokers have something for it, knows that."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest
import structlog
from manual_clock import ManualClock
from structlog.typing import EventDict

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.node.ingest_watch import DEAF_MS, IngestWatch

TOPIC = "buffer"


class Desk:
    """Brokers with two partitions, and the watch of a reader that is moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.kafka = MemoryKafka(self.clock)
        self.kafka.create_topic(TOPIC, 2, {})
        self.bus = MemoryBus(self.kafka, clock=self.clock)
        self.read_to = [0, 0]
        self.has_room = True
        self.watch = IngestWatch(
            self.bus, TOPIC, self.clock, lambda: self.read_to, lambda: self.has_room
        )

    def look(self, after_ms: int = 0) -> None:
        self.clock.now_ms += after_ms
        with closing(self.bus.cluster()) as cluster:
            self.watch.look(cluster)

    def grow(self, partition: int = 0) -> None:
        self.kafka.append(TOPIC, partition, None, b"v")


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def lines() -> Iterator[list[EventDict]]:
    with structlog.testing.capture_logs() as found:
        yield found


def test_it_tells_once_that_a_partition_is_not_read_and_once_that_it_is_again(
    desk: Desk, lines: list[EventDict]
) -> None:
    desk.grow(1)
    desk.look()
    assert desk.watch.problem is None and desk.watch.unread == (0, 1)
    for _ in range(3):
        desk.look(DEAF_MS)
        assert desk.watch.problem and "partition 1 at 0 of 1" in desk.watch.problem
    desk.read_to[1] = 1
    desk.look(1)
    assert desk.watch.problem is None and desk.watch.unread == (0, 0)
    assert [line["event"] for line in lines] == ["ingest_hears_nothing", "ingest_hears"]


def test_a_reader_that_lags_and_reads_on_hears(desk: Desk) -> None:
    for _ in range(5):
        desk.grow()
        desk.grow()
        desk.read_to[0] += 1
        desk.look(DEAF_MS)
        assert desk.watch.problem is None and desk.watch.unread[0]


def test_what_an_open_transaction_hides_is_unread_and_no_problem(desk: Desk) -> None:
    producer = desk.bus.transactional_producer("a user's")
    producer.init_transactions(1_000)
    producer.begin()
    producer.send(TOPIC, key=None, value=b"v", headers=[], partition=0)
    for _ in range(3):
        desk.look(DEAF_MS)
    assert desk.watch.unread == (1, 0) and desk.watch.problem is None


def test_it_tells_for_how_long_an_open_transaction_holds_up_a_partition(desk: Desk) -> None:
    desk.grow(1)
    desk.read_to = [0, 1]
    producer = desk.bus.transactional_producer("a user's")
    producer.init_transactions(1_000)

    def open_one() -> None:
        producer.begin()
        producer.send(TOPIC, key=None, value=b"v", headers=[], partition=1)

    desk.look()
    assert desk.watch.held_ms() == {}
    open_one()
    desk.look()
    desk.has_room = False  # What holds up a partition does so whether or not there is room.
    desk.look(40_000)
    desk.look(30_000)
    assert desk.watch.held_ms() == {1: 70_000}
    producer.commit(1_000)
    open_one()
    desk.look(1_000)
    assert desk.watch.held_ms() == {1: 0}, "another transaction"
    producer.commit(1_000)
    desk.look(1_000)
    assert desk.watch.held_ms() == {}


def test_a_node_without_room_does_not_count_as_deaf(desk: Desk) -> None:
    desk.grow()
    desk.has_room = False
    for _ in range(3):
        desk.look(DEAF_MS)
    assert desk.watch.unread == (1, 0) and desk.watch.problem is None


def test_it_cannot_know_while_nobody_answers(desk: Desk, lines: list[EventDict]) -> None:
    desk.grow()
    desk.look()
    desk.look(DEAF_MS)
    desk.bus.link.up = False
    desk.look(DEAF_MS)
    assert desk.watch.unread == (None, None)
    assert desk.watch.problem is None and desk.watch.unanswered
    assert lines[-1]["event"] == "ingest_hears" and lines[-1]["unanswered"]
    desk.bus.link.up = True
    desk.look()
    assert desk.watch.unanswered is None and desk.watch.unread == (1, 0)


def test_it_watches_until_it_is_cancelled(desk: Desk) -> None:
    desk.grow()

    async def play() -> None:
        task = asyncio.create_task(desk.watch.run())
        while desk.watch.unread != (1, 0):
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(asyncio.wait_for(play(), 20))
