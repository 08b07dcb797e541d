"""When the ingest thread lets records come in before it reads on.

Source: docs/performance/profiles.md.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from manual_clock import ManualClock

from delayd.bus import Bus
from delayd.node.replica.ingest_loop import (
    FOLLOW_PAUSE_MS,
    LEAD_PAUSE_MS,
    PAUSE_RECORDS_MAX,
    SOON_MS,
    IngestLoop,
)
from delayd.node.replica.replica import Replica
from delayd.runtime.threads import Threads

POLL_TOOK_MS = 1


class Ingestion:
    """An ingest loop over batches of records, with all that it asks played; in this thread."""

    def __init__(self, batches: list[tuple[int, bool]], *, leads: bool) -> None:
        """`batches`: how many records, and whether any of them is wanted soon."""
        self.clock = ManualClock()
        self.pauses: list[tuple[str, int]] = []
        self._batches: Iterator[tuple[int, bool]] = iter(batches)
        self._is_over = False
        self._is_soon = False
        self._run: Callable[[], None] = lambda: None
        self.arrivals = SimpleNamespace(has_listener=leads, soon_count=0)
        self.settings = SimpleNamespace(buffer=SimpleNamespace(name="buffer"), partitions=1)
        self.reached, self.positions = (0,), {0: 0}

    def play(self) -> list[tuple[str, int]]:
        """Take in all batches; return the pauses, by whom they are made."""
        bus = cast(Bus, SimpleNamespace(consumer=lambda *_args, **_more: self))
        threads = cast(Threads, SimpleNamespace(event=lambda: self, thread=self._thread))
        failures: list[BaseException] = []
        replica = cast(Replica, self)
        IngestLoop(bus, replica, self.clock, 10**9, failures.append, threads)
        self._run()
        assert failures == []
        return self.pauses

    def _thread(self, _name: str, run: Callable[[], None]) -> None:
        self._run = run

    # The consumer.
    def poll(self, _records_max: int, _timeout_ms: int) -> list[Any]:
        self.clock.now_ms += POLL_TOOK_MS
        count, self._is_soon = next(self._batches, (0, False))
        self._is_over = count == 0
        return [SimpleNamespace(append_ms=0)] * count

    def position(self, _partition: int) -> int:
        return 0

    def close(self) -> None:
        pass

    # The event that stops it.
    def is_set(self) -> bool:
        return self._is_over

    def wait(self, timeout: float) -> bool:
        self.pauses.append(("master", round(timeout * 1000)))
        self.clock.now_ms += round(timeout * 1000)
        return False

    # The replica.
    def takes_in(self) -> bool:
        return True

    def take(self, _records: list[Any]) -> list[Any]:
        self.arrivals.soon_count += self._is_soon
        return []

    def split_some(self, _now_ms: int) -> bool:
        return False

    def checkpoint(self, _reached: tuple[int, ...]) -> bool:
        return True

    def pause_ingest(self, pause_ms: int) -> None:
        self.pauses.append(("follower", pause_ms))


def test_a_follower_reads_what_came_in_its_pause_at_once() -> None:
    assert Ingestion([(3, False), (3, True)], leads=False).play() == [
        ("follower", FOLLOW_PAUSE_MS),
        ("follower", FOLLOW_PAUSE_MS),
    ]


@pytest.mark.parametrize("leads", [False, True])
def test_nobody_pauses_who_has_to_catch_up(leads: bool) -> None:
    long = int(SOON_MS / POLL_TOOK_MS) + 10
    assert Ingestion([(PAUSE_RECORDS_MAX, False)] * long, leads=leads).play() == []


def test_a_master_pauses_when_all_that_came_lately_is_for_later() -> None:
    until_then = SOON_MS // POLL_TOOK_MS
    pauses = Ingestion([(3, False)] * (until_then + 1), leads=True).play()
    assert pauses == [("master", LEAD_PAUSE_MS)] * 2


def test_a_master_does_not_pause_for_a_while_after_something_that_a_step_may_want() -> None:
    until_then = SOON_MS // POLL_TOOK_MS
    batches = [(3, False)] * (until_then - 1) + [(3, True)] + [(3, False)] * (until_then - 1)
    assert Ingestion(batches, leads=True).play() == []
