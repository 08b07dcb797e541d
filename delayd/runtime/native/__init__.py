"""The native library: hot paths in C, where it was built; the same in Python, where it was not.

`native/` at the top has its source, and `native/build.py` builds it with any C compiler, when
delayd is installed. The library knows nothing of Python: it is called through ctypes, and one build
serves every version of Python. Long calls let go of the interpreter's lock meanwhile. It runs where
it was built: `DELAYD_NATIVE=0` turns it off; another value but 1 is the path of the library to
load.

Invariants:
- it gives what the Python path beside the call gives, byte for byte, or nothing: then that path
  runs, and says what is wrong, if anything is;
- a library of another release's source is never loaded;
- nobody needs it: what cannot be built or loaded is said (`described`), and Python runs.

Source: docs/adr/0021-native-library.md.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

INTERFACE: Final = 6
"""DELAYD_INTERFACE of `native/library.h`, which this module was written for."""
SWITCH: Final = "DELAYD_NATIVE"
"""The variable of the environment that turns it on or off."""
BUILT: Final = Path(__file__).parents[1] / "libdelayd.native.so"
"""Where `native/build.py` puts the library."""
SHORT_BYTES: Final = 64 * 1024
"""A call that goes over fewer bytes, some 30 us of work, keeps the interpreter's lock. To let go of
it is to hand it over, and to get it back takes up to 5 ms while another thread runs in Python."""
SLOT_MS: Final = 1_000
PLACE_BYTES: Final = 20
FRAME_BYTES_MIN: Final = 41
"""A header and a body."""


class _Scanned(ctypes.Structure):
    """`struct scanned` of native/scan.h."""

    _fields_ = (
        ("bytes", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("crcs", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
        ("places", ctypes.c_uint32 * SLOT_MS),
    )


class Scan(NamedTuple):
    """What a scan of frames found; see `delayd.wheel.decoding`."""

    bytes: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nothing needs
    crcs: int
    places: Iterator[tuple[int, bytearray]]
    """By due time: packed places in the order of the file."""


class Call:
    """A function of the library."""

    def __init__(
        self, library: "Library", name: str, restype: Any, argtypes: Sequence[Any]
    ) -> None:
        """`restype`, `argtypes`: of ctypes."""
        self.free = getattr(library.handle, name)
        """Lets go of the interpreter's lock."""
        self.held = getattr(library.holding, name)
        """Keeps it: for what is short whatever it goes over."""
        for function in (self.free, self.held):
            function.restype, function.argtypes = restype, argtypes

    def over(self, size_bytes: int) -> Any:
        """Return the function, for a call that goes over so many bytes."""
        return self.held if size_bytes < SHORT_BYTES else self.free


class Library:
    """One loaded library. Any number of threads may call it at once."""

    def __init__(self, path: Path) -> None:
        """Load it. Raises OSError, also for a library of another interface."""
        self.path = str(path)
        library = self.handle = ctypes.CDLL(self.path)
        self.holding = ctypes.PyDLL(self.path)
        """The same library; its calls keep the interpreter's lock."""
        try:
            library.delayd_interface.restype = ctypes.c_uint32
            built_for = library.delayd_interface()
        except AttributeError as error:
            raise OSError(f"{path} is no library of delayd's") from error
        if built_for != INTERFACE:
            raise OSError(f"{path} was built from another release, for interface {built_for}")
        self._scan = library.delayd_scan
        self._scan.restype = ctypes.c_int
        self._scan.argtypes = (
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_uint64,
            ctypes.POINTER(_Scanned),
            ctypes.c_void_p,
            ctypes.c_size_t,
        )

    def scan(self, data: bytes, position: int) -> Scan | None:
        """Scan frames whose first byte lies at `position` of their file; None if anything is not
        usual. What is usual: whole frames, all of them right, messages of one second."""
        assert type(data) is bytes, "nothing else keeps its bytes while the lock is free"
        scanned = _Scanned()
        places_max = len(data) // FRAME_BYTES_MIN
        places = bytearray(places_max * PLACE_BYTES)
        room = (ctypes.c_char * len(places)).from_buffer(places)
        if not self._scan(data, len(data), position, scanned, room, places_max):
            return None
        return Scan(scanned.bytes, scanned.count, scanned.crcs, _by_due(scanned, places))


def _by_due(scanned: _Scanned, places: bytearray) -> Iterator[tuple[int, bytearray]]:
    begin, due_ms = 0, scanned.second * SLOT_MS
    for ms, count in enumerate(scanned.places):
        if count:
            end = begin + count * PLACE_BYTES
            yield due_ms + ms, places[begin:end]
            begin = end


def _load(wish: str) -> tuple[Library | None, str]:
    """Return the library, if there is one to use, and which path runs, in words."""
    if wish == "0":
        return None, "Python (DELAYD_NATIVE=0 turns the native library off)"
    path = BUILT if wish in ("", "1") else Path(wish)
    if not path.exists():
        return None, f"Python (the native library is not built: {path} is not there)"
    try:
        return Library(path), "native"
    except OSError as error:
        return None, f"Python (the native library cannot be loaded: {error})"


library, described = _load(os.environ.get(SWITCH, ""))
"""The library that runs, or None; and which path runs, in words: for people."""
