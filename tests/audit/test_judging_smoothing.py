"""Smoothing, as an audit sees it: deferrals are no findings; one that is lost or doubled is."""

from typing import NamedTuple

import pytest
from audited import Tables, fates, findings_of, frontier_of, others_of, tables_of
from plans import Plan
from planting import Planter
from pyspark.sql import SparkSession
from test_judging_world import logged_as
from world import World
from written import History, Written

from chaos.judge import judge
from delayd.audit.judging.lateness import counts_of, histogram_of

RATE = 5
COUNT = 30
DUE_MS = 2_000


def played() -> tuple[History, Planter]:
    """A burst of which most is deferred; of every third with an id the last are cancelled."""
    world = World(rates={"orders": RATE})
    plan = Plan(world)
    for number in range(COUNT):
        if number % 3:
            plan.schedule("smoothed", 100 + number, DUE_MS, key=None)
        else:
            plan.named("named", 100 + number, f"id-{number}", DUE_MS)
    for number in range(COUNT // 2, COUNT, 3):
        plan.named("cancelled", DUE_MS + 1_900, f"id-{number}", op="cancel")
    history = world.run()
    return history, Planter(history, plan.sent)


class Planted(NamedTuple):
    """What was planted, and how it is judged."""

    history: History
    lost: Written
    doubled: Written
    both: Written
    """Delivered as itself, too."""
    tables: Tables


@pytest.fixture(scope="module")
def planted(spark: SparkSession) -> Planted:
    """Three of many deferrals are lost, or doubled."""
    history, planter = played()
    deferred = [each for each in history.targets if each.header("delayd-origin") is not None]
    lost, doubled, both = deferred[:3]
    history.targets.remove(lost)
    planter.add(history.targets, doubled)
    origin = (both.header("delayd-origin") or "").encode()
    twin = planter.add(history.targets, both)
    twin.headers[:] = [
        (name, origin if name == "delayd-source" else content)
        for name, content in both.headers
        if name != "delayd-origin"
    ]
    return Planted(history, lost, doubled, both, tables_of(spark, history))


def test_the_chaos_judge_finds_nothing_wrong_with_deferrals() -> None:
    history, _ = played()
    parts = (history.buffer, history.targets, history.dead, history.receipts)
    assert judge(*(logged_as(part) for part in parts)).ok
    smoothed = [each for each in history.buffer if each.header("delayd-turn") is not None]
    assert len(smoothed) > COUNT // 2
    assert any(b'"smoothing":' in (each.value or b"") for each in history.frontier)


def test_a_deferral_that_is_lost_or_doubled_is_found_and_no_other_one_is_a_finding(
    planted: Planted,
) -> None:
    history, lost, doubled, both, tables = planted
    found = {(fault, source) for fault, source, _ in findings_of(tables, history)}
    origin = both.header("delayd-origin")
    assert found >= {
        ("lost", lost.header("delayd-origin")),
        ("duplicate", doubled.header("delayd-origin")),
        ("duplicate", origin),
    }
    assert {source for _, source in found} == {
        each.header("delayd-origin") for each in (lost, doubled, both)
    }
    assert others_of(tables, history) == []
    counts = fates(tables)
    assert counts.keys() == {"delivered", "cancelled", "lost"} and counts["lost"] == 1
    assert sum(counts.values()) == COUNT
    _, left_out = histogram_of(counts_of(tables.messages))
    assert 0 < left_out < counts["delivered"]


def test_a_frontier_whose_smoothing_is_none_is_broken(planted: Planted) -> None:
    history, _ = played()
    [first, *_] = [each for each in history.frontier if b'"smoothing":' in (each.value or b"")]
    first.value = (first.value or b"").replace(b'"orders":[', b'"orders":[1,')
    found = frontier_of(planted.tables, history)
    assert any("smoothing" in str(row) for row in found)
