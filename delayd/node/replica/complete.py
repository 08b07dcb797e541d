"""The frontier by which a checkpoint is listed: all that its steps wrote has been ingested.

By the newest frontier a message could be delivered whose retry or next occurrence this replica has
not read yet: neither would be listed. Not here: what is listed (`monitoring.api.pending`).
"""

from collections import deque
from typing import Final

from delayd.node.replica.forgetting import has_passed
from replication.frontier import Frontier

AHEAD_MAX: Final = 4_096
"""Frontiers that ingestion has not reached; of more the older ones are left out."""


class CompleteFrontier:
    """Used by the replica under its lock; `frontier` is read by others without it."""

    def __init__(self) -> None:
        self._ahead: deque[Frontier] = deque(maxlen=AHEAD_MAX)
        self._reached: Frontier | None = None
        self.frontier: Frontier | None = None
        """Complete in the last checkpoint, and in each later one; None until there is one."""

    def note(self, frontier: Frontier) -> None:
        """Note the next frontier of the topic."""
        self._ahead.append(frontier)

    def reached(self, ingested: tuple[int, ...]) -> Frontier | None:
        """Return the newest one that is complete by these offsets."""
        while self._ahead and has_passed(self._ahead[0], ingested):
            self._reached = self._ahead.popleft()
        return self._reached

    def checkpointed(self, frontier: Frontier | None) -> None:
        """Note what was complete when a checkpoint began that is durable now."""
        self.frontier = frontier
