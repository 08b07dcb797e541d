"""When a master says that Kafka does not answer it."""

import asyncio
from threading import Event
from typing import Any

import pytest
from manual_clock import ManualClock

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.node.election import kafka_contact
from delayd.node.election.kafka_contact import FAILURES_MIN, LOST_MS, KafkaContact


class Master:
    """A node that leads, and its way to brokers in memory."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.bus = MemoryBus(MemoryKafka(self.clock))
        self.stepped_ms = 0
        self.contact = KafkaContact(self.bus, self.clock, lambda: self.stepped_ms)
        assert self.contact.ask()

    def fails(self, after_ms: int, times: int = FAILURES_MIN) -> None:
        """Let time pass, and then so many questions without an answer."""
        self.clock.now_ms += after_ms
        self.bus.link.up = False
        assert not any(self.contact.ask() for _ in range(times))


def test_a_master_is_cut_off_after_a_while_without_an_answer() -> None:
    """docs/design/election.md, "Cut off from Kafka".

    Rules: pulse-cut-off
    """
    master = Master()
    master.fails(LOST_MS - 1)
    assert not master.contact.is_lost
    master.clock.now_ms += 1
    assert master.contact.is_lost
    master.bus.link.up = True
    assert master.contact.ask() and not master.contact.is_lost


def test_one_question_without_an_answer_is_not_enough() -> None:
    """Rules: pulse-cut-off"""
    master = Master()
    master.fails(10 * LOST_MS, times=1)
    assert not master.contact.is_lost


def test_a_master_that_commits_steps_is_not_cut_off() -> None:
    """Rules: pulse-cut-off"""
    master = Master()
    master.fails(10 * LOST_MS)
    assert master.contact.is_lost
    master.stepped_ms = master.clock.monotonic_ms()
    assert not master.contact.is_lost


def test_a_follower_asks_for_itself() -> None:
    """Rules: pulse-cut-off"""
    master = Master()
    assert master.contact.is_there()
    master.bus.link.up = False
    assert not master.contact.is_there()


class Hanging:
    """Brokers, and their client: a question is answered when the test says so."""

    def __init__(self) -> None:
        self.asked, self.answers = Event(), Event()
        self.is_answered = self.is_closed = False

    def cluster(self) -> Any:
        return self

    def broker_count(self, timeout_ms: int) -> int:
        self.asked.set()
        self.is_answered = self.answers.wait(10)
        return 1

    def close(self) -> None:
        self.is_closed = True


def test_who_ends_waits_for_no_answer_and_the_client_is_closed_by_who_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop would stand still meanwhile, and in a simulation for ever."""
    monkeypatch.setattr(kafka_contact, "ASK_MS", 0)
    bus = Hanging()
    contact = KafkaContact(bus, ManualClock(), lambda: 0)  # type: ignore[arg-type]

    async def end() -> None:
        running = asyncio.create_task(contact.run(lambda: True))
        await asyncio.to_thread(bus.asked.wait, 10)
        running.cancel()
        await asyncio.wait([running])
        assert not bus.is_closed, "it is in use"
        bus.answers.set()

    asyncio.run(end())
    assert bus.is_answered and bus.is_closed
