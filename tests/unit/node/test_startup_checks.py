"""Checks of a node before it starts that end in a line of its log."""

import pytest
from manual_clock import ManualClock
from structlog.testing import capture_logs

from delayd.bus.memory import MemoryBus
from delayd.bus.memory.kafka import MemoryKafka
from delayd.node.startup_checks import BROKER_SESSION, note_slow_brokers


@pytest.mark.parametrize(
    ("brokers", "session_ms", "is_told"),
    [(3, "9000", False), (3, "10000", False), (3, "30000", True), (1, "30000", False)],
)
def test_brokers_that_are_replaced_slowly_are_told(
    brokers: int, session_ms: str, is_told: bool
) -> None:
    """docs/operations.md, A transaction that cannot end."""
    kafka = MemoryKafka(ManualClock(), brokers, {BROKER_SESSION: session_ms})
    with capture_logs() as told:
        note_slow_brokers(MemoryBus(kafka), 100)
    assert [(line["event"], line["session_ms"]) for line in told] == [
        ("brokers_replaced_slowly", int(session_ms))
    ] * is_told


def test_brokers_that_tell_nothing_stop_no_node() -> None:
    kafka = MemoryKafka(ManualClock(), 3, {})
    with capture_logs() as told:
        note_slow_brokers(MemoryBus(kafka), 100)
    assert not told
