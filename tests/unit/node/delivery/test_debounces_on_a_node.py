"""Debounces on a whole node: the last of several goes out, in time, and nothing beside it.

Source: docs/design/debounce.md.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manual_clock import START_MS
from one_node import Maker, OneNode, nodes_in

from delayd.bus import Headers
from delayd.bus.murmur2 import partition_of
from delayd.node.delivery.planner import Planner, StepContent
from replication.delivery_queue import Plan
from replication.settings import DEBOUNCE_RULES, RECEIPTS_ALL, SERIES_RULES

HOUR_MS = 3_600_000


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Maker]:
    with nodes_in(tmp_path) as make_node:

        def make_newer(*targets: str, **options: Any) -> OneNode:
            return make_node(*targets, **{"rules_version": DEBOUNCE_RULES, **options})

        yield make_newer


def send(node: OneNode, value: bytes | None, *headers: tuple[str, bytes], id: str = "a") -> None:
    """Send any request about an id."""
    named: Headers = [("delayd-id", id.encode()), *headers]
    partition = partition_of(id.encode(), node.settings.partitions)
    node.kafka.append("delayd-buffer", partition, id.encode(), value, named)


def debounce(
    node: OneNode,
    value: bytes,
    *more: tuple[str, bytes],
    id: str = "a",
    delay: bytes = b"2s",
    max_wait: bytes = b"5s",
    topic: bytes = b"orders",
) -> None:
    times = (("delayd-delay", delay), ("delayd-max-wait", max_wait))
    op = ("delayd-op", b"debounce")
    send(node, value, op, ("delayd-topic", topic), *times, *more, id=id)


def turn(node: OneNode, times: int = 4) -> None:
    for _ in range(times):
        node.ingest()
        node.step()


def go_to(node: OneNode, after_ms: int) -> None:
    node.clock.now_ms = START_MS + after_ms
    turn(node)


def arrived(node: OneNode, topic: str = "orders") -> list[tuple[int, bytes | None]]:
    """Return when each came, after the start, and its value."""
    return [
        (int(dict(record.headers)["delayd-fired"] or 0) - START_MS, record.value)
        for record in node.read(topic)
    ]


def told(node: OneNode) -> list[tuple[str, str, int]]:
    """Return verdict, operation and number of what is killed of each receipt."""
    receipts = [json.loads(record.value or b"") for record in node.read("delayd-receipts")]
    return [(each["verdict"], each["op"], len(each["killed"])) for each in receipts]


RECEIPT = ("delayd-receipt", b"yes")


def test_the_last_one_goes_out_a_delay_after_it(make: Maker) -> None:
    """Rules: debounce-replaces, debounce-due, debounce-told"""
    node = make("orders")
    for number in range(4):
        debounce(node, b"%d" % number, max_wait=b"1h")
        go_to(node, number * 1_500 + 1_500)
    assert arrived(node) == []
    go_to(node, 6_499)
    assert arrived(node) == []
    go_to(node, 6_500)
    assert arrived(node) == [(6_500, b"3")]
    go_to(node, 2 * HOUR_MS)
    assert (len(arrived(node)), told(node)) == (1, [])
    [record] = node.read("orders")
    assert dict(record.headers)["delayd-due"] == b"%d" % (START_MS + 6_500)


def test_one_goes_out_when_the_first_has_waited_so_long(make: Maker) -> None:
    """Rules: debounce-due, debounce-run"""
    node = make("orders")
    for number in range(12):
        go_to(node, number * 1_000)
        debounce(node, b"%d" % number)
        turn(node)
    go_to(node, HOUR_MS)
    assert [at_ms for at_ms, _ in arrived(node)][:2] == [5_000, 10_000]
    assert [value for _, value in arrived(node)] == [b"4", b"9", b"11"]


def test_each_step_on_the_way_may_be_another_master_s(make: Maker) -> None:
    """Rules: debounce-due"""
    node = make("orders")
    for number in range(3):
        go_to(node, number * 1_000)
        debounce(node, b"%d" % number, max_wait=b"3s")
        turn(node)
        node.stop_leading()
    go_to(node, 2_999)
    assert arrived(node) == []
    node.stop_leading()
    go_to(node, 3_000)
    assert arrived(node) == [(3_000, b"2")]


def test_who_asks_for_it_is_told_what_became_of_it(make: Maker) -> None:
    """Rules: debounce-told"""
    node = make("orders")
    debounce(node, b"1", RECEIPT)
    debounce(node, b"2")
    debounce(node, b"3", RECEIPT)
    turn(node)
    assert told(node) == [("scheduled", "debounce", 0), ("replaced", "debounce", 1)]
    go_to(node, HOUR_MS)
    assert told(node)[2:] == [("delivered", "schedule", 0)]
    [killed] = [
        each["killed"]
        for each in (json.loads(r.value or b"") for r in node.read("delayd-receipts"))
        if each["killed"]
    ]
    assert killed == ["0/1"]


def test_where_all_receipts_are_written_each_is_told(make: Maker) -> None:
    """Rules: debounce-told"""
    node = make("orders", receipts_written=RECEIPTS_ALL)
    debounce(node, b"1")
    debounce(node, b"2")
    turn(node)
    go_to(node, HOUR_MS)
    assert [verdict for verdict, _, _ in told(node)] == ["scheduled", "replaced", "delivered"]


def test_one_that_comes_while_the_one_before_goes_out_is_too_late_and_goes_out(
    make: Maker,
) -> None:
    """It lies before its due time in the log, in a transaction that hides it from the step.

    Rules: debounce-told
    """
    node = make("orders")
    debounce(node, b"1")
    turn(node)
    node.clock.now_ms = START_MS + 1_999
    producer = node.bus.transactional_producer("a-user")
    producer.init_transactions(1_000)
    producer.begin()
    headers: Headers = [("delayd-id", b"a"), ("delayd-op", b"debounce"), RECEIPT]
    headers += [("delayd-topic", b"orders"), ("delayd-delay", b"2s"), ("delayd-max-wait", b"5s")]
    producer.send("delayd-buffer", key=b"a", value=b"2", headers=headers, partition=0)
    producer.flush(1_000)
    go_to(node, 2_000)
    assert arrived(node) == [(2_000, b"1")]
    producer.commit(1_000)
    go_to(node, 3_998)
    assert told(node) == [("too-late", "debounce", 0)]
    go_to(node, 3_999)
    assert [value for _, value in arrived(node)] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("headers", "value"),
    [
        ((("delayd-topic", b"orders"), ("delayd-delay", b"1h")), b"plain"),
        ((("delayd-topic", b"orders"), ("delayd-cron", b"@yearly")), b"series"),
    ],
)
def test_what_else_is_pending_is_replaced_and_that_is_answered(
    make: Maker, headers: tuple[tuple[str, bytes], ...], value: bytes
) -> None:
    """Rules: debounce-replaces, debounce-told"""
    node = make("orders")
    send(node, value, *headers)
    turn(node)
    debounce(node, b"1")
    go_to(node, 2 * HOUR_MS)
    assert [each for _, each in arrived(node)] == [b"1"]
    assert told(node) == [("replaced", "debounce", 1)]


def test_a_retry_gives_way_to_a_newer_one(make: Maker) -> None:
    """Rules: debounce-replaces, debounce-told"""
    node = make()
    debounce(node, b"1")
    go_to(node, 2_000)
    debounce(node, b"2")
    node.kafka.create_topic("orders")
    go_to(node, HOUR_MS)
    assert [value for _, value in arrived(node)] == [b"2"]
    assert told(node) == [("replaced", "debounce", 1)]


def test_what_waits_for_the_rate_of_its_target_goes_out(make: Maker) -> None:
    """Rules: debounce-closed"""
    node = make("orders", rates={"orders": 1})
    for number in range(40):
        send(node, b"-", ("delayd-topic", b"orders"), ("delayd-due", b"0"), id=f"b{number}")
    debounce(node, b"1", delay=b"1ms")
    go_to(node, 1_500)
    for number in range(2, 60):
        debounce(node, b"%d" % number, delay=b"500ms", max_wait=b"1s")
        go_to(node, 1_000 + number * 1_000)
    values = [value for _, value in arrived(node)]
    assert b"1" in values


def test_cancel_fire_and_reschedule_find_the_last_one(make: Maker) -> None:
    node = make("orders")
    for id in ("cancel", "fire", "reschedule", "replace"):
        debounce(node, b"1", id=id)
        debounce(node, id.encode(), id=id)
    send(node, None, ("delayd-op", b"cancel"), id="cancel")
    send(node, None, ("delayd-op", b"fire"), id="fire")
    send(node, None, ("delayd-op", b"reschedule"), ("delayd-by", b"+1m"), id="reschedule")
    due = (("delayd-topic", b"orders"), ("delayd-due", b"%d" % (START_MS + 9_000)))
    send(node, b"new", ("delayd-op", b"replace"), *due, id="replace")
    go_to(node, HOUR_MS)
    assert sorted(value or b"" for _, value in arrived(node)) == [b"fire", b"new", b"reschedule"]
    assert sorted(told(node)) == [
        *(("cancelled", "cancel", 1), ("replaced", "replace", 1)),
        *(("rescheduled", "fire", 0), ("rescheduled", "reschedule", 0)),
    ]


def test_one_behind_a_fire_leaves_what_is_fired(make: Maker) -> None:
    """Also where one step passes both, and where a cancel that comes later takes over.

    Rules: debounce-closed
    """
    node = make("orders")
    debounce(node, b"1", max_wait=b"1h")
    send(node, None, ("delayd-op", b"fire"))
    debounce(node, b"2", RECEIPT, max_wait=b"1h")
    debounce(node, b"3", max_wait=b"1h")
    turn(node)
    assert arrived(node) == [(0, b"1")]
    go_to(node, HOUR_MS)
    assert [value for _, value in arrived(node)] == [b"1", b"3"]
    assert told(node)[:2] == [("rescheduled", "fire", 0), ("scheduled", "debounce", 0)]


def test_one_behind_a_reschedule_takes_over_what_that_moves(make: Maker) -> None:
    """Rules: debounce-replaces"""
    node = make("orders")
    send(node, b"plain", ("delayd-topic", b"orders"), ("delayd-delay", b"10s"))
    send(node, None, ("delayd-op", b"reschedule"), ("delayd-by", b"+1m"))
    debounce(node, b"1")
    go_to(node, HOUR_MS)
    assert [value for _, value in arrived(node)] == [b"1"]
    assert told(node) == [("rescheduled", "reschedule", 0), ("replaced", "debounce", 1)]


def test_one_that_expires_or_dies_is_told_once(make: Maker) -> None:
    """Rules: debounce-told"""
    node = make("orders", retry_delays_ms=(10,))
    for id, topic, more in (
        ("expires", b"orders", (("delayd-late", b"1s"),)),
        ("dies", b"nowhere", ()),
    ):
        debounce(node, b"1", *more, id=id, topic=topic)
        debounce(node, b"2", *more, id=id, topic=topic)
    node.ingest()
    go_to(node, HOUR_MS)
    go_to(node, 2 * HOUR_MS)
    assert sorted(told(node)) == [("dead", "schedule", 0), ("expired", "schedule", 0)]
    letters = node.read("delayd-dead")
    assert [record.value for record in letters] == [b"2", b"2"]
    assert all("delayd-op" not in dict(record.headers) for record in letters)


def test_a_step_that_reads_ahead_of_a_quiet_one_does_not_wait_for_it(make: Maker) -> None:
    """What a debounce beyond O' kills is delivered, and no verdict is remembered for ever."""
    node = make("orders")
    for number in range(30):
        debounce(node, b"1", id=f"a{number}", delay=b"1s")
    node.ingest()
    node.clock.now_ms = START_MS + 999
    for number in range(30):
        debounce(node, b"2", id=f"a{number}", delay=b"1s")
    go_to(node, HOUR_MS)
    assert len(arrived(node)) == 30 and told(node) == []


