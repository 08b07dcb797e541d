"""What the client refuses before anything is sent (docs/design, wire contract)."""

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

import delayd
from delayd.bus import Record
from delayd.client import (
    Client,
    NotScheduledError,
    OutcomeUnknownError,
    RequestRefusedError,
    cancel_record,
    replace_record,
    schedule_record,
)
from delayd.client.asking import Ask, ask, ask_cancel
from delayd.client.confluent import failure_of
from delayd.client.connection import receipts_of
from delayd.client.driver import DriverName
from delayd.client.errors import failed
from delayd.errors import ConfigError, KafkaUnreachableError
from delayd.request import Op, Request, RequestLimits, parse

BUFFER = "delayd-buffer"
NOWHERE = "127.0.0.1:1"
APPEND_MS = 1_700_000_000_000


def asked(**arguments: Any) -> Ask:
    return ask(BUFFER, "orders", b"v", **arguments)


def refused(topic: Any = "orders", value: Any = b"v", **arguments: Any) -> str:
    with pytest.raises(RequestRefusedError) as refusal:
        ask(BUFFER, topic, value, **arguments)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("in_", "header"),
    [
        ("10s", b"10s"),
        (250, b"250ms"),
        (0, b"0ms"),
        (timedelta(hours=2), b"7200000ms"),
        (timedelta(milliseconds=1), b"1ms"),
        (timedelta(microseconds=1001), b"2ms"),
    ],
)
def test_a_delay_becomes_the_delay_header_rounded_up(in_: Any, header: bytes) -> None:
    request = asked(in_=in_)
    assert request.headers[-1] == ("delayd-delay", header)
    assert request.due_ms(APPEND_MS) == APPEND_MS + request.asked_ms


@pytest.mark.parametrize(
    ("at", "header"),
    [
        (APPEND_MS, b"1700000000000"),
        ("2023-11-14T22:13:20.5Z", b"2023-11-14T22:13:20.5Z"),
        ("1700000000000", b"1700000000000"),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), b"1700000000000"),
        (datetime(2023, 11, 14, 23, 13, 20, 1, timezone(timedelta(hours=1))), b"1700000000001"),
    ],
)
def test_a_due_time_becomes_the_due_header_rounded_up(at: Any, header: bytes) -> None:
    request = asked(at=at)
    assert request.headers[-1] == ("delayd-due", header)
    assert 0 <= request.due_ms(0) - APPEND_MS <= 500


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"at": datetime(2026, 1, 1)}, "no time zone"),
    ({}, "exactly one"),
    ({"in_": "1s", "at": APPEND_MS}, "exactly one"),
    ({"in_": timedelta(seconds=-1)}, "a time in the past is given with at"),
    *(
        ({"in_": in_}, "")
        for in_ in (-1, timedelta(microseconds=-1001), 1.5, True, "1.5s", "soon", "")
    ),
    *(({"at": at}, "") for at in (-1, 1.5, False, "2023-11-14T22:13:20", 10**16, "\ud800")),
    ({"at": 1_700_000_000}, "looks like seconds"),
    ({"at": "1700000000000000"}, "looks like microseconds"),
    ({"at": 1_700_000_000 * 10**9}, "looks like nanoseconds"),
    *(
        ({"topic": topic, "in_": "1s"}, "")
        for topic in ("", "a b", "delayd-dead", "__offsets", ".", None, "\ud800")
    ),
    *(
        ({"in_": "1s", "partition": partition}, "bad-partition")
        for partition in (-1, 2**31, True, 1.0, "x")
    ),
    # A delivered record's headers, passed on as they are, would contradict the arguments.
    ({"in_": "1s", "headers": [("delayd-due", b"1")]}, "delayd-due"),
    ({"in_": "1s", "headers": {"delayd-key": b"1"}}, "delayd-key"),
    # librdkafka's Python binding crashes the process on one, and cuts the other.
    ({"in_": "1s", "headers": {"\udcff": b"1"}}, "not-utf8"),
    ({"in_": "1s", "headers": {"a\0b": b"1"}}, "NUL"),
    *(
        ({"in_": "1s", **wrong}, "not bytes or str")
        for wrong in ({"value": 1}, {"key": 1}, {"headers": {"a": 1}}, {"value": bytearray(b"v")})
    ),
    # Beside an id a key has to travel in a header, which is text.
    *(({"in_": "1s", "id": "i", "key": key}, "delayd-key") for key in (b"", b"\xff", "")),
]
"""Arguments of a schedule, and what their refusal says."""


