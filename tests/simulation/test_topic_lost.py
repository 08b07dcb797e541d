"""A topic of delayd's own is deleted under running nodes: they end, and say which."""

from pathlib import Path

import pytest
from simulated.world import World
from structlog.testing import capture_logs

from delayd.errors import TopicMismatchError


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
