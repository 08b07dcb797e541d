"""The context of a benchmark: its brokers and sizes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from delayd.bench.brokers import Brokers
from delayd.bench.errors import TooSlowError
from delayd.runtime.native import SWITCH

PATIENCES: Final = (1, 2, 4)
"""How many times the usual time a run gets: a machine with other work has slow moments."""

T = TypeVar("T")


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
    both_paths: bool = False
    """Measure nodes that run in Python, and beside them nodes with the native library."""

    @property
    def paths(self) -> dict[str, dict[str, str]]:
        """By what the names of its figures end with: what a node's environment has to have."""
        if not self.both_paths:
            return {"": {}}
        return {"": {SWITCH: "0"}, "-native": {SWITCH: "1"}}

    def runs(self, name: str) -> Iterator[int]:
        """Yield the number of each run, after telling that it begins."""
        for number in range(1, self.sizes.runs + 1):
            self.tell(f"{name}, run {number}")
            yield number

    def patiently(self, play: Callable[[int], T]) -> T:
        """Return what `play` returns, given one of PATIENCES: a larger one each time that it was
        too slow. Raises TooSlowError when the largest is not enough."""
        for patience in PATIENCES[:-1]:
            try:
                return play(patience)
            except TooSlowError:
                self.tell("too slow, once more with more time")
        return play(PATIENCES[-1])
