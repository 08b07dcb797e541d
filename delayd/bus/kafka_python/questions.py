"""Asking brokers, with a bound: what is asked again, what is refused, what was never answered.

Not here: what is asked, and what an answer means.

Invariants:
- a question ends within its time-out, however many requests it takes;
- one key's trouble is told of that key and no other, and holds up the others for its patience only.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any, Final, NamedTuple

from delayd.bus.kafka_python.connections import refusal, wait_done
from delayd.bus.kafka_python.failure import told
from delayd.bus.kafka_python.library import errors
from delayd.bus.refusals import remedy_of
from delayd.errors import KafkaUnreachableError, TopicMismatchError
from delayd.runtime.clock import Clock

RETRY_MS: Final = 20
"""Pause before a question that came too early (no leader yet, not yet visible) is repeated."""

_PASSING: Final = (
    errors.RetriableError,
    errors.BrokerNotAvailableError,
    errors.KafkaConnectionError,
    errors.UnknownBrokerIdError,
    errors.UnknownTopicOrPartitionError,
)
"""What is answered while metadata spreads or leaders move; it is asked again. An unknown topic is
among them only where it was just described: one broker knows it, the other not yet. An unknown
broker is one that left the metadata between a look at it and the request."""


class Said(NamedTuple):
    """A broker's answer about one key of a question about many."""

    key: str
    error: BaseException | None
    given: Any


@dataclass(slots=True)
class Answers:
    """What became of a question about many keys. Those that do not exist are in none."""

    given: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    passing: str = ""
    """The last passing failure, if there was one."""


class Question:
    """One call of the port: what it does, and how long it may still take."""

    def __init__(self, doing: str, timeout_ms: int, clock: Clock, client: Any) -> None:
        self._doing = doing
        self._clock = clock
        self._client = client
        self._manager = client._manager
        self.timeout_ms = timeout_ms
        self._deadline_ms = clock.monotonic_ms() + timeout_ms

    def await_connection(self, connected: Any) -> None:
        """Wait until some broker has said who the others are."""
        if not wait_done(connected, self._left_ms()):
            raise self.unreachable("no broker can be reached")
        if connected.exception is not None:
            raise self.unreachable(told(connected.exception))

    def ask(self, request: Callable[[], Any], broker: int | None = None) -> Any:
        """The answer of a broker, or of any; asked again while the failure is a passing one."""
        while True:
            answer = self._manager.call_soon(self._send, request(), broker, self._left_ms())
            if not wait_done(answer, self._left_ms()):
                raise self.unreachable("no answer")
            if answer.exception is None:
                return answer.value
            self.pause_or_raise(answer.exception)

    def ask_some(
        self,
        request: Callable[[list[str]], Any],
        read: Callable[[Any], Iterable[Said]],
        keys: Iterable[str],
        *,
        patience_ms: int,
    ) -> Answers:
        """What was answered, by key; without those that a broker does not know.

        One request for all keys, and then for those whose failure is a passing one, for
        `patience_ms` once there is an answer for others.
        """
        answers, waiting = Answers(), list(keys)
        patient_until_ms = self._clock.monotonic_ms() + patience_ms
        while waiting:
            try:
                said = {each.key: each for each in read(self.ask(partial(request, waiting)))}
            except KafkaUnreachableError:
                break
            waiting = [key for key in waiting if not _settle(said.get(key), answers)]
            until_ms = self._deadline_ms
            if answers.given or answers.refused:
                until_ms = min(until_ms, patient_until_ms)
            if not waiting or self._clock.monotonic_ms() + RETRY_MS >= until_ms:
                break
            Event().wait(RETRY_MS / 1000)
        answers.silent = waiting
        return answers

    def pause(self, why: str) -> None:
        """Wait a little before asking again; raises when the time is over."""
        if self._clock.monotonic_ms() + RETRY_MS >= self._deadline_ms:
            raise self.unreachable(why)
        Event().wait(RETRY_MS / 1000)

    def pause_or_raise(self, error: BaseException) -> None:
        """Wait a little if waiting helps, else say what was refused."""
        if not isinstance(error, _PASSING):
            raise TopicMismatchError(f"{self._doing} was refused: {told(error)}") from None
        self.pause(told(error))

    def unreachable(self, why: str) -> KafkaUnreachableError:
        """What to raise when there is no answer."""
        refused = refusal(self._client)
        why = why if refused is None else told(refused)
        return KafkaUnreachableError(
            f"{self._doing} had no answer within {self.timeout_ms} ms: {why}",
            remedy=remedy_of(why),
        )

    async def _send(self, request: Any, broker: int | None, timeout_ms: int) -> Any:
        return await self._manager.send(request, node_id=broker, request_timeout_ms=timeout_ms)

    def _left_ms(self) -> int:
        left_ms = self._deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            raise self.unreachable("no answer")
        return left_ms


def _settle(said: Said | None, answers: Answers) -> bool:
    """Take a key's answer; False if it has to be asked for again."""
    if said is None:
        answers.passing = "the answer left it out"
        return False
    if said.error is None:
        answers.given[said.key] = said.given
    elif isinstance(said.error, errors.UnknownTopicOrPartitionError):
        pass  # it does not exist
    elif isinstance(said.error, _PASSING):
        answers.passing = told(said.error)
        return False
    else:
        answers.refused[said.key] = told(said.error)
    return True