@pytest.mark.parametrize(("arguments", "says"), REFUSED)
def test_what_delayd_would_reject_is_refused(arguments: dict[str, Any], says: str) -> None:
    assert says in refused(**arguments)


def test_the_forbidden_prefix_is_taken_from_the_name_of_the_buffer() -> None:
    with pytest.raises(RequestRefusedError, match="forbidden-topic"):
        ask("later.buffer", "later.dead", b"v", in_="1s")
    assert ask("later.buffer", "delayd-x", b"v", in_="1s")
    assert ask("requests", "requests-done", b"v", in_="1s")


def test_text_is_sent_as_utf8_and_null_stays_null() -> None:
    request = ask(
        BUFFER, "orders", "wärt", key="schlüssel", in_="1s", headers={"h": "ü", "n": None}
    )
    assert (request.key, request.value) == ("schlüssel".encode(), "wärt".encode())
    assert request.headers[:2] == [("h", "ü".encode()), ("n", None)]
    assert ask(BUFFER, "orders", None, in_="1s").value is None


BYTES = st.none() | st.binary(max_size=20)
NAMES = st.text(max_size=8).filter(lambda name: "\0" not in name and not name.startswith("delayd-"))


@given(
    BYTES,
    BYTES,
    st.lists(st.tuples(NAMES, BYTES), max_size=5),
    st.integers(0, 2**31 - 1) | st.none(),
    st.integers(0, 86_400_000),
)
def test_what_the_client_sends_delayd_accepts_unchanged(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    partition: int | None,
    delay_ms: int,
) -> None:
    request = ask(
        BUFFER, "orders", value, key=key, in_=delay_ms, headers=headers, partition=partition
    )
    limits = RequestLimits(86_400_000, 10_000, 4, "test", b"")
    record = Record(1, 2, 0, APPEND_MS, request.key, request.value, request.headers)
    outcome = parse(record, limits)
    assert isinstance(outcome, Request)
    due_ms = request.due_ms(APPEND_MS)
    assert outcome[1:9] == ("orders", due_ms, due_ms, key, value, headers, partition, None)


def test_only_a_certain_failure_is_called_not_scheduled() -> None:
    too_large = failure_of(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    assert isinstance(failed(Op.SCHEDULE, too_large), NotScheduledError)
    for code in (
        KafkaError._MSG_TIMED_OUT,
        KafkaError._PURGE_INFLIGHT,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError._FATAL,
    ):
        unknown = failed(Op.SCHEDULE, failure_of(KafkaError(code)))
        assert isinstance(unknown, OutcomeUnknownError)


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("confluent", "acks"),
        ("confluent", "enable.idempotence"),
        ("confluent", "partitioner"),
        ("confluent", "bootstrap.servers"),
        ("confluent", "message.timeout.ms"),
        ("confluent", "transactional.id"),
        ("confluent", "no.such.property"),
        ("kafka-python", "acks"),
        ("kafka-python", "enable_idempotence"),
        ("kafka-python", "transactional_id"),
        ("kafka-python", "partitioner"),
        ("kafka-python", "producer.max_block_ms"),
        ("kafka-python", "linger.ms"),
    ],
)
def test_what_the_contract_fixes_or_a_driver_does_not_know_cannot_be_set(
    driver: DriverName, name: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(name.removeprefix("producer."))):
        Client(NOWHERE, driver=driver, overrides={name: "0"})


@pytest.mark.parametrize("driver", ["confluent", "kafka-python"])
def test_an_unreachable_kafka_is_reported_within_the_bound_and_close_returns(
    driver: DriverName,
) -> None:
    with Client(NOWHERE, driver=driver, ack_timeout_ms=300) as client:
        with pytest.raises(KafkaUnreachableError):
            client.schedule("orders", b"v", in_="1s")
        with pytest.raises(KafkaUnreachableError):
            client.cancel("order-1")


def test_a_closed_client_refuses() -> None:
    client = Client(NOWHERE, overrides={"log_level": "0"})
    client.close()
    client.close()
    with pytest.raises(RequestRefusedError, match="closed"):
        client.schedule("orders", b"v", in_="1s")


