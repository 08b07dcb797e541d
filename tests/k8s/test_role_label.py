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
from role_label import LABEL, role_of, set_label

from delayd.dev.ports import LOOPBACK, pick_ports


@contextmanager
def answering(status: int) -> Iterator[tuple[str, list[tuple[str, str, str, bytes]]]]:
    """Serve this status to all. Yield where, and the requests: method, path, token, body."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            token = self.headers.get("Authorization", "")
            asked.append((self.command, self.path, token, self.rfile.read(length)))
            self.send_response(status)
            self.end_headers()

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
        assert role_of(node) == role
    assert asked[0][:2] == ("GET", "/leader")


def test_a_node_that_is_away_has_no_role() -> None:
    [port] = pick_ports(1)
    assert role_of(f"http://{LOOPBACK}:{port}") is None


@pytest.mark.parametrize("role", ["master", None])
def test_the_label_of_its_own_pod_is_set_with_the_token(role: str | None, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with answering(200) as (api, asked):
        set_label(api, "ns", "delayd-1", role, tmp_path)
    [(method, path, token, body)] = asked
    assert (method, path) == ("PATCH", "/api/v1/namespaces/ns/pods/delayd-1")
    assert token == "Bearer secret"
    assert json.loads(body) == {"metadata": {"labels": {LABEL: role}}}


def test_an_api_that_refuses_is_an_error_that_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    with answering(403) as (api, _), pytest.raises(OSError, match="403"):
        set_label(api, "ns", "delayd-1", "master", tmp_path)


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
