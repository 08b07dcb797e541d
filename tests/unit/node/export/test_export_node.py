"""Exports of one node over a real wheel and a real writer process: the exact set, at exactly a cut.

Not here: random requests (test_export_model.py), what goes wrong (test_export_failures.py), HTTP
(test_export_http.py), several nodes (tests/integration/test_export.py).
"""

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from cluster_settings import LANES
from exporting_node import (
    BEGIN_MS,
    ExportingNode,
    cancel,
    continued,
    cut,
    schedule,
    sources,
)

from delayd.bus import Headers
from delayd.node.export import rows, segments
from replication.rank import lane_of

IDS = ("a", "c")
"""Both in partition 0 of 2."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ExportingNode]:
    made = ExportingNode(tmp_path)
    yield made
    made.close()


# --- The set


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_a_mark_counts_if_it_is_below_the_cut(node: ExportingNode, checkpoints: int) -> None:
    """docs/design/frontier.md, "Verdicts": wherever the kill is kept, in memory or in LevelDB."""
    due_ms = BEGIN_MS + 9_000
    node.take(*[schedule(n, due_ms + n, id=id) for n, id in enumerate(IDS)])
    if checkpoints > 0:
        node.replica.checkpoint()
    node.take(cancel(2, "a"), schedule(3, due_ms, id="c", op="replace"))
    if checkpoints > 1:
        node.replica.checkpoint()
    assert node.pending(cut(1, (2, 0))) == [(0, 0), (0, 1)]
    assert node.pending(cut(2, (3, 0))) == [(0, 1)]
    assert node.pending(cut(3, (4, 0))) == [(0, 3)]
    at_the_first = cut(4, (4, 0), cursor_ms=due_ms)
    assert node.pending(at_the_first) == [(0, 3)], "also of the very first that is pending"


def test_a_kill_on_its_way_to_the_disk_counts(node: ExportingNode) -> None:
    """docs/design/storage.md, "Checkpoint": between begin and finish nothing is lost from sight."""
    node.take(schedule(0, BEGIN_MS + 9_000, id="a"), schedule(1, BEGIN_MS + 9_000, id="c"))
    node.take(cancel(2, "a"))
    ids = node.replica.wheel.ids
    ids.capture()
    node.take(cancel(3, "c"))
    assert [len(run) for run in node.replica.wheel.ids.kill_lines(0)] == [2]
    assert node.pending(cut(1, (4, 0))) == []
    assert node.pending(cut(2, (3, 0))) == [(0, 1)]


def test_a_continued_message_is_pending_once_and_refused_ones_never(node: ExportingNode) -> None:
    """docs/design/frontier.md, "Ingest": a continuation takes the place of what it continues.

    Rules: continuation-stored
    """
    tried = schedule(0, BEGIN_MS, id="a")
    killed = schedule(1, BEGIN_MS, id="c")
    node.take(tried, killed, cancel(2, "c"))
    node.take(continued(tried, 3, BEGIN_MS + 60_000), continued(killed, 4, BEGIN_MS + 60_000))
    passed = BEGIN_MS + 1_000
    assert node.pending(cut(1, (3, 0), cursor_ms=passed)) == []
    assert node.pending(cut(2, (5, 0), cursor_ms=passed)) == [(0, 3)]
    node.take(cancel(5, "a"))
    assert node.pending(cut(2, (5, 0), cursor_ms=passed)) == [(0, 3)]
    assert node.pending(cut(3, (6, 0), cursor_ms=passed)) == []


def test_a_slot_with_more_kills_than_fit_is_read_in_several_goes(
    node: ExportingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hot second may hold millions: the writer's memory is bounded all the same."""
    monkeypatch.setattr(segments, "KILLS_MAX", 3)
    monkeypatch.setattr(segments, "READ_BYTES", 300)
    ids = [f"id-{n}" for n in range(60)]
    asked = [schedule(n, BEGIN_MS + 5_000 + 37 * n % 900, id=id) for n, id in enumerate(ids)]
    node.take(*[record for record in asked if record.partition == 0])
    node.take(*[record for record in asked if record.partition == 1])
    cancels = [cancel(100 + n, id) for n, id in enumerate(ids) if n % 4]
    node.take(*[record for record in cancels if record.partition == 0])
    node.take(*[record for record in cancels if record.partition == 1])
    expected = sorted((r.partition, r.offset) for n, r in enumerate(asked) if n % 4 == 0)
    assert node.pending(cut(1, (200, 200))) == expected


