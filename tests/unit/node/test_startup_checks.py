"""Checks of a node before it starts that end in a line of its log."""

import pytest
from manual_clock import ManualClock
from structlog.testing import capture_logs

from delayd.bus.memory import MemoryBus
from delayd.bus.memory.kafka import MemoryKafka
from delayd.node.startup_checks import BROKER_SESSION, QUORUM_FETCH, note_slow_brokers


@pytest.mark.parametrize(
    ("brokers", "setting", "set_ms", "is_told"),
    [
        (3, BROKER_SESSION, 9_000, False),
        (3, BROKER_SESSION, 10_000, False),
        (3, BROKER_SESSION, 30_000, True),
        (1, BROKER_SESSION, 30_000, False),
        (3, QUORUM_FETCH, 5_000, False),
        (3, QUORUM_FETCH, 20_000, True),
        (1, QUORUM_FETCH, 20_000, False),
    ],
)
def test_brokers_that_are_replaced_slowly_are_told(
    brokers: int, setting: str, set_ms: int, is_told: bool
) -> None:
    """docs/operations.md, A broker that dies."""
    kafka = MemoryKafka(ManualClock(), brokers, {setting: str(set_ms)})
    with capture_logs() as told:
        note_slow_brokers(MemoryBus(kafka), 100)
    assert [(line["event"], line["setting"], line["set_ms"]) for line in told] == [
        ("brokers_replaced_slowly", setting, set_ms)
    ] * is_told


def test_brokers_that_tell_nothing_stop_no_node() -> None:
    kafka = MemoryKafka(ManualClock(), 3, {})
    with capture_logs() as told:
        note_slow_brokers(MemoryBus(kafka), 100)
    assert not told
