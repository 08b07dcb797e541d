"""What a metric of a node is made of: its name, type, labels and meaning, and where it comes from.

Not here: which metrics there are (`metric_families.py`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from delayd.node.delivery.counters import Histogram
from delayd.node.monitoring.node_view import NodeView

Samples = Iterable[tuple[tuple[str, ...], float | Histogram]]
"""Values of labels, and the sample's value."""


class Kind(Enum):
    """Types of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    """Plain text that ends with a full stop; it is the metric's HELP too."""
    samples: Callable[[NodeView], Samples]


def gauge(name: str, meaning: str, value: Callable[[NodeView], float | None]) -> Family:
    """Return a gauge without labels; it has no sample while the value is None."""

    def samples(of: NodeView) -> Samples:
        found = value(of)
        return [] if found is None else [((), found)]

    return Family(name, Kind.GAUGE, (), meaning, samples)


def counter(name: str, meaning: str, value: Callable[[NodeView], int]) -> Family:
    """Return a counter without labels."""
    return Family(name, Kind.COUNTER, (), meaning, lambda of: [((), value(of))])


def counters(
    name: str,
    label: str,
    meaning: str,
    values: Iterable[str],
    counts: Callable[[NodeView], Mapping[str, int]],
) -> Family:
    """Return a counter with one label of a closed set, shown in full."""
    known = tuple(values)

    def samples(of: NodeView) -> Samples:
        counted = counts(of)
        return [((value,), counted.get(value, 0)) for value in known]

    return Family(name, Kind.COUNTER, (label,), meaning, samples)
