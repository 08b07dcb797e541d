"""Forecasts on a whole node: how crowded the second of a message is, in its receipt.

Source: docs/reference/requests.md, "Forecasts".
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manual_clock import START_MS
from one_node import Maker, OneNode, nodes_in, open_replica

from delayd.bus import Headers
from delayd.client.outcomes import verdict_of
from delayd.node.delivery.step_sizing import STEP_TARGET_MS, StepSizing
from delayd.wheel.counts import TOPICS_MAX
from replication.settings import SERIES_RULES

TOLD = [("delayd-receipt", b"yes")]
LATER_MS = START_MS + 60_000
FAR_MS = START_MS + 9 * 3_600_000


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Maker]:
    with nodes_in(tmp_path) as make_node:
        yield make_node


def forecasts(node: OneNode) -> list[tuple[int | None, int | None, int | None]]:
    """Return what the receipts written next say: messages, span and lateness."""
    node.ingest()
    node.step()
    node.step()
    said: list[dict[str, Any]] = [json.loads(r.value or b"") for r in node.read("delayd-receipts")]
    names = ("forecast_messages", "forecast_span_ms", "forecast_late_ms")
    return [tuple(each.get(name) for name in names) for each in said]  # type: ignore[misc]


def fill(node: OneNode, due_ms: int, count: int = 10) -> None:
    """Send so many messages to `orders` and half as many to `bills`, and ask for one receipt."""
    for number in range(count - 1):
        node.send("orders", due_ms + number % 900)
    for _ in range(count // 2):
        node.send("bills", due_ms)
    node.send("orders", due_ms, id="a", more=TOLD)


def test_the_messages_of_the_second_and_target_are_counted(make: Maker) -> None:
    """Rules: forecast-advice"""
    node = make("orders", "bills")
    node.send("orders", LATER_MS - 1_000 - LATER_MS % 1_000)
    node.send("orders", LATER_MS + 1_000)
    fill(node, LATER_MS - LATER_MS % 1_000)
    assert forecasts(node) == [(10, 1_000, None)]


def test_the_lateness_is_that_of_all_targets_at_the_measured_rate(make: Maker) -> None:
    """Rules: forecast-advice"""
    node = make("orders", "bills")
    node.step_sizing.succeeded(1, 999, 999)  # tells what a commit takes, and no rate
    assert node.step_sizing.measured_rate == 0
    node.step_sizing.succeeded(2_000, 1_000, 1_000)
    assert node.step_sizing.measured_rate == 500
    fill(node, LATER_MS - LATER_MS % 1_000)
    assert forecasts(node) == [(10, 1_000, 14 * 1_000 // 500)]


def test_the_measured_rate_is_that_of_late_steps_and_of_deliveries() -> None:
    sizing = StepSizing(50_000, 2**20)
    for _ in range(5):
        sizing.succeeded(100, 50_000, 50_000)
    measured = sizing.measured_rate
    assert 490_000 < measured < 510_000
    for _ in range(3):
        sizing.succeeded(1, 3_000, 1_000)  # The others were deferred.
    assert sizing.measured_rate == measured
    for _ in range(50):
        sizing.succeeded(10 * STEP_TARGET_MS, 900, 900)
    assert 400 < sizing.measured_rate < 500
    sizing.failed()
    assert sizing.measured_rate == 0


def test_a_slower_rate_of_the_target_makes_it_later(make: Maker) -> None:
    node = make("orders", "bills", rates={"orders": 4})
    node.step_sizing.succeeded(1_000, 100_000, 100_000)
    fill(node, LATER_MS - LATER_MS % 1_000)
    assert forecasts(node) == [(10, 1_000, 9 * 1_000 // 4)]


def test_of_a_far_hour_all_of_it_is_counted_and_no_lateness_said(make: Maker) -> None:
    node = make("orders", "bills")
    node.step_sizing.succeeded(1_000, 1_000, 1_000)
    node.send("orders", FAR_MS + (1_000_000 if FAR_MS % 3_600_000 < 2_000_000 else -1_000_000))
    fill(node, FAR_MS - FAR_MS % 1_000)
    assert forecasts(node) == [(11, 3_600_000, None)]


def test_what_is_due_by_the_step_has_none(make: Maker) -> None:
    node = make("orders")
    node.send("orders", START_MS + 500, id="a", more=TOLD)
    node.ingest()
    node.clock.now_ms = START_MS + 1_000
    assert forecasts(node) == [(None, None, None)] * 2
    assert len(node.read("orders")) == 1


def test_what_was_replaced_makes_no_second_crowded(make: Maker) -> None:
    node = make("orders", rates={"orders": 1})
    for number in range(20):
        node.send("orders", LATER_MS, id="a", op="replace", value=b"%d" % number)
    node.send("orders", LATER_MS, id="b", more=TOLD)
    assert [each for each in forecasts(node) if each[0] is not None] == [(2, 1_000, 1_000)]


def test_a_rate_counts_no_messages_of_targets_without_a_name(make: Maker) -> None:
    node = make("orders", "bills", rates={"orders": 1})
    counts = node.replica.wheel.counts
    counts.topics.update({f"t{number}": 1 for number in range(TOPICS_MAX)})
    for _ in range(9):
        node.send("bills", LATER_MS)
    node.send("orders", LATER_MS, id="a", more=TOLD)
    assert forecasts(node) == [(10, 1_000, None)]


def test_older_rules_store_what_older_releases_do(make: Maker) -> None:
    """Rules: forecast-advice"""
    node = make("orders", "bills", rules_version=SERIES_RULES)
    fill(node, LATER_MS)
    node.ingest()
    [reply] = node.replica.wheel.pending_replies([0])
    [stored] = node.replica.wheel.read([reply])
    assert len(stored.body) == 2
    assert forecasts(node) == [(None, None, None)]


def test_a_successor_says_it_by_its_own_count_and_rate(make: Maker, tmp_path: Path) -> None:
    """Rules: forecast-advice. It reads the reply from its disk; the first master told nobody."""
    node = make("orders", "bills")
    node.step_sizing.succeeded(1_000, 1_000, 1_000)
    fill(node, LATER_MS - LATER_MS % 1_000)
    node.ingest()
    assert node.replica.checkpoint()
    node.replica.close()
    node.send("orders", LATER_MS)
    node.replica = open_replica(tmp_path / "0", node.settings)
    node.step_sizing = StepSizing(1_000, 1_000)
    assert forecasts(node) == [(11, 1_000, None)]


def test_a_far_hour_does_not_count_what_was_cancelled_since(make: Maker) -> None:
    node = make("orders")
    node.send("orders", FAR_MS, id="a", more=TOLD)
    node.send("orders", id="a", op="cancel")
    assert forecasts(node)[:1] == [(0, 3_600_000, None)]


def test_what_was_far_is_counted_when_it_is_near(make: Maker) -> None:
    node = make("orders")
    node.send("orders", FAR_MS)
    node.ingest()
    node.step()
    node.clock.now_ms = FAR_MS - 60_000
    node.send("orders", FAR_MS, more=TOLD)
    assert forecasts(node)[0][0] == 2


def test_a_series_and_a_local_time_have_none(make: Maker) -> None:
    node = make("orders")
    for asked in ([("delayd-cron", b"0 9 * * *")], [("delayd-due", b"2026-08-28T09:00")]):
        headers: Headers = [("delayd-topic", b"orders"), ("delayd-zone", b"UTC"), *TOLD, *asked]
        node.kafka.append(node.settings.buffer.name, 0, None, b"v", headers)
    node.ingest()
    for _ in range(4):
        node.step()
    said = [json.loads(record.value or b"") for record in node.read("delayd-receipts")]
    assert [each["verdict"] for each in said] == ["scheduled", "scheduled"]
    assert not [name for each in said for name in each if name.startswith("forecast_")]


def test_clients_read_it_and_miss_it(make: Maker) -> None:
    node = make("orders")
    node.step_sizing.succeeded(1_000, 1_000, 1_000)
    node.send("orders", LATER_MS, id="a", more=TOLD)
    assert forecasts(node) == [(1, 1_000, 0)]
    [record] = node.read("delayd-receipts")
    verdict = verdict_of(record.value)
    assert verdict is not None
    said = (verdict.forecast_messages, verdict.forecast_span_ms, verdict.forecast_late_ms)
    assert said == (1, 1_000, 0)
    fields = {k: v for k, v in json.loads(record.value or b"").items() if k[:9] != "forecast_"}
    older = verdict_of(json.dumps(fields).encode())
    assert older is not None and older.forecast_messages is None
