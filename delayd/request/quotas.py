"""Quotas in the buffer: by these records an operator limits what is pending for a target topic, and
how many requests are taken for it, and the master says when the topic is full.

    key      null
    value    null
    headers  delayd-quota     limit/<at>/<max pending>/<rate>/<topic>, an operator's order, or
                              full/<at>/<pending>/<max pending>/<taken>/<rate>/<topic>, or fast/...,
                              or open/..., the master's
             delayd-proof     last: as of any internal record (`internal.py`)

at is in Unix ms; a max pending or a rate of 0 is no limit, both are no quota. Behind full too many
messages are pending, and behind fast too many requests were taken. An order stands in the home of
its topic in each shard (`replication.shards`), a gate in each partition. Ingest does not ask for
the home: another number of shards has others, and a proof is of its partition anyway. A copy of one
is refused once it is ORDER_AGE_MS_MAX old.

Since rules version 7: older ones refuse the header as unknown. Source: docs/design/quotas.md.
"""

from typing import Final

from delayd.bus import Headers, Record
from delayd.request.grammar import number_of, target_of
from delayd.request.internal import BufferRecord, check_proof, signed
from delayd.request.reasons import Reason, RefusedError, quoted
from delayd.request.request import Op, Request, RequestLimits
from replication.holds import ORDER_AGE_MS_MAX
from replication.quotas import (
    MAX_PENDING_MAX,
    PENDING,
    RATE,
    RATE_MAX,
    RATE_WINDOW_S,
    Gate,
    QuotaOrder,
)
from replication.shards import home_in

QUOTA: Final = "delayd-quota"
"""Alone it does not make a record internal: without a proof it is an unknown header."""

OPEN_KIND: Final = "open"
SHUT_KINDS: Final = {PENDING: "full", RATE: "fast"}
"""Of a gate behind which requests are refused, by the limit that is named to them."""
_OVER: Final = {OPEN_KIND: 0} | {kind: limit for limit, kind in SHUT_KINDS.items()}
_NUMBERS: Final = {"limit": 3} | dict.fromkeys(_OVER, 5)


def quota_record(order: QuotaOrder, limits: RequestLimits, shard: int = 0) -> BufferRecord:
    """Return the record of an order, in its home in a shard."""
    topic, at_ms, max_pending, rate = order
    text = f"limit/{at_ms}/{max_pending}/{rate}/{topic}"
    home = home_in(topic, shard, limits.shards, limits.partitions)
    return _record(home, text, limits)


def gate_record(partition: int, gate: Gate, limits: RequestLimits) -> BufferRecord:
    """Return the record of a gate in this partition."""
    topic, at_ms, _, *numbers = gate
    kind = OPEN_KIND if gate.shut is None else SHUT_KINDS[gate.shut.limit]
    text = "/".join([kind, *map(str, (at_ms, *numbers)), topic])
    return _record(partition, text, limits)


def _record(partition: int, text: str, limits: RequestLimits) -> BufferRecord:
    headers: Headers = [(QUOTA, text.encode())]
    return signed(partition, None, None, headers, limits)


def is_quota(asked: Headers) -> bool:
    """Return whether one of a record's `delayd-*` headers makes it an order or a gate."""
    return any(name == QUOTA for name, _ in asked)


def parse_quota(record: Record, limits: RequestLimits) -> Request:
    """Return the request of an order or a gate. Refuse what nobody can have written, and a late
    copy."""
    check_proof(record, limits)
    text = next((content or b"") for name, content in record.headers if name == QUOTA).decode(
        errors="replace"
    )
    said = _said_in(text)
    problem = "it is not as this version writes it" if said is None else None
    if said is not None:
        problem = _problem_there(said, record, limits)
    if said is None or problem is not None:
        raise RefusedError(Reason.BAD_PROOF, f"the quota {quoted(text)} is refused: {problem}")
    if isinstance(said, Gate):
        return Request(Op.GATE, None, 0, 0, None, None, [], gate=said)
    return Request(Op.QUOTA, None, 0, 0, None, None, [], quota=said)


def problem_of(order: QuotaOrder, limits: RequestLimits) -> str | None:
    """Return why an order would be refused wherever and whenever it stood; None if it is good."""
    if not 0 <= order.max_pending <= MAX_PENDING_MAX:
        return f"at most {MAX_PENDING_MAX} messages may be pending, and at least 1"
    if not 0 <= order.rate <= RATE_MAX:
        return f"a rate is at most {RATE_MAX} requests a second, and at least 1"
    return _problem_of_topic(order.topic, limits)


def refuse_full(request: Request, record: Record, limits: RequestLimits) -> None:
    """Raise RefusedError for what would add a message to a topic that is full where it stands."""
    if request.topic is None:
        return
    shut = limits.full.get(record.partition, {}).get(request.topic)
    if shut is None:
        return
    why = f"{shut.most} messages may be pending for {request.topic}, and as many were"
    if shut.limit == RATE:
        why = (
            f"{shut.most} requests a second are taken for {request.topic}, and as many came in the"
            f" {RATE_WINDOW_S} s before"
        )
    raise RefusedError(
        Reason.OVER_QUOTA,
        f"{why}: send it again later, or ask whoever runs delayd for a larger quota",
    )


def _problem_there(said: QuotaOrder | Gate, record: Record, limits: RequestLimits) -> str | None:
    if abs(record.append_ms - said.at_ms) > ORDER_AGE_MS_MAX:
        return (
            f"it was given at {said.at_ms} and appended at {record.append_ms}, more than"
            f" {ORDER_AGE_MS_MAX} ms apart: it is a copy, or a clock is wrong"
        )
    if isinstance(said, QuotaOrder):
        return problem_of(said, limits)
    return _problem_of_topic(said.topic, limits)


def _problem_of_topic(topic: str, limits: RequestLimits) -> str | None:
    try:
        target_of({"delayd-topic": topic}, limits.prefix)
    except RefusedError as refusal:
        return refusal.detail
    return None


def _said_in(text: str) -> QuotaOrder | Gate | None:
    kind, *fields = text.split("/")
    if _NUMBERS.get(kind) != len(fields) - 1:
        return None
    *texts, topic = fields
    numbers = [number for each in texts if (number := number_of(each)) is not None]
    if len(numbers) != len(texts):
        return None
    if kind == "limit":
        return QuotaOrder(topic, *numbers)
    at_ms, *numbers = numbers
    return Gate(topic, at_ms, _OVER[kind], *numbers)
