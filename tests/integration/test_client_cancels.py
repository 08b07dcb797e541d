"""Cancels and replaces wait for their receipts, on a real Kafka, through both drivers.

Source: docs/guides/python-client.md, "Verdicts".
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import answering
import pytest
from answering import AT_MS, DUE_MS, PARTITIONS, Answering, id_of, op_of
from nodes import HANGS_S

from delayd import Client
from delayd.bus import Record
from delayd.bus.confluent import ConfluentBus
from delayd.bus.murmur2 import partition_of
from delayd.client import RequestRefusedError, Verdict, VerdictUnknownError
from delayd.client.driver import DriverName
from delayd.errors import NotInitialisedError

LINGER_MS = 2_000
SHORT_MS = 500

pytestmark = pytest.mark.real
master, driver = answering.master, answering.driver

Open = Callable[..., Client]


@pytest.fixture
def client(master: Answering, driver: DriverName) -> Iterator[Client]:
    with Client(master.bootstrap, driver=driver, buffer=master.buffer) as client:
        yield client


def own_threads(before: set[threading.Thread]) -> set[str]:
    return {thread.name for thread in set(threading.enumerate()) - before}


def test_a_cancel_returns_the_verdict_of_its_own_receipt(master: Answering, client: Client) -> None:
    def answer(record: Record) -> None:
        source = f"{record.partition}/{record.offset}"
        killed = ("3/7", "3/9")
        master.write(source, "order-1", "cancelled", killed=killed, detail="in time")

    with master.answering(answer):
        verdict = client.cancel("order-1")
    [request] = master.read(1)
    assert request.partition == partition_of(b"order-1", PARTITIONS)
    assert (request.key, request.value) == (b"order-1", None)
    assert sorted(request.headers) == [("delayd-id", b"order-1"), ("delayd-op", b"cancel")]
    source = f"{request.partition}/{request.offset}"
    expected = Verdict("cancelled", ("3/7", "3/9"), DUE_MS, AT_MS, "in time", source)
    assert verdict == expected


@pytest.mark.parametrize("word", ["too-late", "not-found", "rejected"])
def test_every_answer_to_a_cancel_is_returned_not_raised(
    master: Answering, client: Client, word: str
) -> None:
    def answer(record: Record) -> None:
        master.write(f"{record.partition}/{record.offset}", id_of(record), word, due_ms=None)

    with master.answering(answer):
        verdict = client.cancel("order-1")
    assert (verdict.verdict, verdict.killed, verdict.due_ms) == (word, (), None)


def test_a_replace_schedules_and_returns_its_verdict(master: Answering, client: Client) -> None:
    with master.answering():
        verdict = client.replace("order-2", "orders", b"v", key="k", in_="1h", headers={"a": "1"})
    assert verdict.verdict == "replaced"
    [request] = master.read(1)
    assert (request.key, request.value) == (b"order-2", b"v")
    assert request.headers == [
        ("a", b"1"),
        ("delayd-topic", b"orders"),
        ("delayd-delay", b"1h"),
        ("delayd-key", b"k"),
        ("delayd-op", b"replace"),
        ("delayd-id", b"order-2"),
    ]


def test_what_became_of_the_new_message_is_not_taken_for_the_verdict_on_the_replace(
    master: Answering, client: Client
) -> None:
    """With receipts = all both name the replace as their source, in either order."""

    def answer(record: Record) -> None:
        source = f"{record.partition}/{record.offset}"
        master.write(source, id_of(record), "delivered", op="replace")
        master.write(source, id_of(record), "too-late", op="replace")

    with master.answering(answer):
        assert client.replace("order-2", "orders", b"v", at=0).verdict == "too-late"


@pytest.mark.parametrize("id", ["order-2", None])
@pytest.mark.parametrize("word", ["scheduled", "conflict", "rejected"])
def test_a_schedule_that_waits_returns_what_was_decided(
    master: Answering, client: Client, id: str | None, word: str
) -> None:
    def answer(record: Record) -> None:
        source = f"{record.partition}/{record.offset}"
        master.write(source, id or source, word, op="schedule", detail="why")

    with master.answering(answer):
        verdict = client.schedule("orders", b"v", in_="1h", id=id, wait=True)
    assert (verdict.verdict, verdict.detail) == (word, "why")
    [request] = master.read(1)
    assert ("delayd-receipt", b"yes") in request.headers
    assert verdict.source == f"{request.partition}/{request.offset}"


def test_without_wait_only_the_place_is_returned(master: Answering, client: Client) -> None:
    sent = client.cancel("order-1", wait=False)
    replaced = client.replace("order-1", "orders", b"v", at=DUE_MS, wait=False)
    assert replaced.due_ms == DUE_MS
    records = master.read(2)
    assert [f"{r.partition}/{r.offset}" for r in records] == [sent.source, replaced.source]
    assert [op_of(record) for record in records] == ["cancel", "replace"]


def test_a_receipt_for_someone_elses_request_is_not_taken(
    master: Answering, client: Client
) -> None:
    """The same id, cancelled by two at once: each gets his own answer."""

    def answer(record: Record) -> None:
        partition, offset = record.partition, record.offset
        master.write(f"{partition}/{offset + 1}", id_of(record), "too-late")
        master.write(f"{(partition + 1) % PARTITIONS}/{offset}", id_of(record), "not-found")
        master.write(f"{partition}/{offset}", id_of(record), "cancelled")

    with master.answering(answer):
        assert client.cancel("order-1").verdict == "cancelled"


def test_an_aborted_receipt_is_not_seen(master: Answering, client: Client) -> None:
    def answer(record: Record) -> None:
        source = f"{record.partition}/{record.offset}"
        master.write(source, id_of(record), "too-late", commit=False)
        master.write(source, id_of(record), "cancelled")

    with master.answering(answer):
        assert client.cancel("order-1").verdict == "cancelled"


def test_a_receipt_that_comes_before_the_acknowledgement_is_found(
    master: Answering, driver: DriverName
) -> None:
    linger = {"confluent": "producer.linger.ms", "kafka-python": "producer.linger_ms"}[driver]
    overrides: dict[str, Any] = {linger: LINGER_MS}
    with (
        Client(
            master.bootstrap, driver=driver, buffer=master.buffer, overrides=overrides
        ) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        with master.answering():
            client.cancel("order-0")  # from now on the reader stands
        source = master.next_source("order-1")
        waiting = pool.submit(client.cancel, "order-1")
        # Its request still waits in the sender; all receipts for it come before.
        until_s = time.monotonic() + LINGER_MS / 2000
        while time.monotonic() < until_s:
            master.write(source, "order-1", "cancelled")
        assert not waiting.done()
        assert waiting.result(HANGS_S).source == source


def test_without_a_receipt_in_time_the_outcome_is_unknown_and_a_repeated_cancel_tells(
    master: Answering, client: Client
) -> None:
    start_s = time.monotonic()
    with pytest.raises(VerdictUnknownError) as unknown:
        client.cancel("order-1", timeout_ms=SHORT_MS)
    assert time.monotonic() - start_s < SHORT_MS / 1000 + 2
    assert "the outcome is unknown" in str(unknown.value)
    assert "a repeated cancel gets a true answer" in str(unknown.value)
    with pytest.raises(VerdictUnknownError, match="delayd show"):
        client.replace("order-1", "orders", b"v", in_="1h", timeout_ms=SHORT_MS)
    with master.answering():
        # The receipts of the two that nobody waits for any more disturb no one.
        assert client.cancel("order-1").verdict == "cancelled"


def test_many_threads_wait_over_one_reader(master: Answering, client: Client) -> None:
    before = set(threading.enumerate())
    with master.answering(), ThreadPoolExecutor(50) as pool:
        ids = [f"order-{number}" for number in range(200)]
        verdicts = list(pool.map(client.cancel, ids))
        readers = [name for name in own_threads(before) if name == "delayd-receipts"]
    assert len(readers) <= 1
    assert len({verdict.source for verdict in verdicts}) == 200


def test_close_ends_a_wait_with_its_error_and_leaves_no_thread(
    master: Answering, driver: DriverName
) -> None:
    before = set(threading.enumerate())
    client = Client(master.bootstrap, driver=driver, buffer=master.buffer)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.cancel, "order-1")
        master.read(1)  # so it waits for its receipt now
        start_s = time.monotonic()
        client.close()
        with pytest.raises(VerdictUnknownError, match="closed"):
            waiting.result(HANGS_S)
        assert time.monotonic() - start_s < 5
    assert own_threads(before) == set()
    with pytest.raises(RequestRefusedError, match="closed"):
        client.cancel("order-1")


def test_where_receipts_cannot_be_read_nothing_is_sent(
    master: Answering, driver: DriverName
) -> None:
    missing = f"{master.receipts}-missing"
    with Client(master.bootstrap, driver=driver, buffer=master.buffer, receipts=missing) as client:
        with pytest.raises(NotInitialisedError, match=missing):
            client.cancel("order-1")
        assert client.cancel("order-1", wait=False).offset == 0
    with closing(ConfluentBus(master.bootstrap, client_id="test-client").cluster()) as cluster:
        assert cluster.describe([missing], HANGS_S * 1000) == {}


def test_an_answered_cancel_can_be_asked_again_and_again(master: Answering, client: Client) -> None:
    with master.answering():
        sources = [client.cancel("order-1").source for _ in range(5)]
    assert len(set(sources)) == 5
