"""`delayd upgrade rules` on twins: who may be switched, and what is left of runs that were cut."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from one_node import CLUSTER_KEY, OneNode

from delayd.bus.memory import MemoryBus
from delayd.bus.memory.idempotent import MemoryIdempotentProducer
from delayd.cluster.rules_switch import left_to_switch, refuse_unready, switch_rules
from delayd.cluster.topics import load_settings
from delayd.errors import FrontierError, UpgradeError, WrongClusterKeyError
from delayd.node.election.etcd_calls import Identity
from delayd.runtime.clock import SystemClock
from replication.record import decode
from replication.rules import Barrier
from replication.settings import SMOOTHING_RULES, STEADY_RULES

TIMEOUT_MS = 20_000
OLDER = '{"admin": "n:1", "nonce": "1"}'
"""What a node of v0.1.0 says of itself."""

PARTITIONS = 3


class PersonKilledError(Exception):
    """The person's process is gone."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OneNode]:
    """The master of a cluster that was made with rules 3; etcd knows it."""
    made = OneNode(tmp_path, "orders", partitions=PARTITIONS, rules_version=SMOOTHING_RULES)
    made.etcd.enter(made.settings.realm)
    announce(made, Identity("n", "1", "n:1").member_value(has_room=True))
    made.lead()
    yield made
    made.close()


def announce(node: OneNode, value: str, name: str = "n") -> None:
    node.etcd.put_member(name, value, node.etcd.grant_lease(10**9).id)


def run(node: OneNode, *, key: str = CLUSTER_KEY, timeout_ms: int = TIMEOUT_MS) -> list[int]:
    """What the command does, while the node goes on."""
    bus, done = MemoryBus(node.kafka), threading.Event()
    outcome: list[list[int] | BaseException] = []

    def person() -> None:
        try:
            outcome.append(
                switch_rules(
                    bus,
                    node.etcd,
                    SystemClock(),
                    cluster="c",
                    prefix="delayd-",
                    cluster_key=key,
                    version=STEADY_RULES,
                    timeout_ms=timeout_ms,
                )
            )
        except BaseException as error:
            outcome.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=person)
    thread.start()
    while not done.wait(0.01):
        turn(node)
    thread.join()
    [found] = outcome
    if isinstance(found, BaseException):
        raise found
    return found


def turn(node: OneNode) -> None:
    node.ingest()
    node.clock.now_ms += 1_001
    node.step()


def barriers_of(node: OneNode) -> tuple[Barrier, ...]:
    return decode(node.read("delayd-frontier")[-1].value or b"").barriers


def test_each_partition_is_switched_and_the_frontier_names_it(node: OneNode) -> None:
    """docs/design/frontier.md, Rules switch.

    Rules: frontier-names-barriers
    """
    node.send("orders", partition=1)
    assert run(node) == [0, 1, 2]
    assert [(b.partition, b.version) for b in barriers_of(node)] == [(0, 4), (1, 4), (2, 4)]
    last = json.loads(node.read("delayd-frontier")[-1].value or b"")
    assert last["format"] == 3
    assert last["needs"] == {"barriers": "0.2.0", "rules-4": "0.2.0"}
    assert len(node.read("orders")) == 1 and node.read("delayd-dead") == []
    assert run(node) == [], "a second run finds nothing to do"


