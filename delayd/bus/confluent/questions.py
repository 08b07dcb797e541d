"""Questions to brokers through librdkafka, repeated while an answer may still come.

Not here: what is asked.

Invariants:
- every question ends within its time: KafkaUnreachableError when no answer came;
- a refusal (authorisation, policy, an unknown topic) is a TopicMismatchError that names it, since
  waiting would not help.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from delayd.bus.questions import Answers, Patience
from delayd.runtime.clock import Clock

T = TypeVar("T")

ATTEMPT_FIRST_MS: Final = 1_000
"""After so long without an answer a question is asked again by a new client, which then has twice
as long. librdkafka waits for the broker that it knows as the controller, also when that is dead,
and asks no other who the controller is now."""

_UNREACHABLE: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
    }
)

_PASSING: Final = frozenset(
    {
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.UNKNOWN,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_ID,
        # Of a topic that was just described: one broker knows it, the other not yet.
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        # "No leaders found": librdkafka's own word while it knows of none. Of what is not there
        # brokers say so.
        KafkaError._NOENT,
    }
)
"""What a broker answers while metadata spreads or leaders move; it is asked again. librdkafka's
admin client marks none of them as retriable."""


class Question:
    """One call of the port: what it does, and how long it may still take.

    `renew` replaces the client, when the present one had no answer; `refusal` is what brokers said
    last to those whom they did not let in, if they said anything.
    """

    def __init__(
        self,
        doing: str,
        timeout_ms: int,
        clock: Clock,
        renew: Callable[[], None],
        refusal: Callable[[], str | None],
        attempt_ms: int = ATTEMPT_FIRST_MS,
    ) -> None:
        self._patience = Patience(doing, timeout_ms, clock, refusal)
        self._clock = clock
        self._renew = renew
        self._attempt_ms = attempt_ms
        self.pause = self._patience.pause
        self.unreachable = self._patience.unreachable
        self.all_described = self._patience.all_described

    def ask(self, order: Callable[[float], Future[T]]) -> T:
        """Return the answer; ask again while the failure is a passing one."""
        while True:
            until_ms = self._begin_attempt()
            try:
                return order(self._until_s(until_ms)).result(self._until_s(until_ms))
            except FutureTimeoutError:
                self._end_attempt()
                self.pause("no answer")
            except KafkaException as error:
                if error.args[0].code() in _UNREACHABLE:
                    self._end_attempt()
                self._pause_or_raise(error.args[0])

    def ask_each(
        self,
        order: Callable[[list[Any], float], Mapping[Any, Future[T]]],
        keys: list[Any],
        *,
        absent: int | None = None,
    ) -> dict[Any, T]:
        """Return the answer by key, without the keys whose error code is `absent`."""
        answers = self.ask_some(order, keys, absent=absent, patience_ms=self._patience.timeout_ms)
        for told in answers.refused.values():
            raise self._patience.refused(told)
        if answers.silent:
            raise self._patience.unreachable(answers.passing or "no answer")
        return answers.given

    def ask_some(
        self,
        order: Callable[[list[Any], float], Mapping[Any, Future[T]]],
        keys: list[Any],
        *,
        absent: int | None = None,
        patience_ms: int,
    ) -> "Answers[T]":
        """Return what was answered, by key.

        Keys with a passing failure are asked about again: for `patience_ms` once others have an
        answer."""
        answers: Answers[T] = Answers()
        waiting = keys
        patient_until_ms = self._clock.monotonic_ms() + patience_ms
        while waiting:
            if self._clock.monotonic_ms() >= self._patience.deadline_ms:
                break
            attempt_until_ms = self._begin_attempt()
            futures = order(waiting, self._until_s(attempt_until_ms))
            answers.unreachable = False
            waiting = [
                key
                for key in waiting
                if not self._settle(futures[key], key, answers, absent, attempt_until_ms)
            ]
            if answers.unreachable:
                self._end_attempt()
            until_ms = self._patience.deadline_ms
            if answers.given or answers.refused:
                until_ms = min(until_ms, patient_until_ms)
            if not waiting or not self._patience.pause_until(until_ms):
                break
        answers.silent = waiting
        return answers

    def _settle(
        self,
        future: Future[T],
        key: Any,
        answers: "Answers[T]",
        absent: int | None,
        until_ms: int,
    ) -> bool:
        """Take a key's answer; False if it has to be asked for again."""
        try:
            answers.given[key] = future.result(self._until_s(until_ms))
        except FutureTimeoutError:
            answers.unreachable = True
            return False
        except KafkaException as error:
            found: KafkaError = error.args[0]
            if found.code() == absent:
                return True
            told = f"{found.name()}, {found.str()}"
            if _is_passing(found):
                answers.passing = told
                answers.unreachable |= found.code() in _UNREACHABLE
                return False
            answers.refused[key] = told
        return True

    def _pause_or_raise(self, error: KafkaError) -> None:
        told = f"{error.name()}, {error.str()}"
        if not _is_passing(error):
            raise self._patience.refused(told)
        self.pause(told)

    def _begin_attempt(self) -> int:
        """Return until when (monotonic ms) this attempt may wait."""
        return self._clock.monotonic_ms() + min(self._patience.left_ms(), self._attempt_ms)

    def _end_attempt(self) -> None:
        """Note that there was no answer."""
        self._attempt_ms *= 2
        self._renew()

    def _until_s(self, until_ms: int) -> float:
        return max(1, until_ms - self._clock.monotonic_ms()) / 1000


def _is_passing(error: KafkaError) -> bool:
    return error.code() in _UNREACHABLE or error.code() in _PASSING or error.retriable()
