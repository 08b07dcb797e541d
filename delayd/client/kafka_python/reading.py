"""The reader of receipts over kafka-python."""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from delayd.client.driver import READ_RECORDS_MAX
from delayd.client.kafka_python.library import (
    CLOSE_MS,
    KafkaConsumer,
    TopicPartition,
    faults,
    made,
    partition_count,
    unreachable,
)
from delayd.errors import ConsumerError


class KafkaPythonReader:
    """See the port `Reader`."""

    def __init__(self, topic: str, properties: Mapping[str, Any]) -> None:
        self._topic = topic
        self._properties = properties
        self._client: Any = None

    def open(self, timeout_ms: int) -> None:
        """See the port."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        count = partition_count(self._properties, self._topic, timeout_ms)
        bounded = {**self._properties, "bootstrap_timeout_ms": timeout_ms}
        self._client = made(KafkaConsumer, bounded, timeout_ms)
        self._client._client.cluster.config["allow_auto_create_topics"] = False
        try:
            all_of_it = [TopicPartition(self._topic, number) for number in range(count)]
            self._client.assign(all_of_it)
            left_ms = max(1, int((deadline_s - time.monotonic()) * 1000))
            ends = self._client.end_offsets(all_of_it, timeout_ms=left_ms)
            for each in all_of_it:
                self._client.seek(each, ends[each])
        except faults.KafkaError as error:
            raise unreachable(timeout_ms, error) from error

    def poll(self, timeout_ms: int) -> list[tuple[bytes | None, bytes | None]]:
        """See the port. The library retries transient trouble by itself."""
        try:
            polled = self._client.poll(timeout_ms=timeout_ms, max_records=READ_RECORDS_MAX)
        except faults.KafkaError as error:
            if error.retriable:
                return []
            raise ConsumerError(f"reading {self._topic} failed: {error}") from error
        return [(each.key, each.value) for records in polled.values() for each in records]

    def close(self) -> None:
        """See the port."""
        if self._client is not None:
            with suppress(faults.KafkaError):
                self._client.close(autocommit=False, timeout_ms=CLOSE_MS)
            self._client = None
