"""Sends a plan at its times, with confluent-kafka and nothing of delayd's.

One thread that does nothing else: what it looks up and encodes was made before. It does not wait
for acknowledgements. How far behind its times it was is in `behind_ms`, and in the log.

Invariant: one idempotent producer, so that requests about one id keep their order; each user
transaction goes through a producer of its own kind.
"""

import logging
import threading
import time
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from chaos.history import NO_TRANSACTION, History, What
from chaos.workload import Plan, Planned, PlannedTransaction

TIMEOUT_S: Final = 60
POLL_EVERY: Final = 200
"""Records between two looks at the delivery reports, while behind."""

SHORT_S: Final = 0.001
_SILENT: Final = logging.getLogger("chaos.confluent_sender")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
"""librdkafka complains of each broker that dies; what became of a request is in the history."""

_COMMON: Final[dict[str, Any]] = {
    "logger": _SILENT,
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "linger.ms": 4,
    "queue.buffering.max.messages": 1_000_000,
    "retry.backoff.ms": 5,
}


class ConfluentSender:
    """Sends to one buffer. Errors of records and of transactions are noted in the history, as
    `client`'s, and not raised: brokers may die."""

    def __init__(self, bootstrap: str, buffer: str, client: str, history: History) -> None:
        self._buffer = buffer
        self._bootstrap = bootstrap
        self._client = client
        self._history = history
        self._producer = Producer({"bootstrap.servers": bootstrap, **_COMMON})
        self._transactional_id = f"user-{uuid4().hex}"
        self._transactional = self._new_transactional()
        self._has_begun = False
        self.sent = 0
        """Requests sent so far, aborted ones too."""
        self.behind_ms: list[int] = []
        """How late each of them was handed to its producer."""
        self.is_over = threading.Event()
        """Set when a plan has ended, well or not."""

    def send(self, plan: Plan) -> None:
        """Send all of it; returns when the broker has all. RuntimeError if it has not."""
        try:
            self._send_all(plan)
        finally:
            self.is_over.set()

    def _send_all(self, plan: Plan) -> None:
        if not self._has_begun and any(isinstance(p, PlannedTransaction) for p in plan):
            self._transactional.init_transactions(TIMEOUT_S)
            self._has_begun = True
        for planned in plan:
            while time.time() * 1000 < planned.at_ms:
                self._producer.poll(SHORT_S)
            if isinstance(planned, PlannedTransaction):
                self._send_transaction(planned)
            else:
                self._send(self._producer, planned)
                if self.sent % POLL_EVERY == 0:
                    self._producer.poll(0)
        left = self._producer.flush(TIMEOUT_S)
        if left:
            raise RuntimeError(f"{left} unsent")

    def _send_transaction(self, planned: PlannedTransaction) -> None:
        number = self._history.began(self._client)
        how = What.UNKNOWN
        try:
            self._do_transaction(planned, number)
            how = What.COMMITTED if planned.commits else What.ABORTED
        except KafkaException:
            # Its end is not known to its client. A new producer under the id ends it.
            self._transactional = self._new_transactional()
            self._has_begun = False
        finally:
            self._history.ended(self._client, number, how)

    def _do_transaction(self, planned: PlannedTransaction, number: int) -> None:
        producer = self._transactional
        if not self._has_begun:
            producer.init_transactions(TIMEOUT_S)
            self._has_begun = True
        producer.begin_transaction()
        for request in planned.requests:
            self._send(producer, request, number)
        producer.flush(TIMEOUT_S)  # what is aborted was really in the log
        ends_s = time.monotonic() + planned.open_ms / 1000
        while time.monotonic() < ends_s:
            self._producer.poll(SHORT_S)
        if planned.commits:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)

    def _send(
        self, producer: Producer, planned: Planned, transaction: int = NO_TRANSACTION
    ) -> None:
        number = self._history.sent(self._client, planned.key, planned.value, transaction)

        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._history.doubtful(number, str(error))
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None, "it was acknowledged"
            self._history.stored(number, partition, offset)

        producer.produce(
            self._buffer,
            planned.value,
            planned.key,
            headers=list(planned.headers),
            on_delivery=note,
        )
        self.sent += 1
        self.behind_ms.append(int(time.time() * 1000) - planned.at_ms)

    def _new_transactional(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self._transactional_id,
                **_COMMON,
            }
        )
