"""What the receipts of a batch's payments say, and whether it is true. Pure.

A payment cancels its order's time-out, so it is owed exactly one receipt: `cancelled`, and the
time-out never arrives, or `too-late`, and it arrives. Anything else is wrong.

Not here: the time-outs themselves (ledger.py). What a receipt looks like is in docs/reference/
requests.md; nothing here knows how delayd decides.

Invariants: memory is a byte an order; the outcome does not depend on the order of the receipts.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from delayd.dev.batch import Payments

_CANCELLED: Final = 1
_TOO_LATE: Final = 2
_FALSE: Final = 4
"""No receipt of a payment can say this."""

_SEVERAL: Final = 8
_VERDICTS: Final = {"cancelled": _CANCELLED, "too-late": _TOO_LATE}


class Answer(NamedTuple):
    """A record of the receipts as a consumer got it."""

    key: bytes | None
    value: bytes | None


class Answers:
    """Receipts as they come. Used by one thread."""

    def __init__(self, payments: Payments) -> None:
        self._payments = payments
        self._of = bytearray(payments.batch.count)
        self.cancelled = 0
        """Orders whose payment was answered `cancelled`, true or not."""
        self.too_late = 0
        self.stray = 0
        """Receipts that are of no payment."""

    def write_down(self, answer: Answer) -> None:
        """Count one more receipt."""
        number = self._payments.batch.number_of(None, answer.key)
        batch = self._payments.batch
        if number is None or answer.key != batch.key(number) or not self._payments.is_paid(number):
            self.stray += 1
            return
        verdict = _verdict_of(answer)
        before = self._of[number]
        self._of[number] |= verdict | (_SEVERAL if before else 0)
        self.cancelled += bool(verdict & _CANCELLED & ~before)
        self.too_late += bool(verdict & _TOO_LATE & ~before)

    def is_cancelled(self, number: int) -> bool:
        """Return whether this order's payment was told that the time-out will never arrive."""
        return bool(self._of[number] & _CANCELLED)

    def unanswered(self) -> int:
        """Return how many payments have no receipt."""
        paid = range(self._payments.batch.count)
        return sum(self._payments.is_paid(number) and not self._of[number] for number in paid)

    def wrong(self, copies: Sequence[int]) -> Iterator[tuple[int, str]]:
        """Yield orders with a wrong verdict, and what is wrong. `copies`: how often each order
        came."""
        for number, said in enumerate(self._of):
            if said & _SEVERAL:
                yield number, "answered more than once"
            elif said & _FALSE:
                yield number, "answered with nonsense"
            elif said == _CANCELLED and copies[number]:
                yield number, "answered cancelled, but it came"
            elif said == _TOO_LATE and not copies[number]:
                yield number, "answered too-late, but it never came"


def _verdict_of(answer: Answer) -> int:
    """Return the verdict, if it is one that a cancel of a single pending message can get."""
    try:
        said: Any = json.loads(answer.value or b"")
        verdict = _VERDICTS[said["verdict"]]
        killed = len(said["killed"])
        is_sound = said["op"] == "cancel" and said["id"].encode() == answer.key
    except (ValueError, KeyError, TypeError, AttributeError):
        return _FALSE
    return verdict if is_sound and killed == (verdict == _CANCELLED) else _FALSE
