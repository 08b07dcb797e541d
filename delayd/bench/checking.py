"""Faults of a benchmark's own messages: figures that must be 0."""

from delayd.bench.figures import Measured
from delayd.bench.load import Load
from delayd.bench.reading import reading
from delayd.bench.receipts import Faults, Receipts

READ_MS_MAX = 60_000
"""How long to wait for records that should be there already."""


def add_faults(measured: Measured, name: str, faults: Faults) -> None:
    """Add the faults of one run."""
    for what, count in faults._asdict().items():
        measured.add(f"{name}-{what}", "messages", float(count))


def read_back(
    kafka: dict[str, str], load: Load, now_ms: int, wait_ms: int = READ_MS_MAX
) -> Receipts:
    """Return all that is in a load's target now. The times are of this reading, not of delivery."""
    with reading(kafka, load) as reader:
        return reader.finish(now_ms + wait_ms)
