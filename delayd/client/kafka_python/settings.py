"""Every property of kafka-python that the client sets or refuses, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from delayd.bus.kafka_python.connections import PROXY_URL
from delayd.bus.overrides import bare, of_role
from delayd.client.driver import ROLES, Overrides, refuse_fixed
from delayd.client.kafka_python.library import KafkaConsumer, KafkaProducer
from delayd.errors import ConfigError

REQUEST_TIMEOUT_MS: Final = 30_000
"""How long one answer of a broker may take, where the acknowledgement may take longer."""

RECONNECT_BACKOFF_MS_MAX: Final = 500
"""How long after its return a broker may be overlooked; the library's default is 30 s."""

FETCH_WAIT_MS: Final = 50
"""A read_committed fetch behind a commit marker waits this out: a verdict's latency against idle
requests."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MS_MAX,
    "proxy_url": PROXY_URL,
}
_FIXED_PRODUCER: Final[Mapping[str, Any]] = {
    "acks": "all",
    "enable_idempotence": True,
    "allow_auto_create_topics": False,
    # Else the library serializes what must arrive as it is; and its own partitioner is murmur2.
    "key_serializer": None,
    "value_serializer": None,
}
_FIXED_CONSUMER: Final[Mapping[str, Any]] = {
    "group_id": None,
    "isolation_level": "read_committed",
    "enable_auto_commit": False,
    "auto_offset_reset": "none",
    "allow_auto_create_topics": False,
    "key_deserializer": None,
    "value_deserializer": None,
}
_OF_ARGUMENTS: Final = frozenset(
    {"bootstrap_servers", "bootstrap_timeout_ms", "delivery_timeout_ms", "max_block_ms"}
)
_FORBIDDEN: Final = frozenset({"transactional_id", "partitioner"})

_WORDS: Final[Mapping[str, str]] = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
"""librdkafka's names, which the settings of security have, and the library's own."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The properties of each object of the library."""

    producer: dict[str, Any]
    consumer: dict[str, Any]

    @classmethod
    def checked(cls, bootstrap: str, overrides: Overrides, ack_timeout_ms: int) -> "Settings":
        """Return the properties; ConfigError for an override that is unknown or not allowed."""
        refuse_fixed(
            overrides,
            {*_FIXED_PRODUCER, *_FIXED_CONSUMER, *_OF_ARGUMENTS, *_FORBIDDEN},
        )
        known = KafkaProducer.DEFAULT_CONFIG.keys() | KafkaConsumer.DEFAULT_CONFIG.keys()
        unknown = sorted({bare(name, ROLES) for name in overrides} - known)
        if unknown:
            raise ConfigError(
                f"kafka-python has no property {', '.join(unknown)}",
                remedy="name it as KafkaProducer and KafkaConsumer do",
            )
        address = {"bootstrap_servers": bootstrap.split(",")}
        of_sender, of_reader = (
            {**_DEFAULTS, **of_role(overrides, role, ROLES), **address} for role in ROLES
        )
        request_timeout_ms = min(
            REQUEST_TIMEOUT_MS, max(1, ack_timeout_ms - int(of_sender.get("linger_ms", 0)))
        )
        producer = {
            "request_timeout_ms": request_timeout_ms,
            **_of_kind(of_sender, KafkaProducer),
            "bootstrap_timeout_ms": ack_timeout_ms,
            "delivery_timeout_ms": ack_timeout_ms,
            "max_block_ms": ack_timeout_ms,
            **_FIXED_PRODUCER,
        }
        consumer = {
            # A session can get out of step.
            "enable_incremental_fetch_sessions": False,
            **_of_kind(of_reader, KafkaConsumer),
            "fetch_max_wait_ms": FETCH_WAIT_MS,
            **_FIXED_CONSUMER,
        }
        return cls(producer, consumer)


def in_its_words(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of security by the library's names; ConfigError for any other."""
    unknown = sorted(properties.keys() - _WORDS.keys())
    if unknown:
        raise ConfigError(
            f"the Kafka property {', '.join(unknown)} is librdkafka's",
            remedy="give kafka-python's own in overrides, and leave it out of the table kafka",
        )
    return {_WORDS[name]: value for name, value in properties.items()}


def _of_kind(properties: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Return the properties that this kind of client has."""
    return {name: value for name, value in properties.items() if name in kind.DEFAULT_CONFIG}
