"""A running node's last checkpoint, held so that others read it: peers, and comparisons."""

from delayd.node.replica.replica import Replica
from delayd.wheel.snapshot import Snapshot


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
