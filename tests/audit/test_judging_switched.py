"""Receipts of a cluster that was switched to rules 4: judged by the rules of each place."""

import json
from dataclasses import replace

import pytest
from audited import Tables, findings_of, tables_of
from plans import Plan
from pyspark.sql import SparkSession
from world import World
from written import Written

from replication.rules import Barrier


class Past:
    """Two cancels of what had been delivered; the second one is told nothing of it."""

    def __init__(self) -> None:
        plan = Plan(world := World())
        plan.named("late", 100, "late", 1_000)
        self.first: Written = plan.named("cancel", 1_500, "late", op="cancel")
        self.second: Written = plan.named("cancel again", 2_500, "late", op="cancel")
        self.history = world.run()
        [receipt] = [
            each
            for each in self.history.receipts
            if each.header("delayd-source") == self.second.place
        ]
        said = json.loads(receipt.value or b"")
        assert said["verdict"] == "too-late", "as since version 4"
        receipt.value = json.dumps(said | {"verdict": "not-found"}).encode()


PAST = Past()


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Tables:
    return tables_of(spark, PAST.history)


@pytest.mark.parametrize(
    ("switched_at", "is_false"),
    [
        pytest.param(None, False, id="never switched"),
        pytest.param(PAST.first.offset - 1, True, id="switched before the first"),
        # What the first one came to was not written into the log.
        pytest.param(PAST.first.offset, False, id="switched between them"),
        pytest.param(PAST.second.offset, False, id="switched after both"),
    ],
)
def test_a_repeated_cancel_is_told_what_a_marker_ruled_by_version_4_came_to(
    tables: Tables, switched_at: int | None, is_false: bool
) -> None:
    """docs/design/audit.md, Verdicts."""
    bounds = PAST.history.bounds
    place = PAST.second.partition
    barriers = () if switched_at is None else (Barrier(place, switched_at, 4),)
    settings = replace(bounds.settings, rules_version=3)
    switched = replace(bounds, settings=settings, named_barriers=barriers)
    found = findings_of(tables, replace(PAST.history, bounds=switched))
    wanted = {("verdict-false", PAST.second.place)} if is_false else set()
    assert {(fault, source) for fault, source, _ in found} == wanted
