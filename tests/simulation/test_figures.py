"""What real nodes count of themselves, against what stands in the topics in the end.

Nobody dies in these runs: the figures are of one process each.
"""

import json
from collections import Counter
from pathlib import Path

import pytest
from long_tests import long_ones
from simulated.world import World
from structlog.testing import capture_logs

from delayd.node.monitoring.node_view import NodeView
from delayd.request import DIED

ETCD_FAULTS = ("etcd partition", "etcd paused", "leases ended")


def played(world: World) -> list[NodeView]:
    """Return the nodes at the end of a run in which no process died by itself."""
    with capture_logs() as lines:
        world.run()
    views = [machine._view for machine in world.machines]
    assert [machine.lives for machine in world.machines] == [1] * len(views)
    nodes = [view for view in views if view is not None]
    failed = [
        line for line in lines if line["event"] in ("etcd_call_failed", "cursor_not_mirrored")
    ]
    assert len(failed) <= sum(node.control.etcd_failures for node in nodes), "others are not logged"
    return nodes


def headers_of(world: World, topic: str, name: str) -> Counter[str]:
    """Return how often each value of delayd's own last header of that name occurs."""
    found = (
        [value for other, value in record.headers if other == name]
        for record in world.records(topic)
    )
    return Counter((values[-1] or b"").decode() for values in found if values)


def summed(counts: list[Counter[str]]) -> Counter[str]:
    return sum(counts, Counter())


@pytest.mark.parametrize("kinds", [(), ETCD_FAULTS], ids=["calm", "etcd"])
@pytest.mark.parametrize("seed", [1, *long_ones(2, 3)])
def test_the_figures_of_all_nodes_add_up_to_what_is_in_the_topics(
    seed: int, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    world = World(seed, tmp_path, kinds=kinds)
    nodes = played(world)
    frontiers = [json.loads(record.value or b"") for record in world.records("delayd-frontier")]
    done = summed([Counter(frontier["counts"]) for frontier in frontiers])
    messages = summed([Counter(node.delivery.counters.messages) for node in nodes])
    assert (
        sum(node.delivery.counters.committed_count for node in nodes) == frontiers[-1]["step"] > 10
    )
    assert messages["delivered"] == done["delivered"] > 0
    put_back = sum(messages[fate] for fate in ("retried", "deferred", "smoothed", "resolved"))
    assert put_back == done["retried"]
    died = messages["dead"] + messages["expired"]
    assert (died, messages["killed"]) == (done["dead"], done["killed"])
    told = [json.loads(record.value or b"") for record in world.records("delayd-receipts")]
    assert summed([Counter(node.delivery.counters.verdicts) for node in nodes]) == Counter(
        receipt["verdict"] for receipt in told
    )
    letters = headers_of(world, "delayd-dead", "delayd-reason")
    assert summed([Counter(node.delivery.counters.letters) for node in nodes]) == letters
    of_messages = (*DIED, "conflict")
    refused = {r: n for r, n in letters.items() if r not in of_messages}
    for node in nodes:
        assert {
            reason: count for reason, count in node.ingestion.rejects.items() if count
        } == refused
        assert node.replica.ingested_count == len(world.records("delayd-buffer"))
    late = [sum(d.counts) for node in nodes for d in node.delivery.counters.lateness.values()]
    assert 0 < sum(late) <= messages["delivered"]
    world.close()


@pytest.mark.long
def test_each_leadership_that_was_won_has_ended_for_one_reason(tmp_path: Path) -> None:
    ended: Counter[str] = Counter()
    failures = 0
    for seed in range(1, 6):
        world = World(seed, tmp_path / str(seed), kinds=ETCD_FAULTS)
        nodes = played(world)
        newest = json.loads(world.records("delayd-frontier")[-1].value or b"")
        ends = summed([Counter(node.control.ended) for node in nodes])
        assert sum(node.control.won_count for node in nodes) == ends.total() >= newest["term"]
        assert not any(node.role == "master" for node in nodes)
        assert all(node.control.lease_margin_ms is None for node in nodes)
        assert {node.frontier.term for node in nodes if node.frontier is not None} <= set(
            range(newest["term"] + 1)
        )
        ended += ends
        failures += sum(node.control.etcd_failures for node in nodes)
        world.close()
    assert ended["shutdown"] >= 5 and failures > 0
    assert ended.keys() & {"lease-lost", "higher-term"}, "leases ended early in some"
