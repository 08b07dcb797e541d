"""Targets over Kafka in memory, on a clock that a test moves."""

import pytest
from manual_clock import ManualClock
from target_problems import TIMEOUT_MS

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.node.targets.checks import Targets


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def kafka(clock: ManualClock) -> MemoryKafka:
    kafka = MemoryKafka(clock)
    kafka.create_topic("orders", 3, {"max.message.bytes": "2000"})
    kafka.create_topic("states", 1, {"cleanup.policy": "compact,delete"})
    return kafka


@pytest.fixture
def bus(kafka: MemoryKafka) -> MemoryBus:
    return MemoryBus(kafka)


@pytest.fixture
def targets(bus: MemoryBus, clock: ManualClock) -> Targets:
    return Targets(bus.cluster(), clock, TIMEOUT_MS)
