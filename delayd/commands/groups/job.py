"""A job on a group: its ids are listed into a journal, then each is asked for.

What stops a job: an answer that is missing, because there seems to be no master then, or a request
that Kafka does not take. The journal has what was answered by then, and a later run goes on.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Final, TypeAlias

from delayd.client.asking import Ask
from delayd.client.errors import OutcomeUnknownError, VerdictUnknownError
from delayd.client.outcomes import Verdict
from delayd.commands.groups.journal import ROWS, UNKNOWN, Journal, Row
from delayd.errors import DelaydError

MAY_BE_SENT: Final = (OutcomeUnknownError, VerdictUnknownError)
"""By any other error an id stays without a verdict: nothing was asked."""

Send: TypeAlias = Callable[[Iterable[Ask]], Iterator[Verdict | DelaydError]]
"""Sends requests and yields the answer to each, in order, as `Changer.change` does."""


def carry_out(
    journal: Journal, send: Send, tell: Callable[[int], None] = lambda done: None
) -> DelaydError | None:
    """Ask for each id without a verdict, and again for what is unknown and may be asked again.

    Return the error that stopped it, None if none did. `tell` gets how many were answered in this
    run.

    An id whose answer is missing is noted as `unknown`.
    """
    journal.resume()
    waiting: deque[Row] = deque()
    stopped: list[DelaydError] = []
    noted: list[tuple[str, int]] = []
    done = 0

    def requests() -> Generator[Ask, None, None]:
        with closing(journal.open_rows()) as rows:
            for row in rows:
                if stopped:
                    journal.unmark(row.number)
                    return
                waiting.append(row)
                yield journal.change.ask(row.id, row.at_ms)

    asked = requests()
    try:
        for answer in send(asked):
            row = waiting.popleft()
            if isinstance(answer, Verdict):
                noted.append((answer.verdict, row.number))
            else:
                stopped.append(answer)
                if isinstance(answer, MAY_BE_SENT):
                    noted.append((UNKNOWN, row.number))
                else:
                    journal.unmark(row.number)
            if len(noted) >= ROWS:
                done += len(noted)
                journal.note(noted)
                noted = []
                tell(done)
    finally:
        asked.close()
        journal.note(noted)
    return stopped[0] if stopped else None
