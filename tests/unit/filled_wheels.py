"""A small wheel that was closed, for tests of its recovery."""

from pathlib import Path

from wheel_reading import checkpoint

from delayd.wheel import Entry, Frame, FrameKind
from delayd.wheel.storage import Wheel


def message(due_ms: int, offset: int, value: bytes = b"value") -> Frame:
    return Frame(due_ms, 0, offset, 5, FrameKind.MESSAGE, 1_000, (b"key", value))


def filled(directory: Path, count: int = 10) -> list[Entry]:
    """A closed wheel with `count` frames in slot 5, checkpointed; their entries."""
    wheel = Wheel.open(directory, partitions=2)
    entries = wheel.append([message(5_000 + n, n) for n in range(count)])
    checkpoint(wheel)
    wheel.close()
    return entries


def slot_file(directory: Path) -> Path:
    return directory / "slots" / "0" / "5.0"
