"""Pauses by the HTTP API of a node, and by what the command does.

Source: docs/guides/pausing.md.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_node import READER, TEAM, ApiNode, Client, api_node
from one_node import CLUSTER_KEY, wait_for

from delayd.cluster.ordering import Cluster
from delayd.cluster.pausing import give_order, paused_of
from delayd.errors import PauseError, WrongClusterKeyError
from delayd.runtime.clock import SystemClock
from replication.holds import Hold, Order


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiNode]:
    with api_node(tmp_path_factory.mktemp("pauses")) as made:
        yield made


@pytest.fixture
def ask(node: ApiNode) -> Client:
    return Client(node)


def given(node: ApiNode, topic: str, for_ms: int = 0, key: str = CLUSTER_KEY) -> Hold | None:
    clock = SystemClock()
    now_ms = clock.wall_ms()
    until_ms = now_ms + for_ms if for_ms else 0
    there = Cluster(node.bus, clock, "c", "delayd-", key, 20_000)
    return give_order(there, Order(topic, now_ms, until_ms, 0))


def test_a_target_is_paused_shown_and_resumed(ask: Client, node: ApiNode) -> None:
    answer = ask("POST", "/v1/targets/orders/pause", json={"lasting": "1h", "rate": 70})
    assert answer.status_code == 200, answer.text
    hold = answer.json()
    assert (hold["topic"], hold["state"], hold["rate"]) == ("orders", "paused", 70)
    wait_for(lambda: ask("GET", "/v1/targets/paused").json() == [hold])
    assert ask("GET", "/v1/cluster").json()["paused"] == [hold]
    ask("POST", "/v1/messages", json={"topic": "orders", "value": "v", "delay": "1ms"})
    ask("POST", "/v1/messages", json={"topic": "billing", "value": "v", "delay": "1ms"})
    wait_for(lambda: len(node.read("billing")) == 1)
    assert node.read("orders") == []
    answer = ask("POST", "/v1/targets/orders/resume", json={})
    assert answer.json()["state"] in ("resuming", "not-paused")
    wait_for(lambda: len(node.read("orders")) == 1)
    wait_for(lambda: ask("GET", "/v1/targets/paused").json() == [])


def test_only_who_operates_may_pause_and_only_the_targets_of_the_token(node: ApiNode) -> None:
    asked = {"lasting": "1h"}
    assert Client(node, READER)("POST", "/v1/targets/orders/pause", json=asked).status_code == 403
    team = Client(node, TEAM)
    assert team("POST", "/v1/targets/billing/pause", json=asked).status_code == 403
    given(node, "billing", 60_000)
    given(node, "orders-eu", 60_000)
    wait_for(
        lambda: (
            [each["topic"] for each in team("GET", "/v1/targets/paused").json()] == ["orders-eu"]
        )
    )
    given(node, "billing")
    given(node, "orders-eu")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"lasting": "1h", "until": 5}, 422),
        ({"lasting": "soon"}, 422),
        ({"lasting": "25h"}, 409),
        ({"lasting": "1h", "rate": 0}, 422),
    ],
)
def test_what_makes_no_sense_is_refused(ask: Client, body: dict[str, object], status: int) -> None:
    answer = ask("POST", "/v1/targets/orders/pause", json=body)
    assert answer.status_code == status, answer.text


def test_the_command_says_what_came_of_the_order(node: ApiNode) -> None:
    assert given(node, "orders-eu") is None
    hold = given(node, "orders-eu", 60_000)
    assert hold is not None and hold.rate == 1_000
    [shown] = paused_of({"orders-eu": hold}, hold.until_ms - 1)
    assert shown["state"] == "paused"
    renewed = given(node, "orders-eu", 90_000)
    assert renewed is not None and renewed.until_ms > hold.until_ms
    assert renewed.since_ms == hold.since_ms
    resumed = given(node, "orders-eu")
    assert resumed is None or not resumed.is_closed(SystemClock().wall_ms())


def test_an_order_that_cannot_be_obeyed_is_not_written(node: ApiNode) -> None:
    with pytest.raises(PauseError, match="there is no topic nowhere"):
        given(node, "nowhere", 60_000)
    with pytest.raises(PauseError, match="at most 24 h"):
        given(node, "orders", 86_400_001)
    with pytest.raises(PauseError, match="belongs to delayd"):
        given(node, "delayd-dead", 60_000)
    with pytest.raises(WrongClusterKeyError):
        given(node, "orders", 60_000, key="another key that is long enough")


def test_an_order_that_nobody_passes_is_told(tmp_path: Path) -> None:
    with api_node(tmp_path) as node:
        node.stop()
        clock = SystemClock()
        order = Order("orders", clock.wall_ms(), clock.wall_ms() + 60_000, 0)
        with pytest.raises(PauseError, match="no master has passed it yet"):
            give_order(Cluster(node.bus, clock, "c", "delayd-", CLUSTER_KEY, 300), order)
