"""Every setting of kafka-python that delayd makes, and why; users name theirs as librdkafka does.

Not here: what a user may configure about delayd itself.

Invariants:
- a property that carries a promise of the ports cannot be overridden (`delayd/bus/overrides.py`);
- a property that has no counterpart here is refused by name, never ignored.
"""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from delayd.bus.kafka_python.library import has_gzip, has_lz4, has_snappy, has_zstd
from delayd.bus.overrides import bare, of_role, refuse_promised
from delayd.errors import ConfigError

Properties: TypeAlias = dict[str, Any]
Known: TypeAlias = Mapping[str, tuple[str, Callable[[str], Any]]]
"""By librdkafka's name: kafka-python's, and what a value must be. No name: only checked."""

RECORD_BYTES_MAX_DEFAULT: Final = 1_048_588
"""Kafka's own default of `max.message.bytes`."""

REQUEST_TIMEOUT_MS: Final = 10_000
"""How long one request may go unanswered before the driver closes its connection. kafka-python's
30 s is longer than a transaction may take."""

TRANSACTION_TIMEOUT_MS: Final = 10_000
"""How long an abandoned transaction can hide records from readers (docs/design/frontier.md,
"Fence")."""

TRANSACTION_BACKOFF_MS: Final = 5
"""Pause before a request about a transaction is repeated: the next transaction meets the markers of
the last one. kafka-python's 100 ms would be waited out every time."""

PRODUCE_BACKOFF_MS: Final = 50
"""Pause before a batch that a broker could not take now is sent again."""

LINGER_MS: Final = 5
"""How long a batch waits for more records while the caller still sends; a flush ends it. Without,
the sender thread makes a request for every few records."""

BATCH_BYTES: Final = 256 * 1024
"""Where a batch ends; below what `delayd.node.targets.checks` takes for the largest."""

REQUEST_BYTES: Final = 8 * 1024 * 1024
"""How many bytes of batches go to one broker in one request."""

PRODUCER_QUEUE_RECORDS_MAX: Final = 100_000
PRODUCER_QUEUE_BYTES_MAX: Final = 128 * 1024 * 1024
"""Memory that unacknowledged records may take, per producer; beyond it `send` waits. kafka-python
itself knows no bound."""

TOPIC_PROPAGATION_MS: Final = 1_000
"""How long brokers may deny a topic before a record for it is lost."""

METADATA_AGE_MS: Final = 30_000
"""How old metadata may be; a producer learns of new partitions by it."""

FETCH_WAIT_MS: Final = 20
"""A read_committed fetch behind a commit marker waits this out: latency against idle requests."""

FETCH_PARTITION_BYTES: Final = 1024 * 1024
FETCH_BYTES: Final = 16 * 1024 * 1024
"""Memory that records may take before they are asked for: one answer of a broker, and of each
partition one part of such an answer. A larger batch comes alone."""

RECEIVE_BYTES_MAX: Final = 128 * 1024 * 1024
"""The largest answer that a connection accepts; kafka-python's default is 1 MB."""

RECONNECT_BACKOFF_MS_MAX: Final = 500
"""How long after its return a broker may be overlooked; kafka-python's default is 30 s."""

SETUP_TIMEOUT_MS: Final = 2_000
"""How long an attempt to connect may take, handshakes included. A broker that moves leaves an
address where nobody refuses, and its name is looked up again for the next attempt only. By default
kafka-python gives up after 10 s, and after 30 s when several attempts have failed."""


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _one_of(*values: str) -> Callable[[str], str]:
    def choose(text: str) -> str:
        for value in values:
            if text.lower() == value.lower():
                return value
        raise ValueError("one of " + ", ".join(values))

    return choose


def _file(text: str) -> str:
    if not Path(text).is_file():
        raise ValueError("a file that exists")
    return text


def _verified(text: str) -> bool:
    if not _switch(text):
        raise ValueError("true: kafka-python always verifies certificates")
    return True


def _codec(text: str) -> str:
    name = _one_of("none", *_CODECS)(text)
    if name != "none" and not _CODECS[name][0]():
        raise ValueError(f"another codec, or its library: {name} is not installed")
    return name


_CODECS: Final[Mapping[str, tuple[Callable[[], bool], int]]] = {
    "gzip": (has_gzip, 1),
    "snappy": (has_snappy, 2),
    "lz4": (has_lz4, 3),
    "zstd": (has_zstd, 4),
}
"""Whether a codec can be used, and its number in a record batch."""

