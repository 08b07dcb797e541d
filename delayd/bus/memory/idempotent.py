"""The twin of a producer without transactions: what it sends is visible at once.

`producer.py` adds transactions to it. Not here: batching; a record is in the log as soon as it is
sent, which a real one may be.

Invariants: as of the port. Like librdkafka it learns of lost records only in `flush`; what was
sent before them stays in the log.
"""

from collections.abc import Callable
from typing import Final, NoReturn

from delayd.bus import Ack, Headers
from delayd.bus.flat import Outgoing, send_each
from delayd.bus.memory.kafka import MemoryKafka, Refused, Silence, record_bytes
from delayd.bus.memory.link import Link
from delayd.errors import ProducerError
from delayd.runtime.clock import Clock

UNNAMED: Final = frozenset({"_FENCED", "_MSG_TIMED_OUT"})
"""Errors in a delivery report about the connection or the producer, not about a topic."""


class MemoryIdempotentProducer:
    """See the port `Producer`."""

    def __init__(self, kafka: MemoryKafka, link: Link, clock: Clock, record_bytes_max: int) -> None:
        self._kafka = kafka
        self._link = link
        self._clock = clock
        self._record_bytes_max = record_bytes_max
        # A producer that learnt of the leader from a zombie waits in vain once, then asks others.
        self._metadata = kafka.isolations_count
        self._dead = False
        self._lost: str | None = None
        self._refusals: dict[str, str] = {}
        self._silent: set[tuple[str, int]] = set()
        self._acks: list[tuple[Callable[[Ack], None], Ack]] = []

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None = None,
        on_ack: Callable[[Ack], None] | None = None,
    ) -> None:
        """See the port."""
        assert not self._dead, "a producer that raised is dead"
        transaction = self._transaction()
        if record_bytes(key, value, headers) > self._record_bytes_max:
            self._refusals[topic] = "MSG_SIZE_TOO_LARGE"
            self._fail("send", "MSG_SIZE_TOO_LARGE")
        if transaction is not None and self._lost is not None:
            return  # the transaction is lost; flush or commit will say so
        if not self._link.up:
            self._lost = "_MSG_TIMED_OUT"
            return
        created_ms = self._clock.wall_ms()
        try:
            ack = self._kafka.write(
                topic, partition, key, value, headers, created_ms, transaction, self._metadata
            )
        except Silence as silence:
            self._silent.add((topic, silence.partition))
            return
        except Refused as refusal:
            if str(refusal) in UNNAMED:
                self._lost = str(refusal)
            else:
                self._refusals.setdefault(topic, str(refusal))
            return
        if on_ack is not None:
            self._acks.append((on_ack, ack))

    def send_flat(self, records: Outgoing) -> None:
        """See the port."""
        send_each(self, records)

    def flush(self, timeout_ms: int) -> None:
        """See the port."""
        assert not self._dead, "a producer that raised is dead"
        lost = self._lost or next(iter(self._refusals.values()), None)
        if lost is not None:
            self._silent.clear()  # Others are not acknowledged either.
            self._fail("flush", lost)
        if self._silent:
            self._fail("flush", "_TIMED_OUT")
        acks, self._acks = self._acks, []
        for on_ack, ack in acks:
            on_ack(ack)

    def close(self) -> None:
        """See the port."""
        self._dead = True
        self._acks.clear()

    def _transaction(self) -> tuple[str, int] | None:
        """Return the id and epoch of the transaction that a record is sent in."""
        return None

    def _fail(self, doing: str, error: str) -> NoReturn:
        self._dead = True
        raise ProducerError(f"{doing}: {error}", refusals=self._refusals, silent=self._silent)
