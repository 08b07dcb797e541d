"""What brokers delete in the course of months: retention of the buffer, compaction of the frontier.

The judge still needs what was deleted, so it is kept here.
"""

from collections import defaultdict
from collections.abc import Mapping

from delayd.bus import Record
from delayd.bus.memory import MemoryKafka
from delayd.bus.memory.log import PartitionLog

BUFFER, FRONTIER = "delayd-buffer", "delayd-frontier"


class Upkeep:
    """The log cleaner of a run."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka
        self.gone: defaultdict[tuple[str, int], list[Record]] = defaultdict(list)
        """Committed records that were deleted, by topic and partition."""

    def trim(self, below: Mapping[int, int]) -> int:
        """Delete what is older than the buffer's retention, below these offsets. Return how many
        offsets that is."""
        topic = self._kafka.topics[BUFFER]
        oldest_ms = self._kafka.clock.wall_ms() - int(topic.setting("retention.ms"))
        deleted = 0
        for log in topic.partitions:
            stop = min(log.stable_offset, below[log.number])
            offset = log.start_offset
            while offset < stop and _is_older(log, offset, oldest_ms):
                offset += 1
            records, _ = log.read(log.start_offset, 10**9)
            self.gone[BUFFER, log.number] += [r for r in records if r.offset < offset]
            deleted += offset - log.start_offset
            log.delete_before(offset)
        return deleted

    def compact(self) -> int:
        """Clean what is older than the compaction lag of the frontier topic. Return how many
        records that deleted."""
        lag_ms = int(self._kafka.topics[FRONTIER].setting("min.compaction.lag.ms"))
        oldest_ms = self._kafka.clock.wall_ms() - lag_ms
        log = self._kafka.log(FRONTIER, 0)
        before, _ = log.read(log.start_offset, 10**9)
        stop = log.start_offset
        while stop < log.stable_offset and _is_older(log, stop, oldest_ms):
            stop += 1
        log.compact(stop)
        kept = {record.offset for record in log.read(log.start_offset, 10**9)[0]}
        deleted = [record for record in before if record.offset not in kept]
        self.gone[FRONTIER, 0] += deleted
        return len(deleted)


def _is_older(log: PartitionLog, offset: int, than_ms: int) -> bool:
    record = log.entries[offset - log.start_offset].record
    return record is None or record.append_ms < than_ms
