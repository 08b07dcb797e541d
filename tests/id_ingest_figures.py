"""Measures ingest of new ids and of cancels, natively and in Python, in one process: no broker.

    PYTHONPATH=tests:tests/unit python tests/id_ingest_figures.py --known 1000000

Fills a wheel with ids first. Then copies of it take the same records, flat, by either path: new
ids, cancels of ids that were written long ago, and the same cancels again, with a checkpoint after
every 100,000. A figure is processor time of the whole process for a record, checkpoints and
LevelDB's own threads included. Reading from the broker is not in it.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from cluster_settings import PARTITIONS, SETTINGS
from one_node import open_replica

from delayd.bus import Headers, Record
from delayd.bus.flat import FlatRecords, flattened
from delayd.bus.murmur2 import partition_of
from delayd.node.replica.replica import Replica
from delayd.runtime import native
from delayd.runtime.gc_tuning import tune_collector
from delayd.runtime.native.flat import Surveyor
from replication.settings import DAY_MS

BATCH: Final = 1_000
CHECKPOINT_RECORDS: Final = 100_000
APPEND_MS: Final = 1_790_000_000_000
DUE_MS: Final = APPEND_MS + 5 * DAY_MS
SPREAD_MS: Final = 3_600_000
SCATTER: Final = 2_654_435_761
USER: Final[Headers] = [("tenant", b"acme-4711"), ("trace", b"0af7651916cd43dd")]


def a_record(number: int, offsets: list[int], *, is_cancel: bool) -> Record:
    """Return a schedule of 300 bytes with four headers and an id, or a cancel of it."""
    id = b"order-%016x" % (number * SCATTER % (1 << 48))
    partition = partition_of(id, PARTITIONS)
    offsets[partition] += 1
    due = b"%d" % (DUE_MS + number * 7_919 % SPREAD_MS)
    asked: Headers = [*USER, ("delayd-topic", b"orders"), ("delayd-due", due)]
    if is_cancel:
        asked = [("delayd-op", b"cancel")]
    return Record(
        partition,
        offsets[partition] - 1,
        0,
        APPEND_MS + number // 200,
        id,
        None if is_cancel else b"v" * 300,
        [*asked, ("delayd-id", id)],
    )


def batches(
    surveyor: Surveyor, numbers: range, offsets: list[int], *, is_cancel: bool = False
) -> Iterator[FlatRecords]:
    """Yield records by the thousand, each with those of one partition together."""
    for first in numbers[::BATCH]:
        records = [
            a_record(number, offsets, is_cancel=is_cancel) for number in range(first, first + BATCH)
        ]
        yield FlatRecords(surveyor, flattened(sorted(records, key=lambda r: r.partition)))


def take(replica: Replica, made: list[FlatRecords]) -> float:
    """Take these records; return microseconds of processor for each."""
    begun_s = time.process_time()
    for place, records in enumerate(made, 1):
        replica.take(records)
        if place * BATCH % CHECKPOINT_RECORDS == 0:
            replica.checkpoint()
    return (time.process_time() - begun_s) * 1e6 / (len(made) * BATCH)


def main() -> int:
    """Run as the command line says."""
    asked = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    asked.add_argument("--known", type=int, default=1_000_000)
    asked.add_argument("--records", type=int, default=200_000)
    options = asked.parse_args()
    library = native.library or native.Library(native.BUILT)
    surveyor = Surveyor(library)
    settings = replace(SETTINGS, id_memory_ms=DAY_MS)
    known, more = options.known, options.records
    loads = (
        ("new ids", range(known, known + more), False),
        ("cancels", range(more), True),
        ("cancels again", range(more), True),
    )
    tune_collector()
    with tempfile.TemporaryDirectory(prefix="id-ingest-") as folder:
        full = Path(folder) / "full"
        native.library = library
        replica = open_replica(full, settings)
        offsets = [0] * PARTITIONS
        for first in range(0, known, CHECKPOINT_RECORDS):
            some = range(first, min(known, first + CHECKPOINT_RECORDS))
            take(replica, list(batches(surveyor, some, offsets)))
        replica.checkpoint()
        replica.close()
        for path, found in (("Python", None), ("native", library)):
            native.library = found
            shutil.copytree(full, Path(folder) / path)
            replica = open_replica(Path(folder) / path, settings)
            offsets = list(replica.ingested)
            for what, numbers, is_cancel in loads:
                made = list(batches(surveyor, numbers, offsets, is_cancel=is_cancel))
                print(f"{path:<8}{what:<16}{take(replica, made):7.2f} us a record", flush=True)
            replica.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
