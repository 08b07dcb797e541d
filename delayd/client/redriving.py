"""Sending dead letters again, each with its answer.

Not here: the record of a redrive (`delayd.request.redrives`), and the choice of letters.

Invariants: redrives are sent in the order in which they come, so that letters of one partition keep
theirs; UNDER_WAY_MAX are under way; an answer is the receipt of the very request that was sent.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from delayd.client.answering import answers
from delayd.client.asking import Ask
from delayd.client.connection import VERDICT_TIMEOUT_MS, Connected
from delayd.client.outcomes import Verdict
from delayd.client.verdicts import EARLY_MAX
from delayd.errors import DelaydError
from delayd.request import Op
from delayd.request.redrives import Redrive

UNDER_WAY_MAX: Final = EARLY_MAX // 2
"""Redrives without an answer. All may be of one id, and a ticket may see the answers to as many
before itself and behind itself until it knows which is its own."""


class Redriver(Connected):
    """Sends redrives, with the options of `Client`. A context manager; used by one thread."""

    def redrive(
        self, redrives: Iterable[Redrive], timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Iterator[Verdict | DelaydError]:
        """Send each and yield its answer, in the order given: `scheduled`, `duplicate`, `rejected`.

        Or the error for which there is none: VerdictUnknownError or OutcomeUnknownError if it may
        have been sent. `timeout_ms` counts from the sending of each. Lazy, as
        `Client.schedule_many`.
        """
        asked = map(_asked, redrives)
        return answers(self._connection, asked, timeout_ms, UNDER_WAY_MAX)


def _asked(redrive: Redrive) -> Ask:
    return Ask(
        redrive.key,
        redrive.value,
        redrive.headers,
        asked_ms=0,
        relative=False,
        op=Op.REDRIVE,
        id=redrive.told,
        partition=redrive.partition,
    )
