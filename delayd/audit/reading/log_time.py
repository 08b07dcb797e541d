"""The log time before an offset: the largest timestamp of the committed records in front of it.

Ranges of a partition are read side by side, and none waits for those before it. Kafka's index by
time answers instead:

    1. the largest timestamp of the last few records before the offset is a first guess
    2. which is the first offset with a later timestamp? if it is not before, the guess is right
    3. else what is there may raise the guess, and the question is asked again
    4. what is there may also be a marker or aborted: then everything from there on is read

With the broker's own timestamps, which hardly ever step back, it ends at 2.
"""

from typing import Final, Protocol

TAIL_OFFSETS: Final = 256
QUESTIONS_MAX: Final = 32


class TimedLog(Protocol):
    """A partition, for its times; partition.py says what each returns."""

    def largest_ms(self, start: int, end: int) -> int | None: ...
    def first_ms(self, start: int, end: int) -> int | None: ...
    def first_since(self, timestamp_ms: int) -> int | None: ...


def log_time_before(
    log: TimedLog, first: int, offset: int, tail_offsets: int = TAIL_OFFSETS
) -> int:
    """Return the log time, Unix ms, over [first, offset); 0 if there is nothing."""
    tail = offset
    known: int | None = None
    step = tail_offsets
    while known is None and tail > first:
        end, tail = tail, max(first, tail - step)
        known = log.largest_ms(tail, end)
        step *= 16
    if known is None:
        return 0
    for _ in range(QUESTIONS_MAX):
        later = log.first_since(known + 1)
        if later is None or later >= tail:
            return known
        seen = log.first_ms(max(first, later), tail)
        if seen is None or seen <= known:
            break
        known = seen
    else:
        later = first
    return max(known, log.largest_ms(max(first, later), tail) or 0)
