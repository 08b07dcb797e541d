"""Real nodes whose disks hold a third of what was sent: they deliver on, and nothing is lost.

With `--full` for ten minutes, five times as many. Source: docs/operations.md, "A full disk".
"""

from pathlib import Path
from typing import Any

import pytest
import small_disk_node
from clusters import TestCluster, schedule
from nodes import CLOCK, HANGS_S, NodeProcess, master_of, node_group, wait_for

from delayd.dev.batch import Batch
from delayd.dev.witness import Witness

pytestmark = pytest.mark.real

LIMIT_BYTES = 8 << 20
ROOM_BYTES = 105
"""Above the limit, for each message: a third of what one takes."""
COUNT, FULL_COUNT = 40_000, 200_000
SPREAD_S, FULL_SPREAD_S = 30, 600
STILL_S = 15
"""Without any delivery for so long, deliveries have stopped."""


def start(node: NodeProcess, disk_bytes: int) -> None:
    env = {
        small_disk_node.FOLDER: str(node.data),
        small_disk_node.SIZE: str(disk_bytes),
    }
    node.start_program(env, program=str(Path(small_disk_node.__file__)))


def rooms(nodes: list[NodeProcess]) -> list[str]:
    return [node.status().get("disk", {}).get("room", "") for node in nodes]


@pytest.mark.timeout(1_800)
def test_nodes_with_full_disks_deliver_on_and_lose_nothing(
    cluster: TestCluster, request: pytest.FixtureRequest
) -> None:
    """Rules: short-takes-in-less"""
    is_full = request.config.getoption("--full")
    count, spread_s = (FULL_COUNT, FULL_SPREAD_S) if is_full else (COUNT, SPREAD_S)
    nodes = [cluster.node(number, disk_free_min_bytes=LIMIT_BYTES) for number in range(2)]
    lead_ms = 10_000
    with node_group(nodes):
        for node in nodes:
            start(node, LIMIT_BYTES + count * ROOM_BYTES)
        master_of(nodes)
        first_due_ms = CLOCK.wall_ms() + lead_ms
        batch = Batch(
            f"r{CLOCK.wall_ms()}", (cluster.target("a"),), count, first_due_ms, spread_s * 1_000
        )
        with (
            cluster.client() as client,
            Witness(cluster.bootstrap, batch, log=cluster.folder / "witness.log") as witness,
        ):
            schedule(client, batch)
            wait_for(lambda: set(rooms(nodes)) == {"short"}, "both disks are short of room")
            figures = deliver(nodes, witness, batch)
            verdict = witness.stop()
        print(figures, verdict)
        assert verdict.ok, verdict
        assert figures["short_s"] > spread_s / 4
        assert figures["longest_still_s"] < STILL_S
        wait_for(lambda: rooms(nodes) == ["enough"] * 2, "there is room again")
        for node in nodes:
            assert node.log.count("node_started") == 1, "no node has ended for it"
            assert node.log.count("disk_short") == node.log.count("disk_has_room") >= 1


def deliver(nodes: list[NodeProcess], witness: Witness, batch: Batch) -> dict[str, Any]:
    """Wait until all has come. Return how long the disks were short, and the longest time without a
    delivery since the first message was due."""
    begun_ms = changed_ms = short_ms = CLOCK.wall_ms()
    before = longest_ms = short_in_all_ms = 0

    def looks_done() -> bool:
        nonlocal before, changed_ms, longest_ms, short_ms, short_in_all_ms
        delivered, now_ms = witness.snapshot().counts.delivered, CLOCK.wall_ms()
        if now_ms < batch.first_due_ms or delivered != before:
            before, changed_ms = delivered, now_ms
        longest_ms = max(longest_ms, now_ms - changed_ms)
        if "short" in rooms(nodes):
            short_in_all_ms += now_ms - short_ms
        short_ms = now_ms
        return delivered >= batch.count

    wait_for(looks_done, "all has come", batch.spread_ms / 1_000 + HANGS_S)
    return {
        "took_s": (CLOCK.wall_ms() - begun_ms) / 1_000,
        "short_s": short_in_all_ms / 1_000,
        "longest_still_s": longest_ms / 1_000,
    }
