"""From a fetched answer to committed records: what kafka-python's own unpacking would lose.

Not here: which answers are fetched, and when.

Invariants:
- a batch that is too large when it is expanded, or damaged, is one `UnreadableBatch`, and it takes
  bounded memory to find that out;
- a record with header names that are not UTF-8 is handed out, with `UNREADABLE_HEADERS`:
  kafka-python takes it for a corrupt batch and never gets past it;
- a header name ends at its first NUL, as in the other driver;
- a position passes a tail that compaction emptied, where a partition is read alone;
- the leader epoch of a position outlives answers without records: kafka-python forgets it, and with
  it the broker's look whether the log was truncated.
"""

from collections.abc import Iterator
from typing import Any

from delayd.bus import UNREADABLE_HEADERS, Headers, Record
from delayd.bus.kafka_python.expansion import NAMES, expanded
from delayd.bus.kafka_python.library import Fetcher, decode_varint, errors
from delayd.bus.unreadable import (
    BATCH_BYTES_MAX,
    DAMAGED,
    RECORD_BYTES,
    UnreadableError,
    unreadable_batch,
)

_new = tuple.__new__
"""Building the named tuple without its Python-level `__new__` halves the cost of a record."""


class _Unpacked(Fetcher.PartitionRecords):  # type: ignore[misc]  # kafka-python has no types
    """One partition's part of an answer; `take` hands out `Record`s."""

    def _unpack_records(self, tp: Any, records: Any, *_: Any) -> Iterator[Record]:
        partition = tp.partition
        batch = records.next_batch()
        while batch is not None:
            if batch.magic < 2:
                raise errors.CorruptRecordError(
                    f"offset {batch.base_offset} has a record format older than Kafka 0.11"
                )
            if not batch.validate_crc():
                raise errors.CorruptRecordError(f"offset {batch.base_offset} fails its CRC")
            if not self._is_hidden(batch):
                self.leader_epoch = batch.leader_epoch
                for record in records_of(partition, batch):
                    self.next_fetch_offset = record.offset + 1
                    yield record
            # A batch ends where its last record was, also after compaction removed that one.
            self.leader_epoch = batch.leader_epoch
            self.next_fetch_offset = batch.next_offset
            batch = records.next_batch()
        self.drain()

    def _is_hidden(self, batch: Any) -> bool:
        """Return if it is a marker, or part of an aborted transaction."""
        if batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            if self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
            elif self._is_batch_aborted(batch):
                return True
        return bool(batch.is_control_batch)


class CommittedFetcher(Fetcher):  # type: ignore[misc]
    """kafka-python's fetcher, whose records are `Record`s."""

    PartitionRecords = _Unpacked

    def _parse_fetched_data(self, completed_fetch: Any) -> Any:
        parsed = super()._parse_fetched_data(completed_fetch)
        if parsed is None:
            return None
        place = completed_fetch.topic_partition
        position = self._subscriptions.position(place)
        parsed.leader_epoch = position.leader_epoch
        stable = completed_fetch.partition_data.last_stable_offset
        alone = len(self._subscriptions.assignment) == 1  # else its part may not have fitted
        if alone and not completed_fetch.partition_data.records and stable > position.offset:
            self._subscriptions.assignment[place].position = position._replace(offset=stable)
            return None
        return parsed


def records_of(partition: int, batch: Any) -> list[Record]:
    """Return the records of a batch, or the one that stands for all of them."""
    count = batch.records_count
    try:
        data = memoryview(batch._buffer)[batch._pos :].tobytes()
        data = expanded(batch.compression_type, data, BATCH_BYTES_MAX - count * RECORD_BYTES)
        return _laid_out(partition, batch, data)
    except (UnreadableError, IndexError, ValueError) as error:
        why = str(error) if isinstance(error, UnreadableError) else DAMAGED
        return [
            unreadable_batch(
                partition,
                batch.base_offset,
                batch.last_offset,
                batch.leader_epoch,
                batch.max_timestamp,
                count,
                NAMES.get(batch.compression_type, str(batch.compression_type)),
                why,
            )
        ]


def _laid_out(partition: int, batch: Any, data: bytes) -> list[Record]:
    """Read the layout of KIP-98: varints, then bytes. Raise UnreadableError, IndexError or
    ValueError if it is another."""
    records: list[Record] = []
    at = 0
    base_offset, epoch, first_ms = batch.base_offset, batch.leader_epoch, batch.first_timestamp
    by_broker_ms = batch.max_timestamp if batch.timestamp_type == batch.LOG_APPEND_TIME else None
    varint = decode_varint
    for _ in range(batch.records_count):
        length, at = varint(data, at)
        end = at + length
        if length < 0 or end > len(data):
            raise UnreadableError(DAMAGED)
        delta_ms, at = varint(data, at + 1)
        delta, at = varint(data, at)
        size, at = varint(data, at)
        key = None if size < 0 else data[at : at + size]
        at += max(size, 0)
        size, at = varint(data, at)
        value = None if size < 0 else data[at : at + size]
        at += max(size, 0)
        count, at = varint(data, at)
        headers: Headers = []
        if count:
            headers, at = _headers(data, at, count)
        if at != end:
            raise UnreadableError(DAMAGED)
        append_ms = first_ms + delta_ms if by_broker_ms is None else by_broker_ms
        fields = (partition, base_offset + delta, epoch, append_ms, key, value, headers)
        records.append(_new(Record, fields))
    return records


def _headers(data: bytes, at: int, count: int) -> tuple[Headers, int]:
    varint = decode_varint
    headers: Headers = []
    readable = True
    for _ in range(count):
        size, at = varint(data, at)
        name = data[at : at + size].partition(b"\0")[0]
        at += size
        size, at = varint(data, at)
        value = None if size < 0 else data[at : at + size]
        at += max(size, 0)
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError:
            readable = False
    return (headers if readable else list(UNREADABLE_HEADERS)), at
