"""Reading a client of librdkafka in C; `native/driver.h` says how its handle is found, and
`writing.py` is about writing.

Not here: what the records and events mean (`delayd.bus.confluent.consumer`), and librdkafka's
properties.

Invariants:
- a client is read by one thread at a time, and never after it was closed;
- it has no callback of Python's: librdkafka would call it without the interpreter's lock.
"""

import ctypes
from collections.abc import Callable
from threading import Lock
from typing import Any, Final, NamedTuple

from delayd.runtime.native import Call, Library

PLUGINS: Final = "plugin.library.paths"
PLUGIN_SEPARATOR: Final = ";"
CALLBACKS: Final = ("logger", "error_cb", "stats_cb", "throttle_cb", "oauth_cb", "on_commit")
"""Properties of confluent-kafka that make librdkafka call Python."""
LOG_LINES_MAX: Final = 1_000
"""Of librdkafka's, taken with one fetch."""
LOG_LINE_BYTES: Final = 1_024
EVENT_TEXT_BYTES: Final = 512


class _Fetched(ctypes.Structure):
    """`struct fetched` of native/driver.h."""

    _fields_ = (
        ("messages", ctypes.c_uint64),
        ("records", ctypes.c_uint64),
        ("record_bytes", ctypes.c_uint64),
        ("events", ctypes.c_uint64),
        ("error", ctypes.c_int64),
    )


class _Event(ctypes.Structure):
    """`struct event`."""

    _fields_ = (
        ("offset", ctypes.c_int64),
        ("code", ctypes.c_int32),
        ("partition", ctypes.c_int32),
        ("text", ctypes.c_char * EVENT_TEXT_BYTES),
    )


class Event(NamedTuple):
    """A message that carries an error, or the end of a partition, in place of a record."""

    code: int
    text: str
    partition: int
    offset: int


class Fetched(NamedTuple):
    """What one fetch gave."""

    records: bytearray
    """Flat, see `delayd.bus.flat`."""
    events: list[Event]
    messages: int
    """Records and events together."""


class FetchError(Exception):
    """librdkafka gave nothing, with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"librdkafka's error {code}")
        self.code = code


def readable(library: Library, properties: dict[str, Any]) -> dict[str, Any]:
    """Return the properties with which a client is made that can be read in C.

    Its log lines wait in a queue of librdkafka's, which every fetch empties."""
    kept = {name: value for name, value in properties.items() if name not in CALLBACKS}
    return known(library, kept) | {"log.queue": True}


def known(library: Library, properties: dict[str, Any]) -> dict[str, Any]:
    """Return the properties with which a client is made whose handle is told."""
    plugins = [properties[PLUGINS]] if properties.get(PLUGINS) else []
    return properties | {PLUGINS: PLUGIN_SEPARATOR.join([*plugins, library.path])}


def client_made(library: Library, make: Callable[[], Any]) -> tuple[Any, int]:
    """Make a client with `make`, of `known` properties, in this thread; return what it returned,
    and the client's `struct client`. OSError if librdkafka did not tell it."""
    told = library.handle.delayd_client_made
    told.restype = ctypes.c_void_p
    told()  # forgets one that nobody asked for
    client = make()
    made = told()
    if made is None:
        raise OSError("librdkafka did not tell the handle of a new client")
    return client, made


class KafkaReader:
    """Reads one client in C."""

    def __init__(self, library: Library, make: Callable[[], Any]) -> None:
        """Make a client with `make`, of `readable` properties, in this thread; `client` is what it
        returned. OSError if librdkafka did not tell its handle."""
        handle = library.handle
        handle.delayd_reader_open.restype = ctypes.c_void_p
        handle.delayd_reader_open.argtypes = (ctypes.c_void_p,)
        self._close = handle.delayd_reader_close
        self._close.restype, self._close.argtypes = None, (ctypes.c_void_p,)
        wanted = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.POINTER(_Fetched))
        self._fetch = Call(library, "delayd_reader_fetch", None, wanted)
        places = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._take = Call(library, "delayd_reader_take", None, places)
        line = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
        self._log = Call(library, "delayd_reader_log", ctypes.c_int, line)
        self._line = ctypes.create_string_buffer(LOG_LINE_BYTES)
        self._lock = Lock()
        self.client, made = client_made(library, make)
        self._reader = handle.delayd_reader_open(made)
        if self._reader is None:
            self.client.close()
            raise OSError("there is no memory to read a client")

    def fetch(self, messages_max: int, timeout_ms: int) -> Fetched:
        """Return up to so many messages; wait for the first for so long, and for no other. Raises
        FetchError."""
        with self._lock:
            assert self._reader is not None, "a client is not read after it was closed"
            found = _Fetched()
            self._fetch.free(self._reader, messages_max, timeout_ms, found)
            if found.error:
                raise FetchError(found.error)
            if not found.messages:
                return Fetched(bytearray(), [], 0)
            records = bytearray(max(1, found.record_bytes))
            events = (_Event * found.events)()
            to = ctypes.c_char.from_buffer(records)
            self._take.over(len(records))(self._reader, ctypes.addressof(to), events)
            del to
            if not found.record_bytes:
                records.clear()
        said = [
            Event(e.code, e.text.decode(errors="replace"), e.partition, e.offset) for e in events
        ]
        return Fetched(records, said, found.messages)

    def log_lines(self) -> list[tuple[int, str]]:
        """Return librdkafka's log lines since it was last asked, some at a time: severity and
        text."""
        lines: list[tuple[int, str]] = []
        with self._lock:
            while self._reader is not None and len(lines) < LOG_LINES_MAX:
                severity = self._log.held(self._reader, self._line, LOG_LINE_BYTES)
                if severity < 0:
                    break
                lines.append((severity, self._line.value.decode(errors="replace")))
        return lines

    def close(self) -> None:
        """Let go of the client, and close it. Waits for a fetch that is under way. Idempotent."""
        with self._lock:
            if self._reader is not None:
                self._close(self._reader)
                self._reader = None
                self.client.close()
