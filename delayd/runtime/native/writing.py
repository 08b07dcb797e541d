"""Writing to a producer of librdkafka in C; `native/writer.h` says what is written, and who learns
what became of it.

Not here: what the errors mean (`delayd.bus.confluent.producer`).

Invariant: the producer lives as long as one of these calls: whoever calls holds it.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from delayd.runtime.native import Call, Library
from delayd.runtime.native.kafka import client_made

WHY_BYTES: Final = 256
TOPIC_BYTES: Final = 256


class _Written(ctypes.Structure):
    """`struct written` of native/writer.h."""

    _fields_ = (
        ("bytes", ctypes.c_uint64),
        ("error", ctypes.c_int32),
        ("topic", ctypes.c_uint32),
        ("why", ctypes.c_char * WHY_BYTES),
    )


class _Failure(ctypes.Structure):
    """`struct failure` of native/rdkafka.h."""

    _fields_ = (
        ("code", ctypes.c_int32),
        ("partition", ctypes.c_int32),
        ("topic", ctypes.c_char * TOPIC_BYTES),
    )


class Failure(NamedTuple):
    """Records of one partition were lost for this reason."""

    code: int
    topic: str
    partition: int


class Written(NamedTuple):
    """What the producer took."""

    bytes: int
    """Of the records."""
    error: int
    """librdkafka's code for the next one, or 0."""
    why: str
    topic: str
    """Of that one."""


class KafkaWriter:
    """Writes to one producer in C. Used by one thread."""

    def __init__(self, library: Library, make: Callable[[], Any]) -> None:
        """Make a producer with `make`, of `known` properties (`kafka.py`), in this thread; OSError
        if librdkafka did not tell its handle. `take_client` gives it."""
        records = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        told = (ctypes.POINTER(ctypes.c_char_p), ctypes.c_uint32, ctypes.POINTER(_Written))
        self._write = Call(library, "delayd_write", None, (*records, *told))
        lost = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
        self._failures = Call(library, "delayd_failures", ctypes.c_uint32, lost)
        self._client, self._made = client_made(library, make)

    def take_client(self) -> Any:
        """Return the client, once: this does not keep it alive."""
        client, self._client = self._client, None
        return client

    def write(self, data: bytearray, begin: int, end: int, topics: Sequence[str]) -> Written:
        """Hand over the flat records of `data[begin:end]`, up to the first that is refused."""
        names = (ctypes.c_char_p * len(topics))(*(topic.encode() for topic in topics))
        first, written = ctypes.c_char.from_buffer(data, begin), _Written()
        place = ctypes.addressof(first)
        self._write.over(end - begin)(self._made, place, end - begin, names, len(topics), written)
        topic = topics[written.topic] if written.error else ""
        why = written.why.decode(errors="replace")
        return Written(written.bytes, written.error, why, topic)

    def failures(self) -> list[Failure]:
        """Return what was lost by now, as far as it is kept, in the order in which it was lost."""
        count = self._failures.held(self._made, None, 0)
        if not count:
            return []
        room = (_Failure * count)()
        self._failures.held(self._made, room, count)
        return [Failure(each.code, each.topic.decode(), each.partition) for each in room]
