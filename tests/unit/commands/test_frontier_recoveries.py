"""Random traffic, checkpoints, unknown commits and lost frontiers: each message once, each verdict
true.

Source: docs/design/recovering.md.
"""

import json
from collections import Counter, defaultdict
from pathlib import Path
from random import Random

import pytest
from moves import HOUR_MS
from one_node import CLUSTER_KEY, Maker
from recoveries import MINUTE_MS, Lost, cluster_in

from delayd.request import RequestLimits, order_record, quota_record
from replication.holds import Order
from replication.quotas import RATE, Quota, QuotaOrder
from replication.record import decode

SEEDS = [*((seed, 1) for seed in range(10)), *((10 + n, 2 + n % 2) for n in range(8))]
"""With how many shards."""
ROUNDS = 3
TOPICS = ("orders", "other", "absent")


class Play:
    """One random run."""

    def __init__(self, lost: Lost, seed: int) -> None:
        self.lost = lost
        self.chance = Random(seed)
        self.count = 0
        self.asked: dict[str, str] = {}
        """Value of each message by its source."""
        self.markers: dict[str, str] = {}
        """Id of each cancel and replace by its source."""

    def send(self) -> None:
        """One request."""
        chance, lost = self.chance, self.lost
        self.count += 1
        value, id = f"v-{self.count}", f"id-{chance.randrange(8)}"
        in_ms = chance.choice((-500, 0, 700, 2_000, 5_000, 40_000, HOUR_MS))
        topic = chance.choice(TOPICS[: 2 + (chance.random() < 0.1)])
        match chance.randrange(10):
            case 0 | 1:
                self.markers[lost.send("", 0, id=id, op="cancel")] = id
            case 2:
                source = lost.send(value, in_ms, id=id, op="replace", topic=topic)
                self.markers[source], self.asked[source] = id, value
            case 3 | 4 | 5:
                self.asked[lost.send(value, in_ms, id=id, topic=topic)] = value
            case 6:
                place = chance.randrange(lost.node.settings.partitions)
                lost.node.kafka.append("delayd-buffer", place, None, b"x", [("delayd-due", b"?")])
            case _:
                place = chance.randrange(lost.node.settings.partitions)
                source = lost.send(value, in_ms, topic=topic, partition=place)
                self.asked[source] = value

    def go_on(self) -> None:
        """Requests come while time passes; now and then a commit's outcome is unknown."""
        chance, lost = self.chance, self.lost
        for _ in range(chance.randrange(3, 12)):
            for _ in range(chance.randrange(4)):
                self.send()
            if chance.random() < 0.3:
                lost.checkpoint()
            if chance.random() < 0.15:
                shards = lost.node.settings.shards
                shard = chance.randrange(shards) if shards > 1 else 0
                name = f"delayd-{lost.node.settings.realm}-shard-{shard}"
                lost.node.kafka.fail_next_commit(name, applied=chance.random() < 0.5)
            lost.go_on(chance.choice((50, 400, 1_500, 12_000)), chance.randrange(1, 4))

    def lose_and_recover(self) -> None:
        """The node dies, in a step or not, and the frontier is gone; more requests come."""
        chance, lost = self.chance, self.lost
        lost.die()
        shards = lost.node.settings.shards
        if shards > 1 and chance.random() < 0.5:
            lost.lose(chance.randrange(shards))
        else:
            lost.lose()
        for _ in range(chance.randrange(3)):
            self.send()
        found = lost.recover(takes_doubles=True).found
        assert not (found.missing.count or found.unproven), found
        assert {each.topic for each in found.doubtful.names} <= {"absent"}
        lost.start()

    def judge(self) -> None:
        """Everything is over: compare what was asked with what came."""
        lost = self.lost
        arrived = Counter[str]()
        for topic in TOPICS[:2]:
            arrived += lost.arrived(topic)
        letters = Counter((each.value or b"").decode() for each in lost.node.read("delayd-dead"))
        verdicts: defaultdict[str, set[str]] = defaultdict(set)
        killed: set[str] = set()
        for record in lost.node.read("delayd-receipts"):
            told = json.loads(record.value or b"")
            if told["op"] in ("cancel", "replace") or told["verdict"] not in ("dead", "delivered"):
                verdicts[told["source"]].add(told["verdict"])
            killed.update(self.asked[each] for each in told["killed"])
        for source in self.markers:
            assert len(verdicts[source]) == 1, f"{source}: {verdicts[source]}"
        for source, value in self.asked.items():
            is_refused = not verdicts[source].isdisjoint({"duplicate", "conflict"})
            wanted = 0 if is_refused or value in killed else 1
            dead = letters[value] if not is_refused else 0
            assert arrived[value] + dead == wanted, f"{source} {value}: {arrived[value]}, {dead}"


@pytest.mark.parametrize(("seed", "shards"), SEEDS)
def test_each_message_once_through_any_loss(
    seed: int, shards: int, tmp_path: Path, make: Maker
) -> None:
    play = Play(cluster_in(tmp_path, make, shards=shards, partitions=max(2, shards)), seed)
    for _ in range(ROUNDS):
        play.go_on()
        play.lose_and_recover()
    for _ in range(8):
        play.lost.go_on(MINUTE_MS, 4)
    play.lost.go_on(2 * HOUR_MS, 8)
    for _ in range(4):
        play.lost.go_on(MINUTE_MS, 4)
    play.judge()


def ordered(lost: Lost, topic: str, for_ms: int) -> None:
    now_ms = lost.node.clock.now_ms
    limits = RequestLimits.of(lost.node.settings, CLUSTER_KEY.encode())
    until_ms = now_ms + for_ms if for_ms else 0
    written = order_record(Order(topic, now_ms, until_ms, 0), limits)
    lost.node.kafka.append("delayd-buffer", written.partition, None, None, written.headers)


