"""Groups on a whole node: what is delivered, retried, moved, repeated or dead keeps its group.

Source: docs/design/wishes.md.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from manual_clock import START_MS
from one_node import Maker, OneNode, nodes_in

from delayd.bus import Headers
from delayd.bus.murmur2 import partition_of
from replication.settings import SERIES_RULES

GROUP = ("delayd-group", b"customer-42")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Maker]:
    with nodes_in(tmp_path) as make_node:
        yield make_node


def go_to(node: OneNode, at_ms: int) -> None:
    node.clock.now_ms = at_ms
    for _ in range(4):
        node.targets.forget()
        node.ingest()
        node.step()


def append(node: OneNode, *headers: tuple[str, bytes], value: bytes | None = None) -> None:
    """Write a record about the id `a`."""
    named: Headers = [("delayd-id", b"a"), *headers]
    partition = partition_of(b"a", node.settings.partitions)
    node.kafka.append("delayd-buffer", partition, b"a", value, named)


def groups(node: OneNode, topic: str = "orders") -> list[bytes | None]:
    """Of each record: its group."""
    return [dict(record.headers).get("delayd-group") for record in node.read(topic)]


def test_a_message_is_delivered_with_its_group(make: Maker) -> None:
    """Rules: group-delivered"""
    node = make("orders")
    node.send("orders", START_MS + 500, id="a", more=[GROUP])
    node.send("orders", START_MS + 500, id="b")
    node.send("orders", START_MS + 500)
    go_to(node, START_MS + 600)
    assert Counter(groups(node)) == {b"customer-42": 1, None: 2}


def test_a_retry_keeps_it(make: Maker) -> None:
    """Rules: wishes-kept"""
    node = make(retry_delays_ms=(100, 100, 100))
    node.send("orders", START_MS, id="a", more=[GROUP])
    go_to(node, START_MS + 1)
    node.kafka.create_topic("orders", 1, {"message.timestamp.type": "LogAppendTime"})
    go_to(node, START_MS + 1_000)
    assert groups(node) == [b"customer-42"]
    assert int(dict(node.read("orders")[0].headers)["delayd-attempt"] or 0) >= 1


def test_what_dies_has_it_in_its_letter(make: Maker) -> None:
    """Rules: wishes-kept"""
    node = make(retry_delays_ms=(100,))
    node.send("nowhere", START_MS, id="a", more=[GROUP])
    for number in range(6):
        go_to(node, START_MS + 200 * number)
    assert groups(node, "delayd-dead") == [b"customer-42"]


@pytest.mark.parametrize("op", [b"fire", b"reschedule"])
def test_what_is_moved_keeps_it(make: Maker, op: bytes) -> None:
    """Rules: wishes-kept"""
    node = make("orders")
    node.send("orders", START_MS + 60_000, id="a", more=[GROUP])
    go_to(node, START_MS)
    by = [("delayd-by", b"-1h")] if op == b"reschedule" else []
    append(node, ("delayd-op", op), *by)
    go_to(node, START_MS + 1)
    assert groups(node) == [b"customer-42"]


def test_each_occurrence_of_a_series_has_it(make: Maker) -> None:
    """Rules: wishes-kept"""
    node = make("orders")
    each = [("delayd-cron", b"* * * * * *"), ("delayd-topic", b"orders"), GROUP]
    append(node, *each, value=b"v")
    for number in range(5):
        go_to(node, START_MS + 1_000 * number)
    found = groups(node)
    assert len(found) >= 3 and set(found) == {b"customer-42"}


def test_a_replace_may_have_another(make: Maker) -> None:
    node = make("orders")
    node.send("orders", START_MS + 500, id="a", more=[GROUP])
    node.send("orders", START_MS + 500, id="a", op="replace", more=[("delayd-group", b"b")])
    go_to(node, START_MS + 600)
    assert groups(node) == [b"b"]


def test_older_rules_refuse_it(make: Maker) -> None:
    """Rules: group-by-rules"""
    node = make("orders", rules_version=SERIES_RULES)
    node.send("orders", START_MS, id="a", more=[GROUP])
    go_to(node, START_MS + 1)
    [letter] = node.read("delayd-dead")
    assert dict(letter.headers)["delayd-reason"] == b"unknown-header"
    assert node.read("orders") == []
