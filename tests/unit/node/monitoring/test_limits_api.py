"""Limits of targets by the HTTP API of a node, and by what the command does.

Source: docs/guides/limiting.md.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_node import READER, TEAM, ApiNode, Client, api_node
from one_node import CLUSTER_KEY, wait_for

from delayd.cluster.limiting import limits_of, set_quota
from delayd.cluster.ordering import Cluster
from delayd.errors import QuotaError, WrongClusterKeyError
from delayd.runtime.clock import SystemClock
from replication.quotas import MAX_PENDING_MAX, RATE_MAX, Quota, QuotaOrder


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiNode]:
    with api_node(tmp_path_factory.mktemp("limits")) as made:
        yield made


@pytest.fixture
def ask(node: ApiNode) -> Client:
    return Client(node)


def given(node: ApiNode, topic: str, max_pending: int, key: str = CLUSTER_KEY) -> Quota | None:
    clock = SystemClock()
    there = Cluster(node.bus, clock, "c", "delayd-", key, 20_000)
    return set_quota(there, QuotaOrder(topic, clock.wall_ms(), max_pending))


def states(ask: Client) -> list[str]:
    return [each["state"] for each in ask("GET", "/v1/targets/limits").json()]


def test_a_target_is_limited_shown_and_refuses_until_it_has_room(
    ask: Client, node: ApiNode
) -> None:
    answer = ask("PUT", "/v1/targets/orders/limit", json={"max_pending": 2})
    assert answer.status_code == 200, answer.text
    assert answer.json()["state"] == "open" and answer.json()["max_pending"] == 2
    message = {"topic": "orders", "value": "v", "delay": "1h"}
    for id in ("a", "b"):
        ask("POST", "/v1/messages", json={**message, "id": id})
    wait_for(
        lambda: [each["state"] for each in ask("GET", "/v1/targets/limits").json()] == ["full"]
    )
    [limit] = ask("GET", "/v1/cluster").json()["limits"]
    assert (limit["topic"], limit["pending"], limit["max_pending"]) == ("orders", 2, 2)
    refused = ask("POST", "/v1/messages", json={**message, "id": "c"})
    assert refused.status_code == 422 and "over-quota" in refused.json()["detail"]
    ask("DELETE", "/v1/messages/a")
    wait_for(
        lambda: [each["state"] for each in ask("GET", "/v1/targets/limits").json()] == ["open"]
    )
    answer = ask("DELETE", "/v1/targets/orders/limit")
    assert answer.json()["state"] == "unlimited"
    wait_for(lambda: ask("GET", "/v1/targets/limits").json() == [])


def test_only_who_operates_may_limit_and_only_the_targets_of_the_token(node: ApiNode) -> None:
    asked = {"max_pending": 5}
    assert Client(node, READER)("PUT", "/v1/targets/orders/limit", json=asked).status_code == 403
    assert Client(node, READER)("DELETE", "/v1/targets/orders/limit").status_code == 403
    team = Client(node, TEAM)
    assert team("PUT", "/v1/targets/billing/limit", json=asked).status_code == 403
    given(node, "billing", 5)
    given(node, "orders-eu", 5)
    wait_for(
        lambda: (
            [each["topic"] for each in team("GET", "/v1/targets/limits").json()] == ["orders-eu"]
        )
    )
    assert given(node, "billing", 0) is None
    assert given(node, "orders-eu", 0) is None


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 409),
        ({"max_pending": 0}, 409),
        ({"max_pending": MAX_PENDING_MAX + 1}, 422),
        ({"rate": RATE_MAX + 1}, 422),
        ({"rate": "100/s"}, 422),
    ],
)
def test_what_makes_no_sense_is_refused(ask: Client, body: dict[str, object], status: int) -> None:
    answer = ask("PUT", "/v1/targets/orders/limit", json=body)
    assert answer.status_code == status, answer.text


def test_a_target_may_have_both_limits_and_each_is_changed_alone(ask: Client) -> None:
    where = "/v1/targets/bills/limit"
    assert ask("PUT", where, json={"rate": 1}).json()["max_pending"] is None
    answer = ask("PUT", where, json={"max_pending": 50}).json()
    assert (answer["rate"], answer["max_pending"], answer["state"]) == (1, 50, "open")
    for number in range(10):
        message = {"topic": "bills", "value": "v", "delay": "1h", "id": f"bill-{number}"}
        ask("POST", "/v1/messages", json=message)
    wait_for(lambda: states(ask) == ["full"])
    [limit] = ask("GET", "/v1/targets/limits").json()
    assert (limit["taken"], limit["refused_by"]) == (10, "rate")
    message["id"] = "refused"
    refused = ask("POST", "/v1/messages", json=message)
    assert "1 requests a second are taken for bills" in refused.json()["detail"], refused.text
    assert ask("PUT", where, json={"rate": 0}).json()["rate"] is None
    assert ask("DELETE", where).json()["state"] == "unlimited"


def test_an_order_that_cannot_be_obeyed_is_not_written(node: ApiNode) -> None:
    with pytest.raises(QuotaError, match="at most 1000000000"):
        given(node, "orders", MAX_PENDING_MAX + 1)
    with pytest.raises(QuotaError, match="belongs to delayd"):
        given(node, "delayd-dead", 5)
    with pytest.raises(WrongClusterKeyError):
        given(node, "orders", 5, key="another key that is long enough")


def test_a_limit_is_told_as_open_nearly_full_or_full() -> None:
    states = {
        quota: limits_of({"orders": Quota(10, quota, 0, full_ms, full_ms)})[0]["state"]
        for quota, full_ms in ((7, 0), (8, 0), (9, 5))
    }
    assert states == {7: "open", 8: "nearly-full", 9: "full"}


def test_an_order_that_nobody_passes_is_told(tmp_path: Path) -> None:
    with api_node(tmp_path) as node:
        node.stop()
        clock = SystemClock()
        with pytest.raises(QuotaError, match="no master has passed it yet"):
            there = Cluster(node.bus, clock, "c", "delayd-", CLUSTER_KEY, 300)
            set_quota(there, QuotaOrder("orders", clock.wall_ms(), 5))
