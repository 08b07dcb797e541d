"""What ends a benchmark without figures."""

from collections.abc import Callable
from typing import Final, TypeVar

from delayd.errors import DelaydError

PATIENCES: Final = (1, 2, 4)
"""How many times the usual time a run gets: a machine with other work has slow moments."""

T = TypeVar("T")


class BenchError(DelaydError):
    """The machine was too slow, or a part of the benchmark failed: nothing is measured by it."""

    code = "bench"


class TooSlowError(BenchError):
    """Messages became due before all nodes had ingested them."""


def too_slow() -> TooSlowError:
    """Return the error, with its remedy."""
    return TooSlowError(
        "this machine was too slow to take all messages in before the first was due",
        remedy="measure when it does nothing else, or smaller sizes",
    )


def patiently(tell: Callable[[str], None], play: Callable[[int], T]) -> T:
    """Return what `play` returns, given one of PATIENCES: a larger one each time that it was too
    slow.

    Raises TooSlowError when the largest is not enough.
    """
    for patience in PATIENCES[:-1]:
        try:
            return play(patience)
        except TooSlowError:
            tell("too slow, once more with more time")
    return play(PATIENCES[-1])
