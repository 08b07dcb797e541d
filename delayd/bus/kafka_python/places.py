"""The partition of each record, and a check that the topics of waiting records still exist.

Not here: sending.

Invariants:
- no record enters a transaction for a topic that no broker knows;
- a key's partition is that of every other client: murmur2;
- no look takes longer than a new topic takes to spread.
"""

import random
from threading import Event
from typing import Any, Final

from delayd.bus.kafka_python.connections import wait_done, was_answered
from delayd.bus.kafka_python.failures import Losses, UnknownPartitionError
from delayd.bus.kafka_python.library import TopicPartition, errors
from delayd.bus.kafka_python.settings import TOPIC_PROPAGATION_MS
from delayd.bus.murmur2 import partition_of
from delayd.runtime.clock import Clock

LOOK_MS: Final = 20
"""Pause before a topic that no broker knew is asked for again."""


class Places:
    """Partitions by a producer's metadata. A record without a place is noted as lost."""

    def __init__(self, metadata: Any, sender: Any, losses: Losses, clock: Clock) -> None:
        self._metadata = metadata
        self._sender = sender
        self._losses = losses
        self._clock = clock
        self._denied_since_ms: int | None = None

    def place_of(self, topic: str, key: bytes | None, partition: int | None) -> Any:
        """Return the partition of a record; without one, note a loss and return None."""
        numbers = self._metadata.partitions_for_topic(topic)
        if numbers is None or (partition is not None and partition not in numbers):
            numbers = self._look_up(topic, partition)
            if numbers is None:
                return None
        if partition is None:
            partition = (
                random.choice(sorted(numbers)) if key is None else partition_of(key, len(numbers))
            )
        return TopicPartition(topic, partition)

    def check_exists(self, topic: str) -> None:
        """Note a loss if no broker has known the topic of a waiting record for a while.

        kafka-python keeps such a record until it expires.
        """
        now_ms = self._clock.monotonic_ms()
        if self._metadata.partitions_for_topic(topic) is not None:
            self._denied_since_ms = None
        elif self._denied_since_ms is None:
            self._denied_since_ms = now_ms
        elif now_ms - self._denied_since_ms >= TOPIC_PROPAGATION_MS:
            self._refuse(topic, errors.UnknownTopicOrPartitionError(topic))

    def _look_up(self, topic: str, partition: int | None) -> set[int] | None:
        """Return the partitions that brokers know; without ours, note a loss and return None."""
        deadline_ms = self._clock.monotonic_ms() + TOPIC_PROPAGATION_MS
        try:
            self._sender.add_topic(topic)
        except (TypeError, ValueError):
            self._refuse(topic, errors.InvalidTopicError(topic))
            return None
        error: BaseException = errors.KafkaTimeoutError(f"no metadata of {topic}")
        while (left_ms := deadline_ms - self._clock.monotonic_ms()) > 0:
            asked = self._metadata.request_update()
            self._sender.wakeup()
            if not wait_done(asked, left_ms):
                break
            numbers: set[int] | None = self._metadata.partitions_for_topic(topic)
            if numbers is not None and (partition is None or partition in numbers):
                return numbers
            if numbers is not None:
                error = UnknownPartitionError(f"{topic} has no partition {partition}")
                break
            if topic in self._metadata.unauthorized_topics:
                error = errors.TopicAuthorizationFailedError(topic)
                break
            if was_answered(asked):
                error = errors.UnknownTopicOrPartitionError(topic)
            Event().wait(min(left_ms, LOOK_MS) / 1000)
        self._refuse(topic, error)
        return None

    def _refuse(self, topic: str, error: BaseException) -> None:
        self._losses.note_refusal(topic, error)
        self._losses.note(error)
