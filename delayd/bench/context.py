"""The context of a benchmark: its brokers and sizes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from delayd.bench.brokers import Brokers


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much to measure. Each benchmark has some of these sizes (catalogue.py)."""

    runs: int
    messages: int = 0
    """Per run."""
    rate: int = 0
    """Messages per second."""
    seconds: int = 0
    """How long that rate is held."""
    pending: int = 0
    """Messages that are due much later, meanwhile."""


@dataclass(frozen=True, slots=True)
class Context:
    """Where and how much; `tell` gets each task as it begins."""

    brokers: Brokers
    sizes: Sizes
    tell: Callable[[str], None]

    def runs(self, name: str) -> Iterator[int]:
        """Yield the number of each run, after telling that it begins."""
        for number in range(1, self.sizes.runs + 1):
            self.tell(f"{name}, run {number}")
            yield number
