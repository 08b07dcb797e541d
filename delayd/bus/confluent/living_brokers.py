"""Which brokers there are, as one client is told, to see when one is gone.

Controllers take a broker that died or hangs out of what the others tell when they have replaced it,
so that it leads and coordinates nothing any more.

Not here: what is done about it.
"""

from typing import Final

from confluent_kafka import KafkaException, Producer

ASKED_TOPIC: Final = "__transaction_state"
"""Brokers are told with a topic. Each cluster with transactions has this one; about all topics
would take long where there are many."""


class LivingBrokers:
    """Of one producer, over all of its clients. A broker is lost once."""

    def __init__(self) -> None:
        self._known: frozenset[int] = frozenset()

    def ask(self, client: Producer, timeout_s: float) -> frozenset[int]:
        """Return which of those that were known are gone; KafkaException if no broker answers."""
        told = frozenset(client.list_topics(ASKED_TOPIC, timeout=timeout_s).brokers)
        gone, self._known = self._known - told, told
        return gone

    def lost(self, client: Producer, timeout_ms: int) -> frozenset[int]:
        """Return the same; nothing if no broker answers."""
        try:
            return self.ask(client, timeout_ms / 1000)
        except KafkaException:
            return frozenset()
