"""The bridge over Kafka in memory: each event causes its cancel once, whatever fails between."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from manual_clock import ManualClock
from one_node import OneNode, wait_for

from delayd.bus.memory import MemoryKafka
from delayd.config.cancel_on import CancelOn
from delayd.errors import FencedError, ProducerError, TopicMismatchError
from delayd.node.cancel_on.bridge import CancelBridge, Figures, Passage, bridge_id

RULES = {"payments": [CancelOn(topic="payments", id="/order", where={"/status": "paid"})]}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OneNode]:
    made = OneNode(tmp_path, "t", partitions=4)
    made.kafka.create_topic("payments", 2)
    yield made
    made.close()


class Bridge:
    """Passages over one node's Kafka, and what they did."""

    def __init__(self, node: OneNode) -> None:
        self.node = node
        self.figures = {topic: Figures() for topic in RULES}

    def passage(self) -> Passage:
        return Passage(self.node.bus, self.node.settings, RULES, self.figures)


def pay(kafka: MemoryKafka, order: str, partition: int = 0, status: str = "paid") -> None:
    value = json.dumps({"order": order, "status": status}).encode()
    kafka.append("payments", partition, None, value)


def cancels(node: OneNode) -> list[tuple[bytes, str]]:
    """Ids and causes of the cancels in the buffer."""
    found = []
    for record in node.read(node.settings.buffer.name):
        headers = dict(record.headers)
        if headers.get("delayd-op") == b"cancel":
            found.append((record.key or b"", (headers["cancelled-by"] or b"").decode()))
    return sorted(found)


def test_an_event_cancels_what_is_pending_under_its_id(node: OneNode) -> None:
    bridge = Bridge(node)
    way = bridge.passage()
    way.survey("payments")
    for order in ("7", "8"):
        node.send("t", node.clock.now_ms + 1_000, id=order)
    pay(node.kafka, "7", 1)
    pay(node.kafka, "8", status="open")
    assert way.turn() and not way.turn()
    assert cancels(node) == [(b"7", "payments/1/0")]
    node.clock.now_ms += 2_000
    for _ in range(5):
        node.ingest()
        node.step()
    assert [record.key for record in node.read("t")] == [b"8"]
    way.survey("payments")
    assert bridge.figures["payments"] == Figures(events=2, cancels=1, lag=0)


def test_events_count_from_when_the_topic_was_first_seen(node: OneNode) -> None:
    """Of a partition that comes later all do."""
    pay(node.kafka, "old")
    bridge = Bridge(node)
    way = bridge.passage()
    way.survey("payments")
    way.close()
    pay(node.kafka, "between")
    grown = node.kafka.create_topic("grown", 3)
    node.kafka.topics["payments"].partitions.append(grown.partitions[2])
    pay(node.kafka, "new", 2)
    way = bridge.passage()
    way.survey("payments")
    way.turn()
    assert [id for id, _ in cancels(node)] == [b"between", b"new"]


def test_a_topic_that_grows_is_read_whole_by_the_same_bridge(node: OneNode) -> None:
    bridge = Bridge(node)
    way = bridge.passage()
    way.survey("payments")
    grown = node.kafka.create_topic("grown", 3)
    node.kafka.topics["payments"].partitions.append(grown.partitions[2])
    pay(node.kafka, "new", 2)
    way.survey("payments")
    way.turn()
    assert [id for id, _ in cancels(node)] == [b"new"]


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_in_doubt_doubles_and_loses_nothing(node: OneNode, applied: bool) -> None:
    bridge = Bridge(node)
    way = bridge.passage()
    way.survey("payments")
    for number in range(10):
        pay(node.kafka, str(number), number % 2)
    node.kafka.fail_next_commit(bridge_id(node.settings.realm), applied=applied)
    with pytest.raises(ProducerError):
        way.turn()
    way.close()
    way = bridge.passage()
    way.survey("payments")
    way.turn()
    assert sorted(id for id, _ in cancels(node)) == [b"%d" % n for n in range(10)]


def test_who_lost_the_id_writes_nothing_more(node: OneNode) -> None:
    bridge = Bridge(node)
    old = bridge.passage()
    old.survey("payments")
    new = bridge.passage()
    new.survey("payments")
    pay(node.kafka, "7")
    with pytest.raises(FencedError):
        old.turn()
    new.turn()
    assert cancels(node) == [(b"7", "payments/0/0")]


def test_a_trimmed_topic_is_read_on_and_said(node: OneNode) -> None:
    bridge = Bridge(node)
    way = bridge.passage()
    way.survey("payments")
    way.close()
    for number in range(5):
        pay(node.kafka, str(number))
    node.kafka.log("payments", 0).delete_before(3)
    way = bridge.passage()
    way.survey("payments")
    way.turn()
    assert [id for id, _ in cancels(node)] == [b"3", b"4"]
    assert bridge.figures["payments"].lost == 1


def test_a_topic_that_was_made_anew_is_read_from_its_beginning_and_said(node: OneNode) -> None:
    """The coordinator may have its offset still."""
    bridge = Bridge(node)
    way = bridge.passage()
    for number in range(5):
        pay(node.kafka, f"old-{number}")
    way.survey("payments")
    way.close()
    node.kafka.delete_topic("payments")
    node.kafka.create_topic("payments", 2)
    pay(node.kafka, "new")
    way = bridge.passage()
    way.survey("payments")
    way.turn()
    assert [id for id, _ in cancels(node)] == [b"new"]
    assert bridge.figures["payments"].lost == 1


