"""Sends a plan at its times with kafka-python: another producer, another partitioner's code.

No transactions: with this driver one may commit although a record of it failed.

Invariant: idempotent, so that requests about one id keep their order.
"""

import time
import warnings
from typing import Any, Final

from chaos.history import History
from chaos.workload import Plan, Planned

TIMEOUT_S: Final = 60


class KafkaPythonSender:
    """Sends to one buffer; acknowledgements and errors go to the history, as `client`'s."""

    def __init__(self, bootstrap: str, buffer: str, client: str, history: History) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # kafka-python's own code; not ours to mend
            from kafka import KafkaProducer
        self._buffer = buffer
        self._client = client
        self._history = history
        self._producer: Any = KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            client_id=client,
            acks="all",
            enable_idempotence=True,
            linger_ms=4,
            retry_backoff_ms=50,
            max_block_ms=TIMEOUT_S * 1000,
            delivery_timeout_ms=TIMEOUT_S * 1000,
            request_timeout_ms=20_000,
        )
        self.sent = 0
        """Requests sent so far."""
        self.behind_ms: list[int] = []
        """How late each of them was handed to its producer."""

    def send(self, plan: Plan) -> None:
        """Send all of it; returns when each request was acknowledged or has failed."""
        try:
            for planned in plan:
                assert isinstance(planned, Planned), "this client makes no transactions"
                wait_s = planned.at_ms / 1000 - time.time()
                if wait_s > 0:
                    time.sleep(wait_s)
                self._send(planned)
            self._producer.flush(TIMEOUT_S)
        finally:
            self._producer.close(TIMEOUT_S)

    def _send(self, planned: Planned) -> None:
        history = self._history
        number = history.sent(self._client, planned.key, planned.value)
        future = self._producer.send(
            self._buffer, planned.value, planned.key, headers=list(planned.headers)
        )
        future.add_callback(lambda told: history.stored(number, told.partition, told.offset))
        future.add_errback(lambda error: history.doubtful(number, repr(error)))
        self.sent += 1
        self.behind_ms.append(int(time.time() * 1000) - planned.at_ms)
