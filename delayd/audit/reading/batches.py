"""Consumed messages as Arrow batches of tables.RECORDS: columns at a time, not records.

What is done for each record is only what librdkafka's binding leaves no choice about: asking the
message for its parts. Records keep their order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema

from delayd.audit.reading.headers import (
    UNREAD,
    UNREADABLE,
    Bools,
    Flat,
    Ints,
    Judged,
    judge_headers,
)
from delayd.audit.reading.log_time import LogTimes
from delayd.audit.reading.murmur2 import murmur2_of
from delayd.audit.tables import RECORDS
from delayd.bus import Record
from delayd.bus.unreadable import UnreadableBatch

Headers: TypeAlias = list[tuple[str, bytes | None]]
Prover: TypeAlias = Callable[[int, bytes | None, bytes | None, Headers], bool]
"""A check, of partition, key, value and headers, that the last of these is the right proof of the
master's own record."""

RECORD_ALLOWANCE_BYTES: Final = 128
HEADER_ALLOWANCE_BYTES: Final = 10
"""What counts of a record besides its contents: docs/reference/requests.md, `too-large`."""

SCHEMA: Final = to_arrow_schema(RECORDS, timezone="UTC")

_APPEND_TIME: Final = 2
_WITH_RECORD_HEADERS: Final = ("buffer", "dead")
_HEADERS_TYPE: Final = SCHEMA.field("headers").type
_CONTROL_TYPE: Final = SCHEMA.field("control").type


@dataclass(frozen=True, slots=True)
class Piece:
    """The parts of some records, by column."""

    offsets: Ints
    timestamps: Ints
    is_append_time: Bools
    keys: Any
    values: Any
    names: Any
    contents: Any
    counts: Ints

    @property
    def size_bytes(self) -> int:
        """Return roughly how many bytes it takes in memory."""
        columns = (self.keys, self.values, self.names, self.contents)
        return sum(int(column.nbytes) for column in columns)


def piece_of(messages: Sequence[Message] | Sequence[Record]) -> Piece:
    """Return the parts of messages, none of which carries an error, or of records of the buffer."""
    if isinstance(messages[0], Record):
        return _piece_of_records(messages)  # type: ignore[arg-type]  # all of them are
    return _piece_of_messages(messages)  # type: ignore[arg-type]


