"""A running node that Kafka does not let in says so, once, and says when it is over."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest
import structlog
from manual_clock import ManualClock
from one_node import CLUSTER_KEY, TIMEOUT_MS
from structlog.typing import EventDict

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.cluster.topic_checks import DELETION_NOTICE_MS, Findings
from delayd.cluster.topics import create_topics
from delayd.errors import KafkaUnreachableError
from delayd.node import kafka_health as kafka_watch
from delayd.node.kafka_health import ANSWERS_NEEDED, KafkaHealth
from replication.settings import DAY_MS


class Desk:
    """A cluster, and the watch of one node of it, which looks all the time."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.kafka = MemoryKafka(self.clock)
        self.bus = MemoryBus(self.kafka, clock=self.clock)
        settings = create_topics(
            self.bus, cluster="c", cluster_key=CLUSTER_KEY, partitions=1, timeout_ms=TIMEOUT_MS
        )
        self.read_to = [0]
        self.watch = KafkaHealth(self.bus, settings, self.clock, lambda: self.read_to)

    async def until(self, is_away: bool) -> None:
        while (self.watch.problem is not None) is not is_away:
            await asyncio.sleep(0.001)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(kafka_watch, "INTERVAL_S", 0.001)
    monkeypatch.setattr(kafka_watch, "AGAIN_S", 0.001)
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

    def answer(*_: object) -> Findings:
        error = next(said, None)
        if error is None:
            return Findings(("enough",), ())
        raise error

    monkeypatch.setattr(kafka_watch, "check_topics", answer)
    assert asyncio.run(asyncio.wait_for(desk.watch.run(), 20)) == ["enough"]
    told = [(line["event"], line["code"]) for line in lines]
    assert told == [("kafka_refuses", "kafka-unreachable")] * 2 + [
        ("kafka_refuses", "topic-mismatch")
    ]


def test_it_ends_with_what_the_topics_lack(desk: Desk, lines: list[EventDict]) -> None:
    del desk.kafka.topics["delayd-dead"]
    [wrong] = asyncio.run(asyncio.wait_for(desk.watch.run(), 20))
    assert "delayd-dead" in wrong
    assert [line["event"] for line in lines] == ["kafka_refuses"]


def test_a_few_wrong_answers_do_not_end_a_node(desk: Desk, lines: list[EventDict]) -> None:
    """docs/reference/topics.md, "What is checked": a broker may not know a topic yet."""
    asked = desk.kafka.surveys_count
    desk.kafka.misdescribed = {"delayd-dead": ANSWERS_NEEDED - 1}

    async def play() -> None:
        task = asyncio.create_task(desk.watch.run())
        while desk.kafka.surveys_count < asked + ANSWERS_NEEDED + 5:
            assert not task.done(), task.result()
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(asyncio.wait_for(play(), 20))
    assert desk.kafka.misdescribed == {"delayd-dead": 0} and desk.watch.problem is None
    assert [line["event"] for line in lines] == ["kafka_refuses", "kafka_answers"]


def test_answers_that_contradict_each_other_prove_nothing(desk: Desk) -> None:
    """Each names another topic, so that none was named often enough in a row."""
    asked = itertools.count()

    async def play() -> None:
        task = asyncio.create_task(desk.watch.run())
        while next(asked) < 5 * ANSWERS_NEEDED:
            assert not task.done(), task.result()
            await asyncio.sleep(0.001)
        task.cancel()

    def answer(*_: object) -> Findings:
        return Findings((f"topic {next(asked) % 3}",), ())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_watch, "check_topics", answer)
        asyncio.run(asyncio.wait_for(play(), 20))


def test_a_retention_that_was_lowered_is_a_warning_that_names_what_will_be_lost(
    desk: Desk, lines: list[EventDict]
) -> None:
    """docs/operations.md, "A retention that is too short": a node that ended would read nothing."""
    config = desk.kafka.topics["delayd-buffer"].config
    config["retention.ms"] = str(DAY_MS)
    for _ in range(3):
        desk.kafka.append("delayd-buffer", 0, None, b"v")
    desk.read_to = [2]

    async def warned(count: int) -> None:
        while len(desk.watch.warnings) != count:
            await asyncio.sleep(0.001)

    async def play() -> None:
        task = asyncio.create_task(desk.watch.run())
        await warned(1)
        assert "retention.ms" in desk.watch.warnings[0] and "`kafka-conf" in desk.watch.warnings[0]
        desk.clock.now_ms += DAY_MS - DELETION_NOTICE_MS
        desk.kafka.append("delayd-buffer", 0, None, b"of now")
        await asyncio.sleep(0.05)  # it looks again, some times
        assert len(desk.watch.warnings) == 1, "all are younger than the retention"
        desk.clock.now_ms += 1
        await warned(2)
        assert "delayd-buffer/0 from offset 2 on" in desk.watch.warnings[0]
        assert "below offset 3" in desk.watch.warnings[0]
        desk.read_to = [3]
        await warned(1)
        config["retention.ms"] = "-1"
        await warned(0)
        assert not task.done() and desk.watch.problem is None
        task.cancel()

    asyncio.run(asyncio.wait_for(play(), 20))
    assert [line["event"] for line in lines] == ["buffer_endangered"] * 2 + ["buffer_safe"]


def test_it_says_once_that_brokers_take_batches_that_no_node_can_hold(
    desk: Desk, lines: list[EventDict]
) -> None:
    desk.kafka.topics["delayd-buffer"].config["compression.type"] = "producer"

    async def play() -> None:
        task = asyncio.create_task(desk.watch.run())
        asked = desk.kafka.surveys_count
        while desk.kafka.surveys_count < asked + 5:
            assert not task.done(), task.result()
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(asyncio.wait_for(play(), 20))
    [line] = lines
    assert (line["event"], line["log_level"]) == ("buffer_unguarded", "warning")
    assert "compression.type=uncompressed" in line["advice"]
    assert desk.watch.warnings == ()
