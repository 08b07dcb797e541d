"""Where a defect is planted: the topics of a stopped broker, and the nodes' exports.

Invariant: whatever an operation changed can be undone as a whole.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from chaos.batches import LogRecord
from chaos.records import Logged
from defects.past import Past, Told, Victim
from defects.surgery import Change, PartitionLog, Surgeon

LATER_MS: Final = 5_000
"""What is added was written so long after everything else."""


class Expected(NamedTuple):
    """A finding that must come."""

    fault: str
    source: str | None = None
    """Of the request concerned."""
    at: str | None = None
    """`partition/offset` of the record that is wrong, where no request is concerned."""
    node: str | None = None
    says: str = ""
    """Part of the reason."""


@dataclass(slots=True)
class Operation:
    """One or many defects, planted in one go."""

    past: Past
    surgeon: Surgeon
    exports: Mapping[str, Path]
    """By node; those of `absent` count as never given."""
    kept: Path
    """Where exports are kept as they were."""
    absent: set[str]

    def log(self, row: Logged) -> PartitionLog:
        """The log that holds a record."""
        return self.surgeon.open(row.topic, row.partition)

    def change(self, row: Logged, change: Change) -> None:
        """Change a record where it is."""
        self.log(row).change(row.offset, change)

    def cut(self, row: Logged) -> LogRecord:
        """Take a record away."""
        return self.log(row).cut(row.offset)

    def record(self, row: Logged) -> LogRecord:
        """The record as it lies there."""
        return self.log(row).record(row.offset)

    def add(self, topic: str, partition: int, record: LogRecord) -> int:
        """Add a record at the end of a partition; returns its offset."""
        return self.surgeon.open(topic, partition).append(record)

    def add_again(self, row: Logged) -> None:
        """Add a copy at the end of the same partition."""
        self.add(row.topic, row.partition, self.record(row))

    def deliver(self, victim: Victim, *, topic: str, partition: int, fired_ms: int) -> None:
        """Add what would be the delivery of a message."""
        row = victim.message.record
        own = list(row.own)
        if victim.id is not None:
            own.append(("delayd-id", victim.id.encode()))
        own.append(("delayd-due", b"%d" % victim.message.due_ms))
        own.append(("delayd-fired", b"%d" % fired_ms))
        own.append(("delayd-source", victim.source.encode()))
        key = row.fields["key"].encode() if "key" in row.fields else row.key
        self.add(topic, partition, LogRecord(0, fired_ms, key, row.value, tuple(own)))

    def say(self, told: Told, **fields: Any) -> None:
        """Let a receipt say something else."""
        self.change(told.row, lambda record: saying(record, told, **fields))

    def edit(self, node: str, change: Callable[[list[dict[str, Any]]], object]) -> None:
        """Change the rows of a node's export, in place."""
        file = self.exports[node]
        kept = self.kept / file.name
        if not kept.exists():
            self.kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, kept)
        table = pq.read_table(file)
        told = pq.ParquetFile(file).metadata.metadata or {}
        told = {name: said for name, said in told.items() if name != b"ARROW:schema"}
        rows = table.to_pylist()
        change(rows)
        schema = table.schema.with_metadata(told)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)

    def undo(self) -> None:
        """Put everything back."""
        self.surgeon.undo()
        for file in self.exports.values():
            kept = self.kept / file.name
            if kept.exists():
                kept.replace(file)
        self.absent.clear()


def saying(record: LogRecord, told: Told, **fields: Any) -> LogRecord:
    """A receipt with other words."""
    value = json.dumps({**told.says, **fields}, separators=(",", ":")).encode()
    return replace(record, value=value)
