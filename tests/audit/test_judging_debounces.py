"""Debounces: a correct history makes no finding, and what is planted is found.

Source: docs/design/debounce.md.
"""

import json
from dataclasses import replace

import pytest
from audited import Tables, findings_of, others_of, tables_of
from debounce_plans import send_debounces
from plans import Plan
from pyspark.sql import SparkSession
from test_judging_world import logged_as
from world import START_MS, World
from written import History

from chaos.judge import judge


def debounced() -> History:
    """Runs of every kind."""
    world = World()
    plan = Plan(world)
    for number in range(4):
        send_debounces(plan, number)
    return world.run()


def test_the_chaos_judge_finds_nothing_wrong_with_debounces() -> None:
    world = World(id_memory_ms=3_600_000)
    plan = Plan(world)
    for number in range(4):
        send_debounces(plan, number, is_plain=True)
    history = world.run()
    parts = (history.buffer, history.targets, history.dead, history.receipts)
    found = judge(*(logged_as(part) for part in parts), until_ms=START_MS + 19_000)
    assert found.ok, found
    assert found.outcomes["debounce: replaced"] > 20 < found.outcomes["message: killed"], found


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Tables:
    """Of what was played, before anything is planted in it."""
    return tables_of(spark, debounced())


def test_debounces_make_no_finding(tables: Tables) -> None:
    history = debounced()
    assert findings_of(tables, history) == set()
    assert others_of(tables, history) == []
    told = [json.loads(each.value or b"") for each in history.receipts]
    verdicts = {each["verdict"] for each in told if each["op"] == "debounce"}
    assert verdicts == {"replaced", "scheduled", "too-late", "rejected"}, verdicts
    assert tables.logged.where("op = 'debounce' and is_quiet").count() > 100
    cut_short = "op = 'debounce' and due_ms - append_ms < 300"
    assert tables.logged.where(cut_short).count() > 20


def test_what_is_superseded_and_comes_out_or_is_late_or_told_falsely_is_found(
    spark: SparkSession, tables: Tables
) -> None:
    history = debounced()
    quiet = {
        f"{row['partition']}/{row['offset']}": f"{row['partition']}/{row['killed_by']}"
        for row in tables.logged.where("killed_op = 'debounce' and topic = 'orders'").collect()
    }
    out = {each.header("delayd-source"): each for each in history.targets}
    source, _ = next((s, by) for s, by in quiet.items() if s not in out and by in out)
    ghost = replace(out[quiet[source]], headers=[*out[quiet[source]].headers])
    ghost.offset += 1_000
    ghost.set("delayd-source", source.encode())
    history.targets.append(ghost)
    last = next(each for s, each in out.items() if s in quiet.values() and s != quiet[source])
    last.set("delayd-due", b"%d" % (int(last.header("delayd-due") or 0) + 7))
    false = next(
        each
        for each in history.receipts
        if json.loads(each.value or b"")["verdict"] == "replaced"
        and json.loads(each.value or b"")["op"] == "debounce"
    )
    fields = json.loads(false.value or b"")
    false.value = json.dumps({**fields, "verdict": "scheduled", "killed": []}).encode()
    found = {
        (fault, str(source)) for fault, source, _ in findings_of(tables_of(spark, history), history)
    }
    wanted = {
        ("ghost", source),
        ("altered", last.header("delayd-source")),
        ("verdict-false", fields["source"]),
    }
    assert wanted <= found, found
