"""A batch, and its records as a consumer receives them when all is right."""

from delayd.dev.batch import Batch
from delayd.dev.ledger import Receipt

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
