"""`delayd bench ids`: what records about ids cost a node that takes them in, without brokers.

A wheel is filled with ids that are pending. Then copies of it take the same records, in Python and,
where the native library runs, natively: plain schedules, schedules under new ids, cancels of ids
that were written long before, and these cancels again, with a checkpoint after every 100,000
records. A figure is processor time of the whole process for a record: checkpoints and LevelDB's
thread are in it; reading from a broker, which `ingest` measures, is not. What the records left
behind is counted.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from delayd.bench.figures import Figure, Measured
from delayd.bench.load import USER_HEADERS, VALUE_BYTES
from delayd.bench.process_costs import cpu_s
from delayd.bus import Headers, Record
from delayd.bus.flat import FlatRecords, flattened
from delayd.bus.murmur2 import partition_of
from delayd.node.replica.replica import Replica
from delayd.runtime import native
from delayd.runtime.clock import SystemClock
from delayd.runtime.native.flat import Surveyor
from delayd.wheel.storage import Wheel
from replication.settings import DAY_MS, RULES_VERSION, Settings, Topic

PARTITIONS: Final = 8
BATCH: Final = 1_000
"""As many records as a node reads at once, of each partition its part."""
CHECKPOINT_RECORDS: Final = 100_000
"""What a node takes in a second, and so between two checkpoints."""
LEAD_MS: Final = 5 * DAY_MS
SPREAD_MS: Final = 3_600_000
RECORDS_PER_MS: Final = 200
SCATTER: Final = 2_654_435_761
"""Prime to 2**48: the numbers in ids are all over, as those of random ids."""
SETTINGS: Final = Settings(
    cluster="bench",
    partitions=PARTITIONS,
    lanes=64,
    max_delay_ms=40 * DAY_MS,
    record_bytes_max=983_052,
    id_memory_ms=DAY_MS,
    rules_version=RULES_VERSION,
    prefix="delayd-",
    retry_delays_ms=(10_000,),
    receipts_written="verdicts",
    key_fingerprint="",
    buffer=Topic("delayd-buffer", "1"),
    frontier=Topic("delayd-frontier", "2"),
    receipts=Topic("delayd-receipts", "3"),
    dead=Topic("delayd-dead", "4"),
)
PLAIN, NEW, CANCEL, AGAIN = "plain", "new", "cancels", "cancels-again"

Tell = Callable[[str], None]


def bench_ids(
    messages: int, pending: int, runs: int, directory: Path | None, tell: Tell
) -> list[Figure]:
    """Return all figures: with so many messages of each kind, while so many ids are pending.
    `directory` is on the disk to be used, and made if there is none."""
    messages, pending = (max(BATCH, count - count % BATCH) for count in (messages, pending))
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    measured = Measured()
    for number in range(1, runs + 1):
        with tempfile.TemporaryDirectory(prefix="delayd-bench-ids-", dir=directory) as folder:
            tell(f"run {number}: {pending:,} ids")
            full = Path(folder) / "full"
            records = _Records(SystemClock().wall_ms())
            with closing(_open(full)) as replica:
                take(replica, list(records.batches(NEW, range(pending))))
                replica.checkpoint()
            paths = {"": None} if native.library is None else {"": None, "-native": native.library}
            for path, library in paths.items():
                tell(f"run {number}: {'natively' if path else 'in Python'}")
                copy = Path(folder) / f"copy{path}"
                shutil.copytree(full, copy)
                surveyor = None if library is None else Surveyor(library)
                _measure(measured, path, copy, records.again(), surveyor, (messages, pending))
                shutil.rmtree(copy)
    return measured.figures()


def _measure(
    measured: Measured,
    path: str,
    folder: Path,
    records: "_Records",
    surveyor: Surveyor | None,
    counts: tuple[int, int],
) -> None:
    messages, pending = counts
    cancelled = range(min(messages, pending))
    numbers = {PLAIN: range(messages), NEW: range(pending, pending + messages)}
    plain_us = 0.0
    with closing(_open(folder)) as replica:
        for kind, of in {**numbers, CANCEL: cancelled, AGAIN: cancelled}.items():
            made: list[Sequence[Record]] = [*records.batches(kind, of)]
            if surveyor is not None:
                made = [FlatRecords(surveyor, flattened(each)) for each in made]
            us = take(replica, made)
            plain_us = us if kind == PLAIN else plain_us
            against = ("", None) if kind == PLAIN else (f"ids-{PLAIN}{path}", plain_us)
            measured.add(f"ids-{kind}{path}", "us/record", us, *against)
        left = pending + 2 * messages - len(cancelled)
        measured.add(f"ids{path}-wrong", "messages", abs(replica.pending().total - left))


def take(replica: Replica, batches: Sequence[Sequence[Record]]) -> float:
    """Ingest these records; return microseconds of processor for each."""
    begun_s, count = cpu_s(), 0
    for records in batches:
        replica.take(records)
        count += len(records)
        if count % CHECKPOINT_RECORDS == 0:
            replica.checkpoint()
    replica.checkpoint()
    return (cpu_s() - begun_s) * 1_000_000 / count


def _open(folder: Path) -> Replica:
    return Replica(
        Wheel.open(folder, partitions=PARTITIONS),
        SETTINGS,
        proof_key=b"of nothing",
        export_hold_ms=0,
        disk_free_min_bytes=0,
    )


class _Records:
    """Makes records at the offsets that come next."""

    def __init__(self, append_ms: int, offsets: Sequence[int] = (0,) * PARTITIONS) -> None:
        self._append_ms = append_ms
        self._offsets = list(offsets)

    def again(self) -> "_Records":
        """Return another one that goes on from here."""
        return _Records(self._append_ms, self._offsets)

    def batches(self, kind: str, numbers: range) -> Iterator[list[Record]]:
        """Yield the records of these numbers, those of a partition together in each batch."""
        for first in numbers[::BATCH]:
            made = [self._record(kind, number) for number in range(first, first + BATCH)]
            yield sorted(made, key=lambda record: record.partition)

    def _record(self, kind: str, number: int) -> Record:
        """Return a schedule of 300 bytes with two headers of its user, or a cancel."""
        id = b"order-%016x" % (number * SCATTER % (1 << 48))
        partition = partition_of(id, PARTITIONS)
        offset = self._offsets[partition]
        self._offsets[partition] += 1
        due = b"%d" % (self._append_ms + LEAD_MS + number * 7_919 % SPREAD_MS)
        asked: Headers = [*USER_HEADERS, ("delayd-topic", b"orders"), ("delayd-due", due)]
        value: bytes | None = b"v" * VALUE_BYTES
        if kind in (CANCEL, AGAIN):
            asked, value = [("delayd-op", b"cancel")], None
        if kind != PLAIN:
            asked.append(("delayd-id", id))
        append_ms = self._append_ms + number // RECORDS_PER_MS
        return Record(partition, offset, 0, append_ms, id, value, asked)
