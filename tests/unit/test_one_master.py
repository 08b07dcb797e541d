"""One master, move by move: when it must not take over, must not commit, must not go on."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from one_node import START_MS, TIMEOUT_MS, ManualClock, OneNode

from delayd.bus.memory.producer import MemoryProducer
from delayd.errors import FrontierError
from replication.frontier import begin_term
from replication.now import BOUND_AGE_MAX_MS
from replication.record import StepCounts, decode, encode, record_key


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OneNode]:
    """A master; a message for `orders` is due."""
    made = OneNode(tmp_path, "orders")
    made.lead()
    made.send("orders")
    made.ingest()
    yield made
    made.close()


def steps(node: OneNode) -> int:
    """How many have been committed since the cluster was made."""
    newest = node.read("delayd-frontier")[-1]
    return decode(newest.value or b"").frontier.step


def test_a_lost_commit_marker_on_the_frontier_stops_a_takeover(node: OneNode) -> None:
    """docs/design/frontier.md, Takeover: the last stable offset equals the high watermark."""
    node.kafka.lose_next_marker("delayd-frontier", 0)
    node.step()
    node.passes_ms = 100
    with pytest.raises(FrontierError, match="a commit marker was lost"):
        node.lead()


def test_a_master_that_reads_a_later_term_stops(node: OneNode) -> None:
    """docs/design/frontier.md, Term: whoever reads a term above its own stops being master."""
    mine = decode(node.read("delayd-frontier")[-1].value or b"")
    later = replace(mine, frontier=begin_term(mine.frontier), owner="n/2", counts=StepCounts())
    node.kafka.append("delayd-frontier", 0, record_key(0), encode(later), [])
    node.clock.now_ms += TIMEOUT_MS
    node.step()
    assert node.failures == {"higher-term": 1}
    assert node.read("orders") == []


def test_a_lease_that_runs_out_during_a_step_ends_it_before_the_commit(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/frontier.md, Step 7: is the lease still live?"""
    flush = MemoryProducer.flush

    def slow(self: MemoryProducer, timeout_ms: int) -> None:
        flush(self, timeout_ms)
        node.clock.now_ms += 200

    monkeypatch.setattr(MemoryProducer, "flush", slow)
    node.grant.deadline_ms = node.clock.now_ms + 100
    node.step()
    assert sum(node.failures.values()) == 1
    assert node.read("orders") == []


def test_an_old_bound_is_renewed_before_anything_is_delivered(node: OneNode) -> None:
    """docs/design/frontier.md, Now: if B is older than 60 s, an empty step renews it."""
    before = steps(node)
    node.clock.now_ms += BOUND_AGE_MAX_MS + 1
    node.step()
    assert (steps(node), node.read("orders")) == (before + 1, [])
    node.step()
    assert len(node.read("orders")) == 1


def test_a_clock_that_drifted_ends_the_step_before_its_commit(node: OneNode) -> None:
    """docs/design/frontier.md, Now: outside by more than `clock_drift_max_ms`, it resigns."""
    before = steps(node)
    ahead = ManualClock()
    ahead.now_ms = START_MS + 501
    node.kafka.clock = ahead
    node.step()
    assert node.failures == {"clock-drift": 1}
    assert (steps(node), node.read("orders")) == (before, [])
