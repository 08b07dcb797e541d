"""A running node that Kafka does not let in says so, once, and says when it is over."""

import asyncio
from collections.abc import Iterator

import pytest
import structlog
from manual_clock import ManualClock
from one_node import CLUSTER_KEY, TIMEOUT_MS
from structlog.typing import EventDict

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.cluster.topics import create_topics
from delayd.errors import KafkaUnreachableError
from delayd.node import kafka_health as kafka_watch
from delayd.node.kafka_health import KafkaHealth


class Desk:
    """A cluster, and the watch of one node of it, which looks all the time."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.kafka = MemoryKafka(clock)
        self.bus = MemoryBus(self.kafka, clock=clock)
        settings = create_topics(
            self.bus, cluster="c", cluster_key=CLUSTER_KEY, partitions=1, timeout_ms=TIMEOUT_MS
        )
        self.watch = KafkaHealth(self.bus, settings)

    async def until(self, is_away: bool) -> None:
        while (self.watch.problem is not None) is not is_away:
            await asyncio.sleep(0.001)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(kafka_watch, "INTERVAL_S", 0.001)
    return Desk()


@pytest.fixture
def lines() -> Iterator[list[EventDict]]:
    with structlog.testing.capture_logs() as found:
        yield found


def test_it_tells_once_that_kafka_does_not_let_it_in_and_once_that_it_does_again(
    desk: Desk, lines: list[EventDict]
) -> None:
    async def play() -> None:
        task = asyncio.create_task(desk.watch.run())
        for _ in range(2):
            desk.bus.link.up = False
            await desk.until(is_away=True)
            await asyncio.sleep(0.05)  # it looks again, some times
            desk.bus.link.up = True
            await desk.until(is_away=False)
        task.cancel()

    asyncio.run(asyncio.wait_for(play(), 20))
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("kafka_refuses", "warning"),
        ("kafka_answers", "info"),
    ] * 2
    assert lines[0]["code"] == "kafka-unreachable" and lines[0]["error"]


def test_it_does_not_tell_again_what_is_only_said_in_other_words(
    desk: Desk, lines: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal says how long the attempt took, which is never the same; another remedy is news."""
    said = iter(
        [
            KafkaUnreachableError("refused after 2 ms", remedy="correct kafka_password"),
            KafkaUnreachableError("refused after 3 ms", remedy="correct kafka_password"),
            KafkaUnreachableError("gone", remedy="check the brokers"),
        ]
    )

    def answer(*_: object) -> list[str]:
        error = next(said, None)
        if error is None:
            return ["enough"]
        raise error

    monkeypatch.setattr(kafka_watch, "check_topics", answer)
    assert asyncio.run(asyncio.wait_for(desk.watch.run(), 20)) == ["enough"]
    assert [line["event"] for line in lines] == ["kafka_refuses"] * 2 + ["kafka_answers"]


def test_it_ends_with_what_the_topics_lack(desk: Desk, lines: list[EventDict]) -> None:
    del desk.kafka.topics["delayd-dead"]
    [wrong] = asyncio.run(asyncio.wait_for(desk.watch.run(), 20))
    assert "delayd-dead" in wrong and lines == []
