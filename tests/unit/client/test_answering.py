"""Many requests, each with its answer: an error is told before more is sent."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from delayd.client.answering import answers
from delayd.client.asking import Ask, ask_cancel
from delayd.client.connection import Connection
from delayd.errors import KafkaUnreachableError


@pytest.mark.parametrize("fails", ["check_buffer", "wait_until_ready"])
def test_an_error_is_told_before_the_next_request_is_taken(fails: str) -> None:
    """Each may take half a minute: nobody waits for two thousand of them."""
    error = KafkaUnreachableError("no broker answers", remedy="start one")

    def failing(*_: object) -> None:
        raise error

    calls: dict[str, Any] = {"check_buffer": lambda: 1, "wait_until_ready": lambda: None}
    calls[fails] = failing
    ticket = SimpleNamespace(wait_until_ready=calls["wait_until_ready"], close=lambda: None)
    outbox: Any = SimpleNamespace(check_buffer=calls["check_buffer"])
    verdicts: Any = SimpleNamespace(ticket=lambda *_: ticket)
    taken = []

    def asked() -> Iterator[Ask]:
        for number in range(10):
            taken.append(number)
            yield ask_cancel(f"id-{number}")

    found = answers(Connection(outbox, verdicts), asked(), 1_000, under_way_max=5)
    assert next(found) is error and taken == [0]
    assert next(found) is error and taken == [0, 1]
