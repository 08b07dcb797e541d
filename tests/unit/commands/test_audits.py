"""`delayd audits`, and what `delayd audit` sends, over the real server of a node.

Source: docs/reference/cli.md, "delayd audits".
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from api_node import READER, TEAM, ApiNode, api_node, serving
from one_node import CLUSTER_KEY
from published_audits import MADE_MS, PAGE, report
from typer.testing import CliRunner

from delayd.cluster.admin_client import Member
from delayd.cluster.audit_reports import REPORT_BYTES_MAX, kept_by, publish
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
    newer = report(MADE_MS + 9, verdict="failed", found={"lost": 2, "early": 1}, accepted=1)
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


class Bad(BaseHTTPRequestHandler):
    """A program that answers whatever it is told to, and no node."""

    answer = 200, b""

    def do_GET(self) -> None:
        status, body = self.answer
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""


@contextmanager
def answering(status: int, body: bytes) -> Iterator[int]:
    """Yield the port of a program that answers so."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Told", (Bad,), {"answer": (status, body)}))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def times_of(*nodes: str) -> list[int]:
    """When their audits were made, Unix ms."""
    return [each["made_ms"] for each in kept_by(nodes, READER)]


ESCAPES = "\x1b[31mred\x1b[0m"


@pytest.mark.parametrize(
    "body", [b"", b"no json", b"{}", b"[7]", b'[{"id": "x"}]', b"[" * 100_000, b"\xff"]
)
def test_who_answers_with_something_else_is_no_node(port: int, body: bytes) -> None:
    made_ms = MADE_MS + 2
    publish(report(made_ms), PAGE, [there(port)], KEYS, SystemClock())
    with answering(200, body) as other:
        with pytest.raises(NodeUnreachableError, match="no node shows audits"):
            delayd(other)
        assert made_ms in times_of(f"127.0.0.1:{other}", f"127.0.0.1:{port}")


def test_what_others_say_reaches_no_terminal_as_it_is() -> None:
    listed = {
        "id": ESCAPES,
        "made_ms": MADE_MS,
        "found": {ESCAPES: 1},
        "messages": 1,
        "nodes": 1,
        "compared": 1,
    }
    with answering(200, json.dumps([listed]).encode()) as other:
        code, said = delayd(other)
        assert code == 0 and "\x1b" not in said and said.count("\\x1b[31mred") == 2
    with (
        answering(401, json.dumps({"detail": ESCAPES}).encode()) as other,
        pytest.raises(ConfigError) as refused,
    ):
        delayd(other)
    assert "\x1b" not in str(refused.value)


def test_why_nobody_shows_audits_is_told() -> None:
    old = json.dumps({"detail": "there is no such route"}).encode()
    with answering(404, old) as other, pytest.raises(NodeUnreachableError) as told:
        delayd(other)
    assert f"127.0.0.1:{other}: status 404, there is no such route" in str(told.value)
    [nobody] = pick_ports(1)
    for arguments in ((), (f"{MADE_MS}-{'0' * 32}",)):
        with pytest.raises(NodeUnreachableError, match=rf"{nobody}: ConnectionRefusedError"):
            delayd(nobody, *arguments)


def test_a_node_that_refuses_the_token_hides_no_other_one(port: int) -> None:
    made_ms = MADE_MS + 3
    publish(report(made_ms), PAGE, [there(port)], KEYS, SystemClock())
    with answering(401, b"{}") as other:
        assert made_ms in times_of(f"127.0.0.1:{other}", f"127.0.0.1:{port}")


def test_a_report_that_no_node_takes_is_not_sent() -> None:
    with answering(201, b"{}") as other:
        large = report(notes=["x" * REPORT_BYTES_MAX])
        [problem] = publish(large, PAGE, [there(other)], KEYS, SystemClock())
    assert problem.startswith("no node takes the report: it has 8")
