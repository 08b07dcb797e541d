"""The state of a follower as a file of metrics, in the text format of Prometheus. Pure.

For the textfile collector of a node exporter, or anything that can read it.
"""

from collections.abc import Iterable, Iterator

from delayd.audit.following.journal import Entry
from delayd.audit.judging.faults import Fault

FAULTS = (
    *(Fault.LOST, Fault.DUPLICATE, Fault.EARLY, Fault.ALTERED, Fault.GHOST),
    *(Fault.UNKNOWN, Fault.VERDICT_FALSE),
)
"""What a follower can find."""

METRICS = {
    "delayd_audit_alarms_total": ("counter", "Violations found since watching began, by fault."),
    "delayd_audit_requests_total": ("counter", "Requests of users that were read."),
    "delayd_audit_delivered_total": ("counter", "Watched requests whose delivery was seen."),
    "delayd_audit_pending": ("gauge", "Watched requests that are neither delivered nor over."),
    "delayd_audit_next_offset": ("gauge", "The next offset to read, by topic and partition."),
    "delayd_audit_behind_offsets": ("gauge", "Offsets that were there and not read, by topic."),
    "delayd_audit_settled_timestamp_seconds": (
        "gauge",
        "All that was in the topic at this time has been read.",
    ),
    "delayd_audit_last_batch_timestamp_seconds": ("gauge", "When the last batch was fixed."),
    "delayd_audit_last_batch_seconds": ("gauge", "How long the last batch took."),
}
"""Name, kind and meaning of each."""


def metrics_of(entry: Entry) -> str:
    """The whole file."""
    return "".join(f"{line}\n" for line in _lines(entry))


def _lines(entry: Entry) -> Iterator[str]:
    positions = entry.positions
    samples: dict[str, Iterable[tuple[dict[str, object], float]]] = {
        "delayd_audit_alarms_total": (
            ({"fault": fault.slug}, entry.found.get(fault.slug, 0)) for fault in FAULTS
        ),
        "delayd_audit_requests_total": [({}, entry.requests)],
        "delayd_audit_delivered_total": [({}, entry.delivered)],
        "delayd_audit_pending": [({}, entry.pending)],
        "delayd_audit_next_offset": (
            ({"topic": topic, "partition": number}, offset)
            for topic, offsets in positions["next"].items()
            for number, offset in enumerate(offsets)
        ),
        "delayd_audit_behind_offsets": (
            ({"topic": topic}, count) for topic, count in positions["behind"].items()
        ),
        "delayd_audit_settled_timestamp_seconds": (
            ({"topic": topic}, at_ms / 1000) for topic, at_ms in positions["settled_ms"].items()
        ),
        "delayd_audit_last_batch_timestamp_seconds": [({}, positions["at_ms"] / 1000)],
        "delayd_audit_last_batch_seconds": [({}, entry.took_ms / 1000)],
    }
    assert samples.keys() == METRICS.keys(), "a metric without a sample"
    for name, (kind, meaning) in METRICS.items():
        yield f"# HELP {name} {meaning}"
        yield f"# TYPE {name} {kind}"
        for labels, value in samples[name]:
            yield f"{name}{_labelled(labels)} {value:.15g}"


def _labelled(labels: dict[str, object]) -> str:
    # Names of topics are of letters, digits, dots, lines and dashes only: nothing to escape.
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""
