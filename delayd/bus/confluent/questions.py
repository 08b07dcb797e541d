"""Questions to brokers through librdkafka, repeated while an answer may still come.

Not here: what is asked.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, TypeAlias, TypeVar

from confluent_kafka import KafkaError, KafkaException

from delayd.bus.questions import Answers, Patience
from delayd.runtime.clock import Clock

T = TypeVar("T")
Order: TypeAlias = Callable[[list[Any], float], Mapping[Any, Future[T]]]
"""Asks about keys, for so many seconds at most."""

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
"""Errors while metadata spreads or leaders move: ask again. librdkafka's admin client marks none of
them as retriable."""


class Question(Patience):
    """One call of the port: what it does, and how long it may still take.

    `renew` replaces the client, when the present one had no answer; `refusal` is what brokers said
    last to a client that they did not let in, if they said anything.
    """

    def __init__(
        self,
        doing: str,
        timeout_ms: int,
        clock: Clock,
        renew: Callable[[], None],
        refusal: Callable[[], str | None],
    ) -> None:
        super().__init__(doing, timeout_ms, clock, refusal)
        self._renew = renew
        self.attempt_ms = ATTEMPT_FIRST_MS

    def ask(self, order: Callable[[float], Future[T]]) -> T:
        """Return the answer; ask again while the failure is a passing one."""
        while True:
            until_ms = self._begin_attempt()
            try:
                return order(self._until_s(until_ms)).result(self._until_s(until_ms))
            except FutureTimeoutError:
                self._end_attempt()
                self.pause("no answer")
            except KafkaException as raised:
                error = raised.args[0]
                if error.code() in _UNREACHABLE:
                    self._end_attempt()
                if not _is_passing(error):
                    raise self.refused(_told(error)) from raised
                self.pause(_told(error))

    def ask_each(
        self, order: Order[T], keys: list[Any], *, absent: int | None = None
    ) -> dict[Any, T]:
        """Return the answer by key, without the keys whose error code is `absent`."""
        return self.all_given(
            self.ask_some(order, keys, absent=absent, patience_ms=self.timeout_ms)
        )

    def ask_some(
        self,
        order: Order[T],
        keys: list[Any],
        *,
        absent: int | None = None,
        patience_ms: int,
    ) -> Answers[T]:
        """Return the answers by key; see `repeated`."""

        def attempt(waiting: list[Any], answers: Answers[T]) -> list[Any]:
            until_ms = self._begin_attempt()
            futures = order(waiting, self._until_s(until_ms))
            answers.unreachable = False
            again = [
                key
                for key in waiting
                if not self._settle(futures[key], key, answers, absent, until_ms)
            ]
            if answers.unreachable:
                self._end_attempt()
            return again

        return self.repeated(attempt, keys, patience_ms)

    def _settle(
        self,
        future: Future[T],
        key: Any,
        answers: Answers[T],
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
            told = _told(found)
            if _is_passing(found):
                answers.passing = told
                answers.unreachable |= found.code() in _UNREACHABLE
                return False
            answers.refused[key] = told
        return True

    def _begin_attempt(self) -> int:
        """Return until when (monotonic ms) this attempt may wait."""
        return self._clock.monotonic_ms() + min(self.left_ms(), self.attempt_ms)

    def _end_attempt(self) -> None:
        """Note that there was no answer."""
        self.attempt_ms *= 2
        self._renew()

    def _until_s(self, until_ms: int) -> float:
        return max(1, until_ms - self._clock.monotonic_ms()) / 1000


def _is_passing(error: KafkaError) -> bool:
    return error.code() in _UNREACHABLE or error.code() in _PASSING or error.retriable()


def _told(error: KafkaError) -> str:
    return f"{error.name()}, {error.str()}"
