"""What a step does with the messages that are due."""

from enum import Enum


class Fate(Enum):
    """What a step does with a message that is not killed."""

    DELIVERED = "delivered"
    RETRIED = "retried"
    """Re-buffered: an internal record continues it."""
    DEFERRED = "deferred"
    """Re-buffered for a moment, and not counted as tried."""
    SMOOTHED = "smoothed"
    """Re-buffered to its turn, because of its target's rate."""
    HELD = "held"
    """Re-buffered, because its target is paused."""
    DEAD = "dead"
    EXPIRED = "expired"
    """Dead-lettered: the step came to it later than it is worth delivering."""
    RESOLVED = "resolved"
    """Of a series: re-buffered as the occurrence that is next, and not counted as tried."""


REQUEUED = (Fate.RETRIED, Fate.DEFERRED, Fate.SMOOTHED, Fate.HELD, Fate.RESOLVED)

KILLED = "killed"
"""In place of a fate: a cancel or a replace had come before."""
