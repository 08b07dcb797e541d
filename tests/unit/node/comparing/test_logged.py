"""The log's word on a message is what ingest makes of its record, byte for byte."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from comparing_nodes import comparing
from exporting_node import BEGIN_MS, PROOF_KEY, SETTINGS, cancel, continued, limits, schedule

from delayd.bus import Record
from delayd.node.comparing.logged import logged_of
from delayd.node.comparing.side import HeldFrame, OwnSide
from delayd.wheel import Frame, FrameKind
from delayd.wheel.comparing.digest_tree import Level
from delayd.wheel.frame import encode
from delayd.wheel.layout import FORMAT_VERSION, hour_of

DUE_MS = BEGIN_MS + 30_000
GOLDEN: dict[int, list[int]] = {
    5: [1410203047, 157767005, 3274172446, 1584795415, 3886017255, 675918342]
}
"""CRCs of frames, by the format of the wheel."""


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
        assert logged is not None
        frame = held.get((record.partition, record.offset))
        if frame is not None:
            assert logged.value == frame.value and logged.is_stored is not False
        elif record in (again,):
            assert logged.is_stored is None, "an id decides"
        else:
            assert logged.is_stored is False
    assert len(held) == 5
    words = [logged_of(record, limits(), SETTINGS.lanes) for record in records]
    assert [at for at, word in enumerate(words) if word and word.is_stored] == [0, 1, 2]


def test_the_log_has_no_word_on_what_a_key_that_was_taken_away_has_signed() -> None:
    """A node has stored it when the key was still there: that none may hold it would be untrue."""
    record = continued(schedule(0, DUE_MS), 5, DUE_MS + 1)
    new = replace(limits(), proof_key=b"a new key")
    both = replace(limits(), proof_key=b"a new key\n" + PROOF_KEY)
    word = logged_of(record, limits(), SETTINGS.lanes)
    assert word is not None and word.value is not None
    assert logged_of(record, both, SETTINGS.lanes) == word
    assert logged_of(record, new, SETTINGS.lanes) is None


def test_a_record_has_the_frame_that_belongs_to_the_wheel_format() -> None:
    """Frames of an earlier release are compared with what today's code makes of their records. If
    this fails, the same record has other bytes: raise FORMAT_VERSION, and note the new sums."""
    whole = schedule(
        3, DUE_MS, id="a", op="replace", value=b"\x00v", more=[("x", b"1"), ("n", None)]
    )
    records = [schedule(0, DUE_MS), whole, continued(schedule(1, DUE_MS), 5, DUE_MS + 1)]
    words = [logged_of(record, limits(), SETTINGS.lanes) for record in records]
    crcs = [word.value.crc for word in words if word and word.value]
    crcs += [
        encode(Frame(DUE_MS, 1, 7, 3, k, BEGIN_MS, ("é", b"b", None, (1,))))[1] for k in FrameKind
    ]
    assert {FORMAT_VERSION: crcs} == GOLDEN
