"""One master, move by move: when it must not take over, must not commit, must not go on."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from manual_clock import START_MS, ManualClock
from one_node import TIMEOUT_MS, InstantCondition, OneNode, open_replica

from delayd.bus.memory.producer import MemoryProducer
from delayd.errors import FrontierError
from delayd.node.delivery.grant import Grant
from delayd.node.delivery.mastership import HigherTermError
from replication.frontier import begin_term
from replication.now import BOUND_AGE_MAX_MS
from replication.record import StepCounts, decode, encode, record_key

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


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


def test_a_master_goes_on_from_what_a_newer_release_wrote(node: OneNode) -> None:
    """docs/design/frontier.md, Optional fields: nodes of two releases take turns.

    Rules: optional-fields
    """
    mine = decode(node.read("delayd-frontier")[-1].value or b"")
    begun = replace(mine, frontier=begin_term(mine.frontier), owner="newer/2")
    value = {**json.loads(encode(begun)), "later": {"a": 1}}
    node.kafka.append("delayd-frontier", 0, record_key(0), json.dumps(value).encode(), [])
    node.clock.now_ms += TIMEOUT_MS
    node.step()
    node.step()
    assert node.failures == {"higher-term": 1}
    assert len(node.read("orders")) == 1
    last = decode(node.read("delayd-frontier")[-1].value or b"")
    assert last.frontier.term == begun.frontier.term + 1


def test_a_master_stops_at_what_it_must_know_of_a_newer_release(node: OneNode) -> None:
    """docs/design/frontier.md, Optional fields.

    Rules: needed-features
    """
    mine = decode(node.read("delayd-frontier")[-1].value or b"")
    begun = replace(mine, frontier=begin_term(mine.frontier), owner="newer/2")
    value = {**json.loads(encode(begun)), "format": 3, "needs": {"later": "9.1.0"}}
    node.kafka.append("delayd-frontier", 0, record_key(0), json.dumps(value).encode(), [])
    with pytest.raises(FrontierError, match=r"run delayd 9\.1\.0 or later"):
        node.lead()
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


def outlive_its_lease(node: OneNode) -> None:
    """The node is alone: it has begun a term, and its lease has run out."""
    node.grant = Grant("n/1", node.clock.now_ms + 100, outlives_lease=True)
    node.stop_leading()
    node.lead()
    node.clock.now_ms += 10_000


def another_begins_a_term(node: OneNode) -> None:
    mine = decode(node.read("delayd-frontier")[-1].value or b"")
    later = replace(mine, frontier=begin_term(mine.frontier), owner="n/2", counts=StepCounts())
    node.kafka.append("delayd-frontier", 0, record_key(0), encode(later), [])


def test_a_master_that_can_be_fenced_delivers_on_without_a_lease(node: OneNode) -> None:
    """docs/design/election.md, While etcd is away.

    Rules: outlives-lease
    """
    outlive_its_lease(node)
    node.step()
    assert len(node.read("orders")) == 1 and not node.failures


def test_nobody_begins_a_first_term_without_a_lease(node: OneNode) -> None:
    """docs/design/election.md, While etcd is away: who has begun none may not lead any more.

    Rules: deadline-commit, fence-needs-lease
    """
    before = steps(node)
    node.stop_leading()
    node.grant = Grant("n/1", node.clock.now_ms, outlives_lease=True)
    assert not node.new_mastership().take_over()
    assert steps(node) == before


def test_without_a_lease_a_master_takes_up_its_own_term_again(node: OneNode) -> None:
    """docs/design/election.md, While etcd is away: after an error of Kafka, say.

    Rules: own-term-only
    """
    outlive_its_lease(node)
    before = node.grant.term
    node.stop_leading()
    node.step()
    assert node.grant.term == before + 1 and len(node.read("orders")) == 1


def test_without_a_lease_a_master_fences_nobody_who_has_begun_a_later_term(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/election.md, While etcd is away: it looks before it fences.

    Rules: own-term-only
    """
    outlive_its_lease(node)
    node.stop_leading()
    another_begins_a_term(node)
    monkeypatch.setattr(MemoryProducer, "init_transactions", lambda *_: pytest.fail("fenced"))
    with pytest.raises(HigherTermError, match="n/2 has begun"):
        node.lead()


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
    node.kafka.clock = ManualClock(START_MS + 501)
    node.step()
    assert node.failures == {"clock-drift": 1}
    assert (steps(node), node.read("orders")) == (before, [])


@pytest.mark.usefixtures("dense_hours")
def test_a_takeover_that_must_split_an_hour_first_shows_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one for ten seconds a master resigns; and it stops when its grant is over."""
    node = OneNode(tmp_path / "one", "orders")
    for number in range(50):
        node.send("orders", START_MS + DAY_MS + number)
    node.ingest()
    node.clock.now_ms += DAY_MS + HOUR_MS
    for _ in range(20):
        node.step()
    assert len(node.read("orders")) == 50
    node.close()
    # A node that was down meanwhile: all of it is still in the file of its hour.
    node.replica = open_replica(tmp_path / "other", node.settings)
    node.replica.changed = InstantCondition()
    node.consumer = node.bus.consumer(node.settings.buffer.name)
    node.consumer.assign(node.replica.positions)
    node.ingest()
    assert node.replica.wheel.stats().hours == 1
    monkeypatch.setattr("delayd.wheel.near_hours.SPLIT_BYTES", 500)
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        node.grant.withdrawn = turns == 12

    monkeypatch.setattr(node, "turn", turn)
    with pytest.raises(AssertionError):
        node.lead()
    assert turns == 12 and node.replica.wheel.stats().hours == 1
    node.grant.withdrawn = False
    node.lead()
    assert turns > 15 and node.replica.wheel.stats().hours == 0
    node.close()
