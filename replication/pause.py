"""How long a master that has nothing to deliver waits before it looks again.

A master without work takes an empty step every `idle_interval_ms`, so that the cursor that people
see moves, its transactional id does not expire, and `now` gets a new bound.

Source: docs/design/frontier.md, "Step".
"""

from typing import Final

WAIT_MAX_MS: Final = 250
"""Longest wait without a sign of life."""

HELD_WAIT_MS: Final = 5
"""How soon a step looks again at what is due but held back: not ingested far enough, or crowded."""


def pause_ms(due_ms: int | None, now_ms: int, idle_ms: int, idle_interval_ms: int) -> int:
    """Return how many ms to wait when the plan is empty; 0: take the empty step.

    `due_ms`: when something may be due next (Unix ms), None if nothing is known to be.
    `idle_ms`: since the last step. What arrives meanwhile must wake the waiter.
    """
    if idle_ms >= idle_interval_ms:
        return 0
    until_due_ms = WAIT_MAX_MS if due_ms is None else due_ms - now_ms
    return min(
        WAIT_MAX_MS,
        idle_interval_ms - idle_ms,
        until_due_ms if until_due_ms > 0 else HELD_WAIT_MS,
    )
