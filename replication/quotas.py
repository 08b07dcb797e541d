"""Quotas of target topics: how many messages may be pending for one, and when it is full.

An operator's order sets a *quota*: the step that passes it puts it into the frontier record, so
every successor knows it. Each step looks how many messages are pending for the topic. When these
are as many as the quota says, the step writes a *gate* into every partition of the buffer, in its
own transaction: the topic is full. Ingest refuses what would add a message to it behind that
record, until a gate says that it is open again. So a step decides when, and the log alone says
which requests that hits: all replicas agree.

    pending >= max_pending      full
    pending <= opens_at(..)     open again: a tenth of the quota is free

Pending is what the wheel of the master counts, in the seconds that the lane of the topic has not
passed (`delayd.wheel.counts`). No number is carried from step to step, so none can drift.

Not here: the records of orders and gates (`delayd.request.quotas`), which requests a gate refuses
(`delayd.request.parser`). Pure: times are Unix ms, by the step's `now`.
Source: docs/design/quotas.md.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

QUOTAS_MAX: Final = 100
"""Topics that may have a quota: each is in every frontier record, 60 bytes, and each step counts
its messages."""

MAX_PENDING_MAX: Final = 1_000_000_000
"""The largest quota."""

AGAIN_MS: Final = 5 * 60 * 1000
"""How often the gates of a full topic are written anew: a node that begins at a trimmed log knows
of them after so long."""

FREE_SHARE: Final = 10
"""A topic that was full is open once this part of its quota is free, at least one message. So it is
not opened and closed at each step."""

Full: TypeAlias = Mapping[int, Mapping[str, int]]
"""By partition of the buffer: topics that take no more there, with their quotas."""

NO_FULL: Final[Full] = {}
"""Nowhere is a topic full."""


class QuotaOrder(NamedTuple):
    """What an operator wants of a topic."""

    topic: str
    at_ms: int
    """When it was given."""
    max_pending: int
    """0: the topic has no quota any more."""


class Quota(NamedTuple):
    """A topic of which only so many messages may be pending."""

    max_pending: int
    pending: int
    """As the last step has counted them."""
    offset: int
    """Of the last order about the topic, in its home."""
    full_ms: int
    """`now` of the step that closed it; 0 while it is open."""
    written_ms: int
    """`now` of the step that last wrote that it is full; 0 while it is open."""

    @property
    def is_full(self) -> bool:
        """Return whether requests are refused."""
        return self.full_ms > 0


class Gate(NamedTuple):
    """What a step writes into every partition of the buffer."""

    topic: str
    at_ms: int
    """`now` of the step."""
    is_full: bool
    pending: int
    """What the step has counted."""
    max_pending: int
    """The quota; 0 of a topic that has none any more."""


def opens_at(max_pending: int) -> int:
    """Return how many messages may be pending when a full topic is opened."""
    return max_pending - max(1, max_pending // FREE_SHARE)


def obey(quotas: Mapping[str, Quota], order: QuotaOrder, offset: int) -> dict[str, Quota]:
    """Return the quotas after a step has passed an order, which stands at this offset. One about
    one topic more than QUOTAS_MAX changes nothing."""
    after, known = dict(quotas), quotas.get(order.topic)
    if order.max_pending == 0:
        after.pop(order.topic, None)
    elif known is not None:
        after[order.topic] = known._replace(max_pending=order.max_pending, offset=offset)
    elif len(quotas) < QUOTAS_MAX:
        after[order.topic] = Quota(order.max_pending, 0, offset, 0, 0)
    return after


def full_after(full: Full, partition: int, gate: Gate) -> Full:
    """Return the topics that are full behind a gate, with their quotas, by partition."""
    topics = dict(full.get(partition, {}))
    if gate.is_full:
        topics[gate.topic] = gate.max_pending
    else:
        topics.pop(gate.topic, None)
    others = {number: there for number, there in full.items() if number != partition}
    return {**others, partition: topics} if topics else others


def full_lines(full: Full) -> tuple[tuple[int, str, int], ...]:
    """Return topics that are full as a checkpoint has them: partition, topic and quota of each."""
    return tuple(
        (partition, topic, max_pending)
        for partition, topics in sorted(full.items())
        for topic, max_pending in sorted(topics.items())
    )


def full_of(lines: Iterable[tuple[int, str, int]]) -> Full:
    """Invert `full_lines`."""
    full: dict[int, dict[str, int]] = {}
    for partition, topic, max_pending in lines:
        full.setdefault(partition, {})[topic] = max_pending
    return full


class Quotas:
    """The quotas of one mastership, from the last committed frontier record on. Its methods change
    them: if the step is not committed, they are thrown away with it."""

    def __init__(self, quotas: Mapping[str, Quota], *, repeats: bool = False) -> None:
        """`quotas`: the predecessor's. `repeats`: it may have written gates in a step that does not
        count, so all are written anew at first."""
        self._quotas = dict(quotas)
        self._is_unsure = repeats

    @property
    def topics(self) -> Iterable[str]:
        """Return the topics that have a quota."""
        return self._quotas.keys()

    def count(self, pending: Mapping[str, int], now_ms: int) -> list[Gate]:
        """Note how many messages are pending for each topic, and return the gates to write."""
        gates = []
        for topic, quota in self._quotas.items():
            after = quota._replace(pending=pending[topic])
            if quota.is_full and after.pending <= opens_at(quota.max_pending):
                after = after._replace(full_ms=0, written_ms=0)
            elif not quota.is_full and after.pending >= quota.max_pending:
                after = after._replace(full_ms=now_ms, written_ms=now_ms)
            elif quota.is_full and now_ms >= quota.written_ms + AGAIN_MS:
                after = after._replace(written_ms=now_ms)
            is_same = after.written_ms == quota.written_ms
            self._quotas[topic] = after
            if not is_same or self._is_unsure:
                gates.append(_gate(topic, after, now_ms))
        self._is_unsure = False
        return gates

    def obey(self, order: QuotaOrder, offset: int, now_ms: int) -> list[Gate]:
        """Obey an order that stands at this offset, and return the gates to write: what has no
        quota any more is open, whatever the log says of it: a gate may be there that no step knows,
        such as a copy."""
        before = self._quotas.get(order.topic)
        self._quotas = obey(self._quotas, order, offset)
        if before is None or order.topic in self._quotas:
            return []
        return [Gate(order.topic, now_ms, False, before.pending, 0)]

    def after(self) -> dict[str, Quota]:
        """Return the quotas that a successor must know."""
        return dict(self._quotas)


def _gate(topic: str, quota: Quota, now_ms: int) -> Gate:
    return Gate(topic, now_ms, quota.is_full, quota.pending, quota.max_pending)
