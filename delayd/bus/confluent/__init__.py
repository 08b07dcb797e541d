"""Kafka through confluent-kafka (librdkafka): the data plane.

Not here: any knowledge of requests, frontiers or wheels; it moves records.

Invariants, beside those of the ports:
- settings that carry a promise (isolation, acks, idempotence, offsets, partitioner) cannot be
  overridden: a ConfigError says which;
- what librdkafka cannot read, or could only read with too much memory, kafka-python reads instead
  (`delayd.bus.guarded`), and all of a topic that must be read carefully;
- nothing is printed: librdkafka's own log lines are debug events of the logger
  `delayd.librdkafka`.
"""

from collections.abc import Mapping
from functools import partial

from delayd.bus import Bus, Consumer
from delayd.bus.confluent.cluster import ConfluentCluster
from delayd.bus.confluent.consumer import ConfluentConsumer
from delayd.bus.confluent.producer import ConfluentProducer
from delayd.bus.confluent.settings import Settings
from delayd.bus.guarded import GuardedConsumer
from delayd.runtime import native

__all__ = ["ConfluentBus"]


class ConfluentBus:
    """A Kafka cluster seen through librdkafka; see the port `Bus`.

    `overrides` are librdkafka properties (security, compression.type, linger.ms, ...). A name that
    starts with `consumer.`, `producer.` or `admin.` reaches only that client. `record_bytes_max`
    is the largest record, as Kafka counts it before compression, that a producer takes.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        overrides: Mapping[str, str] | None = None,
        client_id: str = "delayd",
        record_bytes_max: int | None = None,
    ) -> None:
        self._settings = Settings(bootstrap, client_id, overrides or {}, record_bytes_max)
        self._careful = partial(careful_bus, bootstrap, client_id, dict(overrides or {}))

    def consumer(
        self,
        topic: str,
        *,
        careful: bool = False,
        careful_to: Mapping[int, int] | None = None,
        may_be_flat: bool = False,
        wait_ms: int | None = None,
    ) -> Consumer:
        if careful:
            return self._careful().consumer(topic, wait_ms=wait_ms)
        library = native.library if may_be_flat else None
        fast = ConfluentConsumer(topic, self._settings.consumer(wait_ms), library)
        return GuardedConsumer(
            topic, fast, lambda: self._careful().consumer(topic), careful_to=careful_to
        )

    def transactional_producer(self, transactional_id: str) -> ConfluentProducer:
        properties = self._settings.producer(transactional_id)
        return ConfluentProducer(transactional_id, properties, native.library)

    def idempotent_producer(self) -> ConfluentProducer:
        return ConfluentProducer(None, self._settings.producer(None), native.library)

    def cluster(self) -> ConfluentCluster:
        return ConfluentCluster(self._settings.admin())


def careful_bus(bootstrap: str, client_id: str, overrides: Mapping[str, str]) -> Bus:
    """Return the bus whose consumers read what librdkafka cannot."""
    # Few need it, and it takes a while to import.
    from delayd.bus.kafka_python import KafkaPythonBus
    from delayd.bus.kafka_python.settings import for_connections

    return KafkaPythonBus(bootstrap, overrides=for_connections(overrides), client_id=client_id)
