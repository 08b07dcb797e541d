"""The client's driver over Kafka in memory; see the port `delayd.client.driver.Driver`."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from delayd.bus import Ack, Consumer
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.memory.kafka import Refused
from delayd.bus.murmur2 import partition_of
from delayd.client.connection import Connection
from delayd.client.driver import Failure, OnOutcome, PlainRecord, Reader, Role
from delayd.client.outbox import Outbox
from delayd.client.verdicts import Verdicts

ACK_TIMEOUT_MS: Final = 5_000

Take: TypeAlias = Callable[[PlainRecord, Callable[[], None]], None]
"""Gets a record and what writes it, which it calls once."""


class MemoryCounting:
    """The administration of a client."""

    def __init__(self, kafka: MemoryKafka, bus: MemoryBus) -> None:
        self._kafka = kafka
        self._cluster = bus.cluster()

    def partition_count(self, topic: str, timeout_ms: int) -> int:
        """Return it."""
        return len(self._kafka.topics[topic].partitions)

    def end_offsets(self, topic: str, timeout_ms: int, *, committed: bool) -> dict[int, int]:
        """See the port."""
        return self._cluster.end_offsets(topic, timeout_ms, committed=committed)

    def close(self) -> None:
        """Release it."""
        self._cluster.close()


class MemoryDriver:
    """One user of the brokers: each record is in the log as soon as it is sent."""

    def __init__(
        self, kafka: MemoryKafka, bus: MemoryBus, take: Take = lambda record, write: write()
    ) -> None:
        """`take`: what happens around each write."""
        self._kafka = kafka
        self._bus = bus
        self._take = take

    def sender(self) -> "MemoryDriver":
        """Return itself: there is nothing to open."""
        return self

    def cluster(self, role: Role) -> Any:
        """Return what asks about topics."""
        return MemoryCounting(self._kafka, self._bus)

    def consumer(self, topic: str) -> Consumer:
        """Return a reader of a topic."""
        return self._bus.consumer(topic)

    def refusal(self, record: PlainRecord) -> str | None:
        """Return None: it takes every record."""
        return None

    def send(self, record: PlainRecord, on_outcome: OnOutcome) -> bool:
        """See the port."""
        outcomes: list[Ack | Failure] = []
        self._take(record, lambda: outcomes.append(self._written(record)))
        on_outcome(*outcomes)
        return True

    def _written(self, record: PlainRecord) -> Ack | Failure:
        topic, key, value, headers, partition = record
        if partition is None:
            count = len(self._kafka.topics[topic].partitions)
            partition = 0 if key is None else partition_of(key, count)
        try:
            return self._kafka.append(topic, partition, key, value, list(headers))
        except Refused as refused:
            return Failure(True, str(refused))

    def wait_for_room(self, timeout_ms: int) -> None:
        """Never called: there is always room."""
        raise AssertionError("there is always room")

    def close(self, timeout_ms: int) -> None:
        """Nothing is under way."""


def connected(driver: MemoryDriver, buffer: str, receipts: str) -> Connection:
    """Return both halves of a client."""
    return Connection(
        Outbox(driver, buffer, ACK_TIMEOUT_MS),
        Verdicts(lambda: Reader(driver, receipts), ACK_TIMEOUT_MS),
    )
