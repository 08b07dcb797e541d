"""Several shards as one whole node delivers them, over Kafka in memory: a master of each.

Source: docs/design/shards.md.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from manual_clock import START_MS
from one_node import OneNode
from pyarrow import parquet

from delayd.bus import Record
from delayd.cluster.frontier_log import FrontierLog, SeenFrontier, joint_seen
from delayd.cluster.pausing import _shared_out
from delayd.cluster.topics import last_frontier
from delayd.commands.examine.exporting import export
from delayd.config.cluster_key import fingerprint
from delayd.errors import FrontierError, WrongClusterKeyError
from delayd.node.delivery.grant import Grant
from delayd.node.delivery.mastership import Mastership
from delayd.node.delivery.standby import Standby
from delayd.node.replica.replica import Replica
from delayd.testing.node import FOREVER_MS, TIMEOUT_MS, open_replica
from replication.holds import RATE_DEFAULT, Hold, Order, obey
from replication.shards import shard_of

SHARDS, PARTITIONS = 2, 4
DUE_MS = START_MS + 500


class Masters:
    """A node that leads any of its shards."""

    def __init__(self, folder: Path, *targets: str, **options: Any) -> None:
        self.node = OneNode(folder, *targets, partitions=PARTITIONS, shards=SHARDS, **options)
        self.clock = self.node.clock
        self.leading: dict[int, Mastership] = {}

    def lead(self, shard: int) -> None:
        node = self.node
        log = FrontierLog(node.bus, node.settings.frontier.name, shard)
        log.open(TIMEOUT_MS)
        context = replace(
            node.delivery_context(),
            frontier_log=log,
            standby=Standby(node.bus, node.settings, node.clock, shard),
            shard=shard,
        )
        self.leading[shard] = Mastership(context, Grant(f"n{shard}/1", FOREVER_MS))
        assert self.leading[shard].take_over()

    def stop(self, shard: int) -> None:
        self.leading.pop(shard).close()

    def go_on(self, until_ms: int, every_ms: int = 50) -> None:
        while self.clock.now_ms < until_ms:
            self.clock.now_ms += every_ms
            self.node.ingest()
            for mastership in self.leading.values():
                mastership.advance()

    def sent(self, count: int, due_ms: int = DUE_MS) -> list[str]:
        """Send so many, to each partition in turn; return their sources."""
        acks = [self.node.send("orders", due_ms, partition=n % PARTITIONS) for n in range(count)]
        return [f"{ack.partition}/{ack.offset}" for ack in acks]

    def newest(self) -> SeenFrontier:
        seen = last_frontier(self.node.bus, "delayd-frontier", TIMEOUT_MS)
        assert seen is not None
        return seen


@pytest.fixture
def masters(tmp_path: Path) -> Iterator[Masters]:
    made = Masters(tmp_path, "orders")
    yield made
    for mastership in made.leading.values():
        mastership.close()
    made.node.close()


def source_of(record: Record) -> str:
    return (dict(record.headers)["delayd-source"] or b"").decode()


def delivered(masters: Masters) -> list[str]:
    return [source_of(record) for record in masters.node.read("orders")]


def of_shard(sources: list[str], shard: int) -> list[str]:
    return sorted(s for s in sources if shard_of(int(s.partition("/")[0]), SHARDS) == shard)


def test_each_master_delivers_its_own_shard(masters: Masters) -> None:
    """Rules: shard-owns"""
    masters.lead(1)
    sources = masters.sent(20)
    masters.go_on(DUE_MS + 500)
    assert sorted(delivered(masters)) == of_shard(sources, 1)
    part = masters.newest().parts[1].record.frontier
    assert part.offsets == (0, 5, 0, 5) and part.own_writes[0::2] == (-1, -1)
    sources += masters.sent(4)
    masters.go_on(DUE_MS + 1_000)
    assert sorted(delivered(masters)) == of_shard(sources, 1), "what comes late is its own, too"
    masters.lead(0)
    masters.go_on(DUE_MS + 1_500)
    assert sorted(delivered(masters)) == sorted(sources)
    joint = masters.newest().record.frontier
    assert joint.offsets == (6, 6, 6, 6)
    assert masters.node.replica.newest == masters.newest()


def test_what_was_stored_before_is_delivered_by_the_master_of_its_shard(masters: Masters) -> None:
    sources = masters.sent(20)
    masters.node.ingest()
    masters.clock.now_ms = DUE_MS + 10_000
    for shard in range(SHARDS):
        masters.lead(shard)
    masters.go_on(DUE_MS + 11_000)
    assert sorted(delivered(masters)) == sorted(sources)


def test_late_arrivals_are_found_by_the_master_of_their_shard(masters: Masters) -> None:
    """Both have passed the second in which they are due when they come."""
    for shard in range(SHARDS):
        masters.lead(shard)
    masters.go_on(DUE_MS + 1_000)
    masters.stop(0)
    masters.stop(1)
    sources = [
        f"{ack.partition}/{ack.offset}"
        for n in range(8)
        for ack in [masters.node.send("orders", DUE_MS, partition=n % PARTITIONS)]
    ]
    masters.clock.now_ms += 3_000
    masters.node.ingest()
    masters.lead(1)
    masters.go_on(masters.clock.now_ms + 200)
    assert sorted(delivered(masters)) == of_shard(sources, 1)
    masters.lead(0)
    masters.go_on(masters.clock.now_ms + 200)
    assert sorted(delivered(masters)) == sorted(sources)


def test_answers_are_given_by_the_master_of_the_shard(masters: Masters) -> None:
    ids = [f"id-{n}" for n in range(12)]
    for id in ids:
        masters.node.send("orders", START_MS + 60_000, id=id)
    masters.node.ingest()
    for id in ids:
        masters.node.send("", id=id, op="cancel")
    masters.node.ingest()
    masters.lead(1)
    masters.go_on(DUE_MS)
    told = [record.key for record in masters.node.read("delayd-receipts")]
    assert 0 < len(told) < len(ids)
    masters.lead(0)
    masters.go_on(DUE_MS + 500)
    told = [record.key for record in masters.node.read("delayd-receipts")]
    assert {*told} == {id.encode() for id in ids} and len(told) == len(ids)
    values = [record.value or b"" for record in masters.node.read("delayd-receipts")]
    assert all(b'"cancelled"' in value for value in values)


def test_a_master_that_takes_over_goes_on_from_its_own_shards_frontier(masters: Masters) -> None:
    for shard in range(SHARDS):
        masters.lead(shard)
    sources = masters.sent(8)
    masters.go_on(DUE_MS + 100)
    masters.stop(1)
    sources += masters.sent(8)
    masters.go_on(DUE_MS + 2_000)
    masters.lead(1)
    masters.go_on(DUE_MS + 3_000)
    assert sorted(delivered(masters)) == sorted(sources)
    terms = [part.record.frontier.term for part in masters.newest().parts]
    assert terms == [1, 2] and masters.newest().record.frontier.term == 3


def test_what_all_shards_have_passed_is_forgotten_and_no_more(masters: Masters) -> None:
    for shard in range(SHARDS):
        masters.lead(shard)
    masters.sent(8)
    masters.go_on(DUE_MS + 1_500)
    masters.stop(0)
    for n in range(PARTITIONS):
        masters.node.send("orders", DUE_MS + 3_000, partition=n)
    masters.go_on(DUE_MS + 20_000, every_ms=500)
    assert masters.node.replica.checkpoint()
    slots = masters.node.replica.wheel.slots()
    assert slots == [(DUE_MS + 3_000) // 1_000], "shard 0 has not delivered what is due there"
    masters.lead(0)
    masters.go_on(DUE_MS + 40_000, every_ms=500)
    assert masters.node.replica.checkpoint()
    assert masters.node.replica.wheel.slots() == []
    assert len(delivered(masters)) == 12


def reopened(masters: Masters, folder: Path) -> Replica:
    """The node's replica as it is after a new start."""
    for shard in [*masters.leading]:
        masters.stop(shard)
    masters.node.replica.close()
    masters.node.replica = open_replica(folder, masters.node.settings)
    return masters.node.replica


