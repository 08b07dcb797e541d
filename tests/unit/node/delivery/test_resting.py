"""A node whose cluster is about to get other shards: it comes to rest, and nobody goes on from what
is closed.

Source: docs/design/shards.md, "More or fewer".
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from manual_clock import START_MS
from one_node import OneNode

from delayd.bus.memory import MemoryBus
from delayd.cluster.resharding import Resharding, _closed, _resting
from delayd.cluster.topics import last_frontier
from delayd.errors import ShardsChangedError
from delayd.testing.node import TIMEOUT_MS, open_replica
from replication.rank import Rank
from replication.record import FrontierRecord
from replication.resharding import is_at_rest, rest_end_ms

T_MS = START_MS + 5_000
REST_MS_MAX = rest_end_ms(0, 1)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OneNode]:
    made = OneNode(tmp_path, "orders", partitions=4)
    made.lead()
    yield made
    made.close()


def write(node: OneNode, follow: object, **told: int) -> None:
    run = Resharding(MemoryBus(node.kafka), node.settings, node.clock, TIMEOUT_MS, 0)
    run._follow(0, 1, lambda record: follow(record, **told))  # type: ignore[operator]


def newest(node: OneNode) -> FrontierRecord:
    seen = last_frontier(node.bus, "delayd-frontier", TIMEOUT_MS)
    assert seen is not None
    return seen.record


def go_on(node: OneNode, until_ms: int) -> None:
    while node.clock.now_ms < until_ms:
        node.clock.now_ms += 250
        node.ingest()
        node.step()


def test_a_master_rests_at_the_time_that_it_was_told_and_goes_on_a_minute_later(
    node: OneNode,
) -> None:
    """Rules: shards-rest"""
    for due_ms in (T_MS - 1, T_MS, T_MS + 1):
        node.send("orders", due_ms)
    write(node, _resting, rest_ms=T_MS)
    node.lead()
    go_on(node, T_MS + 3_000)
    found = newest(node)
    assert is_at_rest(found) and set(found.frontier.cursors) == {Rank(T_MS, 0, 0)}
    assert len(node.read("orders")) == 1
    node.send("orders", T_MS - 3_000)
    go_on(node, T_MS + REST_MS_MAX - 1_000)
    assert len(node.read("orders")) == 1, "what comes late waits too: it ranks by when it came"
    assert sum(newest(node).frontier.offsets) == 4, "what arrives is passed all the same"
    node.lead()  # A successor rests, too.
    go_on(node, T_MS + REST_MS_MAX - 300)
    assert is_at_rest(newest(node))
    go_on(node, T_MS + REST_MS_MAX + 2_000)
    assert newest(node).rest_ms == 0
    assert len(node.read("orders")) == 4


def test_nobody_goes_on_from_a_shard_that_is_closed(node: OneNode) -> None:
    """Rules: resharded"""
    node.send("orders", START_MS + 500)
    write(node, _closed, shards=4)
    last = newest(node)
    for _ in range(3):
        with pytest.raises(ShardsChangedError, match="gets 4 shards"):
            node.lead()
    assert newest(node) == last and node.read("orders") == []
    seen = last_frontier(node.bus, "delayd-frontier", TIMEOUT_MS)
    assert seen is not None
    with pytest.raises(ShardsChangedError):
        node.replica.observe(seen)


def test_a_node_that_began_with_other_shards_stops(node: OneNode, tmp_path: Path) -> None:
    """Rules: resharded"""
    run = Resharding(MemoryBus(node.kafka), node.settings, node.clock, TIMEOUT_MS, 0)
    settings = run.to(2)
    seen = last_frontier(node.bus, "delayd-frontier", TIMEOUT_MS)
    assert seen is not None and len(seen.parts) == 2
    for each in (seen, *seen.parts):
        with pytest.raises(ShardsChangedError, match="gets 2 shards"):
            node.replica.observe(each)
    with pytest.raises(ShardsChangedError):
        node.lead()
    other = open_replica(tmp_path / "other", settings)
    other.observe(seen)
    other.close()


def test_a_wheel_of_before_knows_what_is_done_and_forgets_by_it(
    node: OneNode, tmp_path: Path
) -> None:
    """A checkpoint has the frontier of other shards. Rules: resharded"""
    for due_ms in (START_MS + 500, START_MS + 900_000):
        node.send("orders", due_ms)
    go_on(node, START_MS + 2_000)
    node.replica.checkpoint()
    run = Resharding(MemoryBus(node.kafka), node.settings, node.clock, TIMEOUT_MS, 0)
    settings = run.to(2)
    seen = last_frontier(node.bus, "delayd-frontier", TIMEOUT_MS)
    assert seen is not None
    folder = tmp_path
    node.replica.close()
    again = open_replica(folder, settings)
    try:
        assert again.lost_steps(seen.record.frontier) is None
        again.observe(seen)
        assert again.pending().total == 1
        assert again.checkpoint()
        covered = again.retention.covered
        assert covered is not None and covered.shards == 2
    finally:
        again.close()