def test_due_and_lateness_are_those_of_the_run(make: Maker) -> None:
    """Rules: debounce-due"""
    node = make("orders")
    for id, late in (("in-time", b"1s"), ("expires", b"999ms")):
        debounce(node, b"1", id=id, max_wait=b"2s")
        node.clock.now_ms = START_MS + 1_500
        debounce(node, b"2", ("delayd-late", late), id=id, max_wait=b"2s")
        node.clock.now_ms = START_MS
    go_to(node, 3_000)
    [record] = node.read("orders")
    assert dict(record.headers)["delayd-id"] == b"in-time"
    assert dict(record.headers)["delayd-due"] == b"%d" % (START_MS + 2_000)


def test_a_replace_that_is_repeated_behind_a_told_run_gets_its_verdict(make: Maker) -> None:
    """Rules: replace-repeated"""
    node = make("orders")
    due = (("delayd-topic", b"orders"), ("delayd-due", b"%d" % (START_MS + 1_000)))
    send(node, b"first", ("delayd-topic", b"orders"), ("delayd-delay", b"1h"))
    send(node, b"new", ("delayd-op", b"replace"), *due)
    go_to(node, 1_000)
    debounce(node, b"1", RECEIPT)
    debounce(node, b"2", RECEIPT)
    turn(node)
    send(node, b"new", ("delayd-op", b"replace"), *due)
    go_to(node, HOUR_MS)
    assert [value for _, value in arrived(node)] == [b"new", b"2"]
    replaces = [each for each in told(node) if each[1] == "replace"]
    assert replaces == [("replaced", "replace", 1)] * 2


