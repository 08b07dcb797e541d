"""The client's driver over Kafka in memory; see the port `delayd.client.driver.Driver`."""

from typing import Any

from delayd.bus import Consumer
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.memory.kafka import Refused
from delayd.bus.murmur2 import partition_of
from delayd.client.connection import Connection
from delayd.client.driver import Failure, OnOutcome, PlainRecord, Reader, Role
from delayd.client.outbox import Outbox
from delayd.client.verdicts import Verdicts

ACK_TIMEOUT_MS = 5_000


class MemoryCounting:
    """The administration of a client."""

    def __init__(self, kafka: MemoryKafka, bus: MemoryBus) -> None:
        self._kafka = kafka
        self._cluster = bus.cluster()

    def partition_count(self, topic: str, timeout_ms: int) -> int:
        return len(self._kafka.topics[topic].partitions)

    def end_offsets(self, topic: str, timeout_ms: int, *, committed: bool) -> dict[int, int]:
        return self._cluster.end_offsets(topic, timeout_ms, committed=committed)

    def close(self) -> None:
        self._cluster.close()


class MemoryDriver:
    """One user of the brokers: each record is in the log as soon as it is sent."""

    def __init__(self, kafka: MemoryKafka, bus: MemoryBus) -> None:
        self._kafka = kafka
        self._bus = bus

    def sender(self) -> "MemoryDriver":
        return self

    def cluster(self, role: Role) -> Any:
        return MemoryCounting(self._kafka, self._bus)

    def consumer(self, topic: str) -> Consumer:
        return self._bus.consumer(topic)

    def refusal(self, record: PlainRecord) -> str | None:
        return None

    def send(self, record: PlainRecord, on_outcome: OnOutcome) -> bool:
        topic, key, value, headers, partition = record
        if partition is None:
            count = len(self._kafka.topics[topic].partitions)
            partition = 0 if key is None else partition_of(key, count)
        try:
            on_outcome(self._kafka.append(topic, partition, key, value, list(headers)))
        except Refused as refused:
            on_outcome(Failure(True, str(refused)))
        return True

    def wait_for_room(self, timeout_ms: int) -> None:
        raise AssertionError("there is always room")

    def close(self, timeout_ms: int) -> None:
        pass


def connected(kafka: MemoryKafka, bus: MemoryBus) -> Connection:
    """Both halves of a client."""
    driver = MemoryDriver(kafka, bus)
    return Connection(
        Outbox(driver, "delayd-buffer", ACK_TIMEOUT_MS),
        Verdicts(lambda: Reader(driver, "delayd-receipts"), ACK_TIMEOUT_MS),
    )
