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
    partitions = world.habits.partitions

    def write_heavy_until(letters: int) -> None:
        for partition in range(partitions):
            world.kafka.append_heavy(
                "delayd-buffer",
                partition,
                [(bytes(HEAVY_BYTES), [])],
                is_refused=partition % 2 == 1,
            )
        world.pass_until(lambda: len(world.records("delayd-dead")) == letters)

    write_heavy_until(partitions)  # There before the nodes start.
    write_heavy_until(2 * partitions)
    logs = world.kafka.topics["delayd-buffer"].partitions
    assert [log.expanded_whole for log in logs] == [0] * partitions
    world.close()


def test_nodes_hold_no_such_batch_that_brokers_took_before(tmp_path: Path) -> None:
    """docs/design/frontier.md, Unreadable batches: the topic was altered since.

    Rules: batch-unreadable
    """
    world = World(3, tmp_path, kinds=(HEAVY_BATCH,))
    buffer = world.kafka.topics["delayd-buffer"]

    def write_heavy(partition: int) -> None:
        """Write a batch that the topic's setting keeps out."""
        uncompressed = buffer.config.pop("compression.type")
        is_refused = partition % 2 == 1
        world.kafka.append_heavy(
            "delayd-buffer", partition, [(bytes(HEAVY_BYTES), [])], is_refused=is_refused
        )
        buffer.config["compression.type"] = uncompressed

    partitions = range(world.habits.partitions)
    for partition in partitions:
        write_heavy(partition)
    world.pass_until(lambda: len(world.records("delayd-dead")) == len(partitions))
    assert "buffer_read_carefully" not in "\n".join(world.trace)
    assert sum(log.expanded_whole for log in buffer.partitions) == 0
    write_heavy(0)
    world.pass_until(lambda: len(world.records("delayd-dead")) == len(partitions) + 1)
    assert buffer.partitions[0].expanded_whole > 0, "what comes later is read fast again"
    world.close()
