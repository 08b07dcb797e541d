"""`POST /export` as a client meets it: every status code, and a stream that is complete or broken.

Source: docs/reference/http.md, "Export".
"""

import asyncio
import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from exporting_node import BEGIN_MS, ExportingNode, cut, left_in, schedule
from one_node import wait_for

from delayd.cluster.frontier_log import SeenFrontier
from delayd.dev.ports import pick_ports
from delayd.node.export.exporter import Export
from delayd.node.monitoring.exporting import BODY_BYTES_MAX
from delayd.node.monitoring.http import AdminServer, build_app
from delayd.node.replica.forgetting import forget_covered
from replication.rank import Rank
from replication.record import encode

AT = cut(4, (40, 0), cursor_ms=BEGIN_MS + 1_000)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ExportingNode]:
    made = ExportingNode(tmp_path, free_min_bytes=1_000)
    made.take(*[schedule(n, BEGIN_MS + 250 * n) for n in range(40)])
    yield made
    made.close()


@pytest.fixture
def client(node: ExportingNode) -> Iterator[httpx.Client]:
    """A client of the real server."""
    with serving(node) as made:
        yield made


@contextmanager
def serving(node: ExportingNode, token: str | None = None) -> Iterator[httpx.Client]:
    """The real server of a node, with that export_token."""
    (port,) = pick_ports(1)
    view: Any = SimpleNamespace(begin_export=node.exporter.begin)  # nothing else is asked
    server = AdminServer(build_app(view, token), "127.0.0.1", port)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started and thread.is_alive():
        threading.Event().wait(0.005)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as made:
            yield made
    finally:
        server.should_exit = True
        thread.join(10)


def asked(seen: SeenFrontier = AT, **more: Any) -> dict[str, Any]:
    return {"frontier": json.loads(encode(seen.record)), "wait_ms": 0, **more}


def problem(answer: httpx.Response, status: int) -> str:
    """The problem that a refusal names."""
    assert answer.status_code == status, answer.text
    return str(answer.json()["problem"])


def test_the_file_comes_whole(client: httpx.Client, node: ExportingNode) -> None:
    answer = client.post("/export", json=asked())
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/vnd.apache.parquet"
    assert int(answer.headers["content-length"]) == len(answer.content)
    file = pq.ParquetFile(io.BytesIO(answer.content))
    assert file.metadata.num_rows == 36
    assert file.metadata.metadata[b"delayd.step"] == b"4"
    assert left_in(node.folder) == []
    assert client.post("/export", json=asked()).content == answer.content


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no JSON object"),
        (b"[" * 100_000, "no JSON object"),
        (b"[]", "a request is"),
        (b'{"wait_ms": 1}', "a request is"),
        (b'{"frontier": 1, "wait_ms": -1}', "wait_ms"),
        (b'{"frontier": 1, "wait_ms": 1.5}', "wait_ms"),
        (b'{"frontier": 1, "wait_ms": true}', "wait_ms"),
        (b'{"frontier": 1, "wait_ms": 600001}', "wait_ms"),
        (b'{"frontier": {}}', "frontier: "),
        (b'{"frontier": {"format": 99}}', "unknown frontier format 99"),
        (b" " * (BODY_BYTES_MAX + 1), "at most"),
    ],
)
def test_what_is_no_request_is_400(
    client: httpx.Client, node: ExportingNode, body: bytes, said: str
) -> None:
    assert said in problem(client.post("/export", content=body), 400)
    node.exporter.begin().close()


TOKEN = "sixteen-letters-or-more"


