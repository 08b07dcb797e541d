"""Losing commit markers on a real broker: its log ends before one, as after an unclean election or
a power cut that took what was not on the disk yet.

Not here: what delayd makes of it.
"""

from pathlib import Path
from typing import NamedTuple

from defects.batches import HEAD_BYTES, Batch, batches_of
from defects.surgery import DERIVED

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


def lose_from(data: Path, topic: str, partition: int, offset: int) -> Cut:
    """Take all from an offset on from a stopped broker's log."""
    folder = data / f"{topic}-{partition}"
    segment = max(folder.glob("*.log"))
    content = segment.read_bytes()
    batches = list(batches_of(content))
    kept = [batch for batch in batches if batch.last_offset < offset]
    segment.write_bytes(content[: sum(HEAD_BYTES + len(batch.records) for batch in kept)])
    _forget(data, folder)
    return Cut(len(batches) - len(kept), offset)


def batches_in(data: Path, topic: str, partition: int) -> list[Batch]:
    """The batches of a log's last segment."""
    return list(batches_of(max((data / f"{topic}-{partition}").glob("*.log")).read_bytes()))


def _forget(data: Path, folder: Path) -> None:
    for pattern in DERIVED:
        for file in folder.glob(pattern):
            file.unlink()
    for name in BOOKS:
        (data / name).unlink(missing_ok=True)
