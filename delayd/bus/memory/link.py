"""Whether one node reaches the brokers.

Not here: what happens on the way; a link is up or down, and nothing is lost half-way.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Link:
    """One node's network to Kafka, shared by all its clients."""

    up: bool = True