def _piece_of_records(records: Sequence[Record]) -> Piece:
    count = len(records)
    headers: list[Headers] = [
        [(UNREAD, None)] if isinstance(record, UnreadableBatch) else record.headers
        for record in records
    ]
    every = list(chain.from_iterable(headers))
    values = [None if isinstance(each, UnreadableBatch) else each.value for each in records]
    return Piece(
        np.fromiter((record.offset for record in records), np.int64, count),
        np.fromiter((record.append_ms for record in records), np.int64, count),
        np.ones(count, np.bool_),
        pa.array([record.key for record in records], pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([name for name, _ in every], pa.utf8()),
        pa.array([content for _, content in every], pa.binary()),
        np.fromiter(map(len, headers), np.int64, count),
    )


def _piece_of_messages(messages: Sequence[Message]) -> Piece:
    count = len(messages)
    times = list(map(Message.timestamp, messages))
    headers = _headers(messages)
    every = list(chain.from_iterable(headers))
    return Piece(
        np.fromiter(map(Message.offset, messages), np.int64, count),
        np.fromiter(map(itemgetter(1), times), np.int64, count),
        np.fromiter(map(itemgetter(0), times), np.int64, count) == _APPEND_TIME,
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
        pa.array(list(map(itemgetter(0), every)), pa.utf8()),
        pa.array(list(map(itemgetter(1), every)), pa.binary()),
        np.fromiter(map(len, headers), np.int64, count),
    )


@dataclass(slots=True)
class Batches:
    """Makes the batches of one partition, in order."""

    _topic: str
    _partition: int
    _role: str
    _times: LogTimes
    _prove: Prover | None

    def batch(self, pieces: Sequence[Piece]) -> Any:
        """Return one batch of these pieces; at least one."""
        whole = _joined(pieces)
        rows = len(whole.offsets)
        names = whole.names.dictionary_encode()
        name_of = np.asarray(names.indices).astype(np.int64)
        flat = Flat(names.dictionary, name_of, whole.contents, whole.counts)
        judged = judge_headers(flat, self._role)
        columns = {
            "topic": pa.repeat(self._topic, rows),
            "partition": pa.array(np.full(rows, self._partition, np.int32)),
            "offset": pa.array(whole.offsets),
            "timestamp_ms": pa.array(whole.timestamps),
            "is_append_time": pa.array(whole.is_append_time),
            "log_ms": self._log_times(whole),
            "key": whole.keys,
            "value": whole.values,
            "headers": _lists(flat, judged.is_user & ~judged.is_appended),
            "record_headers": self._record_headers(flat, judged),
            "control": pa.StructArray.from_arrays(judged.control, fields=list(_CONTROL_TYPE)),
            "flaw": judged.flaw,
            "older_flaw": judged.older_flaw,
            "flaw_of_5": judged.flaw_of_5,
            "flaw_of_6": judged.flaw_of_6,
            "size_bytes": pa.array(_sizes(whole.keys, whole.values, flat)),
            "key_murmur2": murmur2_of_keys(whole.keys),
            "is_proved": self._proved(judged, whole),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)

    def _log_times(self, whole: Piece) -> Any:
        if self._role != "buffer":
            return pa.nulls(len(whole.offsets), pa.int64())
        return pa.array(self._times.take(whole.timestamps, whole.offsets))

    def _record_headers(self, flat: Flat, judged: Judged) -> Any:
        if self._role not in _WITH_RECORD_HEADERS:
            return pa.nulls(len(flat.counts), _HEADERS_TYPE)
        return _lists(flat, ~judged.is_appended)

    def _proved(self, judged: Judged, whole: Piece) -> Any:
        rows = len(whole.offsets)
        if self._role != "buffer" or not judged.is_internal.any():
            return pa.nulls(rows, pa.bool_())
        proved: list[bool | None] = [None] * rows
        ends = np.cumsum(whole.counts)
        for row in map(int, np.flatnonzero(judged.is_internal)):
            if not judged.ends_with_proof[row]:
                proved[row] = False
            elif self._prove is not None:
                some = slice(int(ends[row] - whole.counts[row]), int(ends[row]))
                names, contents = whole.names[some].to_pylist(), whole.contents[some].to_pylist()
                proved[row] = self._prove(
                    self._partition,
                    whole.keys[row].as_py(),
                    whole.values[row].as_py(),
                    list(zip(names, contents, strict=True)),
                )
        return pa.array(proved, pa.bool_())


def _headers(messages: Sequence[Message]) -> list[Headers]:
    # By `map`, which checks what the binding returns: of a name that is not UTF-8 it returns a
    # list with a hole and leaves its exception pending, and a call in warm bytecode goes on.
    asked = map(Message.headers, messages)
    made: list[Any] = []
    while True:
        try:
            made.extend(asked)  # keeps what came before an exception
            break
        except (SystemError, UnicodeDecodeError):
            made.append([(UNREADABLE, None)])
    assert len(made) == len(messages), "one list of headers for each record"
    return [headers or [] for headers in made]


def _joined(pieces: Sequence[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    columns = ([getattr(piece, field.name) for piece in pieces] for field in fields(Piece))
    return Piece(
        *(
            np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pa.concat_arrays(parts)
            for parts in columns
        )
    )


def _lists(flat: Flat, chosen: Bools) -> Any:
    """Return the chosen headers, as one list for each record."""
    ends = np.cumsum(flat.counts)
    if chosen.all():
        name_of, contents = flat.name_of, flat.contents
    else:
        at = np.flatnonzero(chosen)
        name_of, contents = flat.name_of[at], flat.contents.take(pa.array(at))
        ends = np.concatenate(([0], np.cumsum(chosen)))[ends]
    pairs = pa.StructArray.from_arrays(
        [flat.names.take(pa.array(name_of)), contents], fields=list(_HEADERS_TYPE.value_type)
    )
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=_HEADERS_TYPE)


def _sizes(keys: Any, values: Any, flat: Flat) -> Ints:
    lengths = _lengths(flat.contents) + _lengths(flat.names)[flat.name_of] + HEADER_ALLOWANCE_BYTES
    so_far = np.concatenate(([0], np.cumsum(lengths)))
    ends = np.cumsum(flat.counts)
    of_headers: Ints = so_far[ends] - so_far[ends - flat.counts]
    return of_headers + _lengths(keys) + _lengths(values) + RECORD_ALLOWANCE_BYTES


def _lengths(contents: Any) -> NDArray[np.int64]:
    """Return lengths in bytes; 0 of null."""
    return np.asarray(pc.fill_null(pc.binary_length(contents), 0)).astype(np.int64)


def murmur2_of_keys(keys: Any) -> Any:
    """Return 31 bits of murmur2 by key, an Arrow binary array; null of null."""
    is_null = np.asarray(keys.is_null())
    _, offsets, data = keys.buffers()
    ends = np.frombuffer(offsets, np.int32, len(keys) + 1, keys.offset * 4).astype(np.int64)
    octets = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    there = np.flatnonzero(~is_null)
    hashes = np.zeros(len(keys), np.int32)
    hashes[there] = murmur2_of(octets, ends[there], (ends[1:] - ends[:-1])[there])
    return pa.array(hashes, mask=is_null)
