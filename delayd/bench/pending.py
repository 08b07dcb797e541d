"""Two clusters of one node each, side by side on the same brokers: one with very many messages
pending over 30 days, one with few. The benchmarks scale, memory and startup measure on them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from delayd.bench.context import Context
from delayd.bench.lateness import schedule_far
from delayd.bench.nodes import BenchNodes, running

FEW_SHARE: Final = 100
"""Few are one in so many: 100,000 of 10 million."""


@dataclass(slots=True)
class Standing:
    """One of the two clusters."""

    nodes: BenchNodes
    pending: int
    ingested: int
    """Messages that its node has ingested since the node's start."""

    @property
    def name(self) -> str:
        """Return the name of its node."""
        [name] = self.nodes.names
        return name

    @property
    def pid(self) -> int:
        """Return the process id of its node."""
        return self.nodes.pid(self.name)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both clusters."""

    many: Standing
    few: Standing

    @property
    def against(self) -> str:
        """Return, in words, what `many` is compared with."""
        return f"the same with {self.few.pending:,} pending"


@contextmanager
def standing(context: Context) -> Iterator[Pair]:
    """Yield both clusters: their nodes run and have ingested all that is pending."""
    counts = [max(1, context.sizes.pending // share) for share in (1, FEW_SHARE)]
    context.tell(f"{counts[0]} messages for later on one node, {counts[1]} on another")
    with running(context.brokers, 1) as many, running(context.brokers, 1) as few:
        pair = Pair(Standing(many, counts[0], counts[0]), Standing(few, counts[1], counts[1]))
        for each in (pair.few, pair.many):
            schedule_far(context, each.nodes, each.pending)
        yield pair
