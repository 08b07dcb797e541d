"""A running node's last checkpoint, held so that others read it: peers, and comparisons."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from delayd.node.replica.replica import Replica
from delayd.wheel.snapshot import Peek, Snapshot


def held_snapshot(replica: Replica) -> Snapshot:
    """Hold the wheel's files and open the last checkpoint; whoever calls releases both.

    Nothing is held if this raises: DiskError without a checkpoint, CorruptionError.
    """
    with replica.changed:
        replica.wheel.snapshots.hold()
    try:
        return replica.wheel.snapshots.open()
    except BaseException:
        with replica.changed:
            replica.wheel.snapshots.release()
        raise


@contextmanager
def peeked(replica: Replica) -> Iterator[Peek]:
    """Hold the wheel's files, and yield the last checkpoint, for a moment.

    Raises DiskError and CorruptionError.
    """
    with replica.changed:
        replica.wheel.snapshots.hold()
    try:
        peek = replica.wheel.snapshots.peek()
        with closing(peek.catalogue):
            yield peek
    finally:
        with replica.changed:
            replica.wheel.snapshots.release()
