"""Two clusters of one node each beside each other, on the same brokers: one with very many messages
pending over 30 days, one with few. What the benchmarks scale, memory and startup measure on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from delayd.bench.figures import Measured
from delayd.bench.lateness import schedule_far
from delayd.bench.nodes import BenchNodes, running
from delayd.bench.order import Order

FEW_SHARE: Final = 100
"""Few are so small a part of many: 100,000 of 10 million."""


@dataclass(slots=True)
class Standing:
    """One of the two clusters."""

    nodes: BenchNodes
    pending: int
    ingested: int = field(default=0)
    """By its node since the node's start."""

    @property
    def name(self) -> str:
        """Its node."""
        [name] = self.nodes.names
        return name

    @property
    def pid(self) -> int:
        """Of its node."""
        return self.nodes.pid(self.name)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both."""

    many: Standing
    few: Standing

    @property
    def against(self) -> str:
        """What `many` is compared with."""
        return f"the same with {self.few.pending:,} pending"


@contextmanager
def standing(order: Order) -> Iterator[Pair]:
    """Both clusters, their nodes running and all of what is pending taken in."""
    counts = [max(1, order.sizes.pending // share) for share in (1, FEW_SHARE)]
    order.tell(f"{counts[0]} messages for later on one node, {counts[1]} on another")
    with running(order.brokers, 1) as many, running(order.brokers, 1) as few:
        pair = Pair(Standing(many, counts[0]), Standing(few, counts[1]))
        for each in (pair.few, pair.many):
            each.ingested = schedule_far(order, each.nodes, each.pending)
        yield pair


def add_pair(
    measured: Measured, pair: Pair, name: str, unit: str, values: tuple[float, float]
) -> None:
    """A figure of both: that of many is the value, that of few what it is compared with."""
    many, few = values
    measured.add(name, unit, many, pair.against, few)
