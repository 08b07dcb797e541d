"""Changing what is pending under many ids: a request for each, each with its answer.

Not here: which ids, and what becomes of answers.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from delayd.client.answering import answers
from delayd.client.asking import Ask
from delayd.client.connection import VERDICT_TIMEOUT_MS, Connected
from delayd.client.outcomes import Verdict
from delayd.errors import DelaydError

UNDER_WAY_MAX: Final = 2_000
"""Requests without an answer, each about another id: what a step answers at once, and the next."""


class Changer(Connected):
    """Sends changes, with the options of `Client`. A context manager; used by one thread."""

    def change(
        self, asked: Iterable[Ask], timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Iterator[Verdict | DelaydError]:
        """Send each and yield its answer, in the order given. Errors as of `Redriver.redrive`.
        Lazy."""
        return answers(self._connection, asked, timeout_ms, UNDER_WAY_MAX)
