"""The cashier: what ends it is told to whoever waits for it."""

from typing import Any, Self

import pytest

from delayd.dev.batch import Batch, Payments
from delayd.dev.cashier import Cashier
from delayd.errors import KafkaUnreachableError

PAYMENTS = Payments(Batch(run="a1", topics=("one",), count=9, first_due_ms=0, spread_ms=10))


class Client:
    """Stands for the asyncio client; the second cancel fails."""

    def __init__(self, _bootstrap: str) -> None:
        self.cancelled = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Nothing."""

    async def cancel(self, _id: str, **_how: Any) -> None:
        self.cancelled += 1
        if self.cancelled == 2:
            raise KafkaUnreachableError("nobody is there")


def test_a_payment_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayd.dev.cashier.AsyncClient", Client)
    with (
        pytest.raises(KafkaUnreachableError, match="nobody is there"),
        Cashier("", PAYMENTS, lambda _sent: None) as cashier,
    ):
        cashier.wait(10_000)
