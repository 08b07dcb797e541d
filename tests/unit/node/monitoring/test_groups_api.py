"""Groups by the HTTP API, and the walk of the command line through its pages.

Source: docs/guides/groups.md.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_node import READER, TEAM, ApiNode, Client, api_node, serving
from one_node import wait_for

from delayd.cluster import pending_pages
from delayd.cluster.pending_pages import PendingPages
from delayd.errors import ConfigError, NodeUnreachableError

GROUP = "customer-42"
MESSAGES = 90


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiNode]:
    """With messages of two groups, and of none, for two targets."""
    with api_node(tmp_path_factory.mktemp("groups")) as made:
        fill(made)
        yield made


def fill(node: ApiNode) -> None:
    batch = [
        {
            "topic": ("orders", "billing")[n % 2],
            "value": GROUP,  # a text that a filter must not take for a group
            "delay": f"{1 + n % 7}h",
            "id": f"id-{n}",
            **({} if n % 3 == 2 else {"group": (GROUP, "another")[n % 3]}),
        }
        for n in range(MESSAGES)
    ]
    answer = Client(node)("POST", "/v1/messages/batch", json={"messages": batch}).json()
    assert answer["failed"] == 0
    node.wait_checkpointed(MESSAGES)


def ids_of(messages: list[dict[str, Any]]) -> list[int]:
    return sorted(int(each["id"].removeprefix("id-")) for each in messages)


def test_pages_are_filtered_by_group(node: ApiNode) -> None:
    query = {"group": GROUP}
    page = Client(node)("GET", "/v1/pending", params=query).json()
    assert ids_of(page["messages"]) == list(range(0, MESSAGES, 3)) and page["next"] is None
    assert {each["group"] for each in page["messages"]} == {GROUP}
    assert Client(node)("GET", "/v1/pending/count", params=query).json()["messages"] == 30
    both = {**query, "topic": "billing"}
    assert Client(node)("GET", "/v1/pending/count", params=both).json()["messages"] == 15
    everything = Client(node)("GET", "/v1/pending", params={"limit": 1_000}).json()["messages"]
    assert [each["group"] for each in everything].count(None) == 30


def test_a_message_with_a_group_needs_an_id(node: ApiNode) -> None:
    body = {"topic": "orders", "value": "v", "delay": "1h", "group": GROUP}
    answer = Client(node)("POST", "/v1/messages", json=body)
    assert answer.status_code == 422 and "delayd-group needs delayd-id" in answer.json()["detail"]


def test_a_walk_has_each_message_of_a_group_page_by_page(
    node: ApiNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_pages, "PAGE_LIMIT", 7)
    with serving(node) as port:
        pages = PendingPages((f"127.0.0.1:{port}",), READER, {"group": GROUP, "topic": None})
        assert ids_of(list(pages.messages())) == list(range(0, MESSAGES, 3))
        assert pages.count() == 30


def test_a_token_for_some_targets_sees_its_own_only(node: ApiNode) -> None:
    with serving(node) as port:
        pages = PendingPages((f"127.0.0.1:{port}",), TEAM, {"group": GROUP})
        found = list(pages.messages())
        assert ids_of(found) == list(range(0, MESSAGES, 6)) and pages.count() == 15
        assert {each["topic"] for each in found} == {"orders"}


@pytest.mark.parametrize("token", [None, "a-token-of-nobody"])
def test_without_a_token_that_may_read_it_says_which_is_needed(
    node: ApiNode, token: str | None
) -> None:
    with serving(node) as port, pytest.raises(ConfigError) as caught:
        PendingPages((f"127.0.0.1:{port}",), token, {"group": GROUP}).count()
    assert caught.value.remedy is not None and "DELAYD_API_TOKEN" in caught.value.remedy


def test_the_first_node_that_is_ready_is_asked(node: ApiNode) -> None:
    with serving(node) as port:
        wait_for(lambda: node.view.unready() is None)
        pages = PendingPages(("127.0.0.1:1", f"127.0.0.1:{port}"), READER, {})
        assert pages.node == f"127.0.0.1:{port}" and pages.count() == MESSAGES
    with pytest.raises(NodeUnreachableError, match="no node is ready"):
        PendingPages(("127.0.0.1:1",), READER, {})


def test_a_node_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    waits: list[int] = []
    with api_node(tmp_path, requests_per_s=1) as made, serving(made) as port:
        pages = PendingPages((f"127.0.0.1:{port}",), READER, {}, lambda ms: waits.append(ms))
        for _ in range(2):
            pages.count()
        with pytest.raises(NodeUnreachableError, match="more than 1 requests a second"):
            pages.count()
    assert len(waits) == pending_pages.BUSY_MAX
