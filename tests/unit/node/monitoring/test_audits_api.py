"""Audits by the admin port of a node: who publishes, who reads, and what a page may do.

Source: docs/reference/http.md, "Audits"; docs/reference/http-api.md.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_node import READER, TEAM, ApiNode, Client, api_node
from httpx import Response
from one_node import CLUSTER_KEY
from published_audits import MADE_MS, PAGE, proof, published, report

from delayd.cluster.audit_reports import REPORT_BYTES_MAX
from delayd.node.monitoring.api import intake, tickets


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ApiNode]:
    with api_node(tmp_path) as made:
        yield made


@pytest.fixture
def reader(node: ApiNode) -> Client:
    return Client(node, READER)


def put(node: ApiNode, id: str, body: bytes, headers: dict[str, str] | None = None) -> Response:
    path = f"/audits/{id}"
    shown = proof(path, node.clock) if headers is None else headers
    return Client(node, None)("PUT", path, content=body, headers=shown)


def test_a_published_audit_is_listed_read_and_shown(node: ApiNode, reader: Client) -> None:
    assert reader("GET", "/v1/audits").json() == []
    said = report(verdict="failed", found={"lost": 3}, examples=["\ud800 half a pair"])
    id, body = published(said)
    assert put(node, id, body).status_code == 201
    assert put(node, id, body).status_code == 200, "it is there"
    [listed] = reader("GET", "/v1/audits").json()
    assert (listed["id"], listed["verdict"], listed["found"]) == (id, "failed", {"lost": 3})
    assert (listed["made_ms"], listed["nodes"], listed["compared"]) == (MADE_MS, 2, 1)
    assert reader("GET", f"/v1/audits/{id}").json() == said
    for shown in (
        reader("GET", f"/v1/audits/{id}/page"),
        Client(node, None)("GET", listed["page"]),
    ):
        assert shown.text == PAGE and shown.headers["content-type"].startswith("text/html")


def test_who_has_not_the_cluster_key_publishes_nothing(node: ApiNode, reader: Client) -> None:
    id, body = published(report())
    path, clock = f"/audits/{id}", node.clock
    once = proof(path, clock)
    for headers in (
        {},
        {"authorization": "Bearer a-token-for-everything"},
        {"authorization": "Delayd 1.2.3"},
        proof(path, clock, key="another key that is long enough"),
        proof(path, clock, realm="another"),
        proof(f"/audits/{published(report(accepted=1))[0]}", clock),
    ):
        answer = put(node, id, body, headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "http-token"), headers
        assert CLUSTER_KEY not in answer.text
    changed = put(node, id, body.replace(b"20000", b"20001"))
    assert (changed.status_code, changed.json()["code"]) == (422, "http-request")
    assert reader("GET", "/v1/audits").json() == []
    assert put(node, id, body, once).status_code == 201
    assert put(node, id, body, once).status_code == 401, "a proof holds once"


def test_what_is_too_large_or_of_another_cluster_is_refused(
    node: ApiNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = put(node, *published(report(cluster="another")))
    assert (answer.status_code, answer.json()["code"]) == (409, "http-request")
    assert intake.BODY_BYTES_MAX == REPORT_BYTES_MAX, "what publishers know"
    monkeypatch.setattr(intake, "BODY_BYTES_MAX", 1_000)
    answer = put(node, *published(report(), "x" * 1_000))
    assert (answer.status_code, answer.json()["code"]) == (413, "http-request")
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_full_disk_is_told_and_the_node_goes_on(node: ApiNode, reader: Client) -> None:
    least = node.view.config.disk_free_min_bytes
    node.disk.free = least + 2_000  # as much as the wheel needs, and not as much as a report more
    answer = put(node, *published(report(), "x" * 3_000))
    assert (answer.status_code, answer.json()["code"]) == (507, "http-not-kept")
    assert reader("GET", "/v1/audits").json() == []
    assert reader("GET", "/v1/health").json()["stalled"] is None


def test_who_may_read_audits(node: ApiNode) -> None:
    id, body = published(report())
    assert put(node, id, body).status_code == 201
    paths = [f"/v1/audits/{id}", f"/v1/audits/{id}/page"]
    for path in ("/v1/audits", *paths):
        assert Client(node, None)("GET", path).status_code == 401
    team = Client(node, TEAM)
    [listed] = team("GET", "/v1/audits").json()
    assert listed["page"] is None, "a report names messages of all targets"
    assert [team("GET", path).status_code for path in paths] == [403, 403]


def test_a_ticket_shows_its_page_for_a_while(
    node: ApiNode, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = []
    for made_ms in (MADE_MS, MADE_MS + 1):
        id, body = published(report(made_ms))
        put(node, id, body)
        ids.append(id)
    browser = Client(node, None)
    link = str(reader("GET", "/v1/audits").json()[0]["page"])
    of, ticket = link.rsplit("/", 1)
    assert browser("GET", link).status_code == 200
    for wrong in (
        f"/audits/{ids[0]}/{ticket}",
        f"{of}/9{ticket}",
        f"{of}/{ticket[:-1]}",
        f"{of}/x",
        f"{of}/ü.ß",
    ):
        answer = browser("GET", wrong)
        assert (answer.status_code, answer.json()["code"]) == (404, "http-not-found"), wrong
    monkeypatch.setattr(tickets, "TICKET_MS", -1)
    old = reader("GET", "/v1/audits").json()[0]["page"]
    assert browser("GET", old).status_code == 404


def test_a_page_gets_no_origin_no_script_and_no_network(node: ApiNode, reader: Client) -> None:
    id, body = published(report(), "<script>alert(1)</script>")
    put(node, id, body)
    link = reader("GET", "/v1/audits").json()[0]["page"]
    for answer in (reader("GET", f"/v1/audits/{id}/page"), Client(node, None)("GET", link)):
        parts = [part.split() for part in answer.headers["content-security-policy"].split("; ")]
        policy = {name: allowed for name, *allowed in parts}
        assert policy["sandbox"] == [], "no script, no form, no origin of the console"
        assert policy["default-src"] == policy["frame-ancestors"] == ["'none'"]
        assert "script-src" not in policy and "connect-src" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("id", ["x", "1790000000000-" + "0" * 31, "..%2f..%2fcatalogue", "a/b/c"])
def test_what_is_no_id_leads_nowhere(node: ApiNode, reader: Client, id: str) -> None:
    for path in (f"/v1/audits/{id}", f"/v1/audits/{id}/page"):
        assert reader("GET", path).status_code in (404, 422)
    assert put(node, id, b"{}").status_code in (401, 404, 405, 422)
