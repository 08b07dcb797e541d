"""Kafka's record batches, version 2, as they lie in a segment file. Pure: bytes in, bytes out.

    batch   baseOffset i64, length i32, leaderEpoch i32, magic i8, crc u32, attributes i16,
            lastOffsetDelta i32, baseTimestamp i64, maxTimestamp i64,
            producerId i64, producerEpoch i16, baseSequence i32, count i32, records
    record  length, attributes i8, timestampDelta, offsetDelta, key, value, headers

Lengths and deltas of a record are zigzag varints; the CRC-32C covers a batch from its attributes
on. With LogAppendTime all records of a batch have its maxTimestamp. Batches of gzip are read; a
batch with other records is written uncompressed. Source: Kafka's documentation, "Record Batch".
"""

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final

import crc32c

Headers = tuple[tuple[str, bytes | None], ...]

_HEAD: Final = Struct(">qiibI")
_BODY: Final = Struct(">hiqqqhii")
HEAD_BYTES: Final = _HEAD.size + _BODY.size
LENGTH_FROM: Final = 12
"""A batch's length counts from here."""
DERIVED: Final = ("*.index", "*.timeindex", "*.txnindex", "*.snapshot")
"""Files beside a segment, which a broker makes again from it."""
MAGIC: Final = 2
CODEC_BITS: Final = 0x07
GZIP: Final = 1
"""The codec of the frontier topic (`compression.type`)."""
APPEND_TIME_BIT: Final = 0x08
CONTROL_BIT: Final = 0x20
NAME_ERRORS: Final = "surrogateescape"
"""So that header names which are no UTF-8 come out as they went in."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record; `timestamp_ms` is what a reader sees."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def header(self, name: str) -> str:
        """The last header of that name, as text; KeyError if there is none."""
        content = dict(self.headers)[name]
        return "" if content is None else content.decode()

    def with_header(self, name: str, content: bytes | None) -> "LogRecord":
        """With another content in the last header of that name; KeyError if there is none."""
        at = self._place_of(name)
        return replace(self, headers=(*self.headers[:at], (name, content), *self.headers[at + 1 :]))

    def without_header(self, name: str) -> "LogRecord":
        """Without the last header of that name; KeyError if there is none."""
        at = self._place_of(name)
        return replace(self, headers=(*self.headers[:at], *self.headers[at + 1 :]))

    def and_header(self, name: str, content: bytes | None) -> "LogRecord":
        """With one header more, at the end."""
        return replace(self, headers=(*self.headers, (name, content)))

    def _place_of(self, name: str) -> int:
        places = [at for at, (other, _) in enumerate(self.headers) if other == name]
        if not places:
            raise KeyError(name)
        return places[-1]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as its bytes say it; `records` are still bytes."""

    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    records: bytes

    @property
    def last_offset(self) -> int:
        """Of the last record that it ever had."""
        return self.base_offset + self.last_offset_delta

    @property
    def is_control(self) -> bool:
        """Is it a marker that ends a transaction?"""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_append_time(self) -> bool:
        """Did the broker stamp it?"""
        return bool(self.attributes & APPEND_TIME_BIT)

    def read(self) -> list[LogRecord]:
        """Its records."""
        codec = self.attributes & CODEC_BITS
        assert codec in (0, GZIP), f"a batch of codec {codec}"
        records = gzip.decompress(self.records) if codec else self.records
        found, at = [], 0
        for _ in range(self.count):
            length, at = _varint(records, at)
            found.append(self._record(records[at : at + length]))
            at += length
        assert at == len(records), "a batch does not end where its records end"
        return found

    def with_records(self, records: Sequence[LogRecord]) -> "Batch":
        """The batch with these instead, as compaction leaves one: offsets, producer and marks
        stay. Under CreateTime their times are their own; else the batch's time stays."""
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)), "records of a batch are in the order of offsets"
        assert all(self.base_offset <= offset <= self.last_offset for offset in offsets)
        times = [record.timestamp_ms for record in records]
        if self.is_append_time:
            assert set(times) <= {self.max_timestamp_ms}, "a batch has one append time"
        return replace(
            self,
            attributes=self.attributes & ~CODEC_BITS,
            max_timestamp_ms=max(times, default=self.max_timestamp_ms),
            count=len(records),
            records=b"".join(self._bytes_of(record) for record in records),
        )

    def to_bytes(self) -> bytes:
        """As it lies in a file, with a CRC that is right."""
        body = _BODY.pack(
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp_ms,
            self.max_timestamp_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        )
        length = HEAD_BYTES - LENGTH_FROM + len(self.records)
        crc = crc32c.crc32c(self.records, crc32c.crc32c(body))
        head = _HEAD.pack(self.base_offset, length, self.leader_epoch, MAGIC, crc)
        return head + body + self.records

    def _record(self, raw: bytes) -> LogRecord:
        time_delta, at = _varint(raw, 1)  # byte 0: attributes, unused
        offset_delta, at = _varint(raw, at)
        key, at = _sized(raw, at)
        value, at = _sized(raw, at)
        count, at = _varint(raw, at)
        headers = []
        for _ in range(count):
            name, at = _sized(raw, at)
            content, at = _sized(raw, at)
            assert name is not None, "a header has a name"
            headers.append((name.decode(errors=NAME_ERRORS), content))
        own_ms = self.base_timestamp_ms + time_delta
        return LogRecord(
            self.base_offset + offset_delta,
            self.max_timestamp_ms if self.is_append_time else own_ms,
            key,
            value,
            tuple(headers),
        )

    def _bytes_of(self, record: LogRecord) -> bytes:
        # Under LogAppendTime nobody reads the deltas.
        time_delta = 0 if self.is_append_time else record.timestamp_ms - self.base_timestamp_ms
        parts = [b"\0", _zigzag(time_delta), _zigzag(record.offset - self.base_offset)]
        parts += [_with_size(record.key), _with_size(record.value), _zigzag(len(record.headers))]
        for name, content in record.headers:
            parts += [_with_size(name.encode(errors=NAME_ERRORS)), _with_size(content)]
        return _with_size(b"".join(parts))


