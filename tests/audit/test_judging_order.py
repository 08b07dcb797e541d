"""delayd.audit.judging.order: rank order per target partition, and what is excepted from it."""

from itertools import pairwise

from cluster_settings import PARTITIONS
from past import Past, Row, frame, frontier_rows
from pyspark.sql import Row as Found
from pyspark.sql import SparkSession

from delayd.audit.judging.frontiers import frontiers_of
from delayd.audit.judging.history import history_of
from delayd.audit.judging.links import links_of
from delayd.audit.judging.order import judge_order
from delayd.audit.tables import DELIVERIES, LOGGED, RECORDS
from replication.record import FrontierRecord

PAST = Past(seed=3, turns=400)
REQUESTS = {(row["partition"], row["offset"]): row for row in PAST.logged}
Place = tuple[str, int]


def judge(
    spark: SparkSession,
    deliveries: list[Row],
    records: list[tuple[int, int, FrontierRecord]] = PAST.records,
) -> list[Found]:
    bounds = PAST.bounds()
    links = links_of(frontiers_of(frame(spark, frontier_rows(records), RECORDS)), bounds)
    return judge_order(
        frame(spark, PAST.logged, LOGGED),
        frame(spark, deliveries, DELIVERIES),
        history_of(links, bounds),
        bounds,
    ).collect()


def request_of(delivery: Row) -> Row:
    return REQUESTS[delivery["source_partition"], delivery["source_offset"]]


def rank_of(delivery: Row) -> tuple[int, int, int]:
    row = request_of(delivery)
    return row["rank_ms"], row["partition"], row["offset"]


def is_in_time(delivery: Row) -> bool:
    row = request_of(delivery)
    return row["continues"] is None and PAST.step_of(row)[1] is False


def is_killed(row: Row) -> bool:
    """Was it in time, but cancelled before its step?"""
    step, is_late = PAST.step_of(row)
    if step is None or is_late or row["killed_by"] is None or row["continues"] is not None:
        return False
    frontier = next(record.frontier for offset, _, record in PAST.records if offset == step)
    return bool(row["killed_by"] < frontier.offsets[row["partition"]])


def by_place() -> dict[Place, list[Row]]:
    places: dict[Place, list[Row]] = {}
    for delivery in PAST.deliveries:
        places.setdefault((delivery["topic"], delivery["partition"]), []).append(delivery)
    return places


def swapped(first: Row, second: Row) -> list[Row]:
    """Each where the other was, with the times of that place."""
    stay = ("topic", "partition", "offset", "timestamp_ms", "fired_ms")
    return [
        {**second, **{name: first[name] for name in stay}},
        {**first, **{name: second[name] for name in stay}},
    ]


def test_neighbours_that_are_swapped_are_one_finding_that_names_both(spark: SparkSession) -> None:
    planted = {delivery["source"]: delivery for delivery in PAST.deliveries}
    expected = {}
    for place, deliveries in by_place().items():
        # Both were there in time, neither is early in the other's place.
        index = next(
            index
            for index in range(20, len(deliveries) - 1)
            if all(map(is_in_time, deliveries[index - 1 : index + 2]))
            and deliveries[index]["fired_ms"] >= deliveries[index + 1]["due_ms"]
        )
        first, second = deliveries[index : index + 2]
        planted |= {moved["source"]: moved for moved in swapped(first, second)}
        expected[first["source"]] = (place, second["source"], second["offset"])

    found = judge(spark, list(planted.values()))

    assert {(row.job, row.fault) for row in found} == {("order", "order")}
    assert {row.source: ((row.topic, row.partition), row.offset) for row in found} == {
        source: (place, offset) for source, (place, _, offset) in expected.items()
    }
    assert len(found) == len(expected) == len(by_place())
    for row in found:
        assert f"after {expected[row.source][1]}," in row.reason


def test_late_arrivals_continuations_and_what_is_another_finding_are_none(
    spark: SparkSession,
) -> None:
    """Doubled, early, misplaced, ghosts, unknown: each would be out of order too."""
    overtaken = [
        delivery
        for deliveries in by_place().values()
        for index, delivery in enumerate(deliveries)
        if any(rank_of(delivery) < rank_of(earlier) for earlier in deliveries[:index])
    ]
    assert len(overtaken) > 10
    last = {place: deliveries[-1]["offset"] for place, deliveries in by_place().items()}
    in_time = [delivery for delivery in PAST.deliveries if is_in_time(delivery)]
    orders = [d for d in in_time if d["topic"] == "orders"]
    place = (orders[0]["topic"], orders[0]["partition"])
    here = [d for d in orders if d["partition"] == place[1]]
    doubled = {**here[10], "offset": last[place] + 10}
    altered = next(d for d in orders[20:] if d["partition"] != place[1])
    misplaced = {**altered, "partition": place[1], "offset": last[place] + 11}
    early = {**here[-1], "offset": 0, "fired_ms": 1, "timestamp_ms": 1}
    unknown = {**orders[12], "source_offset": 10**9, "offset": last[place] + 12}
    nowhere = {**orders[13], "source_partition": None, "source_offset": None, "offset": 10**6}
    killed = next(row for row in PAST.logged if row.get("target_partition") == 0 and is_killed(row))
    ghost = {
        **next(d for d in PAST.deliveries if d["topic"] == killed["topic"]),
        "source_partition": killed["partition"],
        "source_offset": killed["offset"],
        "offset": last[killed["topic"], 0] + 10,
        "partition": 0,
        "fired_ms": PAST.now_ms,
        "timestamp_ms": PAST.now_ms,
    }
    rest = [d for d in PAST.deliveries if d is not altered and d is not here[-1]]

    added = [doubled, misplaced, early, unknown, nowhere, ghost]
    assert judge(spark, [*rest, *added]) == []


def test_without_history_nobody_knows_who_was_late(spark: SparkSession) -> None:
    """What the first record covers is not judged, what comes after is."""
    start = len(PAST.records) // 2
    frontier = PAST.records[start][2].frontier
    deliveries = by_place()["orders", 0]
    pairs = [
        (first, second)
        for first, second in pairwise(deliveries)
        if is_in_time(first) and is_in_time(second) and first["fired_ms"] >= second["due_ms"]
    ]
    known = [PAST.step_of(request_of(first))[0] for first, _ in pairs]
    before = next(p for p, step in zip(pairs, known, strict=True) if step is not None)
    after = next(
        pair
        for pair, step in zip(pairs, known, strict=True)
        if step is not None and step > PAST.records[start][0]
    )
    assert request_of(before[0])["offset"] < frontier.offsets[0] and PARTITIONS == 2
    moved = {row["source"]: row for pair in (before, after) for row in swapped(*pair)}
    planted = [moved.get(delivery["source"], delivery) for delivery in PAST.deliveries]

    found = judge(spark, planted, PAST.records[start:])

    assert [row.source for row in found] == [after[0]["source"]]
