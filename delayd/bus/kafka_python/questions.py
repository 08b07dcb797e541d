"""Questions to brokers through kafka-python, repeated while an answer may still come.

Not here: what is asked, and what an answer means.

Invariant: one key's trouble is told of that key and no other, and holds up the others for its
patience only.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from delayd.bus.kafka_python.connections import refusal, wait_done
from delayd.bus.kafka_python.failures import told
from delayd.bus.kafka_python.library import errors
from delayd.bus.questions import Answers, Patience
from delayd.runtime.clock import Clock

_PASSING: Final = (
    errors.RetriableError,
    errors.BrokerNotAvailableError,
    errors.KafkaConnectionError,
    errors.UnknownBrokerIdError,
    errors.UnknownTopicOrPartitionError,
)
"""Errors while metadata spreads or leaders move: ask again. An unknown topic is among them only if
it was just described: one broker knows it, the other not yet. An unknown broker is one that left
the metadata between a look at it and the request."""


class Said(NamedTuple):
    """A broker's answer about one key of a question about many."""

    key: str
    error: BaseException | None
    given: Any


class Question(Patience):
    """One call of the port: what it does, and how long it may still take."""

    def __init__(self, doing: str, timeout_ms: int, clock: Clock, client: Any) -> None:
        super().__init__(doing, timeout_ms, clock, partial(_refusal_told, client))
        self._manager = client._manager

    def await_connection(self, connected: Any) -> None:
        """Wait until one broker has named the others."""
        if not wait_done(connected, self.left_ms()):
            raise self.unreachable("no broker can be reached")
        if connected.exception is not None:
            raise self.unreachable(told(connected.exception))

    def ask(self, request: Callable[[], Any], broker: int | None = None) -> Any:
        """Return the answer of a broker, or of any; ask again while the failure passes."""
        while True:
            answer = self._manager.call_soon(self._send, request(), broker, self.left_ms())
            if not wait_done(answer, self.left_ms()):
                raise self.unreachable("no answer")
            if answer.exception is None:
                return answer.value
            self.pause_or_raise(answer.exception)

    def ask_brokers(self, requests: Mapping[int, Any]) -> dict[int, Any]:
        """Return the answer of each broker that gives one in time; all are asked at once."""
        waiting = {
            broker: self._manager.call_soon(self._send, request, broker, self.left_ms())
            for broker, request in requests.items()
        }
        for answer in waiting.values():
            wait_done(answer, max(0, self._deadline_ms - self._clock.monotonic_ms()))
        return {
            broker: answer.value
            for broker, answer in waiting.items()
            if answer.is_done and answer.exception is None
        }

    def ask_some(
        self,
        request: Callable[[list[str]], Any],
        read: Callable[[Any], Iterable[Said]],
        keys: Iterable[str],
        *,
        patience_ms: int,
    ) -> Answers[Any]:
        """Return what was answered, by key, without the keys that a broker does not know.

        One request is for all keys; see `repeated`.
        """

        def attempt(waiting: list[str], answers: Answers[Any]) -> list[str]:
            said = {each.key: each for each in read(self.ask(partial(request, waiting)))}
            return [key for key in waiting if not _settle(said.get(key), answers)]

        return self.repeated(attempt, keys, patience_ms)

    def pause_or_raise(self, error: BaseException) -> None:
        """Wait a little if waiting helps; else raise the refusal."""
        if not isinstance(error, _PASSING):
            raise self.refused(told(error)) from None
        self.pause(told(error))

    async def _send(self, request: Any, broker: int | None, timeout_ms: int) -> Any:
        return await self._manager.send(request, node_id=broker, request_timeout_ms=timeout_ms)


def is_passing(error: type[BaseException]) -> bool:
    """Return whether waiting may help."""
    return issubclass(error, _PASSING)


def _settle(said: Said | None, answers: Answers[Any]) -> bool:
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


def _refusal_told(client: Any) -> str | None:
    refused = refusal(client)
    return None if refused is None else told(refused)
