"""The frontier topic of a cluster, all its shards as one log. For commands, which wait until every
master has passed what they wrote; a node follows each shard by itself.

Used by one thread. Source: docs/design/shards.md, "The joint frontier".
"""

from delayd.bus import Bus
from delayd.cluster.frontier_log import FrontierLog, SeenFrontier, joint_seen
from replication.settings import Settings


class JointLog:
    """Reads the newest frontier of each shard."""

    def __init__(self, bus: Bus, settings: Settings) -> None:
        name = settings.frontier.name
        self._logs = [FrontierLog(bus, name, shard) for shard in range(settings.shards)]

    def open(self, timeout_ms: int) -> None:
        """Find the last record of each shard, and continue from there."""
        for log in self._logs:
            log.open(timeout_ms)

    @property
    def newest(self) -> SeenFrontier | None:
        """The newest joint frontier read so far; None while that of a shard is not known."""
        newest = [log.newest for log in self._logs if log.newest is not None]
        return joint_seen(newest) if len(newest) == len(self._logs) else None

    def poll(self, timeout_ms: int) -> None:
        """Read what has come since, of each shard."""
        for log in self._logs:
            log.poll(timeout_ms // len(self._logs))

    def close(self) -> None:
        """Release the connections."""
        for log in self._logs:
            log.close()