_COMMON: Final[Known] = {
    "client.dns.lookup": (
        "client_dns_lookup",
        _one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    ),
    "connections.max.idle.ms": ("connections_max_idle_ms", int),
    "enable.ssl.certificate.verification": ("", _verified),
    "metadata.max.age.ms": ("metadata_max_age_ms", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
    "sasl.mechanism": (
        "sasl_mechanism",
        _one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    ),
    "sasl.password": ("sasl_plain_password", str),
    "sasl.username": ("sasl_plain_username", str),
    "socket.connection.setup.timeout.ms": ("socket_connection_setup_timeout_ms", int),
    "security.protocol": (
        "security_protocol",
        _one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    "ssl.ca.location": ("ssl_cafile", _file),
    "ssl.certificate.location": ("ssl_certfile", _file),
    "ssl.cipher.suites": ("ssl_ciphers", str),
    "ssl.crl.location": ("ssl_crlfile", _file),
    "ssl.endpoint.identification.algorithm": (
        "ssl_check_hostname",
        lambda text: _one_of("https", "none")(text) == "https",
    ),
    "ssl.key.location": ("ssl_keyfile", _file),
    "ssl.key.password": ("ssl_password", str),
}
_OF_PRODUCERS: Final[Known] = {
    "batch.size": ("batch_size", int),
    "compression.type": ("compression_type", _codec),
    "linger.ms": ("linger_ms", float),
    "queue.buffering.max.kbytes": ("queue_bytes_max", lambda text: int(text) * 1024),
    "queue.buffering.max.messages": ("queue_records_max", int),
}

_OF_CONSUMERS: Final[Known] = {
    "fetch.max.bytes": ("fetch_max_bytes", int),
    "fetch.wait.max.ms": ("fetch_max_wait_ms", int),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", int),
}

_OF_ROLE: Final[Mapping[str, Known]] = {
    "consumer": _OF_CONSUMERS,
    "producer": _OF_PRODUCERS,
    "admin": {},
}

_ALIASES: Final = {
    "compression.codec": "compression.type",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "queue.buffering.max.ms": "linger.ms",
    "sasl.mechanisms": "sasl.mechanism",
}
"""librdkafka has two names for these."""


def for_connections(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return those of another driver's overrides that a reader needs to be let in, or that are
    known here: what else they tune is the other driver's."""
    return {
        name: value
        for name, value in overrides.items()
        if bare(name).startswith(("sasl.", "security.", "ssl.", "enable.ssl."))
        or _ALIASES.get(bare(name), bare(name)) in _COMMON
    }


class Settings:
    """The cluster's address, and the user's wishes for the three kinds of client.

    ConfigError if an override breaks a promise or cannot be kept.
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
        self._record_bytes_max = record_bytes_max or RECORD_BYTES_MAX_DEFAULT
        self._of_user: dict[str, Properties] = {}
        for role, others in _OF_ROLE.items():
            properties = _translated(role, overrides, {**_COMMON, **others})
            _check_credentials(properties)
            self._of_user[role] = properties

    def consumer(self, wait_ms: int | None = None) -> Properties:
        """Return the settings of a connection and a fetcher that read committed records."""
        return self._common("consumer") | {
            "isolation_level": "read_committed",
            "check_crcs": True,
            "fetch_max_wait_ms": wait_ms or FETCH_WAIT_MS,
            "fetch_max_bytes": FETCH_BYTES,
            "max_partition_fetch_bytes": FETCH_PARTITION_BYTES,
            # A session saves bytes of requests for hundreds of partitions, and can get out of step.
            "enable_incremental_fetch_sessions": False,
            "retry_backoff_ms": 50,
            **self._of_user["consumer"],
        }

    def producer(self) -> Properties:
        """Return the settings of a connection, an accumulator, a sender and the producer."""
        properties = self._common("producer") | {
            "acks": -1,
            "batch_size": BATCH_BYTES,
            "compression_type": "none",
            "linger_ms": LINGER_MS,
            "queue_bytes_max": PRODUCER_QUEUE_BYTES_MAX,
            "queue_records_max": PRODUCER_QUEUE_RECORDS_MAX,
            "record_bytes_max": self._record_bytes_max,
            **self._of_user["producer"],
        }
        name = properties.pop("compression_type")
        properties["compression_attrs"] = _CODECS[name][1] if name != "none" else 0
        return properties

    def admin(self) -> Properties:
        """Return the settings of a connection for administration."""
        return self._common("admin") | self._of_user["admin"]

    def _common(self, role: str) -> Properties:
        setup_ms = "socket_connection_setup_timeout_ms"
        return {
            setup_ms: SETUP_TIMEOUT_MS,
            "socket_connection_setup_timeout_max_ms": max(
                SETUP_TIMEOUT_MS, self._of_user[role].get(setup_ms, 0)
            ),
            "bootstrap_servers": self._bootstrap,
            "client_id": f"{self._client_id}-{role}",
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "receive_message_max_bytes": RECEIVE_BYTES_MAX,
            "reconnect_backoff_ms": 50,
            "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MS_MAX,
            "metadata_max_age_ms": METADATA_AGE_MS,
            "socket_options": [
                (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            ],
        }


def _translated(role: str, overrides: Mapping[str, str], known: Known) -> Properties:
    properties: Properties = {}
    for name, value in of_role(overrides, role).items():
        plain = _ALIASES.get(name, name)
        if plain not in known:
            elsewhere = plain in _OF_CONSUMERS or plain in _OF_PRODUCERS
            if elsewhere and f"{role}.{name}" not in overrides:
                continue  # a plain name that another kind of client understands
            raise ConfigError(
                f"the Kafka property {name} has no counterpart in the driver kafka-python",
                remedy='remove it, or set driver = "confluent"; known here: '
                + ", ".join(sorted({*_COMMON, *_OF_CONSUMERS, *_OF_PRODUCERS})),
            )
        ours, converted = known[plain]
        try:
            converted_value = converted(value)
        except ValueError as error:
            expected = "a number" if _is_numeric(ours) else str(error)
            raise ConfigError(
                f"the Kafka property {name} is {_shown(name, value)}, and must be {expected}",
                remedy="correct it in the kafka table of the configuration",
            ) from error
        if ours:
            properties[ours] = converted_value
    return properties


def _check_credentials(properties: Properties) -> None:
    if not str(properties.get("security_protocol", "")).startswith("SASL"):
        return
    mechanism = properties.get("sasl_mechanism", "SASL")
    for name in ("sasl.mechanism", "sasl.username", "sasl.password"):
        if _COMMON[name][0] not in properties:
            raise ConfigError(
                f"the Kafka property {name} is missing", remedy=f"{mechanism} needs it"
            )


def _is_numeric(ours: str) -> bool:
    return ours.endswith(("_ms", "_bytes", "_size", "_max"))


def _shown(name: str, value: str) -> str:
    return "not shown" if "password" in name else repr(value)
