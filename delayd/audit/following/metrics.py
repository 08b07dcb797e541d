"""The state of a follower as metrics, in the text format of Prometheus. Pure.

For the textfile collector of a node exporter, or anything that can read it.
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from delayd.audit.following.journal import Entry
from delayd.audit.judging.faults import Fault

FAULTS = (
    *(Fault.LOST, Fault.DUPLICATE, Fault.EARLY, Fault.ALTERED, Fault.GHOST),
    *(Fault.UNKNOWN, Fault.VERDICT_FALSE),
)
"""What a follower can find."""

METRICS = {
    "delayd_audit_alarms_total": ("Violations found since watching began, by fault.", "fault"),
    "delayd_audit_requests_total": ("Requests of users that were read.",),
    "delayd_audit_delivered_total": ("Watched requests whose delivery was seen.",),
    "delayd_audit_pending": ("Watched requests that are neither delivered nor over.",),
    "delayd_audit_next_offset": (
        "The next offset to read, by topic and partition.",
        "topic",
        "partition",
    ),
    "delayd_audit_behind_offsets": ("Offsets that were there and not read, by topic.", "topic"),
    "delayd_audit_settled_timestamp_seconds": (
        "All that was in the topic at this time has been read.",
        "topic",
    ),
    "delayd_audit_last_batch_timestamp_seconds": ("When the last batch was fixed.",),
    "delayd_audit_last_batch_seconds": ("How long the last batch took.",),
}
"""Meaning and labels of each metric."""

_Samples: TypeAlias = Mapping[tuple[str, ...], float]


def metrics_of(entry: Entry) -> str:
    """Return the whole file."""
    registry = CollectorRegistry()
    registry.register(_State(entry))
    return generate_latest(registry).decode()


class _State(Collector):
    """An entry of the journal as metrics."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its samples."""
        entry, positions = self._entry, self._entry.positions
        samples: dict[str, _Samples] = {
            "delayd_audit_alarms_total": {
                (each.slug,): entry.found.get(each.slug, 0) for each in FAULTS
            },
            "delayd_audit_requests_total": {(): entry.requests},
            "delayd_audit_delivered_total": {(): entry.delivered},
            "delayd_audit_pending": {(): entry.pending},
            "delayd_audit_next_offset": {
                (topic, str(number)): offset
                for topic, offsets in positions["next"].items()
                for number, offset in enumerate(offsets)
            },
            "delayd_audit_behind_offsets": {
                (topic,): count for topic, count in positions["behind"].items()
            },
            "delayd_audit_settled_timestamp_seconds": {
                (topic,): at_ms / 1000 for topic, at_ms in positions["settled_ms"].items()
            },
            "delayd_audit_last_batch_timestamp_seconds": {(): positions["at_ms"] / 1000},
            "delayd_audit_last_batch_seconds": {(): entry.took_ms / 1000},
        }
        for name, (meaning, *labels) in METRICS.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name, meaning, labels=labels)
            for values, value in samples[name].items():
                family.add_metric(values, value)
            yield family
