"""Targets whose messages are turned away, since when and how many: for people, not for decisions.

Not here: why a target fails (`checks.py`, `quarantine.py`), what becomes of the messages.

Invariant: bounded, whatever names the requests bring: the newest TOPICS_MAX.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import TypedDict

from delayd.runtime.bounded_dict import BoundedDict

TOPICS_MAX = 100
"""More than a person reads; the ones that turned a message away last are kept."""

QUIET_MS = 60_000
"""A target that is healthy again is shown until it has turned nothing away for so long."""


class FailingTarget(TypedDict):
    """One line of `/status`. `since_ms` is Unix time, `messages` counts since then."""

    topic: str
    problem: str
    since_ms: int
    messages: int


@dataclass(slots=True)
class _Failing:
    problem: str
    since_ms: int
    messages: int
    last_ms: int
    """Monotonic time of the last message that was turned away."""


class TargetFailures:
    """Written by the delivery thread, read by any."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._failing: BoundedDict[str, _Failing] = BoundedDict(TOPICS_MAX)

    def turned_away(
        self, topic: str, problem: str, messages: int, *, wall_ms: int, monotonic_ms: int
    ) -> None:
        """Count messages that were not sent to their target."""
        with self._lock:
            failing = self._failing.get(topic)
            if failing is None:
                self._failing[topic] = _Failing(problem, wall_ms, messages, monotonic_ms)
                return
            failing.problem = problem
            failing.messages += messages
            failing.last_ms = monotonic_ms
            self._failing.touch(topic)

    def topics(self) -> list[str]:
        """Return the names, those that turned a message away last at the end."""
        with self._lock:
            return list(self._failing)

    def forget_healed(self, monotonic_ms: int, is_failing: Callable[[str], bool]) -> None:
        """Drop targets that are healthy as far as anybody knows, and have been quiet."""
        with self._lock:
            for topic, failing in list(self._failing.items()):
                if monotonic_ms - failing.last_ms > QUIET_MS and not is_failing(topic):
                    del self._failing[topic]

    def report(self) -> list[FailingTarget]:
        """Return all of them, the one that has failed longest first."""
        with self._lock:
            found = [
                FailingTarget(
                    topic=topic,
                    problem=failing.problem,
                    since_ms=failing.since_ms,
                    messages=failing.messages,
                )
                for topic, failing in self._failing.items()
            ]
        return sorted(found, key=lambda failing: failing["since_ms"])
