"""One look at the cluster for all who ask, and what a token for some targets sees of it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from manual_clock import ManualClock

from delayd.cluster.status import hangs
from delayd.config.api_tokens import ANONYMOUS, ApiToken
from delayd.errors import KafkaUnreachableError
from delayd.node.monitoring.api.desk import Desk
from delayd.node.monitoring.api.looking import LOOK_MS, ClusterLook
from delayd.node.monitoring.api.reads import cluster_view

SPARED = [{"topic": "billing", "partition": 0}, {"topic": "orders", "partition": 1}]
SHARD = {"owner": "a/1", "term": 1, "step": 1, "cursor_ms": 1, "cursor_age_ms": 1, "lag": 0}
REPORT: dict[str, Any] = {
    "cluster": "c",
    "healthy": False,
    "master": "a",
    "shards": [{"shard": 0, "leader": "a", **SHARD}],
    "problems": [*(hangs("a", each) for each in SPARED), "disk"],
    "failing_targets": [],
    "paused": [{"topic": topic, "state": "paused"} for topic in ("billing", "orders")],
    "failovers": [],
    "clocks": [],
    "lateness": [
        {"topic": topic, "messages": 1, "p50_ms": 5, "p99_ms": 5, "p999_ms": None}
        for topic in ("billing", "orders")
    ],
    "nodes": [
        {
            "node": "a",
            "spared_partitions": SPARED,
        },
        {"node": "b", "admin": "x"},
    ],
}


def played(
    look: Callable[[], dict[str, Any]], play: Callable[[ClusterLook, ManualClock], Any]
) -> Any:
    clock = ManualClock()
    desk = Desk("test", 2)
    try:
        return asyncio.run(play(ClusterLook(desk, clock, look), clock))
    finally:
        desk.stop()


def test_many_who_ask_at_once_or_soon_after_cost_one_look() -> None:
    looks = []

    def look() -> dict[str, Any]:
        looks.append(1)
        return {"look": len(looks)}

    async def play(shared: ClusterLook, clock: ManualClock) -> None:
        answers = await asyncio.gather(*(shared.fresh() for _ in range(50)))
        assert [each["look"] for each in answers] == [1] * 50
        clock.now_ms += LOOK_MS - 1
        assert (await shared.fresh())["look"] == 1
        clock.now_ms += 1
        assert (await shared.fresh())["look"] == 2

    played(look, play)


def test_a_look_that_fails_is_told_to_whoever_waited_and_not_kept() -> None:
    well = [False]

    def look() -> dict[str, Any]:
        if not well[0]:
            raise KafkaUnreachableError("no answer")
        return {}

    async def play(shared: ClusterLook, clock: ManualClock) -> None:
        for _ in range(2):
            with pytest.raises(KafkaUnreachableError):
                await shared.fresh()
        well[0] = True
        assert await shared.fresh() == {} and shared.problem is None

    played(look, play)


def test_a_token_for_some_targets_is_told_of_no_other() -> None:
    mine = ApiToken(name="t", sha256="0" * 64, scopes=ANONYMOUS.scopes, targets=("orders*",))
    seen = cluster_view(REPORT, mine).model_dump_json()
    assert "billing" not in seen and "messages for orders/1 wait" in seen and "disk" in seen
    assert [each["topic"] for each in cluster_view(REPORT, mine).paused] == ["orders"]
    everything = cluster_view(REPORT, ANONYMOUS).model_dump()
    assert everything["problems"] == REPORT["problems"]
    assert everything["nodes"] == REPORT["nodes"] and len(everything["lateness"]) == 2
