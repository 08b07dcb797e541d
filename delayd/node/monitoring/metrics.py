"""A node's figures as Prometheus reads them: the page of all metrics (`metric_families.py`), and of
the process.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from delayd.node.delivery.counters import Histogram
from delayd.node.monitoring.metric_families import FAMILIES
from delayd.node.monitoring.metric_family import Kind
from delayd.node.monitoring.node_view import NodeView

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_TYPES: Final[Mapping[Kind, Callable[..., Metric]]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}

PROCESS_METRICS: Final[Mapping[str, tuple[Kind, str]]] = {
    "process_cpu_seconds_total": (Kind.COUNTER, "Processor time of the node."),
    "process_resident_memory_bytes": (Kind.GAUGE, "Its memory."),
    "process_virtual_memory_bytes": (Kind.GAUGE, "Its address space, mapped files included."),
    "process_open_fds": (Kind.GAUGE, "Its open files."),
    "process_max_fds": (Kind.GAUGE, "Its limit of open files."),
    "process_start_time_seconds": (Kind.GAUGE, "When it was started, in Unix time."),
}
"""The library's own, read from /proc; the same for every program that uses it."""


class Exposition(Collector):
    """Renders one node. Used by one thread at a time, or by several."""

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    def page(self) -> bytes:
        """Return the whole page."""
        return generate_latest(self) + generate_latest(self._process)

    def collect(self) -> Iterator[Metric]:
        """Yield each family, those without samples too."""
        for family in FAMILIES:
            metric: Any = _TYPES[family.kind](family.name, family.meaning, labels=family.labels)
            for values, value in family.samples(self._node):
                if isinstance(value, Histogram):
                    metric.add_metric(values, _buckets(value), value.sum_ms / 1000)
                else:
                    metric.add_metric(values, value)
            yield metric


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return upper bounds and how many are not above them: cumulative, as Prometheus wants them."""
    bounds = [str(bound_ms / 1000) for bound_ms in histogram.bounds_ms]
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip([*bounds, "+Inf"], histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
