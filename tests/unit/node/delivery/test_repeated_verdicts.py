"""A cancel or replace that is sent again is told the same: by any master, after its due time, after
a start.

docs/design/frontier.md, Settlements.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manual_clock import START_MS
from one_node import Maker, OneNode, open_replica

from delayd.bus import Record
from delayd.request import (
    BufferRecord,
    Reason,
    Reject,
    Request,
    RequestLimits,
    parse,
)
from delayd.request.settlements import RECORD_BYTES, settlement_records
from replication.ids import KilledMessage, Settlement
from replication.rules import Rules
from replication.settings import DAY_MS, SMOOTHING_RULES

HOUR_MS = 3_600_000


def verdicts(node: OneNode) -> list[tuple[str, list[str]]]:
    """What the receipts of cancels say, and name."""
    told = [json.loads(record.value or b"") for record in node.read("delayd-receipts")]
    return [(each["verdict"], each["killed"]) for each in told if each["op"] == "cancel"]


def ask(node: OneNode, id: str = "a") -> tuple[str, list[str]]:
    """Cancel, and return the answer."""
    count = len(verdicts(node))
    node.send("orders", id=id, op="cancel")
    for _ in range(3):
        pass_time(node, 10)
    assert len(verdicts(node)) == count + 1
    return verdicts(node)[-1]


def pass_time(node: OneNode, ms: int) -> None:
    """A step after this time."""
    node.clock.now_ms += ms
    node.ingest()
    node.step()


def nothing(_: OneNode) -> None:
    pass


def another_master(node: OneNode) -> None:
    node.stop_leading()


def forgetting(node: OneNode) -> None:
    """All that a frontier covers is forgotten, but ids."""
    node.replica.checkpoint()
    node.replica.checkpoint()


@pytest.mark.parametrize("between", [nothing, another_master, forgetting])
@pytest.mark.parametrize("first_ms", [-50, 50])
def test_a_cancel_gets_the_same_verdict_as_often_as_it_is_asked(
    make: Maker, between: Callable[[OneNode], None], first_ms: int
) -> None:
    """Rules: verdict-settled, settlement-written"""
    node = make("orders")
    source = node.send("orders", START_MS + 100, id="a")
    node.ingest()
    node.lead()
    pass_time(node, 100 + first_ms)
    first = ask(node)
    expected: Any = ("too-late", []) if first_ms > 0 else ("cancelled", [f"0/{source.offset}"])
    assert first == expected
    for after_ms in (1_000, HOUR_MS, 20 * HOUR_MS):
        pass_time(node, after_ms)
        between(node)
        assert ask(node) == first
    assert len(node.read("orders")) == (first_ms > 0)
    pass_time(node, 4 * HOUR_MS)
    assert ask(node) == ("not-found", []), "a day after the due time it is forgotten"


def replace(node: OneNode, due_ms: int, *, value: bytes = b"new", id: str = "a") -> Any:
    """Replace, and return the answer, and what it says that it is due at."""
    source = node.send("orders", due_ms, id=id, op="replace", value=value)
    for _ in range(3):
        pass_time(node, 10)
    told = [json.loads(record.value or b"") for record in node.read("delayd-receipts")]
    answers = [each for each in told if each["source"] == f"0/{source.offset}"]
    assert len(answers) == 1
    return answers[0]["verdict"], answers[0]["killed"], answers[0]["due_ms"]


@pytest.mark.parametrize("between", [nothing, another_master, forgetting])
@pytest.mark.parametrize(("before_ms", "verdict"), [(100, "replaced"), (0, "too-late")])
def test_a_replace_that_is_sent_again_is_told_the_same_and_delivers_nothing_more(
    make: Maker, between: Callable[[OneNode], None], before_ms: int, verdict: str
) -> None:
    """Rules: replace-repeated, verdict-settled, settlement-written"""
    node = make("orders")
    old = node.send("orders", START_MS + 200, id="a")
    node.ingest()
    node.lead()
    pass_time(node, 210 - before_ms)
    new_ms = START_MS + HOUR_MS
    first = replace(node, new_ms)
    assert first == (verdict, [f"0/{old.offset}"] if before_ms else [], new_ms)
    for after_ms in (1_000, HOUR_MS, 22 * HOUR_MS):
        between(node)
        assert replace(node, new_ms) == first
        pass_time(node, after_ms)
    assert [r.value for r in node.read("orders")][-1:] == [b"new"]
    assert len(node.read("orders")) == (2 if verdict == "too-late" else 1)
    pass_time(node, 3 * HOUR_MS)
    assert replace(node, new_ms)[0] == "scheduled", "a day after the due time it is forgotten"
    assert node.read("orders")[-1].value == b"new", "it is a request of its own"


def test_a_replace_that_found_nothing_is_told_so_again(make: Maker) -> None:
    """Rules: replace-repeated"""
    node = make("orders")
    node.ingest()
    node.lead()
    for _ in range(3):
        assert replace(node, START_MS + 500)[:2] == ("scheduled", [])
        pass_time(node, 1_000)
    assert len(node.read("orders")) == 1


def test_a_replace_is_another_request_after_any_other_one_or_with_a_delay(make: Maker) -> None:
    """Rules: replace-repeated, replace-kills"""
    node = make("orders")
    node.ingest()
    node.lead()
    due_ms = START_MS + HOUR_MS
    assert replace(node, due_ms)[0] == "scheduled"
    assert replace(node, due_ms + 1)[0] == "replaced", "another time"
    assert replace(node, due_ms, value=b"other")[0] == "replaced", "another content"
    assert replace(node, due_ms)[0] == "replaced", "another one came between"
    assert ask(node)[0] == "cancelled"
    for _ in range(2):
        told = replace(node, due_ms)
        assert told[:2] == ("scheduled", []), "it was cancelled meanwhile"
    headers = [("delayd-topic", b"orders"), ("delayd-delay", b"1h"), ("delayd-op", b"replace")]
    for _ in range(2):
        node.kafka.append("delayd-buffer", 0, b"b", b"v", [*headers, ("delayd-id", b"b")])
        pass_time(node, 10)
    receipts = [json.loads(record.value or b"") for record in node.read("delayd-receipts")]
    assert [each["verdict"] for each in receipts if each["id"] == "b"] == ["scheduled", "replaced"]


def test_a_repeated_redrive_is_told_which_one_counts(make: Maker) -> None:
    """Rules: redrive-once"""
    node = make("orders")
    node.ingest()
    node.lead()
    again: Any = {"more": [("delayd-redrive", b"0/999")]}
    first, *others = (node.send("orders", START_MS, **again) for _ in range(3))
    pass_time(node, 10)
    told = [json.loads(record.value or b"") for record in node.read("delayd-receipts")]
    assert [each["verdict"] for each in told] == ["scheduled", "duplicate", "duplicate"]
    assert all(f"redriven before as 0/{first.offset}:" in each["detail"] for each in told[1:])
    assert len(node.read("orders")) == 1 and len(others) == 2


def test_a_repetition_in_the_same_step_gets_the_same_verdict(make: Maker) -> None:
    """The settlement of the first is not in the log yet.

    Rules: verdict-settled
    """
    node = make("orders")
    node.send("orders", START_MS + 100, id="a")
    node.ingest()
    node.lead()
    pass_time(node, 200)
    for _ in range(3):
        node.send("orders", id="a", op="cancel")
    pass_time(node, 1)
    assert verdicts(node) == [("too-late", [])] * 3


def test_a_node_that_rebuilds_from_the_buffer_knows_what_each_cancel_came_to(
    make: Maker, tmp_path: Path
) -> None:
    """It has seen no frontier at all.

    Rules: settlement-written
    """
    node = make("orders")
    node.send("orders", START_MS + 100, id="late")
    node.send("orders", START_MS + 100, id="early")
    node.ingest()
    node.lead()
    assert ask(node, "early")[0] == "cancelled"
    pass_time(node, 200)
    assert ask(node, "late") == ("too-late", [])
    node.ingest()
    rebuilt = open_replica(tmp_path / "rebuilt", node.settings)
    rebuilt.take([*node.kafka.topics["delayd-buffer"].partitions[0].read(0, 10**9)[0]])
    for id in ("early", "late"):
        known, there = rebuilt.know(0, id), node.replica.know(0, id)
        assert known is not None and there is not None
        assert known[0] == there[0] and known[0].settled is not None
    rebuilt.close()


def test_nothing_is_settled_by_older_rules(make: Maker) -> None:
    """Nodes of older packages would take the record for a user's.

    Rules: settlement-written
    """
    node = make("orders", rules_version=SMOOTHING_RULES)
    node.send("orders", START_MS + 100, id="a")
    node.ingest()
    node.lead()
    pass_time(node, 200)
    assert [ask(node)[0], ask(node)[0]] == ["too-late", "not-found"]
    again = [replace(node, START_MS + HOUR_MS)[0] for _ in range(2)]
    assert again == ["scheduled", "replaced"]
    assert all("delayd-settles" not in dict(r.headers) for r in node.read("delayd-buffer"))


def record_of(written: BufferRecord) -> Record:
    """As a node reads it."""
    partition, key, value, headers = written
    return Record(partition, 9, 0, START_MS, key, value, headers)


MESSAGES = tuple(KilledMessage(START_MS + n, n, 5) for n in range(64))
LIMITS = RequestLimits(DAY_MS, 1_000, 2, "c", b"a key that is long enough")


def test_settlements_are_read_back_as_they_were_written() -> None:
    settled = [
        (f"{n}-é" * 30, Settlement(n, MESSAGES, MESSAGES[:3], n % 2 == 0, START_MS))
        for n in range(30)
    ]
    records = list(settlement_records(1, settled, LIMITS))
    assert len(records) > 1 and all(len(r.value or b"") < 3 * RECORD_BYTES for r in records)
    read: list[Any] = []
    for record in records:
        request = parse(record_of(record), LIMITS)
        assert isinstance(request, Request)
        read += request.settled
    assert read == settled


def test_settlements_that_the_master_did_not_write_are_refused() -> None:
    """Rules: continuation-proof"""
    [record] = settlement_records(0, [("a", Settlement(1, MESSAGES, (), False, 1))], LIMITS)
    forged = record_of(record)._replace(value=(record.value or b"").replace(b"5", b"6"))
    for refused in (forged, record_of(record)._replace(partition=1)):
        outcome = parse(refused, LIMITS)
        assert isinstance(outcome, Reject) and outcome.reason is Reason.BAD_PROOF
    older = RequestLimits(DAY_MS, 1_000, 2, "c", LIMITS.proof_key, rules=Rules(SMOOTHING_RULES))
    outcome = parse(record_of(record), older)
    assert isinstance(outcome, Reject) and outcome.reason is not Reason.BAD_PROOF
