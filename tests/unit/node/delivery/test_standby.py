"""What a follower keeps ready: a producer that is connected before it is needed."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from manual_clock import ManualClock
from one_node import FOREVER_MS, DeliveryDesk, wait_for

from delayd.bus.memory.producer import MemoryProducer
from delayd.node.delivery.delivery_context import DeliveryOptions
from delayd.node.delivery.grant import Grant
from delayd.node.delivery.standby import RENEW_MS, Standby
from delayd.runtime.clock import SystemClock

Made = list[MemoryProducer]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[DeliveryDesk]:
    options = DeliveryOptions(idle_interval_ms=1_000, clock_drift_max_ms=10_000)
    desk = DeliveryDesk(tmp_path, SystemClock(), options)
    yield desk
    desk.stop()


@pytest.fixture
def made(desk: DeliveryDesk, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Every transactional producer that the bus makes from now on."""
    found: Made = []
    make: Callable[[str], MemoryProducer] = desk.bus.transactional_producer

    def made_and_noted(transactional_id: str) -> MemoryProducer:
        found.append(make(transactional_id))
        return found[-1]

    monkeypatch.setattr(desk.bus, "transactional_producer", made_and_noted)
    return found


def test_a_follower_takes_over_with_the_producer_that_it_kept(
    desk: DeliveryDesk, made: Made
) -> None:
    """docs/design/election.md, Standby: nothing is connected while messages wait."""
    desk.delivery.start()
    wait_for(lambda: len(made) == 1)
    desk.delivery.give(Grant("n/1", FOREVER_MS))
    wait_for(lambda: desk.delivery.is_delivering)
    assert len(made) == 1, "the takeover connected anew"


def test_a_kept_producer_is_given_once_and_renewed_when_it_is_old(
    desk: DeliveryDesk, made: Made
) -> None:
    """docs/design/election.md, Standby."""
    clock = ManualClock()
    standby = Standby(desk.bus, desk.settings, clock)
    standby.keep()
    standby.keep()
    assert standby.take() is made[0]
    assert standby.take() is made[1], "a second takeover gets a producer of its own"
    standby.keep()
    clock.now_ms += RENEW_MS
    standby.keep()
    assert standby.take() is made[3]
