"""How much a client has under way (docs/guides/python-client.md, "Bounds")."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from delayd.client.outbox import InFlight

SOON_S = 0.05
TIMEOUT_S = 10


def admitted(in_flight: InFlight, size: int, within_s: float = 0) -> "Future[Any] | None":
    future: Future[Any] = Future()
    return future if in_flight.admit(future, size, time.monotonic() + within_s) else None


def test_more_than_so_many_records_wait_for_room() -> None:
    in_flight = InFlight(2, 100)
    first, second = admitted(in_flight, 1), admitted(in_flight, 1)
    assert first and second
    assert admitted(in_flight, 1, SOON_S) is None
    first.set_result(None)
    assert admitted(in_flight, 1)
    assert admitted(in_flight, 1) is None


def test_more_than_so_many_bytes_wait_for_room() -> None:
    in_flight = InFlight(10, 100)
    first = admitted(in_flight, 60)
    assert first
    assert admitted(in_flight, 41) is None
    assert admitted(in_flight, 40)
    first.set_result(None)
    assert admitted(in_flight, 60)


def test_what_is_larger_than_all_the_room_goes_alone() -> None:
    in_flight = InFlight(10, 100)
    large = admitted(in_flight, 1_000)
    assert large
    assert admitted(in_flight, 1) is None
    large.set_result(None)
    assert admitted(in_flight, 1)


def test_who_waits_for_room_gets_it_when_there_is_some() -> None:
    in_flight = InFlight(1, 100)
    first = admitted(in_flight, 1)
    assert first
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(admitted, in_flight, 1, TIMEOUT_S)
        first.set_result(None)
        assert waiting.result(TIMEOUT_S)


def test_a_flush_waits_for_what_was_there_and_not_for_what_came_later() -> None:
    in_flight = InFlight(10, 100)
    first, second = admitted(in_flight, 1), admitted(in_flight, 1)
    assert first and second
    assert in_flight.wait_for_those_now(10) == 2
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(in_flight.wait_for_those_now, TIMEOUT_S * 1000)
        while not second._waiters:  # until the flush waits for what is there
            assert not flushing.done()
        later = admitted(in_flight, 1)
        assert later
        first.set_result(None)
        assert not flushing.done()
        second.set_result(None)
        assert flushing.result(TIMEOUT_S) == 0
    assert in_flight.left() == [later]


def test_nothing_in_flight_is_flushed_at_once() -> None:
    assert InFlight(1, 1).wait_for_those_now(0) == 0


def test_close_sends_away_who_waits_and_who_comes() -> None:
    in_flight = InFlight(1, 100)
    assert admitted(in_flight, 1)
    started = threading.Event()

    def wait() -> "Future[Any] | None":
        started.set()
        return admitted(in_flight, 1, 10 * TIMEOUT_S)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        assert started.wait(TIMEOUT_S)
        in_flight.close()
        assert waiting.result(TIMEOUT_S) is None
    assert admitted(in_flight, 1) is None
