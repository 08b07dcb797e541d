"""What is read of each topic: from its first offset to an end that holds all that was committed.

An end is a last stable offset, taken once it has reached the high watermark of the moment before:
a transaction's markers come a little after its commit, and what the cut covers must be below them.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from delayd.bus import Bus, Cluster, Position
from delayd.clock import Clock
from delayd.errors import DelaydError

TIMEOUT_MS: Final = 15_000
SETTLE_MS: Final = 60_000
"""How long a transaction may stay open in a topic: users' own may take that long."""
POLL_MS: Final = 50


class AuditError(DelaydError):
    """The audit could not be made; nothing is said about the cluster."""

    code = "audit"


@dataclass(frozen=True, slots=True)
class Span:
    """A topic to be read: [start, end) by partition."""

    topic: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    is_compacted: bool = False

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self.ends)

    @property
    def offsets(self) -> int:
        """How many lie in it: an upper bound of its records."""
        return sum(self.ends) - sum(self.starts)


def span_of(kafka: Cluster, clock: Clock, topic: str) -> Span:
    """All that was committed to a topic until now; AuditError if a transaction stays open in it."""
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
    numbers = range(len(ends))
    return Span(topic, tuple(starts.get(p, 0) for p in numbers), tuple(ends[p] for p in numbers))


def target_spans(bus: Bus, clock: Clock, topics: Iterable[str]) -> tuple[Span, ...]:
    """The spans of those targets that exist."""
    kafka = bus.cluster()
    try:
        found = kafka.survey(topics, TIMEOUT_MS)
        unseen = sorted({*found.silent, *found.refused})
        if unseen:
            why = found.refused.get(unseen[0], "no answer")
            raise AuditError(
                f"the topic {unseen[0]} cannot be described: {why}",
                remedy="audit as a user who may describe and read every target",
            )
        spans = []
        for name, state in sorted(found.states.items()):
            span = span_of(kafka, clock, name)
            is_compacted = "compact" in state.config.get("cleanup.policy", "")
            spans.append(Span(span.topic, span.starts, span.ends, is_compacted))
        return tuple(spans)
    finally:
        kafka.close()


def latest_ends(kafka: Cluster, topic: str) -> tuple[int, ...]:
    """High watermarks now: beyond them nobody can have written anything."""
    ends = kafka.end_offsets(topic, TIMEOUT_MS, committed=False)
    return tuple(ends[p] for p in range(len(ends)))


def trimmed_before_ms(bus: Bus, clock: Clock, span: Span, now_ms: int) -> int | None:
    """Before when (Unix ms) records of a topic may be gone; None if it is whole.

    Retention deletes whole segments from the start: by the time of the first record that is left.
    Compaction may take any record, up to now.
    """
    if span.is_compacted:
        return now_ms
    cut_short = [p for p, start in enumerate(span.starts) if start > 0]
    if not cut_short:
        return None
    first_ms = dict.fromkeys(cut_short, now_ms)
    consumer = bus.consumer(span.topic)
    deadline_ms = clock.monotonic_ms() + TIMEOUT_MS
    try:
        for partition in cut_short:
            consumer.assign({partition: Position(span.starts[partition])})
            while consumer.position(partition) < span.ends[partition]:
                records = consumer.poll(1, POLL_MS)
                if records:
                    first_ms[partition] = records[0].append_ms
                    break
                if clock.monotonic_ms() > deadline_ms:
                    raise AuditError(
                        f"{span.topic}: partition {partition} cannot be read from its start",
                        remedy="check the brokers",
                    )
    finally:
        consumer.close()
    return max(first_ms.values())
