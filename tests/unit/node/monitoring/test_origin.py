"""Pages of other sites, and what a repeated request does: over Kafka in memory.

Source: docs/security.md.
"""

import json
from collections.abc import Iterator

import pytest
from api_node import ALL, ApiNode, Client, api_node
from one_node import wait_for

from replication.record import encode

MESSAGE = {"topic": "orders", "value": "v", "delay": "1h", "id": "twice"}
FOREIGN = [
    {"origin": "http://elsewhere"},
    {"origin": "null"},
    {"origin": "http://n.elsewhere"},
    {"origin": "http://n:1"},
    {"origin": ""},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiNode]:
    with api_node(tmp_path_factory.mktemp("origin")) as made:
        yield made


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
def test_a_page_of_another_site_changes_nothing_even_with_a_token(
    node: ApiNode, headers: dict[str, str], kind: str
) -> None:
    before = len(node.read("delayd-buffer"))
    for method, path in (("POST", "/v1/messages"), ("DELETE", "/v1/messages/x")):
        given = {**headers, "content-type": kind}
        answer = Client(node, ALL)(method, path, content=json.dumps(MESSAGE), headers=given)
        assert answer.status_code == 403 and answer.json()["code"] == "http-origin"
    assert len(node.read("delayd-buffer")) == before


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_of_another_site_begins_no_export_though_that_needs_no_token(
    node: ApiNode, headers: dict[str, str]
) -> None:
    assert _export(node, headers) == 403


def test_the_console_of_the_node_begins_an_export(node: ApiNode) -> None:
    assert _export(node, {"origin": "http://n", "content-type": "text/plain"}) == 200


def _export(node: ApiNode, headers: dict[str, str]) -> int:
    newest = node.replica.newest
    assert newest is not None
    body = json.dumps({"frontier": json.loads(encode(newest.record)), "wait_ms": 0})
    return Client(node, None)("POST", "/export", content=body, headers=headers).status_code


def test_the_console_of_the_node_and_programs_may_ask(node: ApiNode) -> None:
    for headers in ({}, {"origin": "http://n", "sec-fetch-site": "same-origin"}):
        answer = Client(node)("POST", "/v1/messages", json=MESSAGE, headers=headers)
        assert answer.status_code == 201
    assert Client(node)("GET", "/v1/health", headers={"origin": "http://x"}).status_code == 200
    assert "access-control-allow-origin" not in Client(node)("GET", "/v1/health").headers


def test_a_repeated_schedule_stores_one_message(node: ApiNode) -> None:
    ask = Client(node)
    message = {**MESSAGE, "topic": "billing", "id": "again", "key": "k"}
    for _ in range(3):
        assert ask("POST", "/v1/messages", json=message).status_code == 201
    batch = {"messages": [{**message, "id": "in-batch"}] * 3}
    assert ask("POST", "/v1/messages/batch", json=batch).json()["failed"] == 0
    wait_for(lambda: node.view.pending()["topics"].get("billing") is not None)
    wait_for(lambda: node.replica.ingested_count >= 6)
    assert node.view.pending()["topics"]["billing"] == 2
