"""`delayd audits`, and what `delayd audit` sends, over the real server of a node.

Source: docs/reference/cli.md, "delayd audits".
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_node import READER, TEAM, ApiNode, api_node, serving
from one_node import CLUSTER_KEY
from published_audits import MADE_MS, PAGE, report
from typer.testing import CliRunner

from delayd.cluster.admin_client import Member
from delayd.cluster.audit_reports import kept_by, publish
from delayd.cluster.member_proof import MemberKeys
from delayd.commands.cli import app
from delayd.dev.ports import pick_ports
from delayd.errors import ConfigError, NodeUnreachableError
from delayd.runtime.clock import SystemClock

KEYS = MemberKeys(CLUSTER_KEY.encode(), "c")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with api_node(tmp_path_factory.mktemp("api")) as node, serving(node) as port:
        yield port


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ApiNode]:
    with api_node(tmp_path) as made:
        yield made


def there(port: int, life: str = "life") -> Member:
    return Member(f"n{port}", f"127.0.0.1:{port}", life)


def delayd(port: int, *arguments: str, token: str = READER) -> tuple[int, str]:
    """Exit code and output."""
    at = ("--admin", f"127.0.0.1:{port}", "--token", token)
    done = CliRunner().invoke(app, ["audits", *arguments, *at], catch_exceptions=False)
    return done.exit_code, done.output


def test_a_report_reaches_each_node_that_is_there_and_the_others_are_named(port: int) -> None:
    [nobody] = pick_ports(1)
    members = [there(nobody), there(port), there(port, "another life")]
    problems = publish(report(MADE_MS), PAGE, members, KEYS, SystemClock())
    assert len(problems) == 2
    assert problems[0].startswith(f"n{nobody} did not take the report: ")
    assert problems[1].startswith(f"n{port} does not keep the report: status 401, the proof is of")
    nodes = (f"127.0.0.1:{nobody}", f"127.0.0.1:{port}", f"127.0.0.1:{port}")
    assert [each["made_ms"] for each in kept_by(nodes, READER)] == [MADE_MS]


def test_it_lists_and_shows_what_nodes_keep(port: int, tmp_path: Path) -> None:
    newer = report(MADE_MS + 1, verdict="failed", found={"lost": 2, "early": 1}, accepted=1)
    assert publish(newer, "<p>Größe</p>", [there(port)], KEYS, SystemClock()) == []
    code, said = delayd(port)
    assert code == 0 and "lost 2, early 1, 1 message, 1 of 2 nodes compared  " in said
    code, said = delayd(port, "--json")
    newest = json.loads(said)["audits"][0]
    assert code == 0 and newest["found"] == {"lost": 2, "early": 1}
    code, said = delayd(port, newest["id"])
    assert code == 0 and json.loads(said) == newer
    page = tmp_path / "report.html"
    assert delayd(port, newest["id"], "--html", str(page)) == (0, "")
    assert page.read_text(encoding="utf-8") == "<p>Größe</p>"
    code, said = delayd(port, "../../status")
    assert code == 1 and "no node that answers has the audit" in said


def test_what_cannot_be_shown_is_told(port: int, node: ApiNode) -> None:
    with pytest.raises(ConfigError, match="this node knows no such token"):
        delayd(port, token="another-token-that-nobody-knows")
    with pytest.raises(ConfigError, match="a report is of all"):
        delayd(port, f"{MADE_MS}-{'0' * 32}", token=TEAM)
    with pytest.raises(ConfigError, match="writes the report of one audit"):
        delayd(port, "--html", "report.html")
    [nobody] = pick_ports(1)
    with pytest.raises(NodeUnreachableError):
        delayd(nobody)
    with serving(node) as empty:
        assert "no audit is known" in delayd(empty)[1]
