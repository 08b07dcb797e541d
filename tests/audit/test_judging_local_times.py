"""Local times: a correct history makes no finding, and what is planted is found.

Source: docs/design/local-times.md.
"""

import json
from collections.abc import Callable

import pytest
from audited import findings_of, others_of, tables_of
from local_plans import send_local
from plans import Plan
from pyspark.sql import SparkSession
from test_judging_world import logged_as
from world import START_MS, World
from written import LIMITS, History, Written

from chaos.judge import judge
from delayd.audit.judging import local_times as judging
from delayd.node.delivery import local_step
from delayd.request.proof import proof_of

AGAIN_MS = 2_000
"""Before it is due a local time is resolved again, in these worlds."""


@pytest.fixture(params=[None, AGAIN_MS])
def again_ms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    found: int | None = request.param
    if found is not None:
        monkeypatch.setattr(local_step, "AGAIN_MS", found)
        monkeypatch.setattr(judging, "AGAIN_MS", found)
        monkeypatch.setattr(judging, "STEP_MS_MAX", 500)
    return found


def asked(*, is_plain: bool = False) -> World:
    world = World(id_memory_ms=3_600_000)
    plan = Plan(world)
    for number in range(4):
        send_local(plan, number, is_plain=is_plain)
    return world


def test_the_chaos_judge_finds_nothing_wrong_with_local_times(again_ms: int | None) -> None:
    history = asked(is_plain=True).run()
    parts = (history.buffer, history.targets, history.dead, history.receipts)
    found = judge(*(logged_as(part) for part in parts), until_ms=START_MS + 19_000)
    assert found.ok, found
    assert found.outcomes["message: delivered after retries"] > 30, found
    lost = next(each for each in history.targets if each.header("delayd-local"))
    for targets in ([each for each in parts[1] if each is not lost], [*parts[1], lost]):
        assert not judge(*(logged_as(part) for part in (parts[0], targets, *parts[2:]))).ok


def test_local_times_make_no_finding(spark: SparkSession) -> None:
    """Those that are resolved again: in the test of what is planted."""
    history = asked().run()
    tables = tables_of(spark, history)
    assert findings_of(tables, history) == set()
    assert others_of(tables, history) == []
    assert_all_is_met(history)


def assert_all_is_met(history: History) -> None:
    said = {each.header("delayd-resolved") for each in history.buffer} - {None}
    assert said == {"expected", "final", "over"}, said
    verdicts = [json.loads(each.value or b"") for each in history.receipts]
    told = {v["verdict"] for v in verdicts}
    wanted = {"rescheduled", "too-late", "rejected", "cancelled", "replaced", "duplicate"}
    assert told >= wanted | {"conflict", "dead"}, told


def resolved(history: History, state: str) -> list[Written]:
    """What a master wrote of local times that were delivered."""
    out = {each.header("delayd-source") for each in history.targets}
    return [
        each
        for each in history.buffer
        if each.header("delayd-resolved") == state and each.place in out
    ]


def sign(record: Written) -> None:
    parts = (record.partition, record.key, record.value, record.headers[:-1])
    record.set("delayd-proof", proof_of(LIMITS, *parts))


@pytest.mark.parametrize("again_ms", [AGAIN_MS], indirect=True)
def test_what_is_planted_is_found_and_nothing_else(spark: SparkSession, again_ms: int) -> None:
    """Rules: local-times"""
    history = asked().run()
    assert_all_is_met(history)
    wanted = set()
    delivery_of = {each.header("delayd-source"): each for each in history.targets}
    final = [each for each in resolved(history, "final") if each.header("delayd-attempt") == "0"]

    def plant(record: Written, fault: str, change: Callable[[Written], object]) -> None:
        change(record)
        sign(record)
        wanted.add((fault, record.header("delayd-origin")))

    def due_earlier(record: Written) -> None:
        for each in (record, delivery_of[record.place]):
            each.set("delayd-due", b"%d" % (int(each.header("delayd-due") or 0) - 1_000))

    def elsewhere(record: Written) -> None:
        for each in (record, delivery_of[record.place]):
            local = (each.header("delayd-local") or "").replace("Berlin", "Paris")
            each.set("delayd-local", local.encode())

    final = [each for each in final if each.header("delayd-id") is None]
    in_berlin = [each for each in final if "Berlin" in (each.header("delayd-local") or "")]
    plant(in_berlin[0], "local-time", due_earlier)
    plant(in_berlin[1], "local-time", elsewhere)
    [_, _, delivery, lost, *_] = [delivery_of[each.place] for each in in_berlin]
    delivery.set("delayd-local", b"2027-03-28T09:00[Europe/Berlin]")
    wanted.add(("altered", delivery.header("delayd-origin")))
    history.targets.remove(lost)
    wanted.add(("lost", lost.header("delayd-origin")))
    tables = tables_of(spark, history)
    assert {each[:2] for each in findings_of(tables, history)} == wanted
    assert others_of(tables, history) == []
