"""Leaders of target partitions that hang: whom that delays, and for how long."""

import pytest
from manual_clock import START_MS
from one_node import Maker, OneNode

from delayd.bus import Headers
from delayd.bus.murmur2 import partition_of
from delayd.node.targets.sparing import TERM_MS, WAKE_EVERY_MS
from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE

BOTH = pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
PARTITIONS = 3


def proven(make: Maker, guarantee: str = EXACTLY_ONCE) -> OneNode:
    """A master whose targets have taken records; `orders` has more partitions than one."""
    node = make("mails", guarantee=guarantee)
    node.kafka.create_topic("orders", PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
    node.lead()
    for topic in ("orders", "mails"):
        node.send(topic, START_MS)
    settle(node)
    assert len(node.read("orders")) == len(node.read("mails")) == 1
    return node


def settle(node: OneNode, ms: int = 0) -> None:
    """Let a time pass in seconds, with steps in each of them, and records ingested."""
    for _ in range(1 + ms // 1_000):
        for _ in range(3):
            node.ingest()
            node.step()
        node.clock.now_ms += min(1_000, ms)


def keys_of(partition: int, count: int) -> list[bytes]:
    """Keys of messages that go to this partition of `orders`."""
    found = (b"k%d" % number for number in range(10_000))
    return [key for key in found if partition_of(key, PARTITIONS) == partition][:count]


def due(node: OneNode, key: bytes | None, value: bytes, topic: str = "orders") -> None:
    headers: Headers = [
        ("delayd-topic", topic.encode()),
        ("delayd-due", b"%d" % node.clock.wall_ms()),
    ]
    node.kafka.append("delayd-buffer", 0, key, value, headers)


def values(node: OneNode, topic: str) -> list[bytes]:
    return [record.value or b"" for record in node.read(topic)]


@BOTH
def test_a_leader_that_hangs_fails_one_step_and_holds_up_its_own_messages(
    make: Maker, guarantee: str
) -> None:
    """docs/design/frontier.md, A leader that hangs.

    Rules: silent-spared
    """
    node = proven(make, guarantee)
    node.kafka.hang("orders", 1)
    sent = []
    for number in range(30):
        value = b"%d" % number
        due(node, keys_of(1, 1)[0], b"waits" + value)
        due(node, keys_of(2, 1)[0], b"goes" + value)
        due(node, None, value, "mails")
        sent.append(value)
        settle(node, 1_000)
    assert node.failures == {"producer": 1}
    assert sorted(set(values(node, "mails")[1:])) == sorted(sent)
    assert {b"goes" + value for value in sent} <= set(values(node, "orders"))
    assert not node.kafka.log("orders", 1).read(0, 10**9)[0]
    [spared] = node.sparing.report
    assert (spared.topic, spared.partition) == ("orders", 1)

    node.kafka.end_hangs()
    node.sparing.answered("orders")
    settle(node, 2 * WAKE_EVERY_MS)
    waited = [record.value for record in node.kafka.log("orders", 1).read(0, 10**9)[0]]
    assert waited == [b"waits" + value for value in sent], "in their order, once each"
    assert not node.sparing.report and node.failures == {"producer": 1}
    if guarantee == EXACTLY_ONCE:
        assert sorted(values(node, "mails")[1:]) == sorted(sent)


def test_a_message_without_a_key_goes_to_a_partition_that_answers(make: Maker) -> None:
    node = proven(make)
    node.kafka.hang("orders", 1)
    due(node, keys_of(1, 1)[0], b"waits")
    settle(node, 1_000)
    for number in range(6):
        due(node, None, b"%d" % number)
    settle(node, 1_000)
    assert {b"%d" % number for number in range(6)} <= set(values(node, "orders"))
    for partition in (0, 2):
        node.kafka.hang("orders", partition)
    due(node, None, b"nowhere")
    settle(node, 3_000)
    assert b"nowhere" not in values(node, "orders")
    due(node, None, b"well", "mails")
    settle(node, 1_000)
    assert b"well" in values(node, "mails")


def test_a_leader_that_answers_questions_and_takes_nothing_is_spared_for_longer(
    make: Maker,
) -> None:
    """Rules: silent-spared"""
    node = proven(make)
    node.kafka.hang("orders", 1)
    due(node, keys_of(1, 1)[0], b"waits")
    for _ in range(300):
        settle(node, 1_000)
        if node.sparing.report:
            node.sparing.answered("orders")
    assert 4 <= node.failures["producer"] <= 7
    assert TERM_MS * 2 ** node.failures["producer"] > 60_000


@BOTH
def test_silence_of_the_own_topics_spares_nobody(make: Maker, guarantee: str) -> None:
    node = proven(make, guarantee)
    node.kafka.hang("orders", 1)
    node.kafka.hang("delayd-dead", 0)
    node.kafka.append("delayd-buffer", 0, None, b"no request")
    due(node, keys_of(1, 1)[0], b"waits")
    settle(node, 3_000)
    assert node.failures["producer"] > 1 and not node.sparing.report
    node.kafka.log("delayd-dead", 0).hangs = False
    due(node, None, b"goes", "mails")
    settle(node, 3_000)
    assert b"goes" in values(node, "mails")
    assert len(node.sparing.report) == 1


def test_a_clock_that_is_set_back_holds_nobody_up_for_long(make: Maker) -> None:
    node = proven(make)
    node.kafka.hang("orders", 1)
    node.clock.now_ms += 3_600_000
    due(node, keys_of(1, 1)[0], b"waits")
    settle(node, 7_000)
    assert node.sparing.report
    now_ms = node.clock.wall_ms()
    node.sparing.turn(now_ms - 3_600_000)
    assert node.sparing.defer_ms(now_ms - 3_600_000, "orders", 1) <= 2 * WAKE_EVERY_MS
