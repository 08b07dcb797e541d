"""Reading topics: with kafka-python what a user's own consumer would see; to their ends with the
driver of the nodes."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from nodes import HANGS_S, wait_for

from delayd.bus import Position, Record
from delayd.bus.confluent import ConfluentBus
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

    @property
    def origin(self) -> str:
        """The source of the user's own request, be it retried or not."""
        is_retried = any(name == "delayd-origin" for name, _ in self.headers)
        return self.header("delayd-origin" if is_retried else "delayd-source")


def read_until(
    bootstrap: str,
    topic: str,
    enough: Callable[[list[Seen]], bool],
    timeout_s: float = HANGS_S,
) -> list[Seen]:
    """Everything in a topic from its beginning, until it is enough or the time is over."""
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


def all_of(bootstrap: str, topic: str, partitions: int) -> list[Record]:
    """Every record of a topic, of which no transaction is open for long."""
    bus = ConfluentBus(bootstrap)
    with contextlib.closing(bus.cluster()) as kafka:
        ends = kafka.end_offsets(topic, 20_000, committed=False)
    found: list[Record] = []
    with contextlib.closing(bus.consumer(topic)) as consumer:
        consumer.assign({partition: Position(0) for partition in range(partitions)})

        def is_read() -> bool:
            found.extend(consumer.poll(10_000, 100))
            return all(consumer.position(p) >= end for p, end in ends.items())

        wait_for(is_read, f"{topic} is read")
    return found
