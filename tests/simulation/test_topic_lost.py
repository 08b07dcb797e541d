"""Topics of delayd's own under running nodes: one is gone, seems gone, or keeps too little."""

from collections.abc import Callable
from pathlib import Path

import pytest
from simulated.world import World
from structlog.testing import capture_logs
from structlog.typing import EventDict

from delayd.errors import TopicMismatchError
from delayd.node.kafka_health import ANSWERS_NEEDED

WATCHED_MS = 120_000
"""Long enough for each node to ask a few times."""


@pytest.mark.long
def test_nodes_end_when_a_topic_of_their_own_is_gone(tmp_path: Path) -> None:
    world = World(3, tmp_path, kinds=())

    def lose_it_once_there_is_a_master() -> bool:
        if any(machine.has_live_grant for machine in world.machines):
            world.kafka.topics.pop("delayd-dead", None)
        return False

    with capture_logs() as lines, pytest.raises(TopicMismatchError, match="delayd-dead"):
        world.pass_until(lose_it_once_there_is_a_master)
    failed = [line for line in lines if line["event"] == "node_failed"]
    assert failed and failed[0]["code"] == TopicMismatchError.code
    world.close()


def lines_while(tmp_path: Path, bend: Callable[[World], None]) -> list[EventDict]:
    """What nodes log while they run under topics that are bent once there is a master."""
    world = World(3, tmp_path, kinds=())
    bent_ms: list[int] = []

    def is_over() -> bool:
        if not bent_ms and any(machine.has_live_grant for machine in world.machines):
            bent_ms.append(world.kafka.clock.wall_ms())
            bend(world)
        return bool(bent_ms) and world.kafka.clock.wall_ms() > bent_ms[0] + WATCHED_MS

    with capture_logs() as lines:
        world.pass_until(is_over)
    world.close()
    return [line for line in lines if line["event"] != "node_started"]


@pytest.mark.long
def test_no_node_ends_because_brokers_seem_not_to_know_a_topic(tmp_path: Path) -> None:
    """docs/reference/topics.md, "What is checked"."""

    def bend(world: World) -> None:
        world.kafka.misdescribed = {"delayd-dead": ANSWERS_NEEDED - 1}

    lines = lines_while(tmp_path, bend)
    events = [line["event"] for line in lines]
    assert "kafka_refuses" in events and "kafka_answers" in events
    assert "node_failed" not in events and "node_stopping" not in events


@pytest.mark.long
def test_a_retention_that_was_lowered_by_mistake_stops_nobody(tmp_path: Path) -> None:
    """docs/operations.md, "A retention that is too short"."""

    def bend(world: World) -> None:
        world.kafka.topics["delayd-buffer"].config["retention.ms"] = "86400000"

    events = [line["event"] for line in lines_while(tmp_path, bend)]
    assert events.count("buffer_endangered") == 3
    assert "node_failed" not in events and "node_stopping" not in events
