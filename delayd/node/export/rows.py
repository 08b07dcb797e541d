"""Rows of pending messages to a Parquet file, a row group at a time.

The columns are those of the audit's table of pending messages (delayd/audit/tables.py), without the
name of the node: that and the cut are in the file's metadata.

    delayd.format 1    delayd.node    delayd.step    delayd.count    rows in the file
"""

from array import array
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FILE_FORMAT = 1
GROUP_ROWS = 65_536
GROUP_TEXT_BYTES = 16 * 1024 * 1024
"""A row group also ends with so many bytes of ids and topics: ids may have 256."""

SCHEMA = pa.schema(
    [
        ("slot", pa.int64()),
        ("due_ms", pa.int64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("lane", pa.int32()),
        ("topic", pa.string()),
        ("append_ms", pa.int64()),
        ("id", pa.string()),
        ("digest", pa.binary()),
        ("payload_crc", pa.int64()),
    ]
)


class Rows:
    """The rows of a group not written yet, by column; filled by `segments.py`."""

    def __init__(self) -> None:
        self.slot = array("q")
        self.due_ms = array("q")
        self.partition = array("i")
        self.offset = array("q")
        self.lane = array("i")
        self.topic: list[str] = []
        self.append_ms = array("q")
        self.id: list[str | None] = []
        self.digest: list[bytes | None] = []
        self.payload_crc = array("q")
        self.text_bytes = 0

    def is_full(self) -> bool:
        """True if it is time to write the group."""
        return len(self.slot) >= GROUP_ROWS or self.text_bytes >= GROUP_TEXT_BYTES

    def table(self) -> pa.Table:
        """Return the group as it is; nothing may be added afterwards."""
        columns = [_column(getattr(self, field.name), field.type) for field in SCHEMA]
        return pa.Table.from_arrays(columns, schema=SCHEMA)


class PendingFile:
    """The file being written."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(
            path, SCHEMA, compression="zstd", compression_level=1, use_dictionary=["topic"]
        )
        self.count = 0

    def write(self, rows: Rows) -> None:
        """Append a row group."""
        if len(rows.slot):
            self._writer.write_table(rows.table(), row_group_size=len(rows.slot))
            self.count += len(rows.slot)

    def finish(self, *, node: str, step: int) -> None:
        """Write the metadata and the footer that make it a file."""
        self._writer.add_key_value_metadata(
            {
                "delayd.format": str(FILE_FORMAT),
                "delayd.node": node,
                "delayd.step": str(step),
                "delayd.count": str(self.count),
            }
        )
        self._writer.close()


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, array):
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
    return pa.array(values, kind)