def test_who_is_killed_half_way_is_completed_by_the_next(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/frontier.md, Rules switch.

    Rules: switch-repeated
    """
    send = MemoryIdempotentProducer.send

    def dies(self: MemoryIdempotentProducer, topic: str, **parts: object) -> None:
        if parts["partition"] == 1:
            raise PersonKilledError
        send(self, topic, **parts)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(MemoryIdempotentProducer, "send", dies)
        with pytest.raises(PersonKilledError):
            run(node)
    turn(node)
    assert [b.partition for b in barriers_of(node)] == [0]
    assert run(node) == [1, 2]
    assert left_to_switch(load_settings(node.bus, "c", "delayd-", 1_000).record, 4) == []


def test_the_first_barrier_of_a_partition_counts_whoever_wrote_it(node: OneNode) -> None:
    """docs/design/frontier.md, Rules switch: two people at once.

    Rules: switch-repeated
    """
    run(node)
    before = barriers_of(node)
    for record in node.read("delayd-buffer"):
        node.kafka.append("delayd-buffer", record.partition, None, None, record.headers)
    turn(node)
    assert barriers_of(node) == before
    assert node.read("delayd-dead") == []


@pytest.mark.parametrize(
    "value",
    [
        OLDER,
        '{"admin": "n:1", "nonce": "1", "rules": [2, 3]}',
        '{"admin": "n:1", "nonce": "1", "rules": 4}',
        "no JSON",
    ],
)
def test_nothing_is_written_while_a_node_does_not_know_the_rules(node: OneNode, value: str) -> None:
    """docs/design/frontier.md, Rules switch: v0.1.0 says nothing of rules.

    Rules: members-know-rules
    """
    announce(node, value, "old-1")
    with pytest.raises(UpgradeError, match=r"old-1 do not say .* by delayd 0\.2\.0 or later"):
        run(node)
    assert node.read("delayd-buffer") == []


def test_an_older_node_that_starts_meanwhile_finds_one_barrier_at_most(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/frontier.md, Rules switch: the frontier that names it keeps that node out.

    Rules: switch-gate
    """
    send = MemoryIdempotentProducer.send

    def starts(self: MemoryIdempotentProducer, topic: str, **parts: object) -> None:
        announce(node, OLDER, "old-1")
        send(self, topic, **parts)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(MemoryIdempotentProducer, "send", starts)
        with pytest.raises(UpgradeError, match="old-1 do not say"):
            run(node)
    assert [b.partition for b in barriers_of(node)] == [0]
    assert len(node.read("delayd-buffer")) == 1
    needs = json.loads(node.read("delayd-frontier")[-1].value or b"")["needs"]
    assert needs == {"barriers": "0.2.0", "rules-4": "0.2.0"}
    announce(node, Identity("old-1", "2", "n:2").member_value(has_room=True), "old-1")
    assert run(node) == [1, 2]


def test_one_partition_is_risked_while_no_frontier_names_its_barrier(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/frontier.md, Rules switch: an older master names none.

    Rules: switch-gate
    """
    with monkeypatch.context() as patch:
        patch.setattr(node, "step", lambda: None)
        with pytest.raises(UpgradeError, match="partitions 0, and no master"):
            run(node, timeout_ms=300)
    assert [record.partition for record in node.read("delayd-buffer")] == [0]
    turn(node)
    assert run(node) == [1, 2]


def test_nobody_is_asked_where_nobody_is() -> None:
    """Rules: members-know-rules"""
    with pytest.raises(UpgradeError, match="no node"):
        refuse_unready({}, STEADY_RULES)


def test_another_key_switches_nothing(node: OneNode) -> None:
    """docs/design/frontier.md, Rules switch."""
    with pytest.raises(WrongClusterKeyError):
        run(node, key="another key that is long enough")
    assert node.read("delayd-buffer") == []


@pytest.mark.parametrize("lines", [f"{{}}\n{CLUSTER_KEY}", f"{CLUSTER_KEY}\n{{}}"])
def test_barriers_are_signed_by_the_key_that_signs_in_the_cluster(
    node: OneNode, lines: str
) -> None:
    """docs/operations.md, A new cluster key: this node does not accept the other one."""
    assert run(node, key=lines.format("another key that is long enough")) == [0, 1, 2]
    assert [b.partition for b in barriers_of(node)] == [0, 1, 2]
    assert node.read("delayd-dead") == []


def test_a_successor_names_the_barriers_too(node: OneNode) -> None:
    """docs/design/frontier.md, Rules switch.

    Rules: frontier-names-barriers
    """
    run(node)
    before = barriers_of(node)
    node.stop_leading()
    node.lead()
    assert barriers_of(node) == before != ()


def test_a_release_that_knows_no_barriers_is_told_which_does(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/frontier.md, Optional fields: an older node after the switch.

    Rules: needed-features
    """
    run(node)
    monkeypatch.setattr("replication.features.FEATURES", {"rules-3": "0.1.0"})
    with pytest.raises(FrontierError, match=r"needs barriers, rules-4.*run delayd 0\.2\.0"):
        load_settings(node.bus, "c", "delayd-", 1_000)
