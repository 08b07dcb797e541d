"""What nodes measured of time, put together."""

from typing import Any

from delayd.cluster.timeliness import (
    FAILOVERS_MAX,
    clocks_of,
    failovers_of,
    lateness_of,
    quantile_ms,
)

BOUNDS = [10, 100, 1_000]


def late(**targets: list[int]) -> dict[str, Any]:
    return {"lateness": {"bounds_ms": BOUNDS, "targets": targets}}


def failover(term: int, gap_ms: int | None) -> dict[str, Any]:
    return {"term": term, "former": "a/1", "owner": "b/2", "begun_ms": 7, "gap_ms": gap_ms}


def test_a_quantile_is_the_bound_of_the_bucket_that_it_lies_in() -> None:
    counts = [50, 49, 1, 0]
    assert [quantile_ms(BOUNDS, counts, of) for of in (0.5, 0.51, 0.99, 0.999, 1)] == [
        *(10, 100, 100, 1_000, 1_000)
    ]
    assert quantile_ms(BOUNDS, [0, 0, 0, 1], 0.5) is None


def test_counts_of_all_nodes_are_added_and_the_latest_target_comes_first() -> None:
    nodes = [late(orders=[99, 0, 0, 0], slow=[0, 1, 0, 0]), {}, late(orders=[0, 0, 1, 0])]
    slow, orders = lateness_of([*nodes, late(stuck=[0, 0, 0, 3])])[1:]
    assert (slow["topic"], slow["messages"], slow["p99_ms"]) == ("slow", 1, 100)
    assert (orders["messages"], orders["p50_ms"], orders["p999_ms"]) == (100, 10, 1_000)
    assert lateness_of([*nodes, late(stuck=[0, 0, 0, 3])])[0]["p50_ms"] is None


def test_a_node_with_other_buckets_is_left_out() -> None:
    other = {"lateness": {"bounds_ms": [1], "targets": {"orders": [5, 5]}}}
    assert [each["messages"] for each in lateness_of([late(orders=[1, 0, 0, 0]), other])] == [1]


def test_a_failover_has_its_gap_from_the_node_that_knows_it_and_the_newest_is_first() -> None:
    nodes = [
        {"failovers": [failover(2, None), failover(3, None)]},
        {},
        {"failovers": [failover(2, 81), failover(3, None)]},
    ]
    assert [(each["term"], each["gap_ms"]) for each in failovers_of(nodes)] == [(3, None), (2, 81)]
    many = [{"failovers": [failover(term, 1)]} for term in range(FAILOVERS_MAX + 5)]
    assert [each["term"] for each in failovers_of(many)][:: FAILOVERS_MAX - 1] == [24, 5]


def test_the_clock_of_a_node_that_does_not_answer_is_not_told() -> None:
    told = {"node": "a", "clock_offset_ms": -3, "clock_drift_ms": 2}
    assert clocks_of([told, {"node": "b"}]) == [
        {"node": "a", "offset_ms": -3, "broker_drift_ms": 2}
    ]