def test_what_one_shard_has_lost_is_not_hidden_by_the_steps_of_another(
    masters: Masters, tmp_path: Path
) -> None:
    for shard in range(SHARDS):
        masters.lead(shard)
    masters.sent(8)
    masters.go_on(DUE_MS - 300)
    old = masters.newest().parts
    masters.go_on(DUE_MS + 2_000)
    assert masters.node.replica.checkpoint()
    masters.go_on(DUE_MS + 60_000, every_ms=1_000)
    newest = masters.newest()
    lost = joint_seen([old[0], newest.parts[1]])
    replica = reopened(masters, tmp_path)
    with pytest.raises(FrontierError, match="lost steps of a shard"):
        replica.observe(lost)
    replica.observe(newest)


def test_a_node_needs_the_keys_of_all_masters(masters: Masters, tmp_path: Path) -> None:
    for shard in range(SHARDS):
        masters.lead(shard)
    masters.go_on(DUE_MS)
    one, other = masters.newest().parts
    key = fingerprint("another key altogether", "c")
    settings = replace(other.record.settings, key_fingerprint=key)
    foreign = joint_seen([one, other._replace(record=replace(other.record, settings=settings))])
    assert key in foreign.record.settings.keys_before_ms()
    with pytest.raises(WrongClusterKeyError):
        reopened(masters, tmp_path).observe(foreign)


