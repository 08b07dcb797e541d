"""Orders in the buffer: by them an operator pauses a target topic, or resumes it.

    key      null
    value    null
    headers  delayd-hold      pause/<at>/<until>/<rate>/<topic>, or resume/<at>/<rate>/<topic>
             delayd-proof     last: as of any internal record (`internal.py`)

at and until are Unix ms; a rate of 0 leaves it as it is. Whoever has the cluster key may write
them, into the home of the topic in each shard (`replication.shards`). A copy of one is refused once
it is ORDER_AGE_MS_MAX old.

Since rules version 7: older ones refuse the header as unknown. Source: docs/design/pauses.md.
"""

from typing import Final

from delayd.bus import Headers, Record
from delayd.request.grammar import number_of, target_of
from delayd.request.internal import BufferRecord, check_proof, signed
from delayd.request.reasons import Reason, RefusedError, quoted
from delayd.request.request import Op, Request, RequestLimits
from replication.holds import HOLD_MS_MAX, ORDER_AGE_MS_MAX, Order
from replication.shards import home_in
from replication.smoothing import RATE_MAX

HOLD: Final = "delayd-hold"
"""Alone it does not make a record internal: without a proof it is an unknown header."""


def order_record(order: Order, limits: RequestLimits, shard: int = 0) -> BufferRecord:
    """Return the record of an order to the master of a shard."""
    topic, at_ms, until_ms, rate = order
    text = f"pause/{at_ms}/{until_ms}/{rate}/{topic}"
    if not order.is_pause:
        text = f"resume/{at_ms}/{rate}/{topic}"
    headers: Headers = [(HOLD, text.encode())]
    home = home_in(topic, shard, limits.shards, limits.partitions)
    return signed(home, None, None, headers, limits)


def is_hold(asked: Headers) -> bool:
    """Return whether one of a record's `delayd-*` headers makes it an order."""
    return any(name == HOLD for name, _ in asked)


def parse_hold(record: Record, limits: RequestLimits) -> Request:
    """Return the request of an order. Refuse what no operator can have ordered, and a late copy."""
    check_proof(record, limits)
    text = next((content or b"") for name, content in record.headers if name == HOLD).decode(
        errors="replace"
    )
    order = _order_in(text)
    problem = "it is not as this version writes it" if order is None else None
    if order is not None:
        problem = problem_of(order, limits)
        # How many shards there are decides nothing here: there may come to be others. Whichever
        # shard has the partition obeys.
        if abs(record.append_ms - order.at_ms) > ORDER_AGE_MS_MAX:
            problem = (
                f"it was given at {order.at_ms} and appended at {record.append_ms}, more than"
                f" {ORDER_AGE_MS_MAX} ms apart: it is a copy, or a clock is wrong"
            )
    if order is None or problem is not None:
        raise RefusedError(Reason.BAD_PROOF, f"the order {quoted(text)} is refused: {problem}")
    return Request(Op.HOLD, None, 0, 0, None, None, [], order=order)


def problem_of(order: Order, limits: RequestLimits) -> str | None:
    """Return why an order would be refused wherever and whenever it stood; None if it is good."""
    try:
        target_of({"delayd-topic": order.topic}, limits.prefix)
    except RefusedError as refusal:
        return refusal.detail
    if not 0 <= order.rate <= RATE_MAX:
        return f"a rate is 1 to {RATE_MAX} records a second"
    if order.is_pause and not 0 < order.until_ms - order.at_ms <= HOLD_MS_MAX:
        return "a pause ends after it begins, and at most 24 h after: renew it in time"
    return None


def _order_in(text: str) -> Order | None:
    kind, *fields = text.split("/")
    if (kind, len(fields)) not in (("pause", 4), ("resume", 3)):
        return None
    *texts, topic = fields
    numbers = [number for each in texts if (number := number_of(each)) is not None]
    if len(numbers) != len(texts):
        return None
    if kind == "resume":
        return Order(topic, numbers[0], 0, numbers[1])
    return Order(topic, *numbers) if numbers[1] > 0 else None
