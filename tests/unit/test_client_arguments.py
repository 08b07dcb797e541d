"""What the client refuses before anything is sent (docs/design, wire contract)."""

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
from delayd.client import Client, NotScheduledError, OutcomeUnknownError, RequestRefusedError
from delayd.client.asking import Ask, ask
from delayd.client.errors import failure
from delayd.errors import ConfigError, KafkaUnreachableError
from delayd.request import Request, RequestLimits, parse

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


def test_a_naive_datetime_is_refused() -> None:
    assert "no time zone" in refused(at=datetime(2026, 1, 1))


def test_exactly_one_of_delay_and_due_time_is_taken() -> None:
    assert "exactly one" in refused()
    assert "exactly one" in refused(in_="1s", at=APPEND_MS)


@pytest.mark.parametrize("in_", [-1, timedelta(microseconds=-1001), 1.5, True, "1.5s", "soon", ""])
def test_a_delay_that_delayd_would_reject_is_refused(in_: Any) -> None:
    assert refused(in_=in_)


def test_a_negative_delay_is_told_what_to_use_instead() -> None:
    assert "a time in the past is given with at" in refused(in_=timedelta(seconds=-1))


@pytest.mark.parametrize("at", [-1, 1.5, False, "2023-11-14T22:13:20", 10**16, "\ud800"])
def test_a_due_time_that_delayd_would_reject_is_refused(at: Any) -> None:
    assert refused(at=at)


@pytest.mark.parametrize("topic", ["", "a b", "delayd-dead", "__offsets", ".", None, "\ud800"])
def test_a_target_that_delayd_would_reject_is_refused(topic: Any) -> None:
    assert refused(topic, in_="1s")


def test_the_forbidden_prefix_is_taken_from_the_name_of_the_buffer() -> None:
    with pytest.raises(RequestRefusedError, match="forbidden-topic"):
        ask("later.buffer", "later.dead", b"v", in_="1s")
    assert ask("later.buffer", "delayd-x", b"v", in_="1s")
    assert ask("requests", "requests-done", b"v", in_="1s")


@pytest.mark.parametrize("partition", [-1, 2**31, True, 1.0, "x"])
def test_a_target_partition_that_delayd_would_reject_is_refused(partition: Any) -> None:
    assert "bad-partition" in refused(in_="1s", partition=partition)


def test_reserved_headers_are_refused_in_the_users_headers() -> None:
    """A delivered record's headers, passed on as they are, would contradict the arguments."""
    assert "delayd-due" in refused(in_="1s", headers=[("delayd-due", b"1")])
    assert "delayd-key" in refused(in_="1s", headers={"delayd-key": b"1"})


def test_a_header_name_that_is_not_utf8_is_refused() -> None:
    """librdkafka's Python binding crashes the process on one."""
    assert "not-utf8" in refused(in_="1s", headers={"\udcff": b"1"})


def test_a_header_name_that_would_be_cut_on_its_way_is_refused() -> None:
    assert "NUL" in refused(in_="1s", headers={"a\0b": b"1"})


@pytest.mark.parametrize(
    "wrong", [{"value": 1}, {"key": 1}, {"headers": {"a": 1}}, {"value": bytearray(b"v")}]
)
def test_a_value_that_is_neither_bytes_nor_text_is_refused(wrong: dict[str, Any]) -> None:
    assert "not bytes or str" in refused(in_="1s", **wrong)


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
    assert isinstance(failure(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)), NotScheduledError)
    for code in (
        KafkaError._MSG_TIMED_OUT,
        KafkaError._PURGE_INFLIGHT,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError._FATAL,
    ):
        assert isinstance(failure(KafkaError(code)), OutcomeUnknownError)


@pytest.mark.parametrize(
    "name", ["acks", "enable.idempotence", "partitioner", "bootstrap.servers", "message.timeout.ms"]
)
def test_what_the_contract_fixes_cannot_be_overridden(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Client(NOWHERE, overrides={name: "0"})


def test_a_property_that_does_not_exist_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"no\.such\.property"):
        Client(NOWHERE, overrides={"no.such.property": "1"})


def test_an_unreachable_kafka_is_reported_within_the_bound_and_close_returns() -> None:
    with (
        Client(NOWHERE, ack_timeout_ms=200, overrides={"log_level": "0"}) as client,
        pytest.raises(KafkaUnreachableError),
    ):
        client.schedule("orders", b"v", in_="1s")


def test_a_closed_client_refuses() -> None:
    client = Client(NOWHERE, overrides={"log_level": "0"})
    client.close()
    client.close()
    with pytest.raises(RequestRefusedError, match="closed"):
        client.schedule("orders", b"v", in_="1s")


def test_the_package_offers_the_client_without_loading_kafka() -> None:
    assert delayd.Client is Client
    code = "import sys, delayd; sys.exit('confluent_kafka' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
