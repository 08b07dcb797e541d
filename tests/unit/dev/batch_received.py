"""A batch, and its records as a consumer receives them when all is right."""

from collections.abc import Iterable

from delayd.dev.answers import Answer
from delayd.dev.batch import Batch, Payments
from delayd.dev.ledger import Kill, Ledger, Receipt
from delayd.dev.verdict import Verdict

DUE_MS = 1_000_000
BATCH = Batch(run="a1", topics=("one", "two"), count=100, first_due_ms=DUE_MS, spread_ms=10_000)
WATCHED = 17
"""The message that the defects are planted in."""


def receipt(number: int, *, late_ms: int = 5, batch: Batch = BATCH) -> Receipt:
    """A right receipt."""
    due_ms = batch.due_ms(number)
    headers: list[tuple[str, bytes | None]] = [
        *batch.headers(number),
        ("delayd-due", b"%d" % due_ms),
        ("delayd-fired", b"%d" % (due_ms + late_ms)),
        ("delayd-source", b"0/%d" % number),
    ]
    return Receipt(
        batch.topic(number), batch.key(number), batch.value(number), headers, due_ms + late_ms
    )


def all_right() -> list[Receipt]:
    return [receipt(number) for number in range(BATCH.count)]


def judge(
    receipts: Iterable[Receipt],
    kills: Iterable[Kill] = (),
    payments: Payments | None = None,
    answers: Iterable[Answer] = (),
) -> Verdict:
    """The verdict on complete lists of what was received of BATCH."""
    ledger = Ledger(BATCH, payments)
    for receipt in receipts:
        ledger.write_down(receipt)
    for answer in answers:
        ledger.note_answer(answer)
    for kill in kills:
        ledger.note_kill(kill)
    return ledger.verdict(complete=True)
