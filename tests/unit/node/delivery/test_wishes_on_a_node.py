"""Wishes on a whole node: receipts that a message asks for.

Source: docs/design/wishes.md.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manual_clock import START_MS
from one_node import Maker, OneNode, nodes_in

from delayd.request.spreading import planned_ms_of
from replication.settings import STEADY_RULES

TOLD = [("delayd-receipt", b"yes")]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Maker]:
    with nodes_in(tmp_path) as make_node:
        yield make_node


def receipts(node: OneNode) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in node.read("delayd-receipts")]


def told(node: OneNode) -> list[tuple[str, str, str]]:
    """Of each receipt: id, verdict, source."""
    return [(each["id"], each["verdict"], each["source"]) for each in receipts(node)]


def pass_time(node: OneNode, ms: int) -> None:
    node.clock.now_ms += ms
    node.ingest()
    node.step()


def test_a_message_without_an_id_gets_its_receipts_under_its_source(make: Maker) -> None:
    """Rules: receipts-asked"""
    node = make("orders")
    node.send("orders", START_MS + 500)
    node.send("orders", START_MS + 500, more=TOLD)
    pass_time(node, 0)
    pass_time(node, 0)
    assert told(node) == [("0/1", "scheduled", "0/1")]
    pass_time(node, 600)
    assert told(node)[1:] == [("0/1", "delivered", "0/1")]
    assert {each["due_ms"] for each in receipts(node)} == {START_MS + 500}
    assert len(node.read("orders")) == 2


def test_with_an_id_it_gets_them_under_that_and_answers_as_ever(make: Maker) -> None:
    """Rules: receipts-asked"""
    node = make("orders")
    node.send("orders", START_MS + 500, id="a", more=TOLD)
    node.send("orders", START_MS + 500, id="a", more=TOLD)
    node.send("orders", START_MS + 900, id="a", more=TOLD)
    pass_time(node, 0)
    pass_time(node, 700)
    assert [(id, verdict) for id, verdict, _ in told(node)] == [
        ("a", "scheduled"),
        ("a", "duplicate"),
        ("a", "conflict"),
        ("a", "delivered"),
    ]


@pytest.mark.parametrize("id", [None, "a"])
def test_a_retry_and_a_death_are_told_to_who_asked(make: Maker, id: str | None) -> None:
    """Rules: wishes-kept, receipts-asked"""
    node = make(retry_delays_ms=(100,))
    node.send("nowhere", START_MS, id=id, more=TOLD)
    for _ in range(6):
        pass_time(node, 200)
    name = id or "0/0"
    assert told(node) == [(name, "scheduled", "0/0"), (name, "dead", "0/0")]
    [letter] = node.read("delayd-dead")
    assert ("delayd-receipt", b"yes") in letter.headers


def test_a_retry_is_delivered_and_told_so(make: Maker) -> None:
    """Rules: wishes-kept"""
    node = make(retry_delays_ms=(100, 100))
    node.send("later", START_MS, more=TOLD)
    pass_time(node, 1)
    pass_time(node, 1)
    node.kafka.create_topic("later", 1, {"message.timestamp.type": "LogAppendTime"})
    for _ in range(4):
        pass_time(node, 200)
        node.targets.forget()
    assert told(node) == [("0/0", "scheduled", "0/0"), ("0/0", "delivered", "0/0")]


def test_what_is_cancelled_is_told_to_the_cancel_alone(make: Maker) -> None:
    node = make("orders")
    node.send("orders", START_MS + 500, id="a", more=TOLD)
    node.send("orders", id="a", op="cancel")
    for _ in range(3):
        pass_time(node, 400)
    assert [verdict for _, verdict, _ in told(node)] == ["scheduled", "cancelled"]


def test_older_rules_refuse_it(make: Maker) -> None:
    """Rules: wishes-by-rules"""
    node = make("orders", rules_version=STEADY_RULES)
    node.send("orders", START_MS, id="a", more=TOLD)
    node.send("orders", START_MS, more=TOLD)
    pass_time(node, 0)
    pass_time(node, 0)
    assert [(id, verdict) for id, verdict, _ in told(node)] == [("a", "rejected")]
    reasons = [dict(letter.headers)["delayd-reason"] for letter in node.read("delayd-dead")]
    assert reasons == [b"unknown-header"] * 2 and node.read("orders") == []


def letters(node: OneNode) -> list[dict[str, bytes | None]]:
    return [dict(record.headers) for record in node.read("delayd-dead")]


def test_a_message_expires_a_millisecond_after_it_was_worth_it(make: Maker) -> None:
    """Rules: expired-by-now"""
    node = make("orders")
    node.send("orders", START_MS - 1_000, more=[("delayd-late", b"1000ms")])
    node.send("orders", START_MS - 1_001, more=[("delayd-late", b"1000ms")])
    node.send("orders", START_MS - 1_001)
    pass_time(node, 0)
    pass_time(node, 0)
    fired = [dict(record.headers)["delayd-source"] for record in node.read("orders")]
    assert node.clock.now_ms == START_MS and {*fired} == {b"0/0", b"0/2"}
    [letter] = letters(node)
    assert (letter["delayd-reason"], letter["delayd-source"]) == (b"expired", b"0/1")
    assert letter["delayd-origin"] == b"0/1" and "delayd-attempt" not in letter
    assert b"1 ms too late" in (letter["delayd-detail"] or b"")
    assert told(node) == []
    steps = [json.loads(record.value or b"") for record in node.read("delayd-frontier")]
    assert sum(step["counts"]["dead"] for step in steps) == 1


def test_after_an_outage_what_is_over_expires_and_the_rest_goes_out(make: Maker) -> None:
    """Rules: expired-by-now"""
    node = make("orders")
    for number, late in enumerate((b"1m", b"2h", None)):
        more = [] if late is None else [("delayd-late", late)]
        node.send("orders", START_MS + 1_000, id=f"m{number}", more=more)
    pass_time(node, 0)
    node.stop_leading()
    node.clock.now_ms += 3_600_000
    for _ in range(3):
        pass_time(node, 10)
    arrived = {dict(record.headers)["delayd-id"] for record in node.read("orders")}
    assert arrived == {b"m1", b"m2"}
    assert told(node) == [("m0", "expired", "0/0")]


def test_a_retry_keeps_its_lateness_and_its_user_is_told_in_time(make: Maker) -> None:
    """Rules: expired-by-now, wishes-kept"""
    node = make("orders", retry_delays_ms=(100, 60_000))
    node.send("nowhere", START_MS, id="a", more=[("delayd-late", b"3s")])
    for _ in range(10):
        pass_time(node, 500)
    [letter] = letters(node)
    assert (letter["delayd-reason"], letter["delayd-attempt"]) == (b"expired", b"2")
    assert letter["delayd-origin"] == b"0/0"
    [receipt] = receipts(node)
    assert receipt["verdict"] == "expired"
    assert 3_000 < receipt["at_ms"] - START_MS <= 3_600


def test_a_replace_expires_and_a_cancel_comes_first(make: Maker) -> None:
    node = make("orders")
    node.send("orders", START_MS + 100, id="a", more=[("delayd-late", b"1ms")])
    node.send("orders", START_MS + 100, id="a", op="replace", more=[("delayd-late", b"2ms")])
    node.send("orders", START_MS + 100, id="b", more=[("delayd-late", b"1ms")])
    node.send("orders", id="b", op="cancel")
    for _ in range(3):
        pass_time(node, 200)
    assert sorted((id, verdict) for id, verdict, _ in told(node)) == [
        ("a", "expired"),
        ("a", "replaced"),
        ("b", "cancelled"),
    ]
    assert node.read("orders") == []
    node.send("orders", id="a", op="cancel")
    pass_time(node, 0)
    pass_time(node, 0)
    assert told(node)[-1][1] == "too-late"


def test_a_crowd_with_a_window_goes_out_in_planned_order_and_not_before(make: Maker) -> None:
    """Rules: window-by-name, never-early"""
    node = make("orders")
    due_ms = START_MS + 1_000
    for _ in range(40):
        node.send("orders", due_ms, more=[("delayd-window", b"2s")])
    for _ in range(40):
        pass_time(node, 100)
    found = [dict(record.headers) for record in node.read("orders")]
    planned = [int(each["delayd-planned"] or 0) for each in found]
    assert len(found) == 40 and planned == sorted(planned)
    assert {each["delayd-due"] for each in found} == {b"%d" % due_ms}
    assert planned[0] < due_ms + 400 and planned[-1] > due_ms + 1_600
    for each, planned_ms in zip(found, planned, strict=True):
        assert 0 <= int(each["delayd-fired"] or 0) - planned_ms <= 101


def test_a_retry_says_when_its_message_was_planned(make: Maker) -> None:
    """Rules: window-by-name, wishes-kept"""
    node = make(retry_delays_ms=(100,) * 20)
    node.send("later", START_MS, more=[("delayd-window", b"300ms")])
    for _ in range(6):
        pass_time(node, 100)
    node.kafka.create_topic("later", 1, {"message.timestamp.type": "LogAppendTime"})
    for _ in range(4):
        node.targets.forget()
        pass_time(node, 200)
    [record] = node.read("later")
    headers = dict(record.headers)
    assert headers["delayd-origin"] == b"0/0" != headers["delayd-source"]
    assert headers["delayd-planned"] == b"%d" % planned_ms_of(START_MS, 300, "0/0")
