"""What both drivers do alike when they ask brokers: wait, ask again, and end in time.

Not here: how a question reaches a broker, and which failures pass by themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Final, Generic, TypeVar

from delayd.bus import Survey, TopicState
from delayd.bus.refusals import remedy_of
from delayd.errors import KafkaUnreachableError, TopicMismatchError
from delayd.runtime.clock import Clock

T = TypeVar("T")

RETRY_MS: Final = 20
"""Pause before a question that came too early (no leader yet, not yet visible) is repeated."""


@dataclass(slots=True)
class Answers(Generic[T]):
    """What became of a question about many keys. Keys that do not exist are in none of these."""

    given: dict[Any, T] = field(default_factory=dict)
    refused: dict[Any, str] = field(default_factory=dict)
    silent: list[Any] = field(default_factory=list)
    passing: str = ""
    """The last passing failure, if there was one."""
    unreachable: bool = False
    """True if the last attempt had no answer at all about some key."""


class Patience:
    """How long one call of the port may still wait, and the errors with which it ends.

    `refusal` returns why brokers last refused a connection, if they did.
    """

    def __init__(
        self, doing: str, timeout_ms: int, clock: Clock, refusal: Callable[[], str | None]
    ) -> None:
        self.timeout_ms: Final = timeout_ms
        self.deadline_ms: Final = clock.monotonic_ms() + timeout_ms
        self._doing = doing
        self._clock = clock
        self._refusal = refusal

    def left_ms(self) -> int:
        """Return the time left; KafkaUnreachableError if there is none."""
        left_ms = self.deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            raise self.unreachable("no answer")
        return left_ms

    def pause(self, why: str) -> None:
        """Wait a little before asking again; KafkaUnreachableError if the time is over."""
        if not self.pause_until(self.deadline_ms):
            raise self.unreachable(why)

    def pause_until(self, until_ms: int) -> bool:
        """Wait a little, but not beyond a monotonic time; return False if that is too near."""
        if self._clock.monotonic_ms() + RETRY_MS >= until_ms:
            return False
        Event().wait(RETRY_MS / 1000)
        return True

    def unreachable(self, why: str) -> KafkaUnreachableError:
        """Return the error for a question that nobody answers."""
        why = self._refusal() or why
        return KafkaUnreachableError(
            f"{self._doing} had no answer within {self.timeout_ms} ms: {why}",
            remedy=remedy_of(why),
        )

    def refused(self, why: str) -> TopicMismatchError:
        """Return the error for a question that brokers refuse to answer."""
        return TopicMismatchError(f"{self._doing} was refused: {why}")

    def all_described(self, found: Survey) -> dict[str, TopicState]:
        """Return the states of a survey; raise if a topic was refused or silent."""
        for name, problem in found.refused.items():
            raise TopicMismatchError(f"describing {name} was refused: {problem}")
        if found.silent:
            raise self.unreachable(f"none for {', '.join(sorted(found.silent))}")
        return dict(found.states)
