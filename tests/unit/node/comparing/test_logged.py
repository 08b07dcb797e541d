"""The log's word on a message is what ingest makes of its record, byte for byte."""

from collections.abc import Sequence
from pathlib import Path

from comparing_nodes import comparing
from exporting_node import BEGIN_MS, SETTINGS, cancel, limits, schedule

from delayd.bus import Record
from delayd.node.comparing.logged import logged_of
from delayd.node.comparing.side import HeldFrame, OwnSide
from delayd.wheel import FrameKind
from delayd.wheel.comparing.digest_tree import Level
from delayd.wheel.layout import hour_of

DUE_MS = BEGIN_MS + 30_000


def messages(folder: Path, records: Sequence[Record]) -> dict[tuple[int, int], HeldFrame]:
    """What a node stores of these, by source."""
    with comparing(folder, "a") as nodes:
        nodes.take(records)
        side = OwnSide(nodes["a"].replica, "a", nodes["a"].pace)
        side.agree([side.about.checkpoint])
        hours = {hour_of(due_ms // 1000) for due_ms in (DUE_MS, BEGIN_MS)}
        slots = side.digests(Level.SLOT, sorted(hours))
        found = [frame for hour in hours for frame in side.frames(hour, slots, 0, 1)]
        side.end()
    return {f.source[1:]: f for f in found if f.source.kind == FrameKind.MESSAGE}


def test_what_the_log_says_is_what_is_stored(tmp_path: Path) -> None:
    plain = schedule(0, DUE_MS)
    past = schedule(1, BEGIN_MS - 5)
    other = schedule(2, DUE_MS, more=[("traceparent", b"x"), ("ä", b"y"), ("n", None)])
    named = schedule(3, DUE_MS, id="a")
    replaced = schedule(4, DUE_MS + 1, id="a", op="replace")
    again = schedule(5, DUE_MS + 9, id="a")
    marker = cancel(6, "b")
    refused = schedule(7, DUE_MS)._replace(headers=[("delayd-due", b"soon")])
    records = [plain, past, other, named, replaced, again, marker, refused]
    held = messages(tmp_path, records)
    for record in records:
        logged = logged_of(record, limits(), SETTINGS.lanes)
        frame = held.get((record.partition, record.offset))
        if frame is not None:
            assert logged.value == frame.value and logged.is_stored is not False
        elif record in (again,):
            assert logged.is_stored is None, "an id decides"
        else:
            assert logged.is_stored is False
    assert len(held) == 5
    certain = [r.offset for r in records if logged_of(r, limits(), SETTINGS.lanes).is_stored]
    assert certain == [0, 1, 2]
