"""The native path of ingest for what an id decides: rows that C has read go through the rules.

C has read schedules and cancels, made the frames of schedules and the digests of those with an id
(`native/rows.h`). What becomes of a record is decided here, by the rules of `replication.ingest`
and in the order of the records, as `IngestBatch.add` decides it:

1. a schedule without an id, and one under an id of which nothing is remembered, is stored: its
   frame is the one that C made;
2. of a cancel the rules need its id and its place, unless a part of the log was trimmed;
3. of anything else a `Record` is made, and parsed; so of a schedule for a topic that is full.

Invariant: the batch is what `IngestBatch.add` makes of the same records
(`tests/unit/node/replica/test_flat_ingest.py`).
"""

from collections.abc import Iterator, Sequence
from typing import Final

from delayd.bus import Record
from delayd.bus.flat import record_at
from delayd.node.replica.ingest_batch import IngestBatch
from delayd.node.replica.request_rates import asked_topic
from delayd.node.replica.switching import behind
from delayd.node.replica.told import Rejected
from delayd.request import Reject, Request, RequestLimits, parse
from delayd.runtime.native.rows import (
    APPEND,
    CANCEL,
    CRC,
    DIGEST,
    EPOCH,
    FRAME,
    FRAME_BYTES,
    ID,
    ID_BYTES,
    KEYED,
    KIND,
    OTHER,
    PARTITION,
    PLAIN,
    RECORD,
    TOPIC,
    Rows,
)
from delayd.wheel import FrameKind
from delayd.wheel.frame import PackedFrame
from delayd.wheel.id_memory import First

_MESSAGE: Final = int(FrameKind.MESSAGE)
_MARKER: Final = int(FrameKind.CANCEL_MARKER)
# See `delayd.request.parser`: named tuples, without what their constructors cost.
_made: Final = tuple.__new__


class RowPiece:
    """Rows that are ingested together: all that C has read, or those up to the first record by
    which something else holds behind it (`switching.behind`). See `Piece`."""

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
            is_full = limits.full and kind in (PLAIN, KEYED) and self._is_full(row)
            if kind == OTHER or is_full:
                record, end = record_at(data, begin + row[RECORD])
                asked = parse(record, limits)
                self._others[place] = record, asked
                if isinstance(asked, Request):
                    self.limits = behind(limits, record, asked)
                    if self.limits is not limits:
                        self.end = end
                        break
        self.count = len(self._keys)
        self._rows = source.rows[: self.count]

    def _is_full(self, row: Sequence[int]) -> bool:
        """Return whether the target of a schedule is full, so that Python refuses it."""
        return self._source.topics[row[TOPIC]] in self._read_by.full.get(row[PARTITION], ())

    @property
    def epochs(self) -> dict[int, int]:
        """Return the leader epoch of the last record, by partition."""
        return {row[PARTITION]: row[EPOCH] for row in self._rows}

    def asked(self) -> Iterator[tuple[str, int]]:
        """Yield target and append time of each request that is taken."""
        topics = self._source.topics
        for place, row in enumerate(self._rows):
            if row[KIND] in (PLAIN, KEYED) and place not in self._others:
                yield topics[row[TOPIC]], row[APPEND]
        for record, outcome in self._others.values():
            if (topic := asked_topic(outcome)) is not None:
                yield topic, record.append_ms

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
        batch.recall_each([key for key in self._keys if key is not None])
        batch.add_all(self._frames(batch), self._read)

    def _frames(self, batch: IngestBatch) -> Iterator[PackedFrame | None]:
        """Yield the frame of each record, as `IngestBatch.add_all` takes it. Of an id of which
        nothing is remembered, what it yields is noted."""
        topics, frames = self._source.topics, memoryview(self._source.frames)
        stores_first, knows_past = batch.stores_first, batch.knows_past
        takes_first = batch.takes_first
        for place, (row, key) in enumerate(zip(self._rows, self._keys, strict=True)):
            offset, append_ms, due_ms, kind, partition, _, lane, topic = row[:8]
            if kind != OTHER and place in self._others:
                yield None
                continue
            if kind == CANCEL and knows_past:
                assert key is not None, "a cancel has an id"
                cancel = (append_ms, partition, offset, 0, _MARKER, append_ms, "", key[1], 0)
                yield _made(PackedFrame, cancel)
                continue
            if kind == KEYED and key is not None and stores_first:
                first = _made(First, (due_ms, offset, lane, row[DIGEST], topics[topic]))
                if not takes_first(key, first):
                    yield None
                    continue
            elif kind != PLAIN:
                yield None
                continue
            at = row[FRAME]
            data = bytes(frames[at : at + row[FRAME_BYTES]])
            frame = (due_ms, partition, offset, lane, _MESSAGE, append_ms, topics[topic], data)
            yield _made(PackedFrame, (*frame, row[CRC]))

    def _read(self, place: int) -> tuple[Record, Request | Reject]:
        """Return a record and what it asks for."""
        if place in self._others:
            return self._others[place]
        record, _ = record_at(self._source.data, self._source.begin + self._rows[place][RECORD])
        return record, parse(record, self._read_by)
