"""Kafka in memory with one topic `t`, whose records have the time of its brokers."""

import pytest
from manual_clock import ManualClock

from delayd.bus.memory import MemoryBus, MemoryKafka


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
def kafka(clock: ManualClock) -> MemoryKafka:
    kafka = MemoryKafka(clock)
    kafka.create_topic("t", 2, {"message.timestamp.type": "LogAppendTime"})
    return kafka


@pytest.fixture
def bus(kafka: MemoryKafka) -> MemoryBus:
    return MemoryBus(kafka)
