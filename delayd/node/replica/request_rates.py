"""How many requests were taken for target topics that have a rate, by the second of their append
times.

What counts is what would add a message of the topic, as `refuse_full` has it, and is not refused
for a full topic: repeated and conflicting requests too, and none of the master's own records. So
it is a function of the log below what is ingested. It is in memory only: a node that was started
again counts from where it reads on, which is enough once it has run for RATE_WINDOW_S.

Source: docs/design/quotas.md, "What was taken".
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from delayd.request import Op, Reject, Request
from delayd.runtime.native.packing import Run
from replication.quotas import RATE_WINDOW_S, SECOND_MS, Quota, rate_seconds

SECONDS_KEPT: Final = 1_000
"""Of a topic, those that are nearest to the clock of the newest frontier. More than are asked for:
partitions are read one after the other."""
ADDING: Final = frozenset({Op.SCHEDULE, Op.REPLACE, Op.DEBOUNCE, Op.REDRIVE})
"""What adds a message: what `refuse_full` refuses of what has a target."""


class Asking(Protocol):
    """A piece of the log."""

    def asked(self) -> Iterable[tuple[str, int]]:
        """Return target and append time of each request in it that is taken."""


class RequestRates:
    """Under the replica's lock."""

    def __init__(self) -> None:
        self._taken: dict[str, dict[int, int]] = {}
        """By topic with a rate, by second."""
        self._now_s = 0
        """The second of the newest frontier."""

    def watch(self, quotas: Mapping[str, Quota], now_ms: int) -> None:
        """Count from now on for the topics that have a rate, and for no other. `now_ms`: of the
        frontier that has these quotas."""
        self._now_s = max(self._now_s, now_ms // SECOND_MS)
        rated = [topic for topic, quota in quotas.items() if quota.rate]
        if self._taken or rated:
            self._taken = {topic: self._taken.get(topic, {}) for topic in rated}

    def note(self, piece: Asking | Run) -> None:
        """Count what is taken of a piece of the log."""
        if not self._taken:
            return
        if isinstance(piece, Run):
            for _, topic, count in piece.tallies:
                self._add(topic, piece.append_ms, count)
            return
        for topic, append_ms in piece.asked():
            self._add(topic, append_ms, 1)

    def straddles(self, run: Run, first_append_ms: int, trail_ms: int) -> bool:
        """Return whether a run does not say how many of its requests came in which second, and they
        are to be counted. The first one was appended then; `trail_ms`: as the run was packed. It
        looks at both ends: between them append times go back only where a broker's clock does. Of
        what a frontier covers a run names neither targets nor times. What is so old that no step
        counts it any more may count anywhere."""
        if not self._taken:
            return False
        is_whole = run.stored == run.taken
        last_ms = run.append_ms if is_whole else max(run.log_ms + trail_ms, run.leap_ms)
        first, last = first_append_ms // SECOND_MS, last_ms // SECOND_MS
        if max(first, last) < self._now_s - 2 * RATE_WINDOW_S:
            return False
        if not is_whole:
            return True
        return first != last and any(topic in self._taken for _, topic, _ in run.tallies)

    def taken(self, topics: Iterable[str], now_ms: int) -> dict[str, int]:
        """Return how many were taken for each of these topics that a step at `now_ms` counts."""
        seconds = rate_seconds(now_ms)
        held = {topic: self._taken.get(topic, {}) for topic in topics}
        return {topic: sum([of.get(second, 0) for second in seconds]) for topic, of in held.items()}

    def _add(self, topic: str, append_ms: int, count: int) -> None:
        seconds = self._taken.get(topic)
        if seconds is None:
            return
        second = append_ms // SECOND_MS
        seconds[second] = seconds.get(second, 0) + count
        if len(seconds) > SECONDS_KEPT:
            nearest = sorted(seconds, key=lambda each: abs(each - self._now_s))
            for far in nearest[SECONDS_KEPT // 2 :]:
                del seconds[far]


def asked_topic(outcome: Request | Reject) -> str | None:
    """Return the target that a record adds a message to; None if it adds none."""
    if isinstance(outcome, Reject) or outcome.op not in ADDING:
        return None
    return outcome.topic