def test_offsets_pass_what_was_aborted_and_are_committed_again_and_again(node: OneNode) -> None:
    """So that brokers neither trim what is still counted as unread nor forget the offsets."""
    way = Bridge(node).passage()
    way.survey("payments")
    user = node.bus.transactional_producer("user")
    user.init_transactions(1_000)
    user.begin()
    user.send("payments", key=None, value=b"{}", headers=[], partition=0)
    user.close()
    node.bus.transactional_producer("user").init_transactions(1_000)
    end = node.bus.cluster().end_offsets("payments", 1_000, committed=True)[0]
    known = node.kafka.coordinator.group_offsets
    assert end > 0 and not way.turn()
    known.clear()
    way.keep()
    group = bridge_id(node.settings.realm)
    assert known == {(group, "payments", 0): end, (group, "payments", 1): 0}


def test_a_reader_that_stands_still_begins_anew(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Bridge(node).passage()
    way.survey("payments")
    deaf = way._consumers["payments"]
    monkeypatch.setattr(deaf, "poll", lambda most, timeout_ms: [])
    pay(node.kafka, "7")
    assert not way.turn()
    way.survey("payments")
    assert way._consumers["payments"] is deaf, "it may have come just now"
    way.survey("payments")
    assert way._consumers["payments"] is not deaf and way.turn()


def test_what_was_there_before_nodes_might_read_it_does_not_count(node: OneNode) -> None:
    """A refusal is no sign that there was no topic."""
    way = Bridge(node).passage()
    pay(node.kafka, "old")
    node.kafka.hidden.add("payments")
    ends = way._cluster.end_offsets

    def refused(topic: str, timeout_ms: int, *, committed: bool) -> dict[int, int]:
        if topic in node.kafka.hidden:
            raise TopicMismatchError("TOPIC_AUTHORIZATION_FAILED")
        return ends(topic, timeout_ms, committed=committed)

    way._cluster.end_offsets = refused  # type: ignore[method-assign]
    way.survey("payments")
    node.kafka.hidden.clear()
    way.survey("payments")
    pay(node.kafka, "new")
    way.turn()
    assert [id for id, _ in cancels(node)] == [b"new"]


def test_one_topic_that_is_missing_keeps_no_other_from_being_read(node: OneNode) -> None:
    rules = {**RULES, "refunds": [CancelOn(topic="refunds", id="key")]}
    figures = {topic: Figures() for topic in rules}
    way = Passage(node.bus, node.settings, rules, figures)
    way.survey("refunds")
    way.survey("payments")
    assert figures["refunds"].problem is not None and figures["payments"].problem is None
    pay(node.kafka, "7")
    way.turn()
    node.kafka.create_topic("refunds", 1)
    node.kafka.append("refunds", 0, b"8", None)
    way.survey("refunds")
    way.turn()
    way.survey("refunds")
    assert [id for id, _ in cancels(node)] == [b"7", b"8"]
    assert figures["refunds"].problem is None


def test_an_event_without_an_id_is_counted_and_passed(node: OneNode) -> None:
    bridge = Bridge(node)
    way = bridge.passage()
    way.survey("payments")
    node.kafka.append("payments", 0, None, b'{"status": "paid"}')
    pay(node.kafka, "7")
    way.turn()
    assert [id for id, _ in cancels(node)] == [b"7"]
    assert (bridge.figures["payments"].unusable, bridge.figures["payments"].events) == (1, 2)


def test_two_rules_of_a_topic_cancel_an_id_once_each(node: OneNode) -> None:
    topic = "payments"
    rules = {topic: [CancelOn(topic=topic, id=id) for id in ("/order", "/order", "key")]}
    way = Passage(node.bus, node.settings, rules, {topic: Figures()})
    way.survey("payments")
    node.kafka.append(topic, 0, b"k", b'{"order": "o"}')
    way.turn()
    assert [id for id, _ in cancels(node)] == [b"k", b"o"]


def running(node: OneNode, is_master: Callable[[], bool]) -> CancelBridge:
    rules = [rule for some in RULES.values() for rule in some]
    return CancelBridge(node.bus, node.settings, rules, ManualClock(), is_master)


def test_it_runs_while_the_node_leads(node: OneNode) -> None:
    leads = threading.Event()
    bridge = running(node, leads.is_set)
    bridge.start()
    assert bridge.shown()["topics"]["payments"]["lag"] is None
    leads.set()
    wait_for(lambda: bridge.figures["payments"].lag == 0)
    pay(node.kafka, "7")
    wait_for(lambda: len(cancels(node)) == 1)
    leads.clear()
    wait_for(lambda: bridge.figures["payments"].lag is None)
    bridge.stop(10)


def test_it_goes_on_after_a_failure_which_it_says(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.node.cancel_on.bridge.RETRY_MS", 300)
    bridge = running(node, lambda: True)
    bridge.start()
    wait_for(lambda: bridge.figures["payments"].lag == 0)
    node.kafka.fail_next_commit(bridge_id(node.settings.realm), applied=False)
    pay(node.kafka, "7")
    wait_for(lambda: bridge.problem is not None)
    wait_for(lambda: len(cancels(node)) == 1 and bridge.problem is None)
    bridge.stop(10)


def test_without_a_rule_it_has_no_thread(node: OneNode) -> None:
    bridge = CancelBridge(node.bus, node.settings, (), ManualClock(), lambda: True)
    bridge.start()
    bridge.stop(10)
    assert bridge.shown() == {"problem": None, "topics": {}}
    assert not any(thread.name == "cancel-on" for thread in threading.enumerate())