def test_pauses_are_recovered(tmp_path: Path, make: Maker) -> None:
    """Those that the checkpoint knows, and those that were ordered and resumed since."""
    lost = cluster_in(tmp_path, make)
    ordered(lost, "orders", 20 * MINUTE_MS)
    ordered(lost, "other", 20 * MINUTE_MS)
    lost.go_on(1_000)
    lost.checkpoint()
    ordered(lost, "absent", 10 * MINUTE_MS)
    ordered(lost, "other", 0)
    for topic in ("orders", "other"):
        lost.send("waits", 500, topic=topic)
    lost.go_on(2_000)
    before = decode(lost.node.read("delayd-frontier")[-1].value or b"").holds
    assert before.keys() == {"orders", "absent"}
    lost.die()
    lost.lose()
    lost.recover(takes_doubles=True)
    found = decode(lost.node.read("delayd-frontier")[-1].value or b"").holds
    closed = {topic for topic, hold in found.items() if hold.is_closed(lost.node.clock.now_ms)}
    assert closed == {"orders", "absent"}
    assert all(found[topic][1:] == before[topic][1:] for topic in closed)
    lost.start()
    for _ in range(6):
        lost.go_on(MINUTE_MS, 4)
    assert (lost.arrived()["waits"], lost.arrived("other")["waits"]) == (0, 1)
    for _ in range(20):
        lost.go_on(MINUTE_MS, 6)
    assert lost.arrived()["waits"] == 1


def limited(lost: Lost, topic: str, max_pending: int, rate: int = 0) -> None:
    limits = RequestLimits.of(lost.node.settings, CLUSTER_KEY.encode())
    written = quota_record(QuotaOrder(topic, lost.node.clock.now_ms, max_pending, rate), limits)
    lost.node.kafka.append("delayd-buffer", written.partition, None, None, written.headers)


def test_quotas_are_recovered(tmp_path: Path, make: Maker) -> None:
    """Those that the checkpoint knows, those that were ordered since, and whether they are full."""
    lost = cluster_in(tmp_path, make)
    limited(lost, "orders", 2)
    limited(lost, "other", 2)
    lost.go_on(1_000)
    lost.checkpoint()
    limited(lost, "absent", 7)
    limited(lost, "other", 0)
    for number in range(3):
        lost.send(f"waits-{number}", 20 * MINUTE_MS)
        lost.go_on(100)
    before = decode(lost.node.read("delayd-frontier")[-1].value or b"").quotas
    assert before.keys() == {"orders", "absent"} and before["orders"].is_full
    lost.die()
    lost.lose()
    lost.recover(takes_doubles=True)
    found = decode(lost.node.read("delayd-frontier")[-1].value or b"").quotas
    assert {t: (q.max_pending, q.offset, q.is_full) for t, q in found.items()} == {
        t: (q.max_pending, q.offset, q.is_full) for t, q in before.items()
    }
    lost.start()
    lost.go_on(21 * MINUTE_MS, 8)
    lost.go_on(MINUTE_MS, 4)
    arrived = lost.arrived()
    assert [arrived[f"waits-{number}"] for number in range(3)] == [1, 1, 0]
    assert not decode(lost.node.read("delayd-frontier")[-1].value or b"").quotas["orders"].is_full


def test_a_topic_that_was_shut_by_its_rate_is_shut_until_the_successor_opens_it(
    tmp_path: Path, make: Maker
) -> None:
    """Docs/design/quotas.md, "What else knows quotas": the last gate says by which limit."""
    lost = cluster_in(tmp_path, make)
    limited(lost, "orders", 0, rate=1)
    lost.go_on(1_000)
    lost.checkpoint()
    for number in range(12):
        lost.send(f"waits-{number}", 20 * MINUTE_MS)
    lost.go_on(100)
    lost.send("refused", 20 * MINUTE_MS)
    lost.go_on(100)

    def quota() -> Quota:
        return decode(lost.node.read("delayd-frontier")[-1].value or b"").quotas["orders"]

    before = quota()
    assert before.over == RATE and before.is_full
    lost.die()
    lost.lose()
    lost.recover(takes_doubles=True)
    found = quota()
    assert (found.rate, found.over, found.offset) == (1, RATE, before.offset) and found.is_full
    lost.send("refused-too", 20 * MINUTE_MS)
    lost.start()
    lost.go_on(11_000, 11)
    assert not quota().is_full
    lost.send("taken", 20 * MINUTE_MS)
    for _ in range(11):
        lost.go_on(2 * MINUTE_MS, 4)
    arrived = lost.arrived()
    assert [arrived[f"waits-{number}"] for number in range(12)] == [1] * 12
    assert (arrived["refused"], arrived["refused-too"], arrived["taken"]) == (0, 0, 1)


@pytest.mark.parametrize("is_passed", [True, False])
def test_an_order_that_no_known_step_has_passed_is_obeyed_once(
    tmp_path: Path, make: Maker, is_passed: bool
) -> None:
    lost = cluster_in(tmp_path, make)
    ordered(lost, "orders", 20 * MINUTE_MS)
    lost.checkpoint()
    lost.send("waits", 500)
    if is_passed:
        lost.go_on(2_000)
    lost.die()
    lost.lose()
    lost.recover(takes_doubles=True)
    lost.start()
    for _ in range(6):
        lost.go_on(MINUTE_MS, 4)
    assert lost.arrived()["waits"] == 0
    assert decode(lost.node.read("delayd-frontier")[-1].value or b"").holds.keys() == {"orders"}
    for _ in range(20):
        lost.go_on(MINUTE_MS, 6)
    assert lost.arrived()["waits"] == 1
