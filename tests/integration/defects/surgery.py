"""A stopped broker's partitions, changed in place: what no producer and no broker would do.

Offsets, append times, producers, transactions and their markers stay as they are; a record that is
cut out leaves a gap, as compaction leaves one. What a broker derives from a log (indexes, producer
snapshots) is removed: it makes them anew, which it would not if it had to trust them. Transactions
must be over: a broker without its snapshots does not know of open ones.

Not here: starting and stopping the broker; replicated partitions, of which the others would win.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from chaos.batches import DERIVED, LogRecord, batches_of, new_batch

Change = Callable[[LogRecord], LogRecord | None]
"""The record instead of one, with the same offset; None cuts it out."""


class PartitionLog:
    """One partition of one topic in a broker's data folder. Each change is written at once."""

    def __init__(self, folder: Path) -> None:
        assert folder.is_dir(), f"no partition in {folder}"
        self._folder = folder

    def records(self) -> list[LogRecord]:
        """All of them, of aborted transactions too; without markers."""
        return [
            record
            for segment in self._segments()
            for batch in batches_of(segment.read_bytes())
            if not batch.is_control
            for record in batch.read()
        ]

    def record(self, offset: int) -> LogRecord:
        """The record at an offset."""
        batches = batches_of(self._segment_of(offset).read_bytes())
        [batch] = [b for b in batches if b.base_offset <= offset <= b.last_offset]
        [record] = [record for record in batch.read() if record.offset == offset]
        return record

    def change(self, offset: int, change: Change) -> LogRecord:
        """Change or cut out the record at an offset; returns what it was."""
        changed: list[LogRecord] = []

        def one(record: LogRecord) -> LogRecord | None:
            if record.offset != offset:
                return record
            changed.append(record)
            return change(record)

        self._rewrite(offset, one)
        [was] = changed
        return was

    def cut(self, offset: int) -> LogRecord:
        """Take a record away."""
        return self.change(offset, lambda _: None)

    def swap(self, first: int, second: int) -> None:
        """Let two records change places; under LogAppendTime each place keeps its time."""
        ours, theirs = self.record(first), self.record(second)
        for at, other in ((first, theirs), (second, ours)):
            self.change(at, lambda was, other=other: _at_the_place_of(was, other))  # type: ignore[misc]

    def append(self, record: LogRecord) -> int:
        """Add a record of nobody's transaction at the end; returns its offset. Its time is its
        own, whoever stamped the others."""
        segment = self._segments()[-1]
        batches = list(batches_of(segment.read_bytes()))
        offset = batches[-1].last_offset + 1
        stamped = any(batch.is_append_time for batch in batches)
        batch = new_batch(offset, self._newest_epoch(), record, by_append_time=stamped)
        with segment.open("ab") as file:
            file.write(batch.to_bytes())
        self._forget_derived()
        return offset

    def rewrite_all(self) -> None:
        """Read and write everything, changing nothing: what this tool may do by itself."""
        for segment in self._segments():
            batches = list(batches_of(segment.read_bytes()))
            again = [b if b.is_control else b.with_records(b.read()) for b in batches]
            segment.write_bytes(b"".join(batch.to_bytes() for batch in again))
        self._forget_derived()

    def _newest_epoch(self) -> int:
        """Of the last leader: who finds an older one behind its beginning reads again, for there
        the log was cut off."""
        *_, newest = (self._folder / "leader-epoch-checkpoint").read_text().splitlines()
        return int(newest.split()[0])

    def _rewrite(self, offset: int, change: Change) -> None:
        """Rewrite the batch that holds an offset, and nothing else."""
        segment = self._segment_of(offset)
        batches = list(batches_of(segment.read_bytes()))
        [at] = [n for n, b in enumerate(batches) if b.base_offset <= offset <= b.last_offset]
        left = [changed for record in batches[at].read() if (changed := change(record)) is not None]
        batches[at] = batches[at].with_records(left)  # perhaps empty: it may be the log's end
        segment.write_bytes(b"".join(batch.to_bytes() for batch in batches))
        self._forget_derived()

    def _segment_of(self, offset: int) -> Path:
        return max(s for s in self._segments() if int(s.stem) <= offset)

    def _segments(self) -> Sequence[Path]:
        return sorted(self._folder.glob("*.log"))

    def _forget_derived(self) -> None:
        for pattern in DERIVED:
            for file in self._folder.glob(pattern):
                file.unlink()


class Surgeon:
    """All partitions of one broker. Remembers what they were, so that it can be undone."""

    def __init__(self, data: Path, kept: Path) -> None:
        self._data = data
        self._kept = kept

    def open(self, topic: str, partition: int) -> PartitionLog:
        """A partition, to be changed; it is copied first."""
        name = f"{topic}-{partition}"
        if not (self._kept / name).exists():
            shutil.copytree(self._data / name, self._kept / name)
        return PartitionLog(self._data / name)

    def topics(self) -> set[str]:
        """Those that have partitions which were opened."""
        opened = self._kept.iterdir() if self._kept.exists() else ()
        return {folder.name.rpartition("-")[0] for folder in opened}

    def undo(self) -> None:
        """Put back whatever was opened."""
        for kept in self._kept.iterdir() if self._kept.exists() else ():
            shutil.rmtree(self._data / kept.name)
            kept.rename(self._data / kept.name)


def _at_the_place_of(was: LogRecord, other: LogRecord) -> LogRecord:
    return replace(other, offset=was.offset, timestamp_ms=was.timestamp_ms)
