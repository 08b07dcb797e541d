"""Kafka through kafka-python: the second driver of a whole node, pure Python.

Not here: any knowledge of requests, frontiers or wheels; it moves records.

Invariants, beside those of the ports:
- settings that carry a promise (isolation, acks, idempotence, offsets, partitioner) cannot be
  overridden, and what is not understood is refused: a ConfigError says which;
- nothing is printed: kafka-python's own log lines are debug events of the logger
  `delayd.kafka-python`.
"""

from collections.abc import Mapping

from delayd.bus.kafka_python.cluster import KafkaPythonCluster
from delayd.bus.kafka_python.consumer import KafkaPythonConsumer
from delayd.bus.kafka_python.log import take_lines
from delayd.bus.kafka_python.producer import KafkaPythonProducer
from delayd.bus.kafka_python.settings import Settings

__all__ = ["KafkaPythonBus"]


class KafkaPythonBus:
    """A Kafka cluster seen through kafka-python; see the port `Bus`.

    `overrides` are librdkafka properties, as of the other driver; those that have a counterpart
    here are translated. A name that starts with `consumer.`, `producer.` or `admin.` reaches only
    that client. `record_bytes_max` is the largest record, as Kafka counts it before compression,
    that a producer takes.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        overrides: Mapping[str, str] | None = None,
        client_id: str = "delayd",
        record_bytes_max: int | None = None,
    ) -> None:
        take_lines()
        self._settings = Settings(bootstrap, client_id, overrides or {}, record_bytes_max)

    def consumer(
        self,
        topic: str,
        *,
        careful: bool = True,
        careful_to: Mapping[int, int] | None = None,
        may_be_flat: bool = False,
        wait_ms: int | None = None,
    ) -> KafkaPythonConsumer:
        return KafkaPythonConsumer(topic, self._settings.consumer(wait_ms))

    def transactional_producer(self, transactional_id: str) -> KafkaPythonProducer:
        return KafkaPythonProducer(transactional_id, self._settings.producer())

    def idempotent_producer(self) -> KafkaPythonProducer:
        return KafkaPythonProducer(None, self._settings.producer())

    def cluster(self) -> KafkaPythonCluster:
        return KafkaPythonCluster(self._settings.admin())
