"""Sending dead letters again, and the outcome of each.

Invariant: each wanted letter gets exactly one outcome, or none if the redrive stopped before it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from delayd.client.errors import NotScheduledError, RequestRefusedError
from delayd.client.outcomes import Verdict
from delayd.errors import DelaydError, KafkaUnreachableError
from delayd.request.letters import Letter
from delayd.request.redrives import NoRedrive, Redrive, counting_redrive

NOTHING_SENT: Final = (NotScheduledError, RequestRefusedError)
"""Errors of one request only: the others go on."""


class Word(Enum):
    """The kinds of outcomes."""

    REDRIVEN = "redriven"
    """It will be delivered; of a dry run, it could be sent."""
    ALREADY = "already redriven"
    """It was sent again before, and not a second time now."""
    REJECTED = "rejected"
    """The cluster refused the request."""
    IMPOSSIBLE = "not redriven"
    """Nothing was sent: the cluster would reject the request, or Kafka did not take it."""
    UNKNOWN = "unknown"
    """It may be redriven or not."""
    MISSING = "not found"
    """There is no such letter."""


class Outcome(NamedTuple):
    """The outcome of one letter."""

    source: str
    """Source of the letter."""
    word: Word
    detail: str
    request: str | None = None
    """Source of the request that sent it again; if it is already redriven, of the one that did."""

    def to_json(self) -> dict[str, str | None]:
        """Return it as JSON."""
        return {
            "source": self.source,
            "outcome": self.word.value,
            "request": self.request,
            "detail": self.detail,
        }


Plan: TypeAlias = Callable[[Letter], Redrive | NoRedrive]
Send: TypeAlias = Callable[[Iterable[Redrive]], Iterator[Verdict | DelaydError]]
"""Sends requests and yields the reply to each, in order, as `Redriver.redrive` does."""


def try_out(letters: Iterable[Letter], plan: Plan) -> Iterator[Outcome]:
    """Yield the outcomes of a dry run: send nothing."""
    for letter in letters:
        yield _planned(letter, plan(letter))


def redrive(
    letters: Iterable[Letter],
    plan: Plan,
    send: Send,
    report: Callable[[Outcome], None],
) -> bool:
    """Send each letter again, in order, and report its outcome as soon as it is known.

    Return False if it stopped early: after one missing reply it sends no more, because there seems
    to be no master.
    """
    waiting: deque[tuple[str, str | None]] = deque()
    stopped = False

    def possible() -> Iterator[Redrive]:
        for letter in letters:
            if stopped:
                return
            planned = plan(letter)
            if isinstance(planned, NoRedrive):
                report(_planned(letter, planned))
                continue
            waiting.append((letter.source, planned.lost_id))
            yield planned

    for answer in send(possible()):
        source, lost_id = waiting.popleft()
        report(_outcome(source, lost_id, answer))
        stopped = stopped or (
            isinstance(answer, DelaydError) and not isinstance(answer, NOTHING_SENT)
        )
    return not stopped


def _planned(letter: Letter, planned: Redrive | NoRedrive) -> Outcome:
    if isinstance(planned, NoRedrive):
        return Outcome(letter.source, Word.IMPOSSIBLE, planned.detail)
    return Outcome(letter.source, Word.REDRIVEN, _without(planned.lost_id))


def _outcome(source: str, lost_id: str | None, answer: Verdict | DelaydError) -> Outcome:
    if isinstance(answer, (*NOTHING_SENT, KafkaUnreachableError)):
        return Outcome(source, Word.IMPOSSIBLE, str(answer))
    if isinstance(answer, DelaydError):
        return Outcome(source, Word.UNKNOWN, str(answer))
    if answer.verdict == "scheduled":
        return Outcome(source, Word.REDRIVEN, _without(lost_id), answer.source)
    if answer.verdict == "duplicate":
        return Outcome(source, Word.ALREADY, answer.detail, counting_redrive(answer.detail))
    return Outcome(source, Word.REJECTED, answer.detail, answer.source)


def _without(lost_id: str | None) -> str:
    return "" if lost_id is None else f"without its id {lost_id[:80]!a}: it cannot be cancelled"
