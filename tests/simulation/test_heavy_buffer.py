"""Nodes on a buffer whose brokers take batches that no node can hold."""

from pathlib import Path

from simulated.chaos import HEAVY_BATCH, HEAVY_BYTES
from simulated.world import World


def test_nodes_hold_no_such_batch_where_brokers_take_them(tmp_path: Path) -> None:
    """docs/design/frontier.md, Unreadable batches.

    Rules: batch-unreadable
    """
    world = World(3, tmp_path, kinds=(HEAVY_BATCH,))
    # As of clusters that were made before the topic stored batches uncompressed.
    world.kafka.topics["delayd-buffer"].config["compression.type"] = "producer"
    for partition in range(world.habits.partitions):
        world.kafka.append_heavy(
            "delayd-buffer", partition, [(bytes(HEAVY_BYTES), [])], is_refused=partition % 2 == 1
        )
    world.pass_until(lambda: len(world.records("delayd-dead")) == world.habits.partitions)
    logs = world.kafka.topics["delayd-buffer"].partitions
    assert [log.expanded_whole for log in logs] == [0] * world.habits.partitions
    world.close()
