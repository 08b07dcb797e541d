"""The request by which a consumed record that failed comes again (delayd.client.retrying)."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from delayd import RetryPolicy, retry
from delayd.bus import Headers
from delayd.client import Request, RequestRefusedError
from delayd.client.retrying import ERROR_BYTES_MAX, ROCKETMQ_DELAYS


@dataclass
class KafkaPythonRecord:
    """As a ConsumerRecord: attributes."""

    topic: str = "orders"
    partition: int = 2
    offset: int = 7
    key: Any = b"k\xff"
    value: Any = b"v\x00"
    headers: list[tuple[str, bytes | None]] | None = field(default_factory=list)


class ConfluentMessage:
    """As a Message: methods."""

    def __init__(self, error: str | None = None, **fields: Any) -> None:
        self._record = KafkaPythonRecord(**fields)
        self._error = error

    def __getattr__(self, name: str) -> Any:
        content = getattr(self._record, name)
        return lambda: content

    def error(self) -> str | None:
        return self._error


def headers_of(request: Request) -> dict[str, bytes | None]:
    assert isinstance(request.headers, list)
    return dict(request.headers)


def again(request: Request, topic: str | None = None) -> KafkaPythonRecord:
    """The record as it comes again: delayd adds headers of its own."""
    assert isinstance(request.headers, list)
    added: Headers = [("delayd-source", b"1/9"), ("delayd-due", b"5")]
    return KafkaPythonRecord(
        topic=topic or request.topic, offset=99, headers=[*request.headers, *added]
    )


@pytest.mark.parametrize("make", [KafkaPythonRecord, ConfluentMessage])
def test_a_record_comes_again_as_it_was(make: Any) -> None:
    """Key, value and headers byte for byte, in order, doubles too; where it was."""
    users = [("trace", b"1"), ("trace", b"\xff"), ("none", None)]
    request = retry(make(headers=[*users, ("delayd-source", b"0/1")]), ValueError("no stock"))
    assert (request.topic, request.partition) == ("orders", 2)
    assert (request.key, request.value, request.in_) == (b"k\xff", b"v\x00", "10s")
    assert request.headers == [
        *users,
        ("retry-attempt", b"1"),
        ("retry-error", b"ValueError: no stock"),
        ("retry-origin", b"orders/2/7"),
    ]
    request.ask("delayd-buffer")  # delayd takes it


def test_it_is_tried_sixteen_times_more_and_is_dead_then() -> None:
    record = KafkaPythonRecord()
    delays = []
    for attempt in range(1, 18):
        request = retry(record, f"error {attempt}")
        assert headers_of(request)["retry-attempt"] == b"%d" % attempt
        assert headers_of(request)["retry-error"] == b"error %d" % attempt
        assert headers_of(request)["retry-origin"] == b"orders/2/7"
        delays.append(request.in_)
        record = again(request)
    assert delays == [*ROCKETMQ_DELAYS, 0]
    assert (request.topic, request.partition) == ("orders-dead", None)


def test_topics_of_a_policy() -> None:
    """A group of several has a topic of its own; the dead topic is named by the first one."""
    policy = RetryPolicy(delays=("1s",), topic="orders-billing-retry")
    first = retry(KafkaPythonRecord(), "x", policy)
    assert (first.topic, first.partition) == ("orders-billing-retry", None)
    second = retry(again(first), "x", policy)
    assert (second.topic, second.in_) == ("orders-dead", 0)
    named = RetryPolicy(delays=(), dead_topic="graveyard")
    assert retry(KafkaPythonRecord(), "x", named).topic == "graveyard"


def test_what_no_attempt_mends_is_dead_at_once() -> None:
    policy = RetryPolicy(hopeless=(ValueError,))
    assert retry(KafkaPythonRecord(), ValueError("bad"), policy).topic == "orders-dead"
    assert retry(KafkaPythonRecord(), KeyError("bad"), policy).topic == "orders"


def test_delays_that_grow() -> None:
    assert RetryPolicy.backoff(1_000, 5, most_ms=6_000).delays == (
        1_000,
        2_000,
        4_000,
        6_000,
        6_000,
    )


@pytest.mark.parametrize("content", [b"", b"-3", b"x", b"\xff", b"9" * 30, None, "\u0663".encode()])
def test_an_attempt_that_nobody_can_read_is_the_first(content: bytes | None) -> None:
    record = KafkaPythonRecord(headers=[("retry-attempt", content)])
    assert headers_of(retry(record, "x"))["retry-attempt"] == b"1"


def test_an_error_of_any_length_and_kind_fits() -> None:
    """What is cut is text still."""
    text = headers_of(retry(KafkaPythonRecord(), "\udcff" + "\u00e9" * 5_000))["retry-error"]
    assert text is not None and text.decode().startswith("?\u00e9")
    assert ERROR_BYTES_MAX - 1 <= len(text) <= ERROR_BYTES_MAX


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ("orders", "a str is no consumed record"),
        (KafkaPythonRecord(value={"a": 1}), "the value is dict"),
        (KafkaPythonRecord(key="text"), "the key is str"),
        (ConfluentMessage(error="partition EOF"), "the message is an error: partition EOF"),
    ],
    ids=["no record", "value", "key", "error"],
)
def test_what_is_no_record_is_refused(record: object, problem: str) -> None:
    with pytest.raises(RequestRefusedError, match=problem):
        retry(record, "x")
