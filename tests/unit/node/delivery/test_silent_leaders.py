"""Leaders of target partitions that hang: whom that delays, and for how long."""

from itertools import pairwise

import pytest
from manual_clock import START_MS
from one_node import Maker, OneNode

from delayd.bus import Headers
from delayd.bus.murmur2 import partition_of
from delayd.node.targets.sparing import AHEAD_MS, FIRST_WAKE_MS, TERM_MS, WAKE_MS_MAX
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


def probe(node: OneNode) -> None:
    """Ask the leaders once, as `delayd.node.target_probes` does."""
    places = {(each.topic, each.partition): each for each in node.sparing.report}
    for place in node.bus.cluster().answering(places, 0):
        node.sparing.answered(places[place])


def spared_places(node: OneNode) -> list[tuple[str, int]]:
    return [(each.topic, each.partition) for each in node.sparing.report]


def arrived(node: OneNode, partition: int) -> list[bytes | None]:
    """What is in a partition of `orders`, in its order."""
    return [record.value for record in node.kafka.log("orders", partition).read(0, 10**9)[0]]


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
    assert spared_places(node) == [("orders", 1)]

    node.kafka.end_hangs()
    probe(node)
    settle(node, WAKE_MS_MAX)
    waited = arrived(node, 1)
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
    log = node.kafka.log("orders", 1)
    due(node, keys_of(1, 1)[0], b"waits")
    hung_ms: list[int] = []
    for _ in range(300):
        before = node.failures["producer"]
        log.hangs = True
        settle(node, 1_000)
        if node.failures["producer"] > before:
            hung_ms.append(node.clock.wall_ms())
        log.hangs = False
        probe(node)
    gaps_ms = [later - first for first, later in pairwise(hung_ms)]
    assert len(gaps_ms) >= 4
    for number, gap_ms in enumerate(gaps_ms):
        least_ms = TERM_MS << number
        assert least_ms <= gap_ms <= 2 * least_ms + WAKE_MS_MAX, "spared for twice as long again"


@BOTH
def test_a_broker_that_hangs_costs_one_step_for_all_that_it_leads(
    make: Maker, guarantee: str
) -> None:
    """docs/design/frontier.md, A leader that hangs.

    Rules: silent-broker
    """
    node = proven(make, guarantee)
    hung = [("orders", 1), ("orders", 2), ("mails", 0)]
    for topic, number in hung:
        node.kafka.log(topic, number).leader = 8
    settle(node, 10_000)  # What is described is older than that, and read again.
    for place in hung:
        node.kafka.hang(*place)
    due(node, keys_of(1, 1)[0], b"first")
    settle(node, 1_000)
    assert node.failures == {"producer": 1}
    assert spared_places(node) == [("orders", 1), ("orders", 2)]
    due(node, keys_of(2, 1)[0], b"second")
    due(node, keys_of(0, 1)[0], b"led by another")
    due(node, None, b"third", "mails")
    settle(node, 5_000)
    assert node.failures == {"producer": 1}, "one step for all of them"
    assert spared_places(node) == sorted(hung)
    assert arrived(node, 0)[-1] == b"led by another"

    node.kafka.end_hangs()
    probe(node)
    settle(node, 2 * TERM_MS)
    assert (arrived(node, 1), arrived(node, 2)) == ([b"first"], [b"second"])
    assert values(node, "mails")[1:] == [b"third"]
    assert not node.sparing.report and node.failures == {"producer": 1}


def test_a_partition_that_was_suspected_in_vain_is_back_after_one_answer(make: Maker) -> None:
    """Rules: silent-broker"""
    node = proven(make)
    for number in (1, 2):
        node.kafka.log("orders", number).leader = 8
    settle(node, 10_000)
    node.kafka.hang("orders", 1)
    due(node, keys_of(1, 1)[0], b"hangs")
    settle(node)
    assert spared_places(node) == [("orders", 1), ("orders", 2)]
    due(node, keys_of(2, 1)[0], b"goes")
    settle(node)
    probe(node)
    settle(node, FIRST_WAKE_MS + AHEAD_MS)
    assert arrived(node, 2) == [b"goes"]
    assert spared_places(node) == [("orders", 1)]
    due(node, keys_of(2, 1)[0], b"goes at once")
    settle(node)
    assert arrived(node, 2) == [b"goes", b"goes at once"], "not suspected again of the same"


def test_a_broker_that_took_records_of_the_same_step_is_not_suspected(make: Maker) -> None:
    """Rules: silent-broker"""
    node = proven(make)
    for topic, number in (("orders", 1), ("orders", 2), ("mails", 0)):
        node.kafka.log(topic, number).leader = 8
    settle(node, 10_000)
    node.kafka.hang("orders", 1)
    due(node, keys_of(1, 1)[0], b"waits")
    due(node, None, b"goes", "mails")
    settle(node)
    assert spared_places(node) == [("orders", 1)]


def test_each_partition_is_judged_alone(make: Maker) -> None:
    """Rules: silent-spared"""
    node = proven(make)
    for number in (1, 2):
        node.kafka.hang("orders", number)
        due(node, keys_of(number, 1)[0], b"%d" % number)
    settle(node, TERM_MS)
    assert spared_places(node) == [("orders", 1), ("orders", 2)]
    node.kafka.log("orders", 1).hangs = False
    probe(node)
    settle(node, 2 * TERM_MS)
    assert arrived(node, 1) == [b"1"]
    assert spared_places(node) == [("orders", 2)]
    node.kafka.log("orders", 2).leader = None  # Nobody leads it: it is not asked for records.
    probe(node)
    settle(node)
    assert spared_places(node) == [("orders", 2)]


def test_messages_that_are_due_all_the_time_keep_their_order(make: Maker) -> None:
    """docs/design/frontier.md, A leader that hangs.

    Rules: silent-spared
    """
    node = proven(make)
    key = keys_of(1, 1)[0]
    node.kafka.hang("orders", 1)
    sent = []
    for number in range(300):
        if number == 200:
            node.kafka.end_hangs()
        sent.append(b"%d" % number)
        due(node, key, sent[-1])
        for _ in range(3):
            node.ingest()
            node.step()
        probe(node)
        node.clock.now_ms += 70
    settle(node, WAKE_MS_MAX)
    assert arrived(node, 1) == sent and not node.sparing.report


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
    back_ms = now_ms - 3_600_000
    node.sparing.turn(back_ms)
    assert node.sparing.defer_ms(back_ms, "orders", 1, is_back=True) == FIRST_WAKE_MS
    node.sparing.turn(now_ms)
    probe(node)
    node.sparing.turn(now_ms)
    node.sparing.turn(back_ms)
    assert node.sparing.defer_ms(back_ms, "orders", 1, is_back=True) <= AHEAD_MS + WAKE_MS_MAX
