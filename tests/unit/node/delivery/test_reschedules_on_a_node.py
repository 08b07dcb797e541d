"""Reschedules on a whole node: what is pending moves, once, and nothing is lost or doubled.

Source: docs/design/rescheduling.md.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from manual_clock import START_MS
from one_node import Maker, OneNode, nodes_in

from delayd.bus import Headers
from delayd.bus.murmur2 import partition_of
from delayd.node.delivery.planner import Planner, StepContent
from replication.delivery_queue import Plan
from replication.settings import RESCHEDULE_RULES, SERIES_RULES

HOUR_MS = 3_600_000
DUE_MS = START_MS + 10_000
LATER_MS = DUE_MS + 60_000
FIRST_MS = START_MS // 60_000 * 60_000 + 60_000


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Maker]:
    with nodes_in(tmp_path) as make_node:

        def make_newer(*targets: str, **options: Any) -> OneNode:
            return make_node(*targets, **{"rules_version": RESCHEDULE_RULES, **options})

        yield make_newer


def ask(
    node: OneNode,
    op: str,
    *,
    id: str = "a",
    value: bytes | None = None,
    **when: str | int,
) -> None:
    """Send a request without a message: `due`, `delay`, `by`."""
    headers: Headers = [("delayd-op", op.encode()), ("delayd-id", id.encode())]
    headers += [(f"delayd-{name}", str(text).encode()) for name, text in when.items()]
    partition = partition_of(id.encode(), node.settings.partitions)
    node.kafka.append("delayd-buffer", partition, id.encode(), value, headers)


def turn(node: OneNode, times: int = 4) -> None:
    for _ in range(times):
        node.ingest()
        node.step()


def go_to(node: OneNode, at_ms: int) -> None:
    node.clock.now_ms = at_ms
    turn(node)


def receipts(node: OneNode) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in node.read("delayd-receipts")]


def verdicts(node: OneNode) -> list[str]:
    return [each["verdict"] for each in receipts(node)]


def arrived(node: OneNode, topic: str = "orders") -> list[dict[str, bytes | None]]:
    return [dict(record.headers) for record in node.read(topic)]


def dues(node: OneNode, topic: str = "orders") -> list[int]:
    return [int(each["delayd-due"] or 0) for each in arrived(node, topic)]


@pytest.mark.parametrize(
    ("op", "when", "due_ms"),
    [
        ("reschedule", {"due": LATER_MS}, LATER_MS),
        ("reschedule", {"delay": "70s"}, START_MS + 70_000),
        ("reschedule", {"by": "+1m"}, LATER_MS),
        ("reschedule", {"by": "-5s"}, DUE_MS - 5_000),
        ("reschedule", {"by": "-1h"}, START_MS),
        ("reschedule", {"due": START_MS - HOUR_MS}, START_MS - HOUR_MS),
        ("reschedule", {"by": "+3h"}, DUE_MS + 3 * HOUR_MS),
        ("fire", {}, START_MS),
    ],
)
def test_what_is_pending_is_due_at_another_time(
    make: Maker, op: str, when: dict[str, str | int], due_ms: int
) -> None:
    """Rules: reschedule-moves"""
    node = make("orders")
    node.send("orders", DUE_MS, id="a", value=b"kept", more=[("x", b"1"), ("y", b"2")])
    turn(node)
    ask(node, op, **when)  # type: ignore[arg-type]
    turn(node)
    [told] = receipts(node)
    assert (told["verdict"], told["op"]) == ("rescheduled", op)
    assert (told["due_ms"], told["old_due_ms"], told["killed"]) == (due_ms, DUE_MS, [])
    if due_ms > START_MS:
        go_to(node, due_ms - 1)
        assert arrived(node) == []
        go_to(node, due_ms)
    [record] = node.read("orders")
    assert (record.key, record.value) == (b"a", b"kept")
    headers = dict(record.headers)
    assert (headers["x"], headers["y"]) == (b"1", b"2")
    assert (headers["delayd-due"], headers["delayd-origin"]) == (b"%d" % due_ms, b"0/0")
    assert "delayd-attempt" not in headers
    go_to(node, max(due_ms, LATER_MS) + HOUR_MS)
    assert len(arrived(node)) == 1


def test_a_far_message_is_found_in_the_file_of_its_hour(make: Maker) -> None:
    node = make("orders")
    for number in range(50):
        due_ms = START_MS + 30 * HOUR_MS + number * 7_000
        node.send("orders", due_ms, id=f"m-{number}", value=b"%d" % number * 100)
    turn(node)
    for number in (0, 17, 49):
        ask(node, "fire", id=f"m-{number}")
    turn(node)
    assert [r.value for r in node.read("orders")] == [b"0" * 100, b"17" * 100, b"49" * 100]


def test_what_was_delivered_is_too_late_and_what_never_was_is_not_found(make: Maker) -> None:
    """Rules: reschedule-verdicts"""
    node = make("orders")
    node.send("orders", DUE_MS, id="a")
    go_to(node, DUE_MS)
    ask(node, "reschedule", by="+1m")
    ask(node, "fire", id="b")
    turn(node)
    ask(node, "fire")
    turn(node)
    assert verdicts(node) == ["too-late", "not-found", "too-late"]
    node.send("orders", DUE_MS + 5_000, id="a")
    turn(node)
    ask(node, "cancel")
    turn(node)
    ask(node, "fire")
    turn(node)
    assert verdicts(node)[3:] == ["cancelled", "not-found"]
    assert len(arrived(node)) == 1


def together(node: OneNode, *asks: Any) -> None:
    """Send all of these before the node reads one of them."""
    for each in asks:
        each()
    turn(node)


def test_no_schedule_slips_in_while_the_log_does_not_say_how_it_ended(make: Maker) -> None:
    """Rules: reschedule-reserves"""
    node = make("orders")
    node.send("orders", DUE_MS, id="a")
    turn(node)
    together(
        node,
        lambda: ask(node, "reschedule", due=LATER_MS),
        lambda: node.send("orders", DUE_MS, id="a"),
        lambda: node.send("orders", LATER_MS, id="a"),
    )
    assert sorted(verdicts(node)) == ["conflict", "duplicate", "rescheduled"]
    turn(node)
    node.send("orders", LATER_MS, id="a")
    turn(node)
    assert verdicts(node)[3:] == ["conflict"]
    go_to(node, LATER_MS)
    assert dues(node) == [LATER_MS]


def test_the_id_is_free_once_the_log_says_that_it_was_too_late(make: Maker) -> None:
    """Rules: reschedule-settled"""
    node = make("orders")
    node.send("orders", DUE_MS, id="a")
    go_to(node, DUE_MS)
    together(
        node,
        lambda: ask(node, "reschedule", due=LATER_MS),
        lambda: node.send("orders", LATER_MS, id="a"),
    )
    assert sorted(verdicts(node)) == ["conflict", "too-late"]
    node.send("orders", LATER_MS, id="a")
    go_to(node, LATER_MS)
    assert dues(node) == [DUE_MS, LATER_MS]


@pytest.mark.parametrize("is_passed", [False, True], ids=["at once", "passed in between"])
@pytest.mark.parametrize("op", ["cancel", "replace", "reschedule", "fire"])
def test_what_comes_between_a_reschedule_and_its_continuation_wins(
    make: Maker, op: str, is_passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules: reschedule-overridden"""
    node = make("orders")
    node.send("orders", DUE_MS, id="a")
    turn(node)
    ask(node, "reschedule", by="+1m")
    node.ingest()
    asks: dict[str, Callable[[], object]] = {
        "cancel": lambda: ask(node, "cancel"),
        "replace": lambda: node.send("orders", DUE_MS + 5_000, id="a", op="replace", value=b"n"),
        "reschedule": lambda: ask(node, "reschedule", by="+1m"),
        "fire": lambda: ask(node, "fire"),
    }
    if is_passed:
        once_a_step_has_begun(monkeypatch, asks[op])
    else:
        asks[op]()
        node.ingest()
    turn(node)
    expected = {"cancel": "cancelled", "replace": "replaced"}.get(op, "rescheduled")
    assert verdicts(node) == ["rescheduled", expected]
    go_to(node, DUE_MS + HOUR_MS)
    wanted = {
        "cancel": [],
        "replace": [DUE_MS + 5_000],
        "reschedule": [DUE_MS + 120_000],
        "fire": [START_MS],
    }
    assert dues(node) == wanted[op]
    ask(node, "cancel")
    turn(node)
    assert verdicts(node)[2] == ("cancelled" if op == "cancel" else "too-late")


