"""Which library a client sends through. A library is loaded only when it is asked for."""

import sys
from collections.abc import Mapping
from typing import Literal, TypeAlias

from delayd.client.driver import Driver, Overrides, UserTransaction
from delayd.client.errors import RequestRefusedError
from delayd.errors import ConfigError

DriverName: TypeAlias = Literal["confluent", "kafka-python"]


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


def transacting(producer: object) -> UserTransaction:
    """Wrap the user's own producer, of whichever library it is: that one is loaded already."""
    known: UserTransaction | None = None
    if "confluent_kafka" in sys.modules:
        from delayd.client import confluent

        known = confluent.transacting(producer)
    if known is None and "kafka" in sys.modules:
        from delayd.client.kafka_python import sending

        known = sending.transacting(producer)
    if known is not None:
        return known
    raise RequestRefusedError(
        f"{type(producer).__name__} is not a producer that delayd knows",
        remedy="give a confluent_kafka.Producer or a kafka.KafkaProducer, or send the plain record "
        "of schedule_record, cancel_record or replace_record yourself",
    )
