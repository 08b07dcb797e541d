"""A bus of a virtual cluster: the times of records are what time it was in the cluster.

The brokers know real time alone. This is the one place where the times that they gave become
virtual ones, and those that are asked for real ones (`delayd.runtime.virtual_time`).

Not here: the clocks of this process (`delayd.runtime.clock`), and what lies on the brokers as such
(`delayd.bus.raw`), whose times stay real.

Invariant: each time is mapped once it is known, so it has passed, and all nodes map it alike.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from delayd.bus import (
    Ack,
    Bus,
    Cluster,
    Consumer,
    Headers,
    Producer,
    Record,
    TransactionalProducer,
)
from delayd.runtime.virtual_time import VirtualTime


class VirtualBus:
    """A bus, in virtual time; see the port `Bus`."""

    def __init__(self, bus: Bus, time: VirtualTime) -> None:
        self._bus = bus
        self._time = time

    def consumer(
        self,
        topic: str,
        *,
        careful: bool = False,
        careful_to: Mapping[int, int] | None = None,
        may_be_flat: bool = False,
        wait_ms: int | None = None,
    ) -> Consumer:
        """See the port. Its records are never flat: C would take their times as they are."""
        exact = self._bus.consumer(topic, careful=careful, careful_to=careful_to, wait_ms=wait_ms)
        return cast(Consumer, _VirtualConsumer(exact, self._time))

    def transactional_producer(self, transactional_id: str) -> TransactionalProducer:
        """See the port."""
        producer = self._bus.transactional_producer(transactional_id)
        return cast(TransactionalProducer, _VirtualProducer(producer, self._time))

    def idempotent_producer(self) -> Producer:
        """See the port."""
        producer = self._bus.idempotent_producer()
        return cast(Producer, _VirtualProducer(producer, self._time))

    def cluster(self) -> Cluster:
        """See the port."""
        return cast(Cluster, _VirtualCluster(self._bus.cluster(), self._time))


class _VirtualConsumer:
    """A consumer: what is not here it does as it did."""

    def __init__(self, consumer: Consumer, time: VirtualTime) -> None:
        self._consumer = consumer
        self._time = time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def poll(self, records_max: int, timeout_ms: int) -> Sequence[Record]:
        """See the port."""
        records = self._consumer.poll(records_max, timeout_ms)
        if not records:
            return records
        changes = self._time.changes_until(max(record.append_ms for record in records))
        return [
            record._replace(append_ms=changes.virtual_ms(record.append_ms)) for record in records
        ]


class _VirtualProducer:
    """A producer, with or without transactions: what is not here it does as it did."""

    def __init__(self, producer: Producer, time: VirtualTime) -> None:
        self._producer = producer
        self._time = time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

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
        told = None if on_ack is None else partial(self._tell, on_ack)
        self._producer.send(
            topic, key=key, value=value, headers=headers, partition=partition, on_ack=told
        )

    def _tell(self, on_ack: Callable[[Ack], None], ack: Ack) -> None:
        on_ack(ack._replace(append_ms=self._time.virtual_ms(ack.append_ms)))


class _VirtualCluster:
    """Administration: what is not here it does as it did."""

    def __init__(self, cluster: Cluster, time: VirtualTime) -> None:
        self._cluster = cluster
        self._time = time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def offsets_since(self, topic: str, at_ms: int, timeout_ms: int) -> dict[int, int]:
        """See the port."""
        return self._cluster.offsets_since(topic, self._time.real_ms(at_ms), timeout_ms)
