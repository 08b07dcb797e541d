"""Reading topics with kafka-python, the second driver: what a user's own consumer would see."""

import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from delayd.runtime.clock import SystemClock


class Seen(NamedTuple):
    """A record as a read_committed consumer got it."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    received_ms: int

    def header(self, name: str) -> str:
        """The one value of a header, as text."""
        [value] = [content for header, content in self.headers if header == name]
        assert value is not None, f"{name} is null"
        return value.decode()


def read_until(
    bootstrap: str,
    topic: str,
    enough: Callable[[list[Seen]], bool],
    timeout_s: float = 30,
) -> list[Seen]:
    """Everything in a topic from its beginning, until it is enough or the time is over."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kafka import KafkaConsumer, TopicPartition
    clock = SystemClock()
    consumer: Any = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=20,
    )
    seen: list[Seen] = []
    try:
        numbers: set[int] = set()
        deadline_ms = clock.monotonic_ms() + int(timeout_s * 1000)
        while not numbers and clock.monotonic_ms() < deadline_ms:
            numbers = consumer.partitions_for_topic(topic) or set()
            threading.Event().wait(0.05)
        consumer.assign([TopicPartition(topic, number) for number in sorted(numbers)])
        while not enough(seen) and clock.monotonic_ms() < deadline_ms:
            for records in consumer.poll(timeout_ms=50).values():
                seen += [
                    Seen(r.partition, r.key, r.value, list(r.headers), clock.wall_ms())
                    for r in records
                ]
    finally:
        consumer.close()
    return seen
