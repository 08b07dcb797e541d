"""Reschedules: a correct history makes no finding, and what is planted is found.

Source: docs/design/rescheduling.md.
"""

import json

from audited import findings_of, others_of, tables_of
from plans import Plan, send_moves
from pyspark.sql import SparkSession
from test_judging_world import logged_as
from world import START_MS, World
from written import LIMITS, History, Written

from chaos.judge import judge
from delayd.request.proof import proof_of


def moved() -> History:
    """Messages that are moved in every way."""
    world = World()
    plan = Plan(world)
    for number in range(5):
        send_moves(plan, number)
    return world.run()


def test_the_chaos_judge_finds_nothing_wrong_with_reschedules() -> None:
    world = World(id_memory_ms=3_600_000)
    plan = Plan(world)
    for number in range(5):
        send_moves(plan, number, is_plain=True)
    history = world.run()
    parts = (history.buffer, history.targets, history.dead, history.receipts)
    found = judge(*(logged_as(part) for part in parts), until_ms=START_MS + 19_000)
    assert found.ok, found
    assert found.outcomes["reschedule: rescheduled"] > 20 < found.outcomes["fire: too-late"], found


def continuations(history: History) -> list[Written]:
    """Those that carry out reschedules, and were delivered."""
    delivered = {each.header("delayd-source") for each in history.targets}
    return [
        each
        for each in history.buffer
        if each.header("delayd-moved-by") is not None and each.place in delivered
    ]


def test_what_is_moved_elsewhere_or_told_falsely_or_lost_is_found_and_nothing_else(
    spark: SparkSession,
) -> None:
    """Each kind is there five times: what is right of it makes no finding."""
    history = moved()
    verdicts = [json.loads(each.value or b"") for each in history.receipts]
    told = {v["verdict"] for v in verdicts if v["op"] in ("reschedule", "fire")}
    assert told == {"rescheduled", "too-late", "not-found", "rejected"}, told
    wanted = planted(history)
    tables = tables_of(spark, history)
    assert {each[:2] for each in findings_of(tables, history)} == wanted
    assert others_of(tables, history) == []
    assert tables.logged.where("is_held").count() > 5


def planted(history: History) -> set[tuple[str, str | None]]:
    """Plant a delivery at another time, one that is lost, and a false verdict."""
    elsewhere, lost, *_ = (
        each for each in continuations(history) if each.header("delayd-window") is None
    )
    by = f"{elsewhere.partition}/{elsewhere.header('delayd-moved-by')}"
    [delivery] = [h for h in history.targets if h.header("delayd-source") == elsewhere.place]
    for each in (elsewhere, delivery):
        each.set("delayd-due", b"%d" % (int(each.header("delayd-due") or 0) - 7))
    parts = (elsewhere.partition, elsewhere.key, elsewhere.value, elsewhere.headers[:-1])
    elsewhere.set("delayd-proof", proof_of(LIMITS, *parts))
    history.targets[:] = [h for h in history.targets if h.header("delayd-source") != lost.place]
    [false] = [each for each in history.receipts if each.header("delayd-source") == by]
    fields = json.loads(false.value or b"")
    del fields["old_due_ms"]
    false.value = json.dumps({**fields, "verdict": "too-late"}).encode()
    return {
        ("altered", elsewhere.header("delayd-origin")),
        ("lost", lost.header("delayd-origin")),
        ("verdict-false", by),
    }
