"""Transactions on the topic `t` of the twin, and what is read of it."""

from delayd.bus import Position, Record, TransactionalProducer
from delayd.bus.memory import MemoryBus, MemoryKafka


def producer(bus: MemoryBus, transactional_id: str = "id") -> TransactionalProducer:
    made = bus.transactional_producer(transactional_id)
    made.init_transactions(1_000)
    return made


def open_transaction(bus: MemoryBus, *values: bytes, by: str = "id") -> TransactionalProducer:
    made = producer(bus, by)
    made.begin()
    for value in values:
        made.send("t", key=None, value=value, headers=[], partition=0)
    return made


def committed(bus: MemoryBus, offset: int = 0) -> list[Record]:
    consumer = bus.consumer("t")
    consumer.assign({0: Position(offset)})
    return list(consumer.poll(1_000, 0))


def values(bus: MemoryBus) -> list[bytes | None]:
    return [record.value for record in committed(bus)]


def lag(kafka: MemoryKafka) -> int:
    log = kafka.log("t", 0)
    return log.end_offset - log.stable_offset
