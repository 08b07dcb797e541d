"""Log time: what time it is, as far as a partition's log says. Pure.

Log time L is the floor below which no record is judged: a record is judged as of
`max(its append time, L)`. So nodes may forget what no time at or above L can concern. L follows
the append times and never steps back:

    rules 2, 3   L is the largest append time so far. One broker's clock that jumps ahead takes L
                 with it, and all later records are judged as of that future.
    rules 4      L trails the append times, by 10 minutes or a sixth of the id memory, whichever is
                 less, so that a record which is ahead by no more moves no other. An append time
                 that is further ahead is a *leap*: an idle time, or a wrong clock. L follows a leap
                 when the log has stayed beyond it for 12 trails; the leap is forgotten when an
                 earlier time comes back.

Where a partition is switched to rules 4 (`replication.rules`), L goes on from what it was, without
a leap.

The rule needs two numbers a partition, whatever the log holds: L, and when the leap began.
Source: docs/design/frontier.md, "Log time".
"""

from typing import Final

from replication.rules import is_steady
from replication.settings import Settings

TRAILS_IN_ID_MEMORY: Final = 6
"""L trails by a sixth of the id memory, so that it is little beside that."""

TRAIL_MAX_MS: Final = 10 * 60 * 1000
"""It trails by no more, as with an id memory of an hour: clocks of brokers do not differ by so
much, and a leap must last for 12 times as long to be believed."""

PROOF_TRAILS: Final = 12
"""How long a leap must last to be believed, in trails: 2 hours. A wrong clock that is corrected
within an hour is not believed. After an idle time ids are remembered for so much longer."""


def trail_ms_of(settings: Settings, version: int) -> int:
    """Return how far L is behind the latest append time that it has followed, by a version of the
    rules; 0 before version 4."""
    if not is_steady(version):
        return 0
    return max(1, min(settings.id_memory_ms // TRAILS_IN_ID_MEMORY, TRAIL_MAX_MS))


def log_time_after(log_ms: int, leap_ms: int, append_ms: int, trail_ms: int) -> tuple[int, int]:
    """Return L, and the first append time of a leap (0: there is none), after one more record."""
    if trail_ms == 0:
        return max(log_ms, append_ms), 0
    if append_ms <= log_ms + 2 * trail_ms:
        return max(log_ms, append_ms - trail_ms), 0
    if leap_ms == 0 or append_ms < leap_ms:
        return log_ms, append_ms
    over_ms = append_ms - leap_ms - PROOF_TRAILS * trail_ms
    if over_ms < 0:
        return log_ms, leap_ms
    if over_ms <= trail_ms:
        return append_ms - trail_ms, 0
    # This record has leapt again: it proves the first leap, and must be proved itself.
    return leap_ms - trail_ms, append_ms
