"""Receipts of a cluster that was switched to rules 4: judged by the rules of each place."""

import json
from dataclasses import replace
from itertools import count

from audited import findings_of, tables_of
from plans import Plan
from pyspark.sql import SparkSession
from world import World
from written import PARTITIONS, History, Written

from delayd.bus.murmur2 import partition_of
from replication.rules import Barrier

NEVER, BEFORE_THE_FIRST, BETWEEN_THEM, AFTER_BOTH = range(PARTITIONS)
"""When a partition was switched."""

Cancels = tuple[Written, Written]


def id_of(partition: int) -> str:
    return next(
        id for n in count() if partition_of((id := f"late-{n}").encode(), PARTITIONS) == partition
    )


def past() -> tuple[History, list[Cancels]]:
    """In each partition two cancels of what had been delivered; the second one is told nothing of
    it."""
    plan = Plan(world := World())
    cancels: list[Cancels] = []
    for id in map(id_of, range(PARTITIONS)):
        plan.named("late", 100, id, 1_000)
        first = plan.named("cancel", 1_500, id, op="cancel")
        cancels.append((first, plan.named("cancel again", 2_500, id, op="cancel")))
    history = world.run()
    again = {second.place for _, second in cancels}
    receipts = [each for each in history.receipts if each.header("delayd-source") in again]
    assert len(receipts) == PARTITIONS
    for receipt in receipts:
        said = json.loads(receipt.value or b"")
        assert said["verdict"] == "too-late", "as since version 4"
        receipt.value = json.dumps(said | {"verdict": "not-found"}).encode()
    return history, cancels


def test_a_repeated_cancel_is_told_what_a_marker_ruled_by_version_4_came_to(
    spark: SparkSession,
) -> None:
    """docs/design/audit.md, Verdicts."""
    history, cancels = past()
    switched_at = {
        BEFORE_THE_FIRST: cancels[BEFORE_THE_FIRST][0].offset - 1,
        # What the first one came to was not written into the log.
        BETWEEN_THEM: cancels[BETWEEN_THEM][0].offset,
        AFTER_BOTH: cancels[AFTER_BOTH][1].offset,
    }
    barriers = tuple(Barrier(place, offset, 4) for place, offset in switched_at.items())
    settings = replace(history.bounds.settings, rules_version=3)
    bounds = replace(history.bounds, settings=settings, named_barriers=barriers)
    found = findings_of(tables_of(spark, history), replace(history, bounds=bounds))
    wanted = {("verdict-false", cancels[BEFORE_THE_FIRST][1].place)}
    assert {(fault, source) for fault, source, _ in found} == wanted
