"""An export's folder, by which the node tells the writer what to read.

    DIR/manifest.json     {"format", "node", "data_dir", "frontier": the record's JSON}
    DIR/segments          a line for each slot and each hour with a file, by time:
                          is_hour:u8, then number generation start bytes count digest, u64
    DIR/kills             a line for each killed message, by rank: the catalogue's key and value
    DIR/pending.parquet   the result

Lines have one length each, so that both sides read and write them in runs, in bounded memory.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from delayd.wheel import SegmentLine, SlotInfo
from delayd.wheel.kills import KILL_KEY, KILL_VALUE_BYTES_MAX, exported_value, kill_of
from delayd.wheel.layout import SegmentName
from replication.rank import Rank
from replication.record import FrontierRecord, decode, encode

FORMAT = 2
MANIFEST, SEGMENTS, KILLS, RESULT = "manifest.json", "segments", "kills", "pending.parquet"
LINES_RUN = 4096

_SEGMENT = Struct("<?QQQQQQ")
_KILL = Struct(f">{KILL_KEY.size}sB{KILL_VALUE_BYTES_MAX}s")
_KILL_READ = Struct(f"{KILL_KEY.format}B{KILL_VALUE_BYTES_MAX}s")


@dataclass(frozen=True, slots=True)
class Manifest:
    """Whose export it is, and of which cut."""

    node: str
    data_dir: str
    record: FrontierRecord


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it; OSError if that fails."""
    fields = {
        "format": FORMAT,
        "node": manifest.node,
        "data_dir": manifest.data_dir,
        "frontier": json.loads(encode(manifest.record)),
    }
    (folder / MANIFEST).write_text(json.dumps(fields))


def read_manifest(folder: Path) -> Manifest:
    """Return what `write_manifest` wrote."""
    fields = json.loads((folder / MANIFEST).read_text())
    assert fields["format"] == FORMAT, f"a manifest of format {fields['format']}"
    record = decode(json.dumps(fields["frontier"]).encode())
    return Manifest(fields["node"], fields["data_dir"], record)


def segment_lines(segments: Sequence[SegmentLine]) -> bytes:
    """Return the lines of these segments."""
    return b"".join(
        _SEGMENT.pack(*name, start, info.bytes, info.count, info.digest)
        for name, info, start in segments
    )


def read_segments(folder: Path) -> Iterator[SegmentLine]:
    """Yield all slots and hours of the export, by time."""
    with (folder / SEGMENTS).open("rb") as file:
        while data := file.read(_SEGMENT.size * LINES_RUN):
            for *name, start, size_bytes, count, digest in _SEGMENT.iter_unpack(data):
                info = SlotInfo(count, size_bytes, digest, highest_offsets=())
                yield SegmentLine(SegmentName(*name), info, start)


def kill_lines(kills: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the lines of these kills, given as in the catalogue."""
    pack = _KILL.pack
    values = [(key, exported_value(value)) for key, value in kills]
    return b"".join([pack(key, len(value), value) for key, value in values])


def read_kills(folder: Path) -> Iterator[tuple[Rank, int]]:
    """Yield all kills by rank: the message's rank, and the offset of the cancel marker."""
    with (folder / KILLS).open("rb") as file:
        while data := file.read(_KILL_READ.size * LINES_RUN):
            for _, due_ms, partition, offset, length, value in _KILL_READ.iter_unpack(data):
                yield Rank(due_ms, partition, offset), kill_of(value[:length]).marker_offset
