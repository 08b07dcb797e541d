"""The delivery thread over Kafka in memory: when it gives way, and what it reports."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from manual_clock import ManualClock
from one_node import FOREVER_MS, TIMEOUT_MS, DeliveryDesk, wait_for

from delayd.bus import Record
from delayd.node.delivery.delivery_context import DeliveryOptions
from delayd.node.delivery.grant import Grant
from replication.election_facts import Ended
from replication.rank import Rank
from replication.record import decode, encode, record_key
from replication.takeover import GIVE_WAY_MS


class RunningClock(ManualClock):
    """Every look at its monotonic time finds a second gone, or what a test says."""

    passes_ms = 1_000

    def monotonic_ms(self) -> int:
        self.now_ms += self.passes_ms
        return self.now_ms


class Desk(DeliveryDesk):
    """A delivery thread whose clock runs."""

    def __init__(self, folder: Path) -> None:
        self.clock = RunningClock()
        super().__init__(
            folder, self.clock, DeliveryOptions(idle_interval_ms=1_000, clock_drift_max_ms=10_000)
        )

    def due(self, *topics: str) -> None:
        """A message for each of these, due long ago, is in the wheel; the topics exist."""
        for topic in topics:
            self.kafka.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
            self.send(topic, 1)
        self.replica.take(self.read("delayd-buffer"))

    def read(self, topic: str) -> list[Record]:
        """Committed records of a topic."""
        with self.kafka.changed:
            return self.kafka.topics[topic].partitions[0].read(0, 10**9)[0]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.stop()


def ended(desk: Desk) -> Ended:
    report = desk.reports.get(timeout=20)
    assert isinstance(report, Ended), report
    return report


def test_a_master_that_cannot_commit_lets_another_node_try(desk: Desk) -> None:
    """docs/design/election.md, Resigning: a lease is worth nothing to who cannot deliver.

    Rules: step-error
    """
    desk.bus.link.up = False
    desk.delivery.give(Grant("n/1", FOREVER_MS))
    desk.delivery.start()
    assert ended(desk) is Ended.FAILED


def test_a_master_that_begins_terms_but_commits_no_step_lets_another_node_try(desk: Desk) -> None:
    """docs/design/election.md, Resigning: what it cannot reach, another may."""
    desk.clock.passes_ms = 100
    desk.due("orders")
    for topic in ("orders", "delayd-buffer"):
        desk.kafka.refuse(topic, "_MSG_TIMED_OUT")
    desk.delivery.give(Grant("n/1", FOREVER_MS))
    desk.delivery.start()
    assert ended(desk) is Ended.FAILED
    newest = desk.replica.newest
    assert newest is not None and newest.record.frontier.term > 1, "terms were begun"


def test_a_refused_step_is_tried_otherwise_without_a_wait(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/frontier.md, Targets: what refused a transaction delays nothing else.

    Rules: fault-isolated
    """
    monkeypatch.setattr("replication.leadership_session.RETRY_FIRST_MS", FOREVER_MS)
    desk.clock.passes_ms = 1
    desk.due("orders", "mails")
    desk.kafka.refuse("orders", "INVALID_RECORD")
    desk.delivery.give(Grant("n/1", FOREVER_MS))
    desk.delivery.start()
    wait_for(lambda: len(desk.read("mails")) == 1 and len(desk.read("delayd-buffer")) == 3)
    [failing] = desk.delivery.failing_targets
    assert (failing.topic, failing.messages) == ("orders", 1), "counted once, when committed"


def test_a_step_that_waited_for_a_broker_that_is_gone_is_tried_anew_at_once_and_as_a_whole(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/frontier.md, A broker that dies: nothing in it was at fault.

    Rules: broker-gone
    """
    monkeypatch.setattr("replication.leadership_session.RETRY_FIRST_MS", FOREVER_MS)
    desk.clock.passes_ms = 1
    desk.due("orders", "mails")
    desk.kafka.create_topic("later", config={"message.timestamp.type": "LogAppendTime"})
    desk.delivery.give(Grant("n/1", FOREVER_MS))
    desk.delivery.start()
    wait_for(lambda: len(desk.read("mails")) == 1)
    [id] = desk.kafka.coordinator.holders
    desk.kafka.fail_next_flush(id, is_broker_gone=True)
    desk.send("later", 1)
    desk.replica.take(desk.read("delayd-buffer")[2:])
    wait_for(lambda: len(desk.read("later")) == 1)
    newest = desk.replica.newest
    assert newest is not None and newest.record.frontier.term == 2


def test_a_node_that_is_behind_fences_nobody_and_gives_way(desk: Desk) -> None:
    """docs/design/frontier.md, Takeover: the own wheel must have reached O.

    Rules: behind-gives-way
    """
    other = desk.bus.transactional_producer("delayd-c/id-2-shard-0")
    other.init_transactions(TIMEOUT_MS)
    newest = desk.replica.newest
    assert newest is not None
    ahead = replace(newest.record.frontier, offsets=(5,), step=1)
    desk.replica.observe(
        newest._replace(record=replace(newest.record, frontier=ahead), offset=newest.offset + 1)
    )
    desk.delivery.give(Grant("n/1", FOREVER_MS))
    desk.delivery.start()
    assert ended(desk) is Ended.FAILED
    other.begin()
    other.send("delayd-dead", key=None, value=b"still mine", headers=[])
    other.commit(TIMEOUT_MS)


def test_a_stale_read_is_repeated_over_new_connections(desk: Desk) -> None:
    """docs/design/frontier.md, Stale reads: what a predecessor did meanwhile is not done again.

    Rules: stale-read
    """
    desk.clock.passes_ms = 1
    desk.kafka.isolate_leader("delayd-frontier", 0)
    desk.due("orders")
    newest = desk.replica.newest
    assert newest is not None
    first = newest.record.frontier
    done = replace(first, cursors=(Rank(10**13, 0, 0),) * 64, offsets=(1,), step=7, term=3)
    value = encode(replace(newest.record, frontier=done))
    desk.kafka.append("delayd-frontier", 0, record_key(0), value)
    desk.delivery.give(Grant("n/1", FOREVER_MS))
    desk.delivery.start()
    wait_for(lambda: desk.delivery.is_delivering)
    assert desk.delivery.counters.stale_reads == 1
    term = decode(desk.read("delayd-frontier")[-1].value or b"").frontier
    assert (term.term, term.offsets, desk.read("orders")) == (4, (1,), [])


def test_a_grant_that_is_over_ends_delivery_as_asked(desk: Desk) -> None:
    """docs/design/election.md, Lease and deadline."""
    desk.delivery.give(Grant("n/1", desk.clock.monotonic_ms() + GIVE_WAY_MS // 2))
    desk.delivery.start()
    assert ended(desk) is Ended.ASKED
