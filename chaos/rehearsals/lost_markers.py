"""Losing commit markers on a real broker: its log ends before one, as after an unclean election or
a power cut that took what was not on the disk yet.

Not here: what delayd makes of it.
"""

from pathlib import Path
from typing import NamedTuple

from chaos.batches import DERIVED, HEAD_BYTES, batches_of

BOOKS = (
    ".kafka_cleanshutdown",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
"""What a broker believes of its logs without reading them."""


class Cut(NamedTuple):
    """What a log has lost."""

    batches: int
    offset: int
    """Where it ends now."""


def lose_tail(data: Path, topic: str, partition: int) -> Cut:
    """Take the last run of commit markers from the end of a stopped broker's log. It reads the rest
    anew when it starts."""
    folder = data / f"{topic}-{partition}"
    segment = max(folder.glob("*.log"))
    content = segment.read_bytes()
    batches = list(batches_of(content))
    sizes = [HEAD_BYTES + len(batch.records) for batch in batches]
    at = len(batches)
    while at and batches[at - 1].is_control:
        at -= 1
    assert 0 < at < len(batches), f"{folder} ends with a marker behind records"
    segment.write_bytes(content[: sum(sizes[:at])])
    _forget(data, folder)
    return Cut(len(batches) - at, batches[at].base_offset)


def lose_last_marker(data: Path, topic: str, partition: int) -> bool:
    """Take the last marker that stands behind records out of a stopped broker's log, and leave what
    came behind it: a marker that was never written. Return whether there was one."""
    folder = data / f"{topic}-{partition}"
    segment = max(folder.glob("*.log"))
    batches = list(batches_of(segment.read_bytes()))
    places = [n for n in range(1, len(batches)) if batches[n].is_control]
    places = [n for n in places if not batches[n - 1].is_control]
    if not places:
        return False
    batches.pop(places[-1])
    segment.write_bytes(b"".join(batch.to_bytes() for batch in batches))
    _forget(data, folder)
    return True


def ends_with_marker(data: Path, topic: str, partition: int) -> bool:
    """Does the log end with a marker behind records?"""
    batches = list(batches_of(max((data / f"{topic}-{partition}").glob("*.log")).read_bytes()))
    return (
        len(batches) > 1 and batches[-1].is_control and not all(each.is_control for each in batches)
    )


def _forget(data: Path, folder: Path) -> None:
    for pattern in DERIVED:
        for file in folder.glob(pattern):
            file.unlink()
    for name in BOOKS:
        (data / name).unlink(missing_ok=True)
