"""The small values that judging a batch needs besides its tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from replication.frontier import Frontier
from replication.settings import Settings

GRACE_MS: Final = 30_000
"""How long after the frontier covered a message its delivery may stay unseen. It is committed
together with the frontier; the grace is for clocks that differ and for transactions of others."""

UNPROVEN_MS: Final = 60 * 60 * 1000
"""A message whose target cannot be read that long is given up, as neither delivered nor lost."""

HORIZON_MS: Final = 24 * 60 * 60 * 1000
"""How long a request is remembered after it was over: what comes a second time later than that
is reported as unknown."""

REDRIVE_MEMORY_MS: Final = 31 * 24 * 60 * 60 * 1000
"""Redrives are compared with those of the last 30 days."""


@dataclass(frozen=True, slots=True)
class BatchContext:
    """A batch: what had been committed, and was read, by its end. Times are Unix ms."""

    settings: Settings
    at_ms: int
    watch: Frontier
    """The frontier at which watching began: what it covers was over before."""
    watch_ms: int
    """Its append time; with shards that of the last of them, as `frontier_ms`."""
    frontier: Frontier
    """The newest, of all shards."""
    frontier_ms: int
    buffer_starts: tuple[int, ...]
    """First offset of each buffer partition from which on all was read."""
    buffer_before: tuple[int, ...]
    """Where the batch before this one ended in the buffer."""
    settled_ms: Mapping[str, int]
    """By topic: all that was in it at this time has been read, but for what is unread."""
    unread_ms: Mapping[str, int]
    """By topic: something of it that was there before this time is never read."""
    target_partitions: Mapping[str, int]
