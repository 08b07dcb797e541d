"""What is wrong with the messages of a benchmark: figures that must be nothing."""

from delayd.bench.figures import Measured
from delayd.bench.load import Load
from delayd.bench.reading import reading
from delayd.bench.receipts import Faults, Receipts

READ_MS_MAX = 60_000
"""How long what should be there already is waited for."""


def add_faults(measured: Measured, name: str, faults: Faults) -> None:
    """One run's."""
    for what, count in faults._asdict().items():
        measured.add(f"{name}-{what}", "messages", float(count))


def read_back(
    kafka: dict[str, str], load: Load, now_ms: int, wait_ms: int = READ_MS_MAX
) -> Receipts:
    """All that is in a load's target now. Its times are of this reading, not of delivery."""
    with reading(kafka, load) as reader:
        return reader.finish(now_ms + wait_ms)