# --- The columns


def test_a_row_says_of_a_message_what_the_log_says(node: ExportingNode) -> None:
    """docs/reference/http.md, "Export"; docs/design/audit.md, "Payload CRC"."""
    more: Headers = [("shop", b"s"), ("shop", None), ("größe", b"")]
    asked: Headers = [*more, ("delayd-partition", b"7"), ("delayd-key", b"the key")]
    node.take(
        schedule(0, BEGIN_MS + 5_250, id="a", topic="orders", more=asked, value=None),
        schedule(1, BEGIN_MS - 9_000, topic="bills", value=b"x" * 5_000),
    )
    file = node.export(cut(7, (2, 0)))
    overdue, due = file.read().to_pylist()
    value = b"x" * 5_000
    assert overdue == {
        "slot": BEGIN_MS // 1000,
        "due_ms": BEGIN_MS,
        "partition": 0,
        "offset": 1,
        "lane": lane_of("bills", LANES),
        "topic": "bills",
        "append_ms": BEGIN_MS,
        "id": None,
        "digest": None,
        "payload_crc": crc_of("bills", None, value, None),
    }
    assert due["slot"] == (BEGIN_MS + 5_250) // 1000 and due["due_ms"] == BEGIN_MS + 5_250
    assert due["id"] == "a" and len(due["digest"]) == 16
    parts = ("shop", b"s", "shop", None, "größe", b"")
    assert due["payload_crc"] == crc_of("orders", b"the key", None, *parts, "7")
    named = {name: text for name, text in file.metadata.metadata.items() if b"delayd" in name}
    assert named == {
        b"delayd.format": b"1",
        b"delayd.node": b"node-1",
        b"delayd.step": b"7",
        b"delayd.count": b"2",
    }


def crc_of(*parts: str | bytes | None) -> int:
    """The payload CRC, as its page says it."""
    data = b""
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        data += struct.pack(">i", -1) if content is None else struct.pack(">i", len(content))
        data += content or b""
    return crc32(data)


def test_the_columns_are_those_that_the_audit_reads(node: ExportingNode) -> None:
    """delayd/audit/tables.py: PENDING, without the node's name."""
    from delayd.audit.tables import PENDING

    names = {"long": "int64", "integer": "int32", "string": "string", "binary": "binary"}
    wanted = [(field.name, names[field.dataType.typeName()]) for field in PENDING.fields[1:]]
    schema = node.written_here(cut(1, (0, 0))).schema_arrow
    assert [(field.name, str(field.type)) for field in schema] == wanted


def test_row_groups_are_bounded_and_sorted_by_slot(
    node: ExportingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reads groups; the writer holds one of them in memory."""
    monkeypatch.setattr(rows, "GROUP_ROWS", 10)
    node.take(*[schedule(n, BEGIN_MS + 997 * (n * 7 % 50)) for n in range(50)])
    file = node.written_here(cut(1, (50, 0)))
    assert sources(file) == [(0, n) for n in range(50)]
    assert 4 <= file.num_row_groups <= 5
    slots_read = file.read()["slot"].to_pylist()
    assert slots_read == sorted(slots_read)


# --- Beside everything else


def test_a_node_never_loads_the_parquet_library() -> None:
    """Its memory and its threads are the writer's."""
    code = "import sys, delayd.node.node; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
