"""The native path of ingest for what an id decides: rows that C has read go through the rules.

C has read schedules and cancels, made the frames of schedules and the digests of those with an id
(`native/rows.h`). What becomes of a record is decided here, by the rules of `replication.ingest`
and in the order of the records, as `IngestBatch.add` decides it:

1. a schedule without an id, and one under an id of which nothing is remembered, is stored: its
   frame is the one that C made;
2. a cancel goes to `IngestBatch.add`, which looks at nothing of its record but its place;
3. of anything else a `Record` is made, and parsed.

Invariant: the batch is what `IngestBatch.add` makes of the same records
(`tests/unit/node/replica/test_flat_ingest.py`).
"""

from typing import Any, Final

from delayd.bus import Record
from delayd.bus.flat import record_at
from delayd.node.replica.ingest_batch import IngestBatch
from delayd.node.replica.switching import switched
from delayd.node.replica.told import Rejected
from delayd.request import Op, Reject, Request, RequestLimits, parse
from delayd.runtime.native.rows import (
    APPEND_MS,
    CANCEL,
    EPOCH,
    ID,
    ID_BYTES,
    KEYED,
    KIND,
    OFFSET,
    OTHER,
    PARTITION,
    PLAIN,
    RECORD,
    Row,
    Rows,
)
from delayd.wheel import FrameKind
from delayd.wheel.frame import PackedFrame
from replication.ingest import LogState, first_of_id
from replication.log_time import log_time_after
from replication.rank import Rank

_MESSAGE: Final = int(FrameKind.MESSAGE)
# See `delayd.request.parser`: members of enums and named tuples, without what they cost.
_CANCEL_OP: Final = Op.CANCEL
_made: Final = tuple.__new__
_NOTHING_MORE: Final = (b"", "", 0, None, None, None, None, (), False)


class RowPiece:
    """Rows that are ingested together: all that C has read, or those up to the first switch, which
    rules what is behind it. See `Piece`."""

    def __init__(self, source: Rows, limits: RequestLimits) -> None:
        """`limits` rule these rows."""
        self._source = source
        self._read_by = limits
        self.limits = limits
        self.end = source.end
        """Where the last one's record ends, in the source's data."""
        self._keys: list[tuple[int, bytes] | None] = []
        """Of each row its partition and the name of its id's state."""
        self._others = dict[int, tuple[Record, Request | Reject]]()
        """What Python had to read, by place."""
        data, begin = source.data, source.begin
        for place, row in enumerate(source.rows):
            kind, key = row[KIND], None
            if kind in (KEYED, CANCEL):
                at = begin + row[ID]
                key = row[PARTITION], b"i" + data[at : at + row[ID_BYTES]]
            self._keys.append(key)
            if kind == OTHER:
                record, end = record_at(data, begin + row[RECORD])
                asked = parse(record, limits)
                self._others[place] = record, asked
                if isinstance(asked, Request) and asked.switch is not None:
                    self.limits, self.end = switched(limits, record, asked.switch), end
                    break
        self.count = len(self._keys)
        self._rows = source.rows[: self.count]

    @property
    def epochs(self) -> dict[int, int]:
        """Return the leader epoch of the last record, by partition."""
        return {row[PARTITION]: row[EPOCH] for row in self._rows}

    @property
    def rejected(self) -> list[Rejected]:
        """Return what gets a dead letter."""
        return [
            Rejected(record.partition, record.offset, outcome)
            for record, outcome in self._others.values()
            if isinstance(outcome, Reject)
        ]

    def add_to(self, batch: IngestBatch) -> None:
        """Apply the rules to the records, in their order."""
        topics, frames = self._source.topics, self._source.frames
        states, covered, keep = batch.states, batch.covered, batch.frames.append
        stores_first, is_first, note_first = batch.stores_first, batch.is_first, batch.note_first
        batch.recall_each([key for key in self._keys if key is not None])
        running, next_offset, log_ms, leap_ms, trail_ms = -1, 0, 0, 0, 0
        for place, (row, key) in enumerate(zip(self._rows, self._keys, strict=True)):
            (
                offset,
                append_ms,
                due_ms,
                kind,
                partition,
                _,
                lane,
                topic,
                *_,
                at,
                size,
                crc,
                digest,
            ) = row
            if kind != PLAIN and (
                kind != KEYED or key is None or not stores_first or not is_first(key)
            ):
                if running >= 0:
                    states[running] = LogState(next_offset, log_ms, leap_ms)
                    running = -1
                batch.add(*self._read(place))
                continue
            if partition != running:
                if running >= 0:
                    states[running] = LogState(next_offset, log_ms, leap_ms)
                running = partition
                next_offset, log_ms, leap_ms = states[partition]
                trail_ms = batch.trail_ms(partition, offset)  # a barrier would end the piece
            assert offset >= next_offset, (
                f"partition {partition}: offset {offset} came after {next_offset - 1}"
            )
            next_offset = offset + 1
            if leap_ms or append_ms - trail_ms > log_ms:
                log_ms, leap_ms = log_time_after(log_ms, leap_ms, append_ms, trail_ms)
            if key is not None:
                note_first(key, first_of_id(due_ms, offset, lane, digest), offset, topics[topic])
            if covered is None or not covered.covers(lane, Rank(due_ms, partition, offset)):
                data = bytes(frames[at : at + size])
                frame = (due_ms, partition, offset, lane, _MESSAGE, append_ms, topics[topic])
                keep(_made(PackedFrame, (*frame, data, crc)))
        if running >= 0:
            states[running] = LogState(next_offset, log_ms, leap_ms)

    def _read(self, place: int) -> tuple[Record, Request | Reject]:
        """Return a record and what it asks for; of a cancel as far as the rules look at it."""
        row, key = self._rows[place], self._keys[place]
        if row[KIND] == CANCEL and key is not None:
            return _cancel_of(row, key[1])
        if key is None:
            return self._others[place]
        record, _ = record_at(self._source.data, self._source.begin + row[RECORD])
        return record, parse(record, self._read_by)


def _cancel_of(row: Row, name: bytes) -> tuple[Record, Request]:
    place = row[PARTITION], row[OFFSET], row[EPOCH], row[APPEND_MS]
    request: tuple[Any, ...] = (
        _CANCEL_OP,
        None,
        0,
        0,
        None,
        None,
        [],
        None,
        name[1:].decode(),
        *_NOTHING_MORE,
    )
    return _made(Record, (*place, None, None, [])), _made(Request, request)
