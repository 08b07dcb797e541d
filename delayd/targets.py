"""Targets: can a message be written to where it wants to go? Asked before it enters a step.

A transaction that meets a bad target fails as a whole, so what is known to fail must never enter
one. Answers come from cached metadata; a topic is looked up again when its answer is old.
Source: docs/design/frontier.md, "Targets".
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from delayd.bus import Cluster, TopicState
from delayd.clock import Clock
from delayd.errors import KafkaUnreachableError, TopicMismatchError

FRESH_MS = 5_000
"""How long a topic's description is believed."""

BATCH_BYTES_MAX = 1_000_000
"""Largest batch that the producer makes of small records (librdkafka's `batch.size`)."""

BATCH_OVERHEAD_BYTES = 512
"""Room for the record batch around a single record, and for the headers that delayd adds."""


@dataclass(frozen=True, slots=True)
class _Known:
    state: TopicState | None
    read_ms: int
    problem: str = ""
    """Why the brokers would not describe it."""


class Targets:
    """A cache of topic descriptions. Used by the delivery thread only."""

    def __init__(self, cluster: Cluster, clock: Clock, timeout_ms: int) -> None:
        self._cluster = cluster
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._known: dict[str, _Known] = {}

    def look_up(self, topics: Iterable[str]) -> None:
        """Read what is unknown or old; KafkaUnreachableError if the brokers do not answer.

        Also raised for a topic without a leader: it is there, and will be back.
        """
        now_ms = self._clock.monotonic_ms()
        wanted = sorted(
            topic
            for topic in set(topics)
            if (known := self._known.get(topic)) is None
            or known.state is None  # whoever reads "create it" does, and sends again at once
            or now_ms - known.read_ms > FRESH_MS
        )
        if not wanted:
            return
        for topic, state, problem in self._describe(wanted):
            if state is not None and any(p.leader is None for p in state.partitions):
                raise KafkaUnreachableError(
                    f"a partition of target {topic} has no leader",
                    remedy="check the brokers that hold it",
                )
            self._known[topic] = _Known(state, now_ms, problem)

    def _describe(self, topics: list[str]) -> Iterator[tuple[str, TopicState | None, str]]:
        """State of each topic, None where it is absent or, with a problem, where it is refused."""
        try:
            states = self._cluster.describe(topics, self._timeout_ms)
            yield from ((topic, states.get(topic), "") for topic in topics)
        except TopicMismatchError as error:
            if len(topics) == 1:
                yield topics[0], None, str(error)
                return
            # One topic that may not be described must not stand for all of them.
            for topic in topics:
                yield from self._describe([topic])

    def chunk_bytes_max(self, topic: str) -> int | None:
        """How much may be sent to a topic at once, so that each batch fits; None for any amount."""
        state = self._known[topic].state
        assert state is not None, "only to a topic without a problem anything is sent"
        limit = int(state.config.get("max.message.bytes", "1048588"))
        return None if limit >= BATCH_BYTES_MAX else limit - BATCH_OVERHEAD_BYTES

    def forget(self) -> None:
        """Believe nothing any more: a step failed."""
        self._known.clear()

    def problem(
        self, topic: str, partition: int | None, has_key: bool, size_bytes: int
    ) -> str | None:
        """Why a record would be refused by a topic that was looked up; None if it fits."""
        state, refused = self._known[topic].state, self._known[topic].problem
        if refused:
            return refused
        if state is None:
            return f"topic {topic} does not exist; create it and send the message again"
        if partition is not None and partition >= len(state.partitions):
            return (
                f"topic {topic} has {len(state.partitions)} partitions, the message asks for "
                f"partition {partition}"
            )
        limit = int(state.config.get("max.message.bytes", "1048588"))
        if size_bytes + BATCH_OVERHEAD_BYTES > limit:
            return (
                f"the record has {size_bytes} bytes, topic {topic} takes {limit} at most "
                "(max.message.bytes)"
            )
        if not has_key and "compact" in state.config.get("cleanup.policy", "delete"):
            return f"topic {topic} is compacted, so that each record needs a key"
        return None
