"""Nodes that answer oddly are named with their reason; none of them stops an audit."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cluster_settings import SETTINGS
from exporting_node import BEGIN_MS, cut

from delayd.audit.cut import Export, Exporting, NodeAddress
from delayd.audit.spans import Span
from delayd.audit.table_loader import up_to_the_cut
from delayd.cluster.frontier_log import SeenFrontier, joint_seen
from replication.record import FrontierRecord, StepCounts
from replication.shards import first_of_shard

AT = cut(4, (40, 0), cursor_ms=BEGIN_MS + 1_000)
Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """A node that is alive, and answers like this when it is asked for an export: its address."""

    class Node(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/livez"
            said(self, 200, b"{}")

        def do_POST(self) -> None:
            assert self.path == "/export"
            self.rfile.read(int(self.headers["content-length"]))
            answer(self)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Node) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def said(node: BaseHTTPRequestHandler, status: int, body: bytes, length: int | None = None) -> None:
    node.send_response(status)
    node.send_header("content-length", str(len(body) if length is None else length))
    node.end_headers()
    node.wfile.write(body)


def refused(reason: str) -> Answer:
    body = json.dumps({"problem": f"it is {reason}", "reason": reason}).encode()
    return lambda node: said(node, 503, body)


def exported(admin: str | None, folder: Path) -> Export:
    with Exporting(AT, [NodeAddress("n", admin)], folder) as exporting:
        [export] = exporting.finish().exports
    assert (export.file is None) == (export.problem is not None)
    assert export.file is not None or list(folder.iterdir()) == []
    return export


@pytest.mark.parametrize("token", [None, "sixteen-letters-or-more"])
def test_a_token_is_shown_if_there_is_one(tmp_path: Path, token: str | None) -> None:
    shown: list[str | None] = []

    def answer(node: BaseHTTPRequestHandler) -> None:
        shown.append(node.headers["authorization"])
        said(node, 200, b"rows")

    with (
        answering(answer) as admin,
        Exporting(AT, [NodeAddress("n", admin)], tmp_path, token) as exporting,
    ):
        assert exporting.finish().exports[0].problem is None
    assert shown == [None if token is None else f"Bearer {token}"]


def test_a_node_that_is_busy_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.audit.cut.BUSY_RETRY_S", 0.01)
    answers: Iterator[Answer] = iter(
        [refused("busy"), refused("busy"), lambda node: said(node, 200, b"rows")]
    )
    with answering(lambda node: next(answers)(node)) as admin:
        export = exported(admin, tmp_path)
    assert export.file is not None
    assert export.file.read_bytes() == b"rows"


def test_a_node_that_is_busy_for_too_long_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.audit.cut.BUSY_WAIT_MS", -1)
    with answering(refused("busy")) as admin:
        assert exported(admin, tmp_path).problem == "no export: it is busy"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (refused("not-reached"), "it is not-reached"),
        (lambda node: said(node, 500, b"<html>"), "status 500"),
        (lambda node: said(node, 200, b"half", length=8), "broke off 4 bytes before the end"),
        (lambda node: node.wfile.write(b"\x15\x03\x01\x00\x02\x02\x46"), "BadStatusLine"),
        (lambda node: None, "RemoteDisconnected"),
    ],
)
def test_a_node_that_answers_oddly_is_named(tmp_path: Path, answer: Answer, problem: str) -> None:
    with answering(answer) as admin:
        assert problem in str(exported(admin, tmp_path).problem)


def test_a_node_that_takes_connections_and_never_answers_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.audit.cut.ALIVE_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "timed out" in str(exported(f"127.0.0.1:{port}", tmp_path).problem)


@pytest.mark.parametrize("admin", [None, "127.0.0.1:1", "no host:name", "host:1\n", ""])
def test_a_node_that_is_not_there_is_named(tmp_path: Path, admin: str | None) -> None:
    assert exported(admin, tmp_path).problem


def test_no_proxy_comes_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with answering(lambda node: said(node, 200, b"rows")) as admin:
        assert exported(admin, tmp_path).problem is None


def test_what_fails_meanwhile_does_not_wait_for_nodes(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = NodeAddress("n", f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(KeyError), Exporting(AT, [address], tmp_path):
            raise KeyError
        assert all(
            thread.daemon for thread in threading.enumerate() if thread.name.startswith("export")
        )


def test_of_each_shard_the_frontier_is_read_up_to_its_own_cut() -> None:
    """docs/design/audit.md, Shards. What a topic has besides is no shard's."""
    settings = replace(SETTINGS, partitions=2, shards=2)
    records = [
        FrontierRecord(
            first_of_shard(shard, 2, 2, settings.lanes), "n/1", 7, StepCounts(), 0, settings
        )
        for shard in range(2)
    ]
    seen = joint_seen([SeenFrontier(records[0], 1, 7), SeenFrontier(records[1], 4, 5)])
    span = Span("frontier", (0, 2, 0), (9, 6, 5))
    assert up_to_the_cut(span, seen) == replace(span, starts=(0, 2, 0), ends=(2, 5, 0))
    alone = replace(span, starts=(0,), ends=(9,))
    assert up_to_the_cut(alone, seen.parts[0]) == replace(alone, ends=(2,))
