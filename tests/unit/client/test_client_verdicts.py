"""Tickets and their reader, without Kafka: the reader here is told what to read."""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing

import pytest

from delayd.client import verdicts as module
from delayd.client.asking import ask, ask_cancel
from delayd.client.driver import Reader
from delayd.client.errors import (
    RequestRefusedError,
    VerdictUnknownError,
    not_done,
    outcome_unknown,
)
from delayd.client.outcomes import Sent, Verdict, verdict_of
from delayd.client.verdicts import EARLY_MAX, Deadline, Ticket, Verdicts
from delayd.errors import ConsumerError, DelaydError, KafkaUnreachableError
from delayd.request import Op

TIMEOUT_S = 10
Pair = tuple[bytes | None, bytes | None]


class ScriptedReader(Reader):
    """Hands out what it is given, or raises it."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.given: queue.Queue[Pair | Exception] = queue.Queue()
        self.closed = threading.Event()
        self._fault = fault

    def open(self, timeout_ms: int) -> None:
        if self._fault is not None:
            raise self._fault

    def poll(self, timeout_ms: int) -> list[Pair]:
        try:
            given = self.given.get(timeout=timeout_ms / 1000)
        except queue.Empty:
            return []
        if isinstance(given, Exception):
            raise given
        return [given]

    def close(self) -> None:
        self.closed.set()


def receipt(source: str, verdict: str = "cancelled", id: str = "a") -> Pair:
    fields: dict[str, object] = {
        "id": id,
        "verdict": verdict,
        "op": "cancel",
        "source": source,
        "killed": [],
        "due_ms": None,
        "at_ms": 1,
        "detail": "",
    }
    return id.encode(), json.dumps(fields).encode()


def acknowledged(source: str) -> "Future[Sent]":
    partition, offset = source.split("/")
    future: Future[Sent] = Future()
    future.set_result(Sent(int(partition), int(offset), 0))
    return future


def failed(error: Exception) -> "Future[Sent]":
    future: Future[Sent] = Future()
    future.set_exception(error)
    return future


def a_wait(verdicts: Verdicts, id: str = "a") -> Ticket:
    """For the verdict on a cancel."""
    return verdicts.ticket(ask_cancel(id), Deadline.after(TIMEOUT_S * 1_000))


def opened(reader: Reader) -> Verdicts:
    return Verdicts(lambda: reader, 1_000)


@pytest.fixture
def reader() -> ScriptedReader:
    return ScriptedReader()


@pytest.fixture
def verdicts(reader: ScriptedReader) -> Iterator[Verdicts]:
    with closing(opened(reader)) as verdicts:
        yield verdicts


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not true():
        assert time.monotonic() < deadline_s, "it does not come true"
        threading.Event().wait(0.01)


def test_a_receipt_before_the_acknowledgement_waits_for_it(
    reader: ScriptedReader, verdicts: Verdicts
) -> None:
    with a_wait(verdicts) as ticket:
        ticket.ready.result(TIMEOUT_S)
        reader.given.put(receipt("1/7", "too-late"))
        reader.given.put(receipt("1/8"))
        until(reader.given.empty)
        a_wait(verdicts).close()  # so that both were handed out
        until(lambda: len(ticket._early) == 2)
        assert not ticket.answer.done()
        ticket.follow(acknowledged("1/8"))
        assert ticket.answer.result(0).source == "1/8"


def test_what_is_kept_for_a_request_without_acknowledgement_is_bounded(verdicts: Verdicts) -> None:
    with a_wait(verdicts) as ticket:
        for offset in range(10 * EARLY_MAX):
            ticket.deliver(Verdict("too-late", (), None, 0, "", f"1/{offset}"))
        assert len(ticket._early) == EARLY_MAX
        ticket.follow(acknowledged(f"1/{10 * EARLY_MAX - 1}"))
        assert ticket.answer.result(0).verdict == "too-late"
        assert not ticket._early


def test_receipts_of_other_ids_are_not_kept(reader: ScriptedReader, verdicts: Verdicts) -> None:
    with a_wait(verdicts) as ticket:
        for offset in range(100):
            reader.given.put(receipt(f"1/{offset}", id="b"))
        reader.given.put(receipt("1/100"))
        until(lambda: "1/100" in ticket._early)
        assert len(ticket._early) == 1


UNNAMED = ask("delayd-buffer", "orders", b"v", in_=1, receipts=True)


def under_its_source(source: str, verdict: str = "scheduled") -> Pair:
    return receipt(source, verdict, id=source)


@pytest.mark.parametrize("is_early", [True, False])
def test_a_request_without_an_id_waits_for_what_is_under_its_source(
    reader: ScriptedReader, verdicts: Verdicts, is_early: bool
) -> None:
    deadline = Deadline.after(TIMEOUT_S * 1_000)
    with verdicts.ticket(UNNAMED, deadline) as ticket, verdicts.ticket(UNNAMED, deadline) as other:
        ticket.ready.result(TIMEOUT_S)
        if not is_early:
            ticket.follow(acknowledged("1/8"))
        reader.given.put(receipt("1/8", "cancelled"))  # under an id
        for offset in (7, 8, 9):
            reader.given.put(under_its_source(f"1/{offset}"))
        reader.given.put(under_its_source("1/8", "delivered"))
        if is_early:
            assert verdicts._reading is not None
            until(lambda: "1/9" in verdicts._reading.under_sources)  # type: ignore[union-attr]
            ticket.follow(acknowledged("1/8"))
        answer = ticket.answer.result(TIMEOUT_S)
        assert (answer.source, answer.verdict) == ("1/8", "scheduled")
        assert not other.answer.done()
        other.fail(RequestRefusedError("given up"))
    assert verdicts._count == 0


def test_what_is_kept_for_requests_without_ids_is_bounded(
    reader: ScriptedReader, verdicts: Verdicts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITS_MAX", 3)
    with verdicts.ticket(UNNAMED, Deadline.after(TIMEOUT_S * 1_000)) as ticket:
        ticket.ready.result(TIMEOUT_S)
        assert verdicts._reading is not None
        kept = verdicts._reading.under_sources
        for offset in range(9):
            reader.given.put(under_its_source(f"1/{offset}"))
        until(lambda: "1/8" in kept)
        assert list(kept) == ["1/6", "1/7", "1/8"]
        ticket.follow(acknowledged("1/7"))
        assert ticket.answer.result(0).verdict == "scheduled"
        assert not kept


@pytest.mark.parametrize(
    "value", [None, b"", b"{", b"[]", b"3", b'{"verdict": "cancelled"}', b"\xff"]
)
def test_what_is_no_receipt_is_nobodys_answer(
    reader: ScriptedReader, verdicts: Verdicts, value: bytes | None
) -> None:
    assert verdict_of(value) is None
    with a_wait(verdicts) as ticket:
        ticket.follow(acknowledged("1/8"))
        reader.given.put((b"a", value))
        reader.given.put(receipt("1/8"))
        assert ticket.answer.result(TIMEOUT_S).source == "1/8"


def test_a_reader_that_cannot_open_keeps_the_request_from_being_sent() -> None:
    verdicts = opened(ScriptedReader(KafkaUnreachableError("no broker")))
    with (
        a_wait(verdicts) as ticket,
        pytest.raises(KafkaUnreachableError, match="no broker"),
    ):
        ticket.ready.result(TIMEOUT_S)
    verdicts.close()


def test_a_reader_that_fails_ends_every_wait_and_the_next_wait_gets_a_new_one() -> None:
    readers = [ScriptedReader(), ScriptedReader()]
    made = iter(readers)
    verdicts = Verdicts(lambda: next(made), 1_000)
    tickets = [a_wait(verdicts, id) for id in "abc"]
    tickets[0].follow(acknowledged("1/8"))
    readers[0].given.put(ConsumerError("the topic is gone"))
    for ticket in tickets:
        with pytest.raises(VerdictUnknownError, match="the topic is gone"):
            ticket.answer.result(TIMEOUT_S)
        ticket.close()
    assert readers[0].closed.wait(TIMEOUT_S)
    with a_wait(verdicts) as ticket:
        ticket.ready.result(TIMEOUT_S)
        ticket.follow(acknowledged("1/8"))
        readers[1].given.put(receipt("1/8"))
        assert ticket.answer.result(TIMEOUT_S).verdict == "cancelled"
    verdicts.close()


def test_a_bug_in_the_reader_reaches_the_waiters_too() -> None:
    verdicts = opened(ScriptedReader(AssertionError("a bug")))
    with a_wait(verdicts) as ticket:
        with pytest.raises(DelaydError, match="a bug"):
            ticket.ready.result(TIMEOUT_S)
        with pytest.raises(VerdictUnknownError, match="a bug"):
            ticket.answer.result(TIMEOUT_S)
    verdicts.close()


def test_a_request_that_failed_ends_its_wait(verdicts: Verdicts) -> None:
    """What Kafka certainly does not have is no unknown outcome."""
    with a_wait(verdicts) as ticket:
        ticket.follow(failed(not_done("too large", Op.CANCEL)))
        with pytest.raises(DelaydError, match="nothing is cancelled"):
            ticket.answer.result(0)
    with a_wait(verdicts) as ticket:
        ticket.follow(failed(outcome_unknown("no acknowledgement", Op.CANCEL)))
        with pytest.raises(VerdictUnknownError, match="no acknowledgement"):
            ticket.answer.result(0)


def test_close_ends_every_wait_and_the_thread(reader: ScriptedReader, verdicts: Verdicts) -> None:
    before = set(threading.enumerate())
    ticket = a_wait(verdicts)
    ticket.ready.result(TIMEOUT_S)
    verdicts.close()
    verdicts.close()
    with pytest.raises(VerdictUnknownError, match="closed"):
        ticket.answer.result(0)
    assert reader.closed.is_set()
    assert set(threading.enumerate()) <= before, "threads of other tests may end meanwhile"
    with pytest.raises(RequestRefusedError, match="closed"):
        a_wait(verdicts)


def test_the_reader_leaves_when_nobody_has_waited_for_a_while(
    reader: ScriptedReader, verdicts: Verdicts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_MS", 50)
    ticket = a_wait(verdicts)
    ticket.ready.result(TIMEOUT_S)
    assert not reader.closed.wait(0.5), "somebody waits"
    ticket.close()
    assert reader.closed.wait(TIMEOUT_S)


def test_waits_are_bounded(verdicts: Verdicts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITS_MAX", 2)
    first, _ = a_wait(verdicts), a_wait(verdicts)
    with pytest.raises(RequestRefusedError, match="2 requests wait"):
        a_wait(verdicts, "b")
    first.close()
    first.close()
    a_wait(verdicts, "b")
    with pytest.raises(RequestRefusedError, match="2 requests wait"):
        a_wait(verdicts, "c")
