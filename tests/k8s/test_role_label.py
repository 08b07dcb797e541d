"""The sidecar of the component leader-label, against a node and an API of the test's own."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import role_label
from role_label import ROLE, SHARDS, VALUE_MAX, labels_of, set_labels, shown

from delayd.dev.ports import LOOPBACK, pick_ports


@contextmanager
def answering(
    status: int, body: bytes = b"{}"
) -> Iterator[tuple[str, list[tuple[str, str, str, bytes]]]]:
    """Serve this status to all. Yield where, and the requests: method, path, token, body."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            token = self.headers.get("Authorization", "")
            asked.append((self.command, self.path, token, self.rfile.read(length)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        do_PATCH = do_GET  # noqa: N815  # named by http.server

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer((LOOPBACK, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "role"), [(200, "master"), (503, "follower"), (500, None), (404, None)]
)
def test_the_role_is_what_the_node_says(status: int, role: str | None) -> None:
    with answering(status) as (node, asked):
        assert labels_of(node) == {ROLE: role, SHARDS: None}
    assert asked[0][:2] == ("GET", "/leader")


def test_a_master_of_several_shards_names_those_that_it_delivers() -> None:
    said = json.dumps({"master": "delayd-1", "self": True, "shards": [0, 3]}).encode()
    with answering(200, said) as (node, _):
        assert labels_of(node) == {ROLE: "master", SHARDS: "0.3"}


def test_shards_that_no_label_can_name_are_counted() -> None:
    assert shown(range(20)) == ".".join(map(str, range(20)))
    assert shown(range(64)) == "64-of-them"
    assert all(len(shown(range(n)) or "") <= VALUE_MAX for n in range(100))


def test_an_answer_that_is_none_gives_no_role() -> None:
    with answering(200, b"<html>") as (node, _):
        assert labels_of(node) == {ROLE: None, SHARDS: None}


def test_a_node_that_is_away_has_no_role() -> None:
    [port] = pick_ports(1)
    assert labels_of(f"http://{LOOPBACK}:{port}") == {ROLE: None, SHARDS: None}


@pytest.mark.parametrize("labels", [{ROLE: "master", SHARDS: "0.3"}, {ROLE: None, SHARDS: None}])
def test_the_labels_of_its_own_pod_are_set_with_the_token(
    labels: dict[str, str | None], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret\n")
    with answering(200) as (api, asked):
        set_labels(api, "ns", "delayd-1", labels, tmp_path)
    [(method, path, token, body)] = asked
    assert (method, path) == ("PATCH", "/api/v1/namespaces/ns/pods/delayd-1")
    assert token == "Bearer secret"
    assert json.loads(body) == {"metadata": {"labels": labels}}


def test_an_api_that_refuses_is_an_error_that_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    with answering(403) as (api, _), pytest.raises(OSError, match="403"):
        set_labels(api, "ns", "delayd-1", {ROLE: "master"}, tmp_path)


def test_it_ends_when_it_is_asked_to() -> None:
    """The kernel ignores a signal's default action for the first process of a container."""
    with answering(200) as (node, asked):
        port = node.rpartition(":")[2]
        environ = {"KUBERNETES_SERVICE_HOST": LOOPBACK, "KUBERNETES_SERVICE_PORT": "1"}
        environ |= {"NAMESPACE": "n", "POD": "p", "DELAYD_ADMIN_PORT": port}
        with subprocess.Popen([sys.executable, role_label.__file__], env=environ) as sidecar:
            deadline_s = time.monotonic() + 30
            while not asked and time.monotonic() < deadline_s:
                threading.Event().wait(0.01)
            sidecar.terminate()
            assert sidecar.wait(30) == 0
