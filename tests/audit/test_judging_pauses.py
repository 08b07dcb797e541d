"""Pauses, as an audit sees them: what waits is no finding; a hold that is not as ordered is.

Source: docs/design/audit.md, "Pauses".
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from audited import Tables, fates, findings_of, frontier_of, others_of, tables_of
from plans import Plan
from planting import Planter
from pyspark.sql import Row, SparkSession
from test_judging_world import logged_as
from world import START_MS, World
from written import LIMITS, History, Written

from chaos.judge import judge
from delayd.audit.judging.columns import table_of
from delayd.audit.tables import LETTERS
from delayd.bus import Headers
from delayd.request import order_record
from replication.holds import Order

COUNT = 40
DUE_MS = 1_500
PAUSED_MS, UNTIL_MS, RESUMED_MS = 1_000, 30_000, 8_000


def ordered(
    world: World,
    at_ms: int,
    until_ms: int = 0,
    rate: int = 0,
    off_ms: int = 0,
    topic: str = "orders",
) -> Written:
    given_ms = START_MS + at_ms - off_ms
    until = START_MS + until_ms if until_ms else 0
    partition, key, value, headers = order_record(Order(topic, given_ms, until, rate), LIMITS)
    return world.send(at_ms, key, value, headers, partition)


def played() -> tuple[History, Planter]:
    """Orders to pause, to renew that, and to resume, with messages all the time; an order that came
    too late, one without a proof."""
    world = World()
    plan = Plan(world)
    for number in range(COUNT):
        at_ms = 100 + 300 * number
        if number % 3:
            plan.schedule("plain", at_ms, DUE_MS + 250 * number, key=None)
        else:
            plan.named("named", at_ms, f"id-{number}", DUE_MS + 250 * number)
        plan.schedule("mails", at_ms, DUE_MS + 250 * number, topic="mails")
    for number in range(12, 19, 3):
        plan.named("cancelled", 6_500, f"id-{number}", op="cancel")
    ordered(world, PAUSED_MS, 5_000)
    ordered(world, 4_000, UNTIL_MS, rate=20)
    ordered(world, RESUMED_MS)
    ordered(world, 2_000, 400_000, off_ms=301_000)
    forged: Headers = [("delayd-hold", b"pause/1/2/3/mails"), ("delayd-proof", b"0" * 64)]
    world.send(3_000, None, None, forged, 0)
    history = world.run()
    return history, Planter(history, plan.sent)


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Tables:
    """Of what was played, before anything is planted in it."""
    return tables_of(spark, played()[0])


def fired_ms(record: Written) -> int:
    return int(record.header("delayd-fired") or 0) - START_MS


def test_what_has_waited_is_delivered_and_no_finding(tables: Tables) -> None:
    history, _ = played()
    refused = {each.header("delayd-source") for each in history.dead}
    requests = [each for each in history.buffer if each.place not in refused]
    logged = [logged_as(part) for part in (requests, history.targets, history.receipts)]
    assert judge(logged[0], logged[1], [], logged[2]).ok
    of_topic = [each for each in history.targets if each.topic == "orders"]
    assert not [each for each in of_topic if PAUSED_MS < fired_ms(each) < RESUMED_MS]
    assert len([each for each in of_topic if fired_ms(each) > RESUMED_MS]) > COUNT // 2
    assert any(b'"holds":' in (each.value or b"") for each in history.frontier)
    assert b'"holds":' not in (history.frontier[-1].value or b""), "the hold came to its end"
    reasons = sorted(each.header("delayd-reason") or "" for each in history.dead)
    assert reasons == ["bad-proof", "bad-proof"]
    assert findings_of(tables, history) == set()
    assert others_of(tables, history) == []
    assert tables.counts.orders == 3
    found = fates(tables)
    assert found["delivered"] > COUNT and "lost" not in found and found["cancelled"] == 3


def test_where_no_letter_is_left_each_one_that_is_owed_is_missed(
    spark: SparkSession, tables: Tables
) -> None:
    """The orders that were refused: nothing else here is a dead letter."""
    history, _ = played()
    refused = {each.header("delayd-source") for each in history.dead}
    history.dead.clear()
    left = tables._replace(letters=table_of(spark, LETTERS))
    found = {each[:2] for each in findings_of(left, history)}
    assert found == {("letter-missing", source) for source in refused} and len(found) == 2


def stated(each: Written) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(each.value or b"")
    return found


def changed(tables: Tables, change: Callable[[dict[str, Any]], None]) -> list[Row]:
    """What is found when a step in the midst of the pause says something else of holds."""
    history, _ = played()
    held = [each for each in history.frontier if "holds" in stated(each)]
    each = held[len(held) // 4]
    fields = stated(each)
    change(fields)
    each.value = json.dumps(fields, separators=(",", ":")).encode()
    return frontier_of(tables, history)


def drop(fields: dict[str, Any]) -> None:
    del fields["holds"], fields["needs"]
    fields["format"] = 2


def other_end(fields: dict[str, Any]) -> None:
    fields["holds"]["orders"][1] -= 1


def other_order(fields: dict[str, Any]) -> None:
    fields["holds"]["orders"][3] += 1_000


def other_topic(fields: dict[str, Any]) -> None:
    fields["holds"]["mails"] = fields["holds"]["orders"]


def other_rate(fields: dict[str, Any]) -> None:
    fields["holds"]["orders"][2] = 7


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop, "is not among its holds"),
        (other_end, "says another end"),
        (other_order, "no order is there"),
        (other_topic, "no order is there"),
    ],
)
def test_holds_that_are_not_as_ordered_are_found(
    tables: Tables, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    found = changed(tables, change)
    assert {row.fault for row in found} == {"frontier-held"}
    assert any(said in row.reason for row in found)


def test_a_pause_that_was_one_too_many_is_not_missed_later(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("replication.holds", "delayd.audit.judging.holds"):
        monkeypatch.setattr(f"{module}.HOLDS_MAX", 1)
    world = World()
    plan = Plan(world)
    ordered(world, 1_000, 20_000)
    ordered(world, 2_000, 30_000, topic="mails")
    ordered(world, 4_000)
    for number in range(10):
        plan.schedule("mails", 100, 3_000 + 1_000 * number, topic="mails")
    history = world.run()
    stated_last = stated(history.frontier[-1])
    assert "holds" not in stated_last and stated_last["now_ms"] < START_MS + 30_000
    tables = tables_of(spark, history)
    assert others_of(tables, history) == [] and tables.counts.orders == 3


def test_a_hold_that_is_none_is_broken(tables: Tables) -> None:
    found = changed(tables, lambda fields: fields["holds"]["orders"].append(1))
    assert [row.fault for row in found] == ["frontier-broken"]
    assert "its holds are none" in found[0].reason


def test_a_delivery_to_a_paused_target_is_found(tables: Tables) -> None:
    """A step says that it holds a target, and delivers there all the same."""
    history, _ = played()
    for each in history.frontier:
        fields = stated(each)
        if fields.get("holds", {}).get("orders", [0, 1 << 60])[1] <= fields["now_ms"]:
            fields["holds"]["orders"][1] = START_MS + UNTIL_MS
            each.value = json.dumps(fields, separators=(",", ":")).encode()
    found = [
        row
        for row in frontier_of(tables, history)
        if row.fault == "frontier-held" and row.source is not None
    ]
    assert len(found) > 10 and {row.topic for row in found} == {"orders"}
    assert all("while its target was paused" in row.reason for row in found)