@pytest.mark.parametrize(
    "use", ["delayd.Client", "delayd.Client('127.0.0.1:1', driver='kafka-python').close()"]
)
def test_neither_the_package_nor_the_other_driver_loads_librdkafka(use: str) -> None:
    assert delayd.Client is Client
    code = f"import sys, delayd; {use}; sys.exit('confluent_kafka' in sys.modules)"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


# --- Ids


@pytest.mark.parametrize("id", ["", "x" * 257, "ü" * 129, "\ud800", b"bytes", None, 7])
def test_an_id_that_delayd_would_reject_is_refused(id: Any) -> None:
    with pytest.raises(RequestRefusedError, match="id"):
        ask_cancel(id)
    if id is not None:
        with pytest.raises(RequestRefusedError, match="id"):
            asked(in_="1s", id=id)


def test_an_id_is_the_records_key_and_another_key_goes_into_a_header() -> None:
    for id in ("i", "ü" * 128, "x" * 256):
        request = asked(in_="1s", id=id, key="k")
        assert request.key == id.encode()
        assert dict(request.headers)["delayd-id"] == id.encode()
        assert dict(request.headers)["delayd-key"] == b"k"
        assert "delayd-op" not in dict(request.headers)


@pytest.mark.parametrize("key", [None, "i", b"i"])
def test_without_another_key_the_id_is_the_delivered_one(key: Any) -> None:
    request = asked(in_="1s", id="i", key=key)
    assert request.key == b"i"
    assert "delayd-key" not in dict(request.headers)


def test_a_cancel_carries_its_operation_and_its_id_and_nothing_else() -> None:
    request = ask_cancel("i")
    assert (request.key, request.value) == (b"i", None)
    assert sorted(request.headers) == [("delayd-id", b"i"), ("delayd-op", b"cancel")]


def test_plain_records_are_what_the_client_sends() -> None:
    headers: list[tuple[str, bytes | str | None]] = [("a", b"1"), ("a", None)]
    asked_for = asked(in_="1s", id="i", key="k", headers=headers, partition=2)
    record = schedule_record(
        "orders", b"v", in_="1s", id="i", key="k", headers=headers, partition=2
    )
    assert record == (BUFFER, asked_for.key, asked_for.value, asked_for.headers, None)
    replace = replace_record("i", "orders", b"v", at=7, buffer="p-buffer")
    assert (replace.topic, replace.key) == ("p-buffer", b"i")
    assert dict(replace.headers)["delayd-op"] == b"replace"
    assert cancel_record("i")[:4] == (BUFFER, b"i", None, ask_cancel("i").headers)


# --- Drivers


def test_there_are_two_drivers() -> None:
    with pytest.raises(ConfigError, match="confluent or kafka-python"):
        Client(NOWHERE, driver="librdkafka")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"value": b"v", "headers": {"trace": None}}, "null value of the header 'trace'"),
        ({"value": None}, "without key and value"),
    ],
)
def test_what_kafka_python_cannot_send_is_refused_for_it(
    arguments: dict[str, Any], text: str
) -> None:
    with (
        Client(NOWHERE, driver="kafka-python") as client,
        pytest.raises(RequestRefusedError, match=text),
    ):
        client.schedule("orders", in_="1s", **arguments)


def test_a_wait_inside_the_transaction_that_asks_is_refused() -> None:
    with Client(NOWHERE, overrides={"log_level": "0"}) as client:
        with pytest.raises(RequestRefusedError, match="inside the transaction"):
            client.cancel_in(object(), "i", wait=True)
        with pytest.raises(RequestRefusedError, match="inside the transaction"):
            client.replace_in(object(), "i", "orders", b"v", in_="1s", wait=True)


def test_a_producer_that_nobody_knows_is_refused() -> None:
    with (
        Client(NOWHERE, overrides={"log_level": "0"}) as client,
        pytest.raises(RequestRefusedError, match="object is not a producer"),
    ):
        client.schedule_in(object(), "orders", b"v", in_="1s")


def test_the_receipts_of_a_buffer_with_another_name_must_be_named() -> None:
    with pytest.raises(ConfigError, match="receipts"):
        receipts_of("requests")
    assert receipts_of("later.buffer") == "later.receipts"
