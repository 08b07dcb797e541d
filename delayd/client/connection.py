"""The base of `Client`, `AsyncClient` and the redriver: an outbox and verdicts on one driver.

Not here: the shape of their calls.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypedDict, Unpack

from delayd.client.asking import BUFFER, BUFFER_SUFFIX
from delayd.client.driver import Driver, DriverName, Overrides, Reader
from delayd.client.outbox import Outbox
from delayd.client.verdicts import Verdicts
from delayd.errors import ConfigError
from delayd.runtime.virtual_time import virtual_time_of

if TYPE_CHECKING:
    from delayd.config.security import Security

ACK_TIMEOUT_MS: Final = 30_000
"""How long a request may wait for its acknowledgement; longer than a broker's restart."""

VERDICT_TIMEOUT_MS: Final = 30_000
"""How long a call waits for a verdict, from its start; longer than a takeover."""

WINDOW: Final = 1_000
"""How many requests `schedule_many` has under way: enough to fill Kafka's batches."""


class ClientOptions(TypedDict, total=False):
    """Options of a client besides the brokers' addresses."""

    driver: DriverName
    """The library underneath: `confluent` (librdkafka, ten times as fast, the default) or
    `kafka-python` (pure Python)."""
    buffer: str
    """Name of the buffer topic, if the cluster has a prefix of its own."""
    receipts: str | None
    """Name of the receipts topic; default: beside the buffer."""
    security: "Security | None"
    """Settings of TLS and SASL, by the keys that nodes have; `delayd.config.security.load_security`
    returns them."""
    overrides: Mapping[str, Any] | None
    """More properties of the library (compression, linger), by its own names; they go before
    `security`. A prefix `producer.` or `consumer.` limits one to the sender or to the reader of
    receipts. Properties that the wire contract fixes cannot be changed."""
    ack_timeout_ms: int
    """How long a request may wait for its acknowledgement (30 s)."""
    tracing: bool
    """Make an OpenTelemetry span of each request that brings a message, and write its context into
    the record; needs the extra `delayd[otel]`."""


class Connection(NamedTuple):
    """The two halves of a client, over one library."""

    outbox: Outbox
    verdicts: Verdicts

    def close(self) -> None:
        """End every wait for a verdict, then wait for what is in flight. Idempotent."""
        self.verdicts.close()
        self.outbox.close()


def connect(
    bootstrap: str,
    *,
    driver: DriverName = "confluent",
    buffer: str = BUFFER,
    receipts: str | None = None,
    security: "Security | None" = None,
    overrides: Mapping[str, Any] | None = None,
    ack_timeout_ms: int = ACK_TIMEOUT_MS,
    tracing: bool = False,
) -> Connection:
    """Make the halves of a client. Nothing is sent or awaited before the first request.

    Raises ConfigError for what the library refuses, for `tracing` without its extra, and if the
    cluster is virtual and its time cannot be read.
    """
    properties = {} if security is None else security.properties()
    library = open_driver(driver, bootstrap, properties, overrides or {}, ack_timeout_ms)
    spans = None
    if tracing:
        from delayd.client.request_spans import RequestSpans

        spans = RequestSpans()
    return Connection(
        Outbox(library, buffer, ack_timeout_ms, spans, virtual_time_of(os.environ)),
        Verdicts(lambda: Reader(library, receipts or receipts_of(buffer)), ack_timeout_ms),
    )


class Connected:
    """What works over a connection: a context manager that owns it."""

    def __init__(self, bootstrap: str, **options: Unpack[ClientOptions]) -> None:
        self._use(connect(bootstrap, **options))

    @classmethod
    def over(cls, connection: Connection) -> Self:
        """Return one over this connection; of several, whoever closes ends all."""
        made = cls.__new__(cls)
        made._use(connection)
        return made

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        self._outbox, self._verdicts = connection

    def close(self) -> None:
        """Wait for what is in flight, then give back sockets and threads. Idempotent.

        The future of a request that is still unacknowledged at the time-out ends with its error. A
        wait for a verdict in another thread ends at once, with VerdictUnknownError.
        """
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_driver(
    name: DriverName,
    bootstrap: str,
    properties: Mapping[str, str],
    overrides: Overrides,
    ack_timeout_ms: int,
) -> Driver:
    """Return the driver of that name. ConfigError for any other name or a setting it refuses.

    `properties` are those of security, by librdkafka's names; `overrides` go before them.
    """
    if name == "confluent":
        from delayd.client.confluent import ConfluentDriver

        of_client = {k: v for k, v in properties.items() if not k.startswith("admin.")}
        return ConfluentDriver(bootstrap, {**of_client, **overrides}, ack_timeout_ms)
    if name == "kafka-python":
        from delayd.client.kafka_python import KafkaPythonDriver
        from delayd.client.kafka_python.settings import in_its_words

        both = {**in_its_words(properties), **overrides}
        return KafkaPythonDriver(bootstrap, both, ack_timeout_ms)
    raise ConfigError(
        f"there is no driver {str(name)[:80]!a}", remedy="use confluent or kafka-python"
    )


def receipts_of(buffer: str) -> str:
    """Return the receipts topic beside a buffer; ConfigError if the buffer's name has no prefix."""
    prefix = buffer.removesuffix(BUFFER_SUFFIX)
    if prefix == buffer:
        raise ConfigError(
            f"the name of the buffer, {buffer}, does not tell that of the receipts",
            remedy="give the argument receipts",
        )
    return f"{prefix}receipts"
