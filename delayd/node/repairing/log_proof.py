"""Whether the log is enough to build this node's wheel from it.

It is if nothing was trimmed, or what was is provably done (docs/design/trimmed.md), and this node
has each cluster key that may have signed a record. A record that a trimmed one may decide is only
found on the way: then the old wheel comes back.

Not a lack: Kafka does not answer. That is raised, and whoever asks does so again.
"""

from collections.abc import Callable
from contextlib import closing

from delayd.bus import Bus
from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.key_checks import check_keys_before, unnamed_keys_lack
from delayd.errors import BufferTrimmedError, DelaydError, WrongClusterKeyError
from delayd.node.trimmed_start import provable_beginnings
from delayd.runtime.clock import Clock

LogLack = Callable[[SeenFrontier], str | None]
"""Returns why the log is not enough, given the newest frontier; None if it is. Raises DelaydError
if nobody answers."""


def log_lack_of(bus: Bus, cluster_key: str, clock: Clock, timeout_ms: int) -> LogLack:
    """Return the question of one node."""

    def log_lack(seen: SeenFrontier) -> str | None:
        settings = seen.record.settings
        try:
            with closing(bus.cluster()) as kafka:
                starts = kafka.start_offsets(settings.buffer.name, timeout_ms)
            if lack := unnamed_keys_lack(bus, settings, starts, clock, timeout_ms):
                return lack
            if any(starts.values()):
                provable_beginnings(bus, settings, starts, seen, clock, timeout_ms)
            check_keys_before(cluster_key, settings, bus, starts, clock, timeout_ms)
        except (BufferTrimmedError, WrongClusterKeyError) as error:
            return error.message
        return None

    return log_lack


def lack_now(log_lack: LogLack, newest: SeenFrontier | None) -> str | None:
    """Return why the log is not enough, or cannot be asked now."""
    try:
        return "no frontier has been read yet" if newest is None else log_lack(newest)
    except DelaydError as error:
        return error.message