@pytest.mark.parametrize(
    "shown",
    [None, "", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}!", f"Bearer {TOKEN[:-1]}", "Bearer"],
)
def test_who_does_not_show_the_token_gets_no_export(node: ExportingNode, shown: str | None) -> None:
    headers = {} if shown is None else {"authorization": shown}
    with serving(node, TOKEN) as client:
        answer = client.post("/export", json=asked(), headers=headers)
        assert "DELAYD_EXPORT_TOKEN" in problem(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.text
    node.exporter.begin().close()  # none is under way


def test_who_shows_it_gets_one(node: ExportingNode) -> None:
    with serving(node, TOKEN) as client:
        answer = client.post("/export", json=asked(), headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200 and answer.content.startswith(b"PAR1")


@pytest.mark.parametrize("number", [-1, 2**63])
def test_a_number_that_no_log_has_is_400(client: httpx.Client, number: int) -> None:
    for odd in (cut(1, (number, 0)), cut(1, (0, 0), cursors={2: Rank(number, 0, 0)})):
        assert "out of its bounds" in problem(client.post("/export", json=asked(odd)), 400)


def test_a_cut_that_is_too_old_is_409_with_the_oldest_step(
    client: httpx.Client, node: ExportingNode
) -> None:
    node.see(AT)
    forget_covered(node.replica.wheel, node.replica.retention, 0)
    answer = client.post("/export", json=asked(cut(1, (40, 0))))
    assert "older than what this node still has" in problem(answer, 409)
    assert answer.json()["oldest_step"] == 4


def test_a_node_that_is_behind_is_503(client: httpx.Client) -> None:
    said = problem(client.post("/export", json=asked(cut(1, (41, 0)), wait_ms=30)), 503)
    assert "has ingested up to [40, 0], not to the cut's [41, 0], within 30 ms" in said


def test_a_second_export_is_503(client: httpx.Client, node: ExportingNode) -> None:
    running = node.exporter.begin()
    assert problem(client.post("/export", json=asked()), 503) == "an export is running"
    running.close()


def test_an_export_that_takes_too_long_is_503_and_says_why(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.node.export.exporter.EXPORT_S_MAX", 0.1)
    answer = client.post("/export", json=asked(cut(1, (41, 0)), wait_ms=60_000))
    assert problem(answer, 503).startswith("the export was ended after 0.1 s")
    assert answer.json()["reason"] == "too-long"


def test_too_little_room_is_507(client: httpx.Client, node: ExportingNode) -> None:
    node.disk.free = 1_001
    assert "bytes are free" in problem(client.post("/export", json=asked()), 507)


def test_damage_is_500_with_slot_and_bytes(client: httpx.Client, node: ExportingNode) -> None:
    node.replica.checkpoint()
    slot = BEGIN_MS // 1000 + 3
    file = node.folder / "slots" / str(slot // 3600) / f"{slot}.0"
    file.write_bytes(file.read_bytes()[:-1])
    said = problem(client.post("/export", json=asked()), 500)
    assert said.startswith(f"slot {slot}: the frame at bytes ")


def test_a_stream_that_is_broken_off_is_told_by_its_length(
    client: httpx.Client, node: ExportingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.node.monitoring.exporting.CHUNK_BYTES", 100)
    read = Export.read

    def short(export: Export, size_bytes: int, position: int) -> bytes:
        if position >= 300:
            node.disk.free = 0
            node.exporter.make_room()
        return read(export, size_bytes, position)

    monkeypatch.setattr(Export, "read", short)
    with pytest.raises(httpx.RemoteProtocolError, match="received 300 bytes, expected"):
        client.post("/export", json=asked())
    node.exporter.begin().close()


def test_a_client_that_goes_away_ends_its_export(client: httpx.Client, node: ExportingNode) -> None:
    """It would have waited for ten minutes."""
    body = json.dumps(asked(cut(1, (41, 0)), wait_ms=600_000)).encode()
    with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as leaving:
        leaving.sendall(
            b"POST /export HTTP/1.1\r\nhost: n\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        leaving.sendall(body)
        wait_for(lambda: node.replica.retention._pinned is not None)  # the export waits
    wait_for(lambda: node.replica.retention._pinned is None)  # the export is ended
    wait_for(lambda: node.exporter._current is None)  # the next one may begin
