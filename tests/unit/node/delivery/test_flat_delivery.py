"""A node that delivers natively writes what one in Python writes: deliveries and frontiers."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from manual_clock import START_MS
from one_node import OneNode, nodes_in
from wheel_reading import checkpoint

from delayd.bus.flat import Outgoing
from delayd.bus.memory.producer import MemoryProducer
from delayd.node.delivery.planner import FlatPiece, Piece, Planner
from delayd.runtime import native
from delayd.wheel import Progress
from replication.delivery_queue import StepLimits

TARGETS = ("orders", "mails", "rated")
MESSAGES = 3_000
SPREAD_MS = 4_000
TURNS_MAX = 200


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each call of `send_flat` sends."""
    counts: list[int] = []
    send_flat = MemoryProducer.send_flat

    def told(producer: MemoryProducer, records: Outgoing) -> None:
        counts.append(sum(1 for _ in records.each()))
        send_flat(producer, records)

    monkeypatch.setattr(MemoryProducer, "send_flat", told)
    return counts


def fill(node: OneNode, count: int = MESSAGES, *, special: float = 0.02) -> None:
    """Send requests of all kinds, most of them plain."""
    random = Random(7)
    for number in range(count):
        due_ms = START_MS + 10_000 + random.randrange(SPREAD_MS)
        topic = random.choice((*TARGETS[:2], "orders"))
        more = [("h", b"%d" % number)] * random.randrange(3)
        kind = random.random()
        if kind < special:
            topic = random.choice(("nowhere", "rated", topic))
            more.append(("delayd-partition", b"%d" % random.randrange(2)))
        if kind > 1 - special:
            wishes = (("receipt", b"yes"), ("late", b"3s"), ("window", b"2s"))
            name, content = random.choice(wishes)
            more.append((f"delayd-{name}", content))
        key_id = f"id-{number % 50}" if special / 2 < kind < 2 * special else None
        value = b"x" * random.choice((0, 10, 300))
        node.send(topic, due_ms, id=key_id, value=value, more=more)
        if kind > 1 - special / 2:
            node.send(topic, id=f"id-{number % 50}", op="cancel")
    node.ingest()


def keep(node: OneNode) -> None:
    """Write the tails of all slots into their files."""
    checkpoint(node.replica.wheel, Progress((0,), (0,), (0,), b""))


def deliver_all(node: OneNode) -> dict[str, list[Any]]:
    """Let all become due, and step until nothing is left to do. Return what was written where."""
    node.lead()
    node.clock.now_ms = START_MS + 10_000 + SPREAD_MS
    for _ in range(TURNS_MAX):
        node.step()
        node.clock.now_ms += 500
    names = (*TARGETS, node.settings.frontier.name, node.settings.dead.name, "delayd-receipts")
    return {name: [record[4:] for record in node.read(name)] for name in names}


def of_node(
    folder: Path, library: native.Library | None, patch: pytest.MonkeyPatch
) -> tuple[OneNode, dict[str, list[Any]]]:
    patch.setattr(native, "library", library)
    with nodes_in(folder) as make:
        node = make(*TARGETS, rates={"rated": 1})
        fill(node)
        keep(node)
        return node, deliver_all(node)


def test_both_paths_write_the_same(
    tmp_path: Path,
    library: native.Library,
    monkeypatch: pytest.MonkeyPatch,
    counted: list[int],
) -> None:
    """Rules: fast-as-general"""
    _, by_python = of_node(tmp_path / "python", None, monkeypatch)
    assert counted == []
    node, natively = of_node(tmp_path / "native", library, monkeypatch)
    assert not node.failures
    for name, records in by_python.items():
        assert natively[name] == records, name
    assert len(natively["orders"]) + len(natively["mails"]) > MESSAGES * 0.9
    assert sum(counted) > MESSAGES * 0.7, "most of it was sent natively"


def pieces_of(node: OneNode) -> list[Piece | FlatPiece]:
    frontier = node.replica.newest
    assert frontier is not None
    planner = Planner.of(node.replica, frontier.record.frontier)
    node.clock.now_ms = START_MS + 10_000 + SPREAD_MS
    taken: list[Piece | FlatPiece] = []
    for _ in range(TURNS_MAX):
        plan = planner.plan(node.clock.now_ms, node.replica.ingested, StepLimits())
        taken += planner.begin(plan).pieces
        if plan.is_empty and taken:
            break
    return [piece for piece in taken if not isinstance(piece, Piece) or piece.messages]


def test_what_is_in_memory_only_is_read_in_python(
    tmp_path: Path, library: native.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "library", library)
    with nodes_in(tmp_path) as make:
        node = make(*TARGETS)
        fill(node, 600)
        assert [type(piece) for piece in pieces_of(node)] == [Piece]
        node.replica.arrivals.listeners = ()
        keep(node)
        assert [type(piece) for piece in pieces_of(node)] == [FlatPiece]


def test_few_messages_are_read_in_python(
    tmp_path: Path, library: native.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "library", library)
    with nodes_in(tmp_path) as make:
        for count, kind in ((15, Piece), (16, FlatPiece)):
            node = make(*TARGETS)
            fill(node, count, special=0)
            keep(node)
            assert [type(piece) for piece in pieces_of(node)] == [kind]
