"""The cut, frozen into an export's folder: which bytes of which slots, and who was killed.

Not atomic, and it need not be: once the node has ingested up to O, whatever arrives has a higher
offset, and a mark that arrives has too. So slot after slot is taken, a few under one hold of the
lock, and the kills as of after that.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from delayd.export.manifest import (
    Manifest,
    kill_lines,
    kills_file,
    slot_lines,
    slots_file,
    write_manifest,
)
from delayd.replica import Replica
from replication.rank import slot_of

SLOTS_PER_HOLD = 64
"""Each may have a tail to be written out: about 50 us with a new file."""


def freeze(replica: Replica, folder: Path, manifest: Manifest, pause: Callable[[], None]) -> int:
    """Write the folder; the number of frames in the slots that it names.

    The node has ingested up to the cut, which is pinned. `pause` is called between holds of the
    lock, and ends the export by raising. Raises DiskError and OSError.
    """
    write_manifest(folder, manifest)
    lowest = manifest.record.frontier.lowest_cursor
    # Below this slot all offsets below O are done; what is not is a late arrival, beyond the cut.
    numbers = replica.slots_from(slot_of(lowest.due_ms))
    frames = 0
    with slots_file(folder).open("wb") as file:
        for at in range(0, len(numbers), SLOTS_PER_HOLD):
            frozen = replica.freeze(numbers[at : at + SLOTS_PER_HOLD])
            frames += sum(slot.count for slot in frozen)
            file.write(slot_lines(frozen))
            pause()
    with (
        kills_file(folder).open("wb") as file,
        closing(replica.kill_lines(lowest.due_ms)) as runs,
    ):
        for run in runs:
            file.write(kill_lines(run))
            pause()
    return frames
