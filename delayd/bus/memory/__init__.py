"""Kafka in memory: the deterministic twin that tests and the simulation use instead of a broker.

    kafka = MemoryKafka(clock)              the brokers; they outlive every node
    bus = MemoryBus(kafka)                  one node's way to them
    kafka.append("orders", 0, key, value)   a record of somebody else
    kafka.fail_next_commit(id, applied=True)    ... and the other faults, see `kafka.py`

Not here: disks, replication, sizes of batches. It proves nothing about Kafka; that it behaves like
the real one is what the conformance suite checks.
"""

from collections.abc import Mapping
from functools import partial

from delayd.bus import Consumer
from delayd.bus.guarded import GuardedConsumer
from delayd.bus.memory.cluster import MemoryCluster
from delayd.bus.memory.consumer import MemoryConsumer
from delayd.bus.memory.idempotent import MemoryIdempotentProducer
from delayd.bus.memory.kafka import MemoryKafka, MemoryTopic, Refused, Silence
from delayd.bus.memory.link import Link
from delayd.bus.memory.producer import MemoryProducer
from delayd.runtime.clock import Clock

__all__ = ["MemoryBus", "MemoryKafka", "MemoryTopic", "Refused", "Silence"]

RECORD_BYTES_MAX_DEFAULT = 1_048_588
"""As in confluent/settings.py."""


class MemoryBus:
    """One node's way to the brokers. `clock` is the node's own, by default the brokers'.

    Setting `link.up` to False cuts the node off: polls are empty, everything else times out.
    """

    def __init__(
        self,
        kafka: MemoryKafka,
        *,
        clock: Clock | None = None,
        record_bytes_max: int | None = None,
        coarse_bytes_max: int | None = None,
    ) -> None:
        """`coarse_bytes_max`: it reads as librdkafka does, guarded, and takes this for the largest
        weight of a batch (`delayd.bus.guarded`)."""
        self._coarse_bytes_max = coarse_bytes_max
        self.link = Link()
        self._kafka = kafka
        self._clock = clock or kafka.clock
        self._record_bytes_max = record_bytes_max or RECORD_BYTES_MAX_DEFAULT

    def consumer(
        self,
        topic: str,
        *,
        careful: bool = False,
        careful_to: Mapping[int, int] | None = None,
        may_be_flat: bool = False,
        wait_ms: int | None = None,
    ) -> Consumer:
        """Return a reader of one topic; see the port."""
        exact = partial(MemoryConsumer, self._kafka, self.link, topic)
        if careful or self._coarse_bytes_max is None:
            return exact()
        fast = exact(is_coarse=True)
        return GuardedConsumer(topic, fast, exact, self._coarse_bytes_max, careful_to)

    def transactional_producer(self, transactional_id: str) -> MemoryProducer:
        """Return a producer that has not fenced anyone yet; see the port."""
        return MemoryProducer(
            self._kafka, self.link, self._clock, transactional_id, self._record_bytes_max
        )

    def idempotent_producer(self) -> MemoryIdempotentProducer:
        """Return a producer without transactions; see the port."""
        return MemoryIdempotentProducer(self._kafka, self.link, self._clock, self._record_bytes_max)

    def cluster(self) -> MemoryCluster:
        """Return administration of the same brokers; see the port."""
        return MemoryCluster(self._kafka, self.link)
