"""Flat records: what a driver read or shall send, as bytes; a `Record` is made of those only that
somebody looks at.

The native library writes them (`native/records.h` has the layout) and reads them again. For
everything else they are a sequence of records like any other.

Invariant: each `Record` is the one that the driver gives without the native library.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, Self, overload

from delayd.bus import UNREADABLE_HEADERS, Headers, Producer, Record
from delayd.runtime.native.flat import Surveyor

RECORD: Final = Struct("<IiqqiiiI")
"""bytes, partition, offset, append_ms, leader epoch; lengths of key and value; headers"""
HEADER: Final = Struct("<ii")
"""lengths of name and content"""
NULL: Final = -1
"""In place of a length."""


class FlatRecords(Sequence[Record]):
    """Records as bytes. Immutable; a part of it shares them."""

    __slots__ = ("_begin", "_data", "_end", "_surveyor", "survey")

    def __init__(
        self, surveyor: Surveyor, data: bytearray, begin: int = 0, end: int | None = None
    ) -> None:
        """Take `data[begin:end]`, which nobody may change any more. ValueError if these are not
        whole records."""
        self._surveyor = surveyor
        self._data, self._begin = data, begin
        self._end = len(data) if end is None else end
        self.survey = surveyor.survey(data, begin, self._end)

    @property
    def place(self) -> tuple[bytearray, int, int]:
        """The bytes, and where in them the records begin and end."""
        return self._data, self._begin, self._end

    def __len__(self) -> int:
        return self.survey.count

    def __iter__(self) -> Iterator[Record]:
        at = self._begin
        while at < self._end:
            record, at = record_at(self._data, at)
            yield record

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Record | Self:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            assert step == 1, "records stay in their order"
            return self._part(self.place_of(first), self.place_of(max(first, last)))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return record_at(self._data, self.place_of(index % len(self)))[0]

    def __add__(self, more: "FlatRecords") -> "FlatRecords":
        if not self or not more:
            return self or more
        return FlatRecords(self._surveyor, bytearray().join((self._view(), more._view())))

    def place_of(self, index: int) -> int:
        """Return where in the bytes a record begins; where the last one ends if there are fewer."""
        if index >= len(self):
            return self._end
        return self._surveyor.skip(self._data, self._begin, self._end, index)

    def _part(self, begin: int, end: int) -> Self:
        return type(self)(self._surveyor, self._data, begin, end)

    def _view(self) -> memoryview:
        return memoryview(self._data)[self._begin : self._end]


class Outgoing(NamedTuple):
    """Flat records to be sent, each to one of `topics`: its number is in place of the leader epoch,
    and the partition to send it to in place of that of the log (-1 for none)."""

    topics: Sequence[str]
    data: bytearray
    begin: int
    """Of the first record in `data`."""
    end: int
    """Of the last one."""

    def each(self) -> Iterator[tuple[str, Record]]:
        """Yield the records, with their topics."""
        at = self.begin
        while at < self.end:
            record, at = record_at(self.data, at)
            yield self.topics[record.leader_epoch], record


def send_each(producer: Producer, records: Outgoing) -> None:
    """Send flat records one by one: for drivers that know nothing else."""
    for topic, (partition, _, _, _, key, value, headers) in records.each():
        wanted = None if partition < 0 else partition
        producer.send(topic, key=key, value=value, headers=headers, partition=wanted)


def record_at(data: bytes | bytearray, at: int) -> tuple[Record, int]:
    """Return the record that begins there, and where the next one does."""
    size, partition, offset, append_ms, epoch, keys, values, count = RECORD.unpack_from(data, at)
    end = at + size
    value_at = end - max(values, 0)
    key_at = value_at - max(keys, 0)
    return (
        Record(
            partition,
            offset,
            epoch,
            append_ms,
            None if keys == NULL else bytes(data[key_at:value_at]),
            None if values == NULL else bytes(data[value_at:end]),
            _headers(data, at + RECORD.size, count),
        ),
        end,
    )


def _headers(data: bytes | bytearray, at: int, count: int) -> Headers:
    headers: Headers = []
    for _ in range(count):
        names, contents = HEADER.unpack_from(data, at)
        at += HEADER.size
        name_end = at + names
        try:
            name = data[at:name_end].decode()
        except UnicodeDecodeError:
            return list(UNREADABLE_HEADERS)
        at = name_end + max(contents, 0)
        headers.append((name, None if contents == NULL else bytes(data[name_end:at])))
    return headers


def flattened(records: Sequence[Record]) -> bytearray:
    """Return records as flat ones: for tests and comparisons."""
    data = bytearray()
    for partition, offset, epoch, append_ms, key, value, headers in records:
        tail = bytearray()
        for name, content in headers:
            text = name.encode("utf-8", "surrogatepass")
            tail += HEADER.pack(len(text), NULL if content is None else len(content))
            tail += text + (content or b"")
        tail += (key or b"") + (value or b"")
        lengths = (NULL if each is None else len(each) for each in (key, value))
        size = RECORD.size + len(tail)
        data += RECORD.pack(size, partition, offset, append_ms, epoch, *lengths, len(headers))
        data += tail
    return data
