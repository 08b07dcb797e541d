"""GET on a node's admin port: an answer, or None in time."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from certificates import Authority, Leaf
from fastapi import FastAPI

from delayd.cluster.admin_client import Answer, get, opened, url_of
from delayd.config.security import certificate_digest
from delayd.dev.ports import LOOPBACK, pick_ports
from delayd.node.monitoring.http import AdminServer


@pytest.mark.parametrize("address", ["", "nowhere.invalid:1", "a:b:c", "[", "127.0.0.1:99999"])
def test_an_address_that_makes_no_sense_has_no_answer(address: str) -> None:
    assert get(f"http://{address}/status") is None


def test_a_frozen_node_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel accepts the connection; nobody answers. No proxy is asked instead."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with socket.create_server((LOOPBACK, 0)) as frozen:
        port = frozen.getsockname()[1]
        assert get(f"http://{LOOPBACK}:{port}/status", timeout_s=0.1) is None
        frozen.accept()[0].close()


@pytest.mark.parametrize(
    ("status", "body", "fields"),
    [
        (200, b'{"role": "master"}', {"role": "master"}),
        (200, b'["master"]', None),
        (200, b"{", None),
        (200, b"\xff", None),
        (503, b'{"role": "master"}', None),
    ],
)
def test_only_a_successful_json_object_has_fields(
    status: int, body: bytes, fields: dict[str, str] | None
) -> None:
    assert Answer(status, body).fields() == fields


@contextmanager
def speaking_tls(leaf: Leaf) -> Iterator[tuple[str, list[str]]]:
    """The address of an admin port with this certificate, and the paths that were asked for."""
    app, asked = FastAPI(), list[str]()

    @app.get("/{path:path}")
    def answer(path: str) -> dict[str, str]:
        asked.append(path)
        return {"path": path}

    [port] = pick_ports(1)
    server = AdminServer(app, LOOPBACK, port, leaf.cert, leaf.key)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        while not server.started and thread.is_alive():
            threading.Event().wait(0.005)
        yield f"{LOOPBACK}:{port}", asked
    finally:
        server.should_exit = True
        thread.join()


def test_a_node_with_tls_is_known_by_its_certificate(tmp_path: Path) -> None:
    """docs/operations.md, TLS on the admin port.

    Rules: announced-certificate
    """
    authority = Authority(tmp_path, "authority")
    own, others = authority.leaf("own"), authority.leaf("others")
    with speaking_tls(own) as (address, asked):
        announced = f"https://{certificate_digest(own.cert)}@{address}"
        answer = get(f"{url_of(announced)}/status")
        assert answer is not None and answer.fields() == {"path": "status"}
        # Of the same authority, but not the one that etcd names; then nobody that is known.
        other = f"https://{certificate_digest(others.cert)}@{address}"
        for wrong in (other, f"https://{address}", f"https://@{address}", address):
            with pytest.raises((OSError, ValueError)), opened(f"{url_of(wrong)}/status", 2):
                pass
        assert asked == ["status"], "nothing was sent to whoever is not the one"