def test_a_cancel_behind_a_fire_and_a_told_debounce_finds_both(make: Maker) -> None:
    """The step that passes fire and debounce has read the cancel, which lies beyond it.

    Rules: debounce-closed, reschedule-overridden
    """
    node = make("orders")
    debounce(node, b"1", max_wait=b"1h")
    turn(node)
    node.clock.now_ms = START_MS + 1_999
    send(node, None, ("delayd-op", b"fire"))
    debounce(node, b"2", RECEIPT, max_wait=b"1h")
    begin = Planner.begin
    send_cancel = [lambda: send(node, None, ("delayd-op", b"cancel"))]

    def begun(planner: Planner, plan: Plan) -> StepContent:
        if send_cancel and plan.replies:
            send_cancel.pop()()
            node.ingest()
        return begin(planner, plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Planner, "begin", begun)
        go_to(node, 2_500)
    go_to(node, HOUR_MS)
    found = told(node)
    assert [value for _, value in arrived(node)] == [], found
    assert found == [
        *(("rescheduled", "fire", 0), ("scheduled", "debounce", 0), ("cancelled", "cancel", 2)),
    ]


def test_older_rules_refuse_it(make: Maker) -> None:
    """Rules: debounce-by-rules"""
    node = make("orders", rules_version=SERIES_RULES)
    debounce(node, b"1")
    go_to(node, HOUR_MS)
    [letter] = node.read("delayd-dead")
    assert dict(letter.headers)["delayd-reason"] == b"unknown-header"
