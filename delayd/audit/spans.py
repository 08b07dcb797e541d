"""The offsets to read of each topic: from the first one to an end behind all that was committed.

An end is a last stable offset, taken once it has reached the high watermark of the moment before:
a transaction's markers come a little after its commit, and what the cut covers must be below them.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from delayd.audit.errors import AuditError
from delayd.bus import Bus, Cluster, Position
from delayd.runtime.clock import Clock

TIMEOUT_MS: Final = 15_000
SETTLE_MS: Final = 60_000
"""How long a transaction may stay open in a topic: users' own may take that long."""
POLL_MS: Final = 50


@dataclass(frozen=True, slots=True)
class Span:
    """A topic to be read: [start, end) by partition."""

    topic: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    is_compacted: bool = False
    is_append_time: bool = True
    """Are the timestamps the brokers' own?"""
    retention_ms: int | None = None
    """Kafka deletes what is older than this, and nothing else; None: it deletes for the size too,
    or does not say."""

    @property
    def partitions(self) -> int:
        """Return how many there are."""
        return len(self.ends)

    @property
    def offsets(self) -> int:
        """Return how many lie in it: an upper bound of its records."""
        return sum(self.ends) - sum(self.starts)


def span_of(kafka: Cluster, clock: Clock, topic: str) -> Span:
    """Return all that was committed to a topic until now; AuditError if a transaction stays open in
    it."""
    wanted = kafka.end_offsets(topic, TIMEOUT_MS, committed=False)
    deadline_ms = clock.monotonic_ms() + SETTLE_MS
    while True:
        ends = kafka.end_offsets(topic, TIMEOUT_MS, committed=True)
        hidden = sorted(p for p, end in wanted.items() if ends.get(p, 0) < end)
        if not hidden:
            break
        if clock.monotonic_ms() > deadline_ms:
            raise AuditError(
                f"{topic}: a transaction has been open for {SETTLE_MS // 1000} s in partition "
                f"{hidden[0]} and hides what is behind it",
                remedy="end it (kafka-transactions.sh find-hanging), then audit again",
            )
        threading.Event().wait(POLL_MS / 1000)
    starts = kafka.start_offsets(topic, TIMEOUT_MS)
    return Span(topic, tuple(starts.get(p, 0) for p in range(len(ends))), listed(ends))


def as_configured(span: Span, config: Mapping[str, str]) -> Span:
    """Return the span with what the topic's settings say of how it is kept."""
    policy = config.get("cleanup.policy", "")
    retention_ms = int(config.get("retention.ms", "-1"))
    is_by_age = policy == "delete" and config.get("retention.bytes") == "-1" and retention_ms >= 0
    return replace(
        span,
        is_compacted="compact" in policy,
        is_append_time=config.get("message.timestamp.type") == "LogAppendTime",
        retention_ms=retention_ms if is_by_age else None,
    )


def target_spans(bus: Bus, clock: Clock, topics: Iterable[str]) -> tuple[Span, ...]:
    """Return the spans of those targets that exist."""
    with closing(bus.cluster()) as kafka:
        found = kafka.survey(topics, TIMEOUT_MS)
        if unseen := sorted({*found.silent, *found.refused}):
            why = found.refused.get(unseen[0], "no answer")
            raise AuditError(
                f"the topic {unseen[0]} cannot be described: {why}",
                remedy="audit as a user who may describe and read every target",
            )
        return tuple(
            as_configured(span_of(kafka, clock, name), state.config)
            for name, state in sorted(found.states.items())
        )


def listed(offsets: Mapping[int, int]) -> tuple[int, ...]:
    """Return offsets by partition; none is missing."""
    return tuple(offsets[number] for number in range(len(offsets)))


def trimmed_before_ms(
    bus: Bus, clock: Clock, span: Span, read_ms: int, first_ms: Mapping[int, int] | None = None
) -> tuple[int, ...] | None:
    """Return the time (Unix ms) before which records of each partition may be gone, 0 where it is
    whole; None if all are.

    Retention deletes from the start, so all that is gone is no younger than the first record that
    is left; if it deletes by age only, it was old enough for that too. Where neither is known, and
    of what compaction takes, it may be all until `read_ms`. `first_ms`: when the first records were
    written, by partition, for topics whose timestamps say nothing; by default they are read.
    """
    if span.is_compacted:
        return (read_ms,) * span.partitions
    cut_short = [p for p, start in enumerate(span.starts) if start > 0]
    if not cut_short:
        return None
    if first_ms is None:
        first_ms = _first_append_ms(bus, clock, span, cut_short)
    # A retention of more than all time deletes nothing: somebody else did.
    is_by_age = span.retention_ms is not None and span.retention_ms < read_ms
    kept_from_ms = read_ms - (span.retention_ms or 0) if is_by_age else read_ms
    bounds_ms = [0] * span.partitions
    for partition in cut_short:
        # What was written in the very millisecond of the first record may be gone.
        left_from_ms = first_ms.get(partition, read_ms) + 1
        bounds_ms[partition] = min(left_from_ms, kept_from_ms)
    return tuple(bounds_ms)


def _first_append_ms(
    bus: Bus, clock: Clock, span: Span, partitions: Sequence[int]
) -> dict[int, int]:
    """Return the timestamps of the first records of these partitions; of those that hold none,
    nothing."""
    found = {}
    deadline_ms = clock.monotonic_ms() + TIMEOUT_MS
    with closing(bus.consumer(span.topic, careful=True)) as consumer:
        for partition in partitions:
            consumer.assign({partition: Position(span.starts[partition])})
            while consumer.position(partition) < span.ends[partition]:
                records = consumer.poll(1, POLL_MS)
                if records:
                    found[partition] = records[0].append_ms
                    break
                if clock.monotonic_ms() > deadline_ms:
                    raise AuditError(
                        f"{span.topic}: partition {partition} cannot be read from its start",
                        remedy="check the brokers",
                    )
    return found
