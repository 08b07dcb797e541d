"""What an audit does with its report when it is done, and what it says of what goes wrong.

Source: docs/reference/audit.md.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_node import READER, ApiNode, Client, api_node, serving
from one_node import CLUSTER_KEY
from published_audits import MADE_MS, PAGE, report

from delayd.audit import publishing
from delayd.audit.publishing import published
from delayd.audit.table_loader import Source
from delayd.cluster.member_proof import MemberCheck, MemberKeys
from delayd.config.security import Security
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.runtime.clock import SystemClock

OTHER_KEY = "another key that is long enough"


class Made:
    """A report, as far as publishing looks at it."""

    cluster = "c"

    def to_json(self) -> dict[str, Any]:
        return report(MADE_MS)


class Etcd(MemoryCoordination):
    """With one member, wherever it is."""

    def __init__(self, realm: str, member: str | None) -> None:
        super().__init__(MemoryEtcd(SystemClock()), "c")
        self.enter(realm)
        if member is not None:
            self.put_member("n", member, self.grant_lease(10**9).id)

    def check_reachable(self, timeout_ms: int) -> None:
        """It is."""

    def close(self) -> None:
        """It is asked again."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiNode]:
    with api_node(tmp_path_factory.mktemp("api")) as made:
        keys = MemberKeys(CLUSTER_KEY.encode(), made.settings.realm)
        made.view.members = MemberCheck(keys, "life", SystemClock())
        yield made


@pytest.fixture(scope="module")
def port(node: ApiNode) -> Iterator[int]:
    with serving(node) as port:
        yield port


def said(
    node: ApiNode, monkeypatch: pytest.MonkeyPatch, member: str | None, key: str | None
) -> list[str]:
    """What publishing says."""
    etcd = Etcd(node.settings.realm, member)
    monkeypatch.setattr(publishing, "open_coordination", lambda *_: etcd)
    monkeypatch.setattr(publishing, "page", lambda _: PAGE)
    source = Source(node.bus, "", SystemClock(), cluster_key=key)
    made: Any = Made()
    return published(made, source, ("http://e:1",), "delayd-", Security.none())


def at(port: int) -> str:
    return json.dumps({"admin": f"127.0.0.1:{port}", "nonce": "life"})


@pytest.mark.parametrize(
    "key", [CLUSTER_KEY, f"{OTHER_KEY}\n{CLUSTER_KEY}", f"{CLUSTER_KEY}\n{OTHER_KEY}"]
)
def test_the_key_that_signs_now_signs_the_report(
    node: ApiNode, port: int, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """docs/operations.md, "A new cluster key": the order of the lines does not matter to audits."""
    assert said(node, monkeypatch, at(port), key) == []
    [listed] = Client(node, READER)("GET", "/v1/audits").json()
    assert listed["made_ms"] == MADE_MS


@pytest.mark.parametrize(
    ("member", "key", "why"),
    [
        ("here", None, "nodes take it under the cluster key only (give --cluster-key"),
        ("here", OTHER_KEY, "this is not the key of the cluster"),
        (None, CLUSTER_KEY, "etcd knows no node"),
        ("no json", CLUSTER_KEY, "Expecting value"),
        ("7", CLUSTER_KEY, "int"),
    ],
)
def test_what_keeps_a_report_from_the_nodes_is_said_and_ends_nothing(
    node: ApiNode,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    member: str | None,
    key: str | None,
    why: str,
) -> None:
    [line] = said(node, monkeypatch, at(port) if member == "here" else member, key)
    assert line.startswith("the report is not published: ") and why in line


def test_a_kafka_that_does_not_answer_is_said_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with api_node(tmp_path) as node:
        node.bus.link.up = False
        monkeypatch.setattr(publishing, "TIMEOUT_MS", 200)
        [line] = said(node, monkeypatch, "{}", CLUSTER_KEY)
        node.bus.link.up = True
    assert line.startswith("the report is not published: ")
