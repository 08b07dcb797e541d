"""Targets whose messages are turned away, since when and how many: for people, not for decisions.

Not here: why a target fails (`checks.py`, `quarantine.py`), what becomes of the messages.

Invariant: bounded, whatever names the requests bring: the newest TOPICS_MAX.
"""

from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from delayd.runtime.bounded_dict import BoundedDict
from delayd.runtime.clock import Clock

TOPICS_MAX = 100
"""More than a person reads; the ones that turned a message away last are kept."""

QUIET_MS = 60_000
"""A target that is healthy again is shown until it has turned nothing away for so long."""


class FailingTarget(NamedTuple):
    """One line of `/status`. `since_ms` is Unix time, and the others count since then."""

    topic: str
    problem: str
    since_ms: int
    messages: int
    """Messages that were turned away, each once."""
    attempts: int
    """How often one was turned away: each retry counts."""


class TurnedAway(NamedTuple):
    """What one step did not send to a target."""

    problem: str
    messages: int
    attempts: int


class TargetFailures:
    """Written by the delivery thread, read by any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._failing: BoundedDict[str, tuple[FailingTarget, int]] = BoundedDict(TOPICS_MAX)
        """With the monotonic time of the last message that was turned away."""

    def turned_away(self, topic: str, at_ms: int, step: TurnedAway) -> None:
        """Count what a step, at this Unix time, did not send to a target."""
        fresh = FailingTarget(topic, step.problem, since_ms=at_ms, messages=0, attempts=0)
        with self._lock:
            known, _ = self._failing.get(topic, (fresh, 0))
            failing = known._replace(
                problem=step.problem,
                messages=known.messages + step.messages,
                attempts=known.attempts + step.attempts,
            )
            self._failing[topic] = failing, self._clock.monotonic_ms()

    def since_ms(self, topic: str) -> int | None:
        """Return since when a target fails, in Unix ms; None if it does not."""
        with self._lock:
            found = self._failing.get(topic)
            return None if found is None else found[0].since_ms

    def topics(self) -> list[str]:
        """Return the names, those that turned a message away last at the end."""
        with self._lock:
            return list(self._failing)

    def forget_healed(self, is_failing: Callable[[str], bool]) -> None:
        """Drop targets that are healthy as far as anybody knows, and have been quiet."""
        quiet_ms = self._clock.monotonic_ms() - QUIET_MS
        with self._lock:
            for topic, (_, last_ms) in list(self._failing.items()):
                if last_ms < quiet_ms and not is_failing(topic):
                    del self._failing[topic]

    def report(self) -> list[FailingTarget]:
        """Return all of them, the one that has failed longest first."""
        with self._lock:
            found = [failing for failing, _ in self._failing.values()]
        return sorted(found, key=lambda failing: failing.since_ms)
