"""Every librdkafka property that delayd sets, and why.

Not here: what a user may configure about delayd itself.

Invariant: a property that carries a promise of the ports cannot be overridden
(`delayd/bus/overrides.py`).
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from delayd.bus.confluent.log import LibrdkafkaLog
from delayd.bus.overrides import of_role, refuse_promised

Properties: TypeAlias = dict[str, Any]

RECORD_BYTES_MAX_DEFAULT: Final = 1_048_588
"""Kafka's own default of `max.message.bytes`; librdkafka's default is below it."""

RETRY_BACKOFF_MS: Final = 5
"""librdkafka's 100 ms makes every second transaction wait 100 ms behind the last one's markers."""

FETCH_WAIT_MS: Final = 10
"""A read_committed fetch behind a commit marker waits this out, and so does one that finds less
than FETCH_BYTES_MIN: latency against idle requests."""

FETCH_BYTES_MIN: Final = 16 * 1024
"""Answered record by record, three nodes made 700 fetches a second each of 5,000 records a second:
a tenth of what the broker did, and a third of what a follower did."""

FETCH_QUEUE_BACKOFF_MS: Final = 10
"""How soon a full prefetch queue is filled again; librdkafka's 1000 ms stalls a fast reader."""

CONSUMER_QUEUE_KBYTES_MAX: Final = 32 * 1024
"""Memory that prefetched records may take, per consumer."""

PRODUCER_QUEUE_RECORDS_MAX: Final = 100_000
PRODUCER_QUEUE_KBYTES_MAX: Final = 128 * 1024
"""Memory that unacknowledged records may take, per producer; more of them make `send` wait."""

TRANSACTION_TIMEOUT_MS: Final = 10_000
"""How long an abandoned transaction can hide records from readers (docs/design/frontier.md,
"Fence")."""

TRANSACTION_LINGER_MS: Final = 20
"""How long records of a transaction wait for a fuller batch. It delays no transaction: what is left
goes out with the flush before its end. With 0, a step of 10,000 is sent as hundreds of batches,
which cost librdkafka 3.6 us of CPU a record instead of 1.0, and the broker more than that."""

TOPIC_PROPAGATION_MS: Final = 1_000
"""How long a record for an unknown topic holds its transaction; librdkafka's default is 30 s."""

RECONNECT_BACKOFF_MS_MAX: Final = 500
"""How long after its return a broker may be overlooked; librdkafka's default is 10 s."""

SETUP_TIMEOUT_MS: Final = 2_000
"""How long an attempt to connect may take, handshakes included. A broker that moves leaves an
address where nobody refuses, and its name is looked up again for the next attempt only. librdkafka
gives up after 30 s by default, and notices the end of this time within one second more."""

REBOOTSTRAP_MS: Final = 2_000
"""After so long without metadata from any known broker, the bootstrap addresses are tried too
(KIP-1102): all brokers may have moved. librdkafka's default is 5 minutes."""

ANSWER_TIMEOUT_MS: Final = 9_900
"""How long one request may go unanswered before its connection is closed: a host that lost its
power closes none. librdkafka's default is 60 s; in a transaction it must be 100 ms shorter than
TRANSACTION_TIMEOUT_MS."""


class Settings:
    """The cluster's address, and the user's wishes for the three kinds of client.

    ConfigError if an override breaks a promise.
    """

    def __init__(
        self,
        bootstrap: str,
        client_id: str,
        overrides: Mapping[str, str],
        record_bytes_max: int | None,
    ) -> None:
        refuse_promised(overrides)
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._overrides = dict(overrides)
        self._record_bytes_max = record_bytes_max or RECORD_BYTES_MAX_DEFAULT

    def consumer(self, wait_ms: int | None = None) -> Properties:
        """Return the properties of a reader of committed records."""
        return self._common("consumer") | {
            # librdkafka wants a group; with assigned partitions and no commits it joins none.
            "group.id": self._client_id,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # Markers move position() over the aborted records before them; the end event moves it
            # over a tail without either, such as what compaction emptied, and ends the wait.
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": wait_ms or FETCH_WAIT_MS,
            "fetch.min.bytes": FETCH_BYTES_MIN,
            "fetch.error.backoff.ms": 50,
            "fetch.queue.backoff.ms": FETCH_QUEUE_BACKOFF_MS,
            "queued.min.messages": 1_000_000,  # so that the limit below is the one that counts
            "queued.max.messages.kbytes": CONSUMER_QUEUE_KBYTES_MAX,
            **of_role(self._overrides, "consumer"),
        }

    def producer(self, transactional_id: str | None) -> Properties:
        """Return the properties of a producer, transactional if it is given an id."""
        transactional = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": TRANSACTION_LINGER_MS,
        }
        return self._common("producer") | {
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "retry.backoff.ms": RETRY_BACKOFF_MS,
            "linger.ms": 0,
            **(transactional if transactional_id is not None else {}),
            "message.max.bytes": self._record_bytes_max,
            "queue.buffering.max.messages": PRODUCER_QUEUE_RECORDS_MAX,
            "queue.buffering.max.kbytes": PRODUCER_QUEUE_KBYTES_MAX,
            **of_role(self._overrides, "producer"),
        }

    def admin(self) -> Properties:
        """Return the properties of an administration client."""
        return self._common("admin") | of_role(self._overrides, "admin")

    def _common(self, role: str) -> Properties:
        return {
            "bootstrap.servers": self._bootstrap,
            "client.id": self._client_id,
            "logger": LibrdkafkaLog(role),
            "allow.auto.create.topics": False,
            "topic.metadata.propagation.max.ms": TOPIC_PROPAGATION_MS,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MS_MAX,
            "socket.connection.setup.timeout.ms": SETUP_TIMEOUT_MS,
            "socket.timeout.ms": ANSWER_TIMEOUT_MS,
            "metadata.recovery.rebootstrap.trigger.ms": REBOOTSTRAP_MS,
            "socket.keepalive.enable": True,
            "socket.nagle.disable": True,
        }