def batches_of(segment: bytes) -> Iterator[Batch]:
    """All batches of a segment file; AssertionError if it is damaged."""
    at = 0
    while at < len(segment):
        base_offset, length, leader_epoch, magic, crc = _HEAD.unpack_from(segment, at)
        end = at + LENGTH_FROM + length
        assert magic == MAGIC, f"magic {magic}"
        assert crc32c.crc32c(segment[at + _HEAD.size : end]) == crc, f"CRC at {base_offset}"
        fields = (*_BODY.unpack_from(segment, at + _HEAD.size), segment[at + HEAD_BYTES : end])
        yield Batch(base_offset, leader_epoch, *fields)
        at = end


def new_batch(offset: int, leader_epoch: int, record: LogRecord, *, by_append_time: bool) -> Batch:
    """A batch with one record, of a producer that is neither idempotent nor transactional."""
    empty = Batch(
        base_offset=offset,
        leader_epoch=leader_epoch,
        attributes=APPEND_TIME_BIT if by_append_time else 0,
        last_offset_delta=0,
        base_timestamp_ms=record.timestamp_ms,
        max_timestamp_ms=record.timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=0,
        records=b"",
    )
    return empty.with_records([replace(record, offset=offset)])


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint, and where the next thing begins."""
    folded = shift = 0
    while True:
        byte = raw[at]
        at += 1
        folded |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (folded >> 1) ^ -(folded & 1), at
        shift += 7


def _zigzag(number: int) -> bytes:
    folded = number << 1 if number >= 0 else ((-number) << 1) - 1
    out = bytearray()
    while folded > 0x7F:
        out.append(folded & 0x7F | 0x80)
        folded >>= 7
    out.append(folded)
    return bytes(out)


def _sized(raw: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(raw, at)
    return (None, at) if size < 0 else (raw[at : at + size], at + size)


def _with_size(content: bytes | None) -> bytes:
    return _zigzag(-1) if content is None else _zigzag(len(content)) + content
