"""The cut, frozen into an export's folder: which bytes of which slots, and which messages are
killed.

It is not atomic, and need not be: once the node has ingested up to O, all that arrives has a higher
offset, a cancel marker too. So slot after slot is taken, a few under one hold of the lock, and then
the kills. Splits are held meanwhile: else a frame that moves from the file of its hour to its slot
would be taken twice or not at all.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from delayd.node.export.export_view import ExportView
from delayd.node.export.manifest import (
    Manifest,
    kill_lines,
    kills_file,
    segment_lines,
    segments_file,
    write_manifest,
)
from replication.rank import slot_of

SEGMENTS_PER_HOLD = 64
"""Each may have a tail to be written out: about 50 us with a new file."""


def freeze(view: ExportView, folder: Path, manifest: Manifest, pause: Callable[[], None]) -> int:
    """Write the folder; return the number of frames in the slots and hours that it names.

    The node has ingested up to the cut, which is pinned. `pause` is called between holds of the
    lock, and ends the export by raising. Raises DiskError and OSError.
    """
    write_manifest(folder, manifest)
    lowest = manifest.record.frontier.lowest_cursor
    while not view.hold_splits():
        view.replica.split_some(now_ms=0)
        pause()
    # Below this slot all offsets below O are done; what is not is a late arrival, beyond the cut.
    names = view.segments_from(slot_of(lowest.due_ms))
    frames = 0
    with segments_file(folder).open("wb") as file:
        for at in range(0, len(names), SEGMENTS_PER_HOLD):
            frozen = view.freeze(names[at : at + SEGMENTS_PER_HOLD])
            frames += sum(segment.count for segment in frozen)
            file.write(segment_lines(frozen))
            pause()
    with (
        kills_file(folder).open("wb") as file,
        closing(view.kill_lines(lowest.due_ms)) as runs,
    ):
        for run in runs:
            file.write(kill_lines(run))
            pause()
    return frames
