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

from delayd.node.export.manifest import (
    KILLS,
    SEGMENTS,
    Manifest,
    kill_lines,
    segment_lines,
    write_manifest,
)
from delayd.node.replica.replica import Replica
from delayd.wheel.layout import HOUR_SLOTS
from delayd.wheel.storage import Wheel
from replication.rank import slot_of

SEGMENTS_PER_HOLD = 64
"""Each may have a tail to be written out: about 50 us with a new file."""


def freeze(replica: Replica, folder: Path, manifest: Manifest, pause: Callable[[], None]) -> int:
    """Write the folder; return the number of frames in the slots and hours that it names.

    The node has ingested up to the cut, which is pinned. `pause` is called between holds of the
    lock, and ends the export by raising. Raises DiskError and OSError.
    """
    wheel, lock = replica.wheel, replica.changed
    write_manifest(folder, manifest)
    lowest = manifest.record.frontier.lowest_cursor
    while not _hold_splits(replica):
        replica.split_some(now_ms=0)
        pause()
    # Below this slot all offsets below O are done; what is not is a late arrival, beyond the cut.
    with lock:
        names = segments_from(wheel, slot_of(lowest.due_ms))
    frames = 0
    with (folder / SEGMENTS).open("wb") as file:
        for at in range(0, len(names), SEGMENTS_PER_HOLD):
            with lock:
                frozen = wheel.freeze(names[at : at + SEGMENTS_PER_HOLD])
            frames += sum(line.info.count for line in frozen)
            file.write(segment_lines(frozen))
            pause()
    with lock:
        runs = wheel.ids.kill_lines(lowest.due_ms)
    with (folder / KILLS).open("wb") as file, closing(runs):
        for run in runs:
            file.write(kill_lines(run))
            pause()
    return frames


def _hold_splits(replica: Replica) -> bool:
    """Move no frame from an hour's file to its slot until the export has ended; False while a split
    that has begun must be finished first."""
    with replica.changed:
        return replica.wheel.hold_splits()


def segments_from(wheel: Wheel, slot: int) -> list[tuple[bool, int]]:
    """Return the slots from this one on that hold anything now, and the hours that lie in files of
    their own: is it an hour, and its number. By time; an hour comes before its slots."""
    hours = [(True, hour) for hour in wheel.hours()]
    slots = [(False, number) for number in wheel.slots(slot)]
    return sorted(hours + slots, key=lambda name: name[1] * HOUR_SLOTS if name[0] else name[1])