def test_a_message_that_is_retried_moves_with_its_attempts(make: Maker) -> None:
    """Rules: reschedule-attempts"""
    node = make("orders")
    node.send("nowhere", DUE_MS, id="a")
    go_to(node, DUE_MS)
    ask(node, "reschedule", due=LATER_MS)
    turn(node)
    assert verdicts(node) == ["rescheduled"]
    node.kafka.create_topic("nowhere", 1, {})
    go_to(node, LATER_MS - 1)
    assert node.read("nowhere") == []
    go_to(node, LATER_MS)
    [record] = node.read("nowhere")
    assert dict(record.headers)["delayd-attempt"] == b"1"


def once_a_step_has_begun(monkeypatch: pytest.MonkeyPatch, asks: Callable[[], object]) -> None:
    """Send requests while the next step that delivers or judges something is under way."""
    begin, left = Planner.begin, [asks]

    def begin_and_ask(self: Planner, plan: Plan) -> StepContent:
        content = begin(self, plan)
        if left and not plan.is_empty:
            left.pop()()
        return content

    monkeypatch.setattr(Planner, "begin", begin_and_ask)


def test_a_retry_that_comes_behind_the_reschedule_is_what_moves(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules: reschedule-holds"""
    node = make("orders")
    node.send("nowhere", DUE_MS, id="a")
    turn(node)
    # The step that finds no target does not know the reschedule, which lies before its retry.
    once_a_step_has_begun(monkeypatch, lambda: ask(node, "reschedule", due=LATER_MS))
    go_to(node, DUE_MS)
    assert verdicts(node) == ["rescheduled"]
    node.kafka.create_topic("nowhere", 1, {})
    go_to(node, LATER_MS - 1)
    assert node.read("nowhere") == []
    go_to(node, LATER_MS)
    [record] = node.read("nowhere")
    assert dict(record.headers)["delayd-attempt"] == b"1"
    go_to(node, LATER_MS + HOUR_MS)
    assert len(node.read("nowhere")) == 1


@pytest.mark.parametrize("op", ["cancel", "reschedule"])
def test_a_retry_behind_a_reschedule_and_what_comes_after_it(
    make: Maker, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make("orders")
    node.send("nowhere", DUE_MS, id="a")
    turn(node)

    def two() -> None:
        ask(node, "reschedule", due=LATER_MS)
        if op == "cancel":
            ask(node, op)
        else:
            ask(node, op, by="+1m")

    once_a_step_has_begun(monkeypatch, two)
    go_to(node, DUE_MS)
    expected = "cancelled" if op == "cancel" else "rescheduled"
    assert verdicts(node) == ["rescheduled", expected]
    node.kafka.create_topic("nowhere", 1, {})
    go_to(node, LATER_MS + HOUR_MS)
    assert dues(node, "nowhere") == ([] if op == "cancel" else [LATER_MS + 60_000])


def test_an_occurrence_that_goes_out_meanwhile_is_not_fired_and_the_series_is_not_hurried(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules: fire-series"""
    node = make("orders")
    recur(node)
    turn(node)
    once_a_step_has_begun(monkeypatch, lambda: ask(node, "fire"))
    go_to(node, FIRST_MS)
    assert verdicts(node) == ["too-late"]
    go_to(node, FIRST_MS + 60_000)
    assert of_series(node) == [(1, 0), (2, 60_000)]


def test_a_successor_decides_the_same(make: Maker) -> None:
    node = make("orders")
    node.send("orders", DUE_MS, id="a")
    turn(node)
    ask(node, "reschedule", due=LATER_MS)
    node.ingest()
    node.stop_leading()
    turn(node)
    ask(node, "fire")
    node.ingest()
    node.stop_leading()
    turn(node)
    assert verdicts(node) == ["rescheduled", "rescheduled"]
    go_to(node, LATER_MS)
    assert dues(node) == [DUE_MS] or len(dues(node)) == 1


def test_its_window_ends_and_it_is_late_from_the_new_time_on(make: Maker) -> None:
    """Rules: reschedule-wishes"""
    node = make("orders")
    wishes = [("delayd-window", b"5m"), ("delayd-late", b"10s")]
    node.send("orders", DUE_MS, id="a", more=wishes)
    node.send("orders", DUE_MS, id="b", more=wishes)
    turn(node)
    ask(node, "reschedule", due=LATER_MS, id="a")
    ask(node, "reschedule", due=LATER_MS, id="b")
    turn(node)
    go_to(node, LATER_MS)
    assert [each.get("delayd-planned") for each in arrived(node)] == [None, None]
    node.send("orders", LATER_MS + 1_000, id="c", more=wishes[1:])
    turn(node)
    ask(node, "reschedule", by="+1m", id="c")
    turn(node)
    go_to(node, LATER_MS + 61_000 + 10_001)
    assert verdicts(node)[-1] == "expired"


def recur(node: OneNode, *more: tuple[str, bytes]) -> None:
    headers = [("delayd-topic", b"orders"), ("delayd-cron", b"* * * * *"), ("delayd-id", b"a")]
    node.kafka.append("delayd-buffer", 0, b"a", b"v", [*headers, *more])


def of_series(node: OneNode) -> list[tuple[int, int]]:
    return [
        (int(each["delayd-occurrence"] or 0), int(each["delayd-due"] or 0) - FIRST_MS)
        for each in arrived(node)
    ]


@pytest.mark.parametrize("is_early", [False, True], ids=["resolved", "not yet"])
def test_a_fired_occurrence_goes_out_now_and_the_series_goes_on(
    make: Maker, is_early: bool
) -> None:
    """Rules: fire-series"""
    node = make("orders")
    recur(node)
    if not is_early:
        turn(node)
    ask(node, "fire")
    turn(node)
    assert verdicts(node) == ["rescheduled"]
    assert of_series(node) == [(1, START_MS - FIRST_MS)]
    go_to(node, FIRST_MS)
    go_to(node, FIRST_MS + 60_000)
    assert of_series(node)[1:] == [(2, 60_000)]


def test_a_series_cannot_be_moved(make: Maker) -> None:
    """Rules: reschedule-unmovable"""
    node = make("orders")
    recur(node)
    turn(node)
    ask(node, "reschedule", by="+1m")
    turn(node)
    [told] = receipts(node)
    assert (told["verdict"], told["detail"].split(":")[0]) == ("rejected", "unmovable")
    go_to(node, FIRST_MS)
    assert of_series(node) == [(1, 0)]


def test_what_would_be_put_off_too_far_stays_where_it_is(make: Maker) -> None:
    """Rules: reschedule-too-far"""
    node = make("orders", max_delay_ms=HOUR_MS)
    node.send("orders", DUE_MS, id="a")
    turn(node)
    ask(node, "reschedule", by="+1h")
    ask(node, "reschedule", delay="2h")
    turn(node)
    assert [each["detail"].split(":")[0] for each in receipts(node)] == ["too-far", "too-far"]
    go_to(node, DUE_MS)
    assert dues(node) == [DUE_MS]


def test_older_rules_refuse_the_operations(make: Maker) -> None:
    node = make("orders", rules_version=SERIES_RULES)
    node.send("orders", DUE_MS, id="a")
    ask(node, "fire")
    ask(node, "reschedule", by="+1m")
    turn(node)
    reasons = [dict(record.headers)["delayd-reason"] for record in node.read("delayd-dead")]
    assert reasons == [b"bad-op", b"unknown-header"]


def test_a_value_is_refused(make: Maker) -> None:
    node = make("orders")
    ask(node, "fire", value=b"another")
    turn(node)
    [told] = receipts(node)
    assert told["detail"].startswith("unexpected-value")