def test_an_export_has_what_is_pending_by_each_shard(masters: Masters, tmp_path: Path) -> None:
    for shard in range(SHARDS):
        masters.lead(shard)
    sources = masters.sent(8, due_ms=DUE_MS + 3_000)
    masters.go_on(DUE_MS + 1_500)
    masters.stop(1)
    masters.go_on(DUE_MS + 6_000)
    left = sorted({*sources} - {*delivered(masters)})
    assert left == of_shard(sources, 1)
    assert masters.node.replica.checkpoint()
    masters.stop(0)
    masters.node.replica.close()
    export(tmp_path, tmp_path / "x.parquet", lambda _done, _all: None)
    rows = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    assert sorted(f"{row['partition']}/{row['offset']}" for row in rows) == left
    masters.node.replica = open_replica(tmp_path, masters.node.settings)


def test_a_pause_without_a_rate_keeps_those_of_the_shards_that_have_one(masters: Masters) -> None:
    one, other = masters.newest().parts
    hold = Hold(1, 2, 5, 0)
    other = other._replace(record=replace(other.record, holds={"orders": hold}))
    orders = _shared_out(Order("orders", 10, 10_000, 0), joint_seen([one, other]))
    rates = [
        obey(part.record.holds, order, 3, 11)["orders"].rate
        for part, order in zip((one, other), orders, strict=True)
    ]
    assert rates == [RATE_DEFAULT // SHARDS, 5]


def test_a_rate_is_shared_out_exactly(tmp_path: Path) -> None:
    masters = Masters(tmp_path, "orders", rates={"orders": 3})
    for shard in range(SHARDS):
        masters.lead(shard)
    masters.sent(40)
    masters.go_on(DUE_MS + 10_000)
    fired = [int(dict(r.headers)["delayd-fired"] or 0) for r in masters.node.read("orders")]
    span_ms = max(fired) - min(fired)
    assert 3 * (span_ms / 1_000 - 1) <= len(fired) <= 3 * (span_ms / 1_000 + 1.5)
    for mastership in masters.leading.values():
        mastership.close()
    masters.node.close()
