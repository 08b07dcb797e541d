"""GET on a node's admin port: an answer, or None in time."""

import socket

import pytest

from delayd.cluster.admin_client import Answer, get
from delayd.dev.ports import LOOPBACK


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
