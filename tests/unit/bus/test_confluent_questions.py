"""Questions about many topics at once: what one has no answer to is not held against the others."""

from collections.abc import Callable
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from delayd.bus.confluent.questions import Question
from delayd.errors import KafkaUnreachableError, TopicMismatchError
from delayd.runtime.clock import SystemClock

PATIENCE_MS = 60
TIMEOUT_MS = 300

Order = Callable[[list[str], float], dict[str, Future[str]]]


def brokers(answers: dict[str, int | str | None], asked: list[list[str]]) -> Order:
    """Each key's answer: a text, the code of an error, or None for silence."""

    def order(keys: list[str], timeout_s: float) -> dict[str, Future[str]]:
        assert timeout_s > 0
        asked.append(keys)
        futures = {}
        for key in keys:
            futures[key] = future = Future[str]()
            answer = answers[key]
            if isinstance(answer, str):
                future.set_result(answer)
            elif answer is not None:
                future.set_exception(KafkaException(KafkaError(answer)))
        return futures

    return order


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()


@pytest.fixture
def question(clock: SystemClock) -> Question:
    return Question("asking", TIMEOUT_MS, clock, lambda: None, lambda: None)


def test_each_key_has_its_own_answer(question: Question) -> None:
    """docs/design/frontier.md, Targets: one refusal does not stand for all."""
    asked: list[list[str]] = []
    order = brokers(
        {
            "here": "yes",
            "gone": KafkaError.UNKNOWN_TOPIC_OR_PART,
            "secret": KafkaError.TOPIC_AUTHORIZATION_FAILED,
        },
        asked,
    )
    answers = question.ask_some(
        order,
        ["here", "gone", "secret"],
        absent=KafkaError.UNKNOWN_TOPIC_OR_PART,
        patience_ms=PATIENCE_MS,
    )
    assert answers.given == {"here": "yes"}
    assert answers.refused.keys() == {"secret"} and not answers.silent
    assert len(asked) == 1


def test_a_passing_failure_is_asked_again_alone_and_not_for_long(clock: SystemClock) -> None:
    """docs/design/frontier.md, Targets: no lane is held up by another's target."""
    question = Question("asking", 100 * PATIENCE_MS, clock, lambda: None, lambda: None)
    asked: list[list[str]] = []
    order = brokers({"here": "yes", "moving": KafkaError.LEADER_NOT_AVAILABLE}, asked)
    before_ms = clock.monotonic_ms()
    answers = question.ask_some(order, ["here", "moving"], patience_ms=PATIENCE_MS)
    assert clock.monotonic_ms() - before_ms < 50 * PATIENCE_MS
    assert (answers.given, answers.silent) == ({"here": "yes"}, ["moving"])
    assert asked[0] == ["here", "moving"] and len(asked) > 1
    assert all(keys == ["moving"] for keys in asked[1:])


def test_while_nobody_answers_all_of_the_time_is_waited(
    question: Question, clock: SystemClock
) -> None:
    """docs/design/frontier.md, Targets: an election of the only broker passes."""
    order = brokers({"a": KafkaError._TRANSPORT, "b": KafkaError._TIMED_OUT}, [])
    before_ms = clock.monotonic_ms()
    answers = question.ask_some(order, ["a", "b"], patience_ms=PATIENCE_MS)
    assert clock.monotonic_ms() - before_ms > TIMEOUT_MS / 2
    assert answers.silent == ["a", "b"] and answers.passing


def test_silence_ends_with_the_time_and_keeps_what_was_answered(
    question: Question, clock: SystemClock
) -> None:
    """docs/design/frontier.md, Targets."""
    order = brokers({"here": "yes", "mute": None, "dumb": None}, [])
    before_ms = clock.monotonic_ms()
    answers = question.ask_some(order, ["mute", "here", "dumb"], patience_ms=PATIENCE_MS)
    assert clock.monotonic_ms() - before_ms < 2 * TIMEOUT_MS
    assert (answers.given, answers.silent) == ({"here": "yes"}, ["mute", "dumb"])


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, TopicMismatchError),
        (KafkaError.LEADER_NOT_AVAILABLE, KafkaUnreachableError),
        (KafkaError._NOENT, KafkaUnreachableError),
        (None, KafkaUnreachableError),
    ],
)
def test_a_question_that_needs_every_answer_fails_with_the_one_it_lacks(
    question: Question, answer: int | None, error: type[Exception]
) -> None:
    """docs/design/frontier.md, Takeover: offsets are needed of all partitions."""
    with pytest.raises(error):
        question.ask_each(brokers({"here": "yes", "other": answer}, []), ["here", "other"])


def test_a_silent_client_is_replaced_and_asked_again(clock: SystemClock) -> None:
    """A client may wait for a controller that is dead, and find the next one only anew."""
    renewed: list[float] = []
    silent, asked = {"a": None}, list[list[str]]()
    question = Question("asking", 20 * PATIENCE_MS, clock, lambda: renewed.append(1), lambda: None)
    question.attempt_ms = PATIENCE_MS

    def order(keys: list[str], timeout_s: float) -> dict[str, Future[str]]:
        answers: dict[str, int | str | None] = {"a": "yes"} if len(renewed) == 2 else {**silent}
        return brokers(answers, asked)(keys, timeout_s)

    assert question.ask_each(order, ["a"]) == {"a": "yes"}
    assert len(renewed) == 2 and len(asked) == 3


def test_an_answer_that_came_too_early_does_not_replace_the_client(clock: SystemClock) -> None:
    """A leader that moves is a matter of time, not of the client."""
    renewed: list[int] = []
    question = Question("asking", TIMEOUT_MS, clock, lambda: renewed.append(1), lambda: None)
    with pytest.raises(KafkaUnreachableError):
        question.ask_each(brokers({"a": KafkaError.LEADER_NOT_AVAILABLE}, []), ["a"])
    assert not renewed
