"""What can still be found where Kafka has deleted the request, or the receipt of its mark."""

import json
from dataclasses import replace

import pytest
from audited import findings_of, tables_of
from plans import send_all
from planting import Planter
from pyspark.sql import SparkSession
from test_judging_world import TRIMMED_MS, trimmed
from world import START_MS, World
from written import PARTITIONS, Written

from delayd.audit.judging.delivery import LAG_MAX_MS


def planter() -> Planter:
    """Of a world without redrives."""
    world = World()
    sent = send_all(world)
    return Planter(world.run(), sent)


def test_of_deleted_requests_doubled_and_early_deliveries_are_found(spark: SparkSession) -> None:
    at = planter()
    for more in (1, 2):
        request = deleted(at)
        delivery = at.delivery(request)
        for _ in range(more):
            at.add(at.history.targets, delivery)
        at.expect("duplicate", request)
    request = deleted(at)
    due_ms = int(request.header("delayd-due") or 0)
    at.delivery(request).set("delayd-fired", b"%d" % (due_ms - 1))
    at.expect("early", request)

    left, history = trimmed(tables_of(spark, at.history), at.history)

    found = findings_of(left, history)
    assert sorted((fault, source) for fault, source, _ in found) == sorted(at.expected), found
    assert {why for fault, _, why in found if fault == "duplicate"} == {
        "it was delivered 2 times",
        "it was delivered 3 times",
    }


def deleted(at: Planter) -> Written:
    """A request that is deleted before its delivery."""
    request = at.next("first")
    assert request.timestamp_ms < TRIMMED_MS <= at.delivery(request).timestamp_ms
    return request


@pytest.mark.rehearsal
def test_a_delivery_long_after_its_mark_is_a_ghost_where_receipts_are_deleted(
    spark: SparkSession,
) -> None:
    at = planter()

    def deliver(lag_ms: int) -> Written:
        """Deliver what a cancel marker kills so long after that marker; returns the marker."""
        mark, target = at.next("early cancel"), at.next("early target")
        assert mark.header("delayd-id") == target.header("delayd-id")
        at.deliver(target, mark.timestamp_ms + lag_ms)
        return mark

    receipts = at.history.receipts
    days_ms = 10 * LAG_MAX_MS
    receipts.remove(at.receipt(deliver(days_ms)))
    at.expect("ghost", at.sent["early target"][0])
    # So soon it may have been delivered before the cancel marker was passed: nothing tells.
    receipts.remove(at.receipt(deliver(LAG_MAX_MS)))
    # If the receipt is still there, it is what is wrong.
    mark = deliver(days_ms)
    at.tell(mark, verdict="too-late", killed=[])
    at.expect("verdict-false", mark)
    named = deliver(days_ms)
    assert json.loads(at.receipt(named).value or b"")["verdict"] == "cancelled"
    at.expect("ghost", at.sent["early target"][3])
    bounds = at.history.bounds
    deleted_ms = {bounds.settings.receipts.name: (START_MS + 3_000,) * PARTITIONS}
    history = replace(at.history, bounds=replace(bounds, trimmed_ms=deleted_ms))

    found = findings_of(tables_of(spark, history), history)

    assert sorted((fault, source) for fault, source, _ in found) == sorted(at.expected), found
