"""What a node takes that rebuilds its wheel: inodes, disk, memory, rate.

    python tests/rebuild_figures.py --days 41 --rate 10 --pending 100000

It replays so many days of a buffer into a replica in an empty folder, made as fast as they are
read. All was delivered but the messages that are pending, whose due times lie in the 30 days to
come. Those that were delivered had been delayed by a minute. One record in ten has an id. Prints
JSON; its figures are of this process, without Kafka.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

sys.path[:0] = [str(Path(__file__).parents[1])]

from delayd.bus import Headers, Record  # noqa: E402 - it is found only now
from delayd.bus.memory import MemoryBus, MemoryKafka  # noqa: E402
from delayd.cluster.frontier_log import SeenFrontier  # noqa: E402
from delayd.cluster.topics import create_topics, load_settings  # noqa: E402
from delayd.node.replica.ingest_loop import BATCH_RECORDS_MAX  # noqa: E402
from delayd.node.replica.replica import Replica  # noqa: E402
from delayd.runtime.clock import SystemClock  # noqa: E402
from delayd.wheel.storage import Wheel  # noqa: E402
from replication.rank import Rank  # noqa: E402
from replication.settings import DAY_MS  # noqa: E402

KEY = "the key of a cluster that is measured"
DELAY_MS = 60_000
AHEAD_MS = 30 * DAY_MS
ID_EVERY = 10
VALUE = b"v" * 300
CHECKPOINT_S = 1.0
LOOK_S = 10.0
MIB = 2**20


class Log:
    """The buffer's one partition. The records that are pending are spread over the last days,
    so that none is due later than a request may ask for."""

    def __init__(self, end_ms: int, days: float, rate: float, pending: int) -> None:
        self.count = int(days * 86_400 * rate)
        self.step_ms = 1000 / rate
        """Of log time, from record to record."""
        self._begin_ms = end_ms - int(self.count * self.step_ms)
        self._end_ms = end_ms
        recent = min(self.count, int(10 * 86_400 * rate))
        self._first_recent = self.count - recent
        self._pending_every = max(1, recent // pending) if pending else self.count + 1
        self._chance = Random(1)

    def batches(self) -> Iterator[list[Record]]:
        """Yield all records."""
        target = ("delayd-topic", b"orders")
        delay = ("delayd-delay", b"%dms" % DELAY_MS)
        for first in range(0, self.count, BATCH_RECORDS_MAX):
            batch = []
            for offset in range(first, min(self.count, first + BATCH_RECORDS_MAX)):
                when, key = delay, None
                if offset >= self._first_recent and offset % self._pending_every == 0:
                    due_ms = self._end_ms + 60_000 + self._chance.randrange(AHEAD_MS)
                    when = ("delayd-due", b"%d" % due_ms)
                headers: Headers = [target, when, ("trace", b"0123456789abcdef")]
                if offset % ID_EVERY == 0:
                    key = b"order-%016x" % (offset * 0x9E3779B97F4A7C15 % 2**64)
                    headers.append(("delayd-id", key))
                append_ms = self._begin_ms + int(offset * self.step_ms)
                batch.append(Record(0, offset, 0, append_ms, key, VALUE, headers))
            yield batch


def taken(folder: Path) -> tuple[int, int]:
    """Return inodes and bytes of a folder; files may vanish meanwhile."""
    inodes = size = 0
    for path in folder.rglob("*"):
        try:
            size += path.lstat().st_blocks * 512
            inodes += 1
        except FileNotFoundError:
            continue
    return inodes, size


def main() -> None:
    """Print the figures."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--days", type=float, default=41)
    asked.add_argument("--rate", type=float, default=100, help="records a second, then")
    asked.add_argument("--pending", type=int, default=1_000_000)
    asked.add_argument("--stop-s", type=float, default=10**6, help="stop after so many seconds")
    asked.add_argument("--directory", type=Path, help="on the disk to be measured")
    chosen = asked.parse_args()
    clock = SystemClock()
    bus = MemoryBus(MemoryKafka(clock), clock=clock)
    settings = create_topics(bus, cluster="c", cluster_key=KEY, partitions=1)
    log = Log(clock.wall_ms(), chosen.days, chosen.rate, chosen.pending)
    with tempfile.TemporaryDirectory(prefix="delayd-rebuild-", dir=chosen.directory) as name:
        folder = Path(name)
        replica = Replica(
            Wheel.open(folder, partitions=1),
            settings,
            proof_key=KEY.encode(),
            export_hold_ms=900_000,
            disk_free_min_bytes=0,
        )
        first = load_settings(bus, "c", "delayd-", 1000)
        now_ms = clock.wall_ms()
        frontier = replace(
            first.record.frontier,
            cursors=(Rank(now_ms, 0, 0),) * settings.lanes,
            offsets=(log.count,),
            step=9,
            term=1,
        )
        replica.observe(SeenFrontier(replace(first.record, frontier=frontier), 9, now_ms))
        print(json.dumps(replay(replica, log, folder, clock, chosen.stop_s), indent=2))
        replica.close()


def replay(
    replica: Replica, log: Log, folder: Path, clock: SystemClock, stop_s: float
) -> dict[str, float]:
    """Replay the log as the ingest thread does, and return what it took."""
    started = checkpointed = looked = time.perf_counter()
    looking_s, inodes_max, bytes_max, read = 0.0, 0, 0, 0
    for batch in log.batches():
        replica.take(batch)
        read += len(batch)
        replica.split_some(clock.wall_ms())
        now = time.perf_counter()
        if now - checkpointed >= CHECKPOINT_S:
            replica.checkpoint((read,))
            checkpointed = now
        if now - looked >= LOOK_S:
            inodes, size = taken(folder)
            inodes_max, bytes_max = max(inodes_max, inodes), max(bytes_max, size)
            looked = time.perf_counter()
            looking_s += looked - now
        if now - started > stop_s:
            break
    replica.checkpoint((read,))
    replica.checkpoint((read,))
    seconds = time.perf_counter() - started - looking_s
    inodes, size = taken(folder)
    return {
        "records": read,
        "days": round(read * log.step_ms / DAY_MS, 2),
        "pending": replica.pending().total,
        "records_per_s": round(read / seconds),
        "seconds": round(seconds, 1),
        "inodes": inodes,
        "inodes_max": max(inodes_max, inodes),
        "mib": round(size / MIB, 1),
        "mib_max": round(max(bytes_max, size) / MIB, 1),
        "frame_mib": round(replica.wheel.stats().bytes / MIB, 1),
        "ids": sum(map(len, replica.wheel.ids._layers.lines(b"i", b"i"))),
        "memory_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


if __name__ == "__main__":
    main()
