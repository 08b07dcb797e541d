"""Several clients that send one plan together: two with confluent-kafka, one with kafka-python.

Requests with the same key go to the same client, so that those about one id keep their order. All
transactions go to one client, which sends nothing else, so that slow ones delay no other request.

Each client is one thread that does nothing else: what it looks up and encodes was made before. It
does not wait for acknowledgements. How far behind its times it was is in `behind_ms`. It uses
nothing of delayd's. Errors of records and of transactions are noted in the history and not raised:
brokers may die. Of events nothing is noted: what is in their topic counts.

Invariant: producers are idempotent, so that requests about one id keep their order; each user
transaction goes through a producer of its own kind.
"""

import logging
import threading
import time
import warnings
from typing import Any, Final, Self
from uuid import uuid4
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from chaos.history import NO_TRANSACTION, History, What
from chaos.workload import Plan, Planned, PlannedTransaction

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kafka-python's own code; not ours to mend
    from kafka import KafkaProducer

CLIENTS: Final = ("confluent-1", "confluent-2", "kafka-python")
TRANSACTIONAL: Final = "transactional"
JOIN_TIMEOUT_S: Final = 180.0
TIMEOUT_S: Final = 60
POLL_EVERY: Final = 200
"""Records between two looks at the delivery reports, while behind."""

SHORT_S: Final = 0.001
_SILENT: Final = logging.getLogger("chaos.traffic")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
"""librdkafka complains of each broker that dies; what became of a request is in the history."""

ANSWER_TIMEOUT_MS: Final = 5_000
"""How long a user waits for a broker that may be frozen before it asks who leads now. Until then a
user's open transaction hides what others send to its partitions."""

_COMMON: Final[dict[str, Any]] = {
    "logger": _SILENT,
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "linger.ms": 4,
    "queue.buffering.max.messages": 1_000_000,
    "retry.backoff.ms": 5,
    "socket.timeout.ms": ANSWER_TIMEOUT_MS,
}


class _Sender:
    """Sends to one buffer, as `client`."""

    def __init__(self, buffer: str, client: str, history: History) -> None:
        self._buffer = buffer
        self._client = client
        self._history = history
        self.sent = 0
        """Requests sent so far, aborted ones too."""
        self.behind_ms: list[int] = []
        """How late each of them was handed to its producer."""

    def _note_sent(self, planned: Planned) -> None:
        self.sent += 1
        self.behind_ms.append(int(time.time() * 1000) - planned.at_ms)


class ConfluentSender(_Sender):
    """Sends with confluent-kafka."""

    def __init__(self, bootstrap: str, buffer: str, client: str, history: History) -> None:
        super().__init__(buffer, client, history)
        self._options = {"bootstrap.servers": bootstrap, **_COMMON}
        self._producer = Producer(self._options)
        self._transactional_id = f"user-{uuid4().hex}"
        self._transactional: Producer | None = None
        self.is_over = threading.Event()
        """Set when a plan has ended, well or not."""

    def send(self, plan: Plan) -> None:
        """Send all of it; returns when the broker has all. RuntimeError if it has not."""
        try:
            if any(isinstance(planned, PlannedTransaction) for planned in plan):
                self._begun()
            for planned in plan:
                while time.time() * 1000 < planned.at_ms:
                    self._producer.poll(SHORT_S)
                if isinstance(planned, PlannedTransaction):
                    self._send_transaction(planned)
                else:
                    self._send(self._producer, planned)
                    if self.sent % POLL_EVERY == 0:
                        self._producer.poll(0)
            if left := self._producer.flush(TIMEOUT_S):
                raise RuntimeError(f"{left} unsent")
        finally:
            self.is_over.set()

    def _begun(self) -> Producer:
        """Return the producer of transactions. A new one under the id ends what another left."""
        if self._transactional is None:
            producer = Producer({**self._options, "transactional.id": self._transactional_id})
            producer.init_transactions(TIMEOUT_S)
            self._transactional = producer
        return self._transactional

    def _send_transaction(self, planned: PlannedTransaction) -> None:
        number = self._history.began(self._client)
        how = What.UNKNOWN
        try:
            self._do_transaction(planned, number)
            how = What.COMMITTED if planned.commits else What.ABORTED
        except KafkaException:
            self._transactional = None  # its end is not known to its client
        finally:
            self._history.ended(self._client, number, how)

    def _do_transaction(self, planned: PlannedTransaction, number: int) -> None:
        producer = self._begun()
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
        if planned.topic:
            producer.produce(planned.topic, planned.value, planned.key)
            self._note_sent(planned)
            return
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
        self._note_sent(planned)


class KafkaPythonSender(_Sender):
    """The same with kafka-python: another producer, another partitioner's code. No transactions:
    with this driver one may commit although a record of it failed."""

    def __init__(self, bootstrap: str, buffer: str, client: str, history: History) -> None:
        super().__init__(buffer, client, history)
        self._producer: Any = KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            client_id=client,
            acks="all",
            enable_idempotence=True,
            linger_ms=4,
            retry_backoff_ms=50,
            max_block_ms=TIMEOUT_S * 1000,
            delivery_timeout_ms=TIMEOUT_S * 1000,
            request_timeout_ms=ANSWER_TIMEOUT_MS,
        )

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
        if planned.topic:
            self._producer.send(planned.topic, planned.value, planned.key)
            self._note_sent(planned)
            return
        number = history.sent(self._client, planned.key, planned.value)
        future = self._producer.send(
            self._buffer, planned.value, planned.key, headers=list(planned.headers)
        )
        future.add_callback(lambda told: history.stored(number, told.partition, told.offset))
        future.add_errback(lambda error: history.doubtful(number, repr(error)))
        self._note_sent(planned)


class Traffic:
    """A plan on its way. As a context manager it has been sent, or has failed, at the end."""

    def __init__(self, bootstrap: str, buffer: str, plan: Plan, history: History) -> None:
        self.failures: list[str] = []
        """Of clients as such; what became of single requests is in the history."""
        self._senders: list[ConfluentSender | KafkaPythonSender] = []
        self._threads: list[threading.Thread] = []
        for client, part in divided(plan).items():
            sender: ConfluentSender | KafkaPythonSender
            if client == "kafka-python":
                sender = KafkaPythonSender(bootstrap, buffer, client, history)
            else:
                sender = ConfluentSender(bootstrap, buffer, client, history)
            self._senders.append(sender)
            thread = threading.Thread(target=self._send, args=(sender, part), name=client)
            thread.daemon = True
            self._threads.append(thread)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        for thread in self._threads:
            thread.join(JOIN_TIMEOUT_S)
            if thread.is_alive():
                self.failures.append(f"{thread.name} has not ended")

    @property
    def sent(self) -> int:
        """Requests so far."""
        return sum(sender.sent for sender in self._senders)

    @property
    def behind_ms(self) -> int:
        """How far behind its plan the slowest request was."""
        return max((late for sender in self._senders for late in sender.behind_ms), default=0)

    def _send(self, sender: ConfluentSender | KafkaPythonSender, part: Plan) -> None:
        try:
            sender.send(part)
        except Exception as error:
            self.failures.append(f"{threading.current_thread().name}: {error!r}")


def divided(plan: Plan) -> dict[str, Plan]:
    """Each client's part of it."""
    parts: dict[str, Plan] = {client: [] for client in (*CLIENTS, TRANSACTIONAL)}
    for planned in plan:
        if isinstance(planned, PlannedTransaction):
            parts[TRANSACTIONAL].append(planned)
        else:
            parts[CLIENTS[crc32(planned.key or b"") % len(CLIENTS)]].append(planned)
    return parts
