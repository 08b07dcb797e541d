"""Whether one node reaches the brokers, and which of them tells its new clients of leaders.

Not here: what happens on the way; a link is up or down, and nothing is lost half-way.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Link:
    """One node's network to Kafka, shared by all its clients."""

    up: bool = True
    meets_zombies: bool = False
    """True while zombie leaders (`MemoryKafka.isolate_leader`) tell new readers who leads."""
