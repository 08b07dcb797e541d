"""A delayd node whose wall clock can be set wrong while it runs. It is run as `delayd` is.

It replaces the clock that delayd/runtime/clock.py reads, and nothing else: wall time is
shifted by what a small shared file says. Monotonic time is never wrong, as on a real machine.

    bytes 0-7    offset in ms
    bytes 8-15   drift in parts per million
    bytes 16-23  monotonic ms at which that was set
"""

import mmap
import os
import struct
import sys
import time
from pathlib import Path
from typing import Final

FILE_VARIABLE: Final = "CHAOS_CLOCK_FILE"
_GRAMMAR: Final = struct.Struct("<qqq")


def write_clock(file: Path, offset_ms: int, drift_ppm: int) -> None:
    """Set the wall clock of the node with this file. All processes share the monotonic clock."""
    file.touch()
    with file.open("r+b") as written:
        written.write(_GRAMMAR.pack(offset_ms, drift_ppm, _monotonic_ms()))


def wrong_ms(setting: bytes | mmap.mmap, monotonic_ms: int) -> int:
    """Return by how much the clock is off at a monotonic time."""
    offset_ms, drift_ppm, since_ms = _GRAMMAR.unpack_from(setting)
    return int(offset_ms) + (monotonic_ms - int(since_ms)) * int(drift_ppm) // 1_000_000


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def main() -> None:
    """Shift the clock, then run `delayd`."""
    with Path(os.environ[FILE_VARIABLE]).open("r+b") as file:
        setting = mmap.mmap(file.fileno(), _GRAMMAR.size)

    from delayd.runtime.clock import SystemClock

    right_ms = SystemClock.wall_ms

    def wall_ms(self: SystemClock) -> int:
        return right_ms(self) + wrong_ms(setting, _monotonic_ms())

    SystemClock.wall_ms = wall_ms  # type: ignore[method-assign]

    from delayd.commands.cli import main as delayd

    sys.argv[0] = "delayd"
    delayd()


if __name__ == "__main__":
    main()
