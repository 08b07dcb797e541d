"""Quotas of target topics: how many messages may be pending for one, how many requests a second
are taken for it, and when it is full.

An operator's order sets a *quota*: the step that passes it puts it into the frontier record, so
every successor knows it. Each step looks how many messages are pending for the topic, and how many
requests were taken for it lately. When these are as many as the quota says, the step writes a
*gate* into every partition of the buffer, in its own transaction: the topic is full. Ingest refuses
what would add a message to it behind that record, until a gate says that it is open again. So a
step decides when, and the log alone says which requests that hits: all replicas agree.

    pending >= max_pending              full
    pending <= opens_at(max_pending)    open again: a tenth of the quota is free
    taken >= rate * RATE_WINDOW_S       full, and open again likewise

Pending is what the wheel of the master counts, in the seconds that the lane of the topic has not
passed (`delayd.wheel.counts`). Taken is what was appended in the RATE_WINDOW_S seconds that end
with the second of the step, and in the next one, as far as the master has ingested it
(`delayd.node.replica.request_rates`). No number is carried from step to step, so none can drift.
Of several shards each master counts the whole topic, and writes gates in its own partitions.

Not here: the records of orders and gates (`delayd.request.quotas`), which requests a gate refuses
(`delayd.request.parser`). Pure: times are Unix ms, by the step's `now`.
Source: docs/design/quotas.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

SECOND_MS: Final = 1_000

QUOTAS_MAX: Final = 100
"""Topics that may have a quota: each is in every frontier record, 60 bytes, and each step counts
its messages."""

MAX_PENDING_MAX: Final = 1_000_000_000
"""The largest quota."""

RATE_MAX: Final = 1_000_000
"""The largest rate, in requests a second."""

RATE_WINDOW_S: Final = 10
"""Over so many seconds a rate is a mean: a sender may send what it allows for all of them at
once."""

RATE_AHEAD_S: Final = 1
"""So many seconds ahead of a step count: clocks are 500 ms apart at most, and the window is one in
which a sender of nine tenths of a rate fits."""

PENDING: Final = 1
RATE: Final = 2
"""The limits of a quota; a number that says which of them a topic is over is their sum."""

AGAIN_MS: Final = 5 * 60 * 1000
"""How often the gates of a full topic are written anew: a node that begins at a trimmed log knows
of them after so long."""

FREE_SHARE: Final = 10
"""A topic that was full is open once this part of its quota is free, at least one message. So it is
not opened and closed at each step."""


class Shut(NamedTuple):
    """Why requests for a topic are refused."""

    limit: int
    """PENDING or RATE."""
    most: int
    """What the quota says: messages, or requests a second."""


Full: TypeAlias = Mapping[int, Mapping[str, Shut]]
"""By partition of the buffer: topics that take no more there, and why."""

NO_FULL: Final[Full] = {}
"""Nowhere is a topic full."""


class QuotaOrder(NamedTuple):
    """What an operator wants of a topic."""

    topic: str
    at_ms: int
    """When it was given."""
    max_pending: int
    """0: any number of messages may be pending."""
    rate: int = 0
    """Requests a second; 0: any number. With neither the topic has no quota any more."""

    @property
    def is_end(self) -> bool:
        """Return whether the topic has no quota any more."""
        return self.max_pending == 0 and self.rate == 0


class Quota(NamedTuple):
    """A topic of which only so many messages may be pending, or sent in a time."""

    max_pending: int
    """0: any number."""
    pending: int
    """As the last step has counted them."""
    offset: int
    """Of the last order about the topic, in a partition of the shard; -1 if it was passed when
    there were other shards."""
    full_ms: int
    """`now` of the step that closed it; 0 while it is open."""
    written_ms: int
    """`now` of the step that last wrote that it is full; 0 while it is open."""
    rate: int = 0
    """Requests a second; 0: any number."""
    taken: int = 0
    """Requests in the last RATE_WINDOW_S, as the last step has counted them; 0 without a rate."""
    over: int = 0
    """The limits that it is over; 0 while it is open."""
    at_ms: int = 0
    """When the last order about the topic was given, if there are several shards; else 0."""

    @property
    def taken_max(self) -> int:
        """Return how many requests are taken in RATE_WINDOW_S; 0: any number."""
        return self.rate * RATE_WINDOW_S

    @property
    def shut(self) -> Shut | None:
        """Return why requests are refused; None if they are not. Of both limits it names the
        pending messages: what is over their number stays so for longer."""
        return shut_of(self.over, self.max_pending, self.rate)

    @property
    def is_full(self) -> bool:
        """Return whether requests are refused."""
        return self.full_ms > 0


class Gate(NamedTuple):
    """What a step writes into every partition of the buffer."""

    topic: str
    at_ms: int
    """`now` of the step."""
    over: int
    """The limits that the topic is over; 0 of one that is open."""
    pending: int
    """What the step has counted."""
    max_pending: int
    """0: any number."""
    taken: int = 0
    """What the step has counted."""
    rate: int = 0
    """0: any number. A topic with neither limit has no quota any more."""

    @property
    def is_full(self) -> bool:
        """Return whether requests are refused behind it."""
        return self.over > 0

    @property
    def shut(self) -> Shut | None:
        """Return why requests are refused behind it; None if they are not."""
        return shut_of(self.over, self.max_pending, self.rate)


def opens_at(most: int) -> int:
    """Return how many messages may be pending, or requests were taken, when a full topic is
    opened."""
    return most - max(1, most // FREE_SHARE)


def rate_seconds(now_ms: int) -> range:
    """Return the seconds since 1970 in whose append times a step at `now_ms` counts requests."""
    second = now_ms // SECOND_MS
    return range(second - RATE_WINDOW_S + 1, second + RATE_AHEAD_S + 1)


def shut_of(over: int, max_pending: int, rate: int) -> Shut | None:
    """Return why a topic that is over these limits takes no more; None if it is over none."""
    if over & PENDING:
        return Shut(PENDING, max_pending)
    return Shut(RATE, rate) if over & RATE else None


def over_of(quota: Quota) -> int:
    """Return the limits that a topic is over, whose quota says what was counted, and what it was
    over before."""
    over = 0
    for limit, most, used in (
        (PENDING, quota.max_pending, quota.pending),
        (RATE, quota.taken_max, quota.taken),
    ):
        if most and (used >= most or (quota.over & limit and used > opens_at(most))):
            over |= limit
    return over


def obey(
    quotas: Mapping[str, Quota], order: QuotaOrder, offset: int, shards: int
) -> dict[str, Quota]:
    """Return the quotas of one of so many shards after a step has passed an order, which stands at
    this offset. One about one topic more than QUOTAS_MAX changes nothing. A full topic's gates,
    which name its limits, are to be written anew if those change."""
    after, known = dict(quotas), quotas.get(order.topic)
    at_ms = order.at_ms if shards > 1 else 0
    if order.is_end:
        after.pop(order.topic, None)
    elif known is not None:
        limits = {"max_pending": order.max_pending, "rate": order.rate}
        changed = known._replace(**limits, offset=offset, at_ms=at_ms)
        is_same = changed.shut == known.shut
        after[order.topic] = changed if is_same else changed._replace(written_ms=0)
    elif len(quotas) < QUOTAS_MAX:
        limits_of = order.max_pending, 0, offset, 0, 0, order.rate
        after[order.topic] = Quota(*limits_of, at_ms=at_ms)
    return after


def joint_quota(quotas: Sequence[Quota]) -> Quota:
    """Return the quota of a topic from those that shards have: the limits of the newest order, the
    highest counts, and full if it is full in any of them."""
    if len(quotas) == 1:
        return quotas[0]
    over = 0
    for quota in quotas:
        over |= quota.over
    return max(quotas, key=lambda quota: quota.at_ms)._replace(
        pending=max(quota.pending for quota in quotas),
        taken=max(quota.taken for quota in quotas),
        over=over,
        full_ms=min((quota.full_ms for quota in quotas if quota.is_full), default=0),
        written_ms=max(quota.written_ms for quota in quotas),
    )


def unsure_quota(quotas: Sequence[Quota], shards: int) -> Quota:
    """Return the quota of a topic with which one of so many new shards begins, from those of the
    shards that it goes on from. Full in one and open in another is full, and the first step that
    counts says in each partition what it is: with no gate that is known, one is due."""
    joint = joint_quota(quotas)._replace(offset=-1, written_ms=0)
    return joint if shards > 1 else joint._replace(at_ms=0)


def full_after(full: Full, partition: int, gate: Gate) -> Full:
    """Return the topics that are full behind a gate, and why, by partition."""
    topics = dict(full.get(partition, {}))
    if gate.shut is not None:
        topics[gate.topic] = gate.shut
    else:
        topics.pop(gate.topic, None)
    others = {number: there for number, there in full.items() if number != partition}
    return {**others, partition: topics} if topics else others


def full_lines(full: Full) -> tuple[tuple[int, str, int, int], ...]:
    """Return topics that are full as a checkpoint has them: partition, topic, and the two numbers
    of `Shut`, of each."""
    return tuple(
        (partition, topic, *shut)
        for partition, topics in sorted(full.items())
        for topic, shut in sorted(topics.items())
    )


def full_of(lines: Iterable[tuple[int, str, int, int]]) -> Full:
    """Invert `full_lines`."""
    full: dict[int, dict[str, Shut]] = {}
    for partition, topic, *shut in lines:
        full.setdefault(partition, {})[topic] = Shut(*shut)
    return full


class Quotas:
    """The quotas of one mastership, from the last committed frontier record on. Its methods change
    them: if the step is not committed, they are thrown away with it."""

    def __init__(
        self, quotas: Mapping[str, Quota], *, shards: int = 1, repeats: bool = False
    ) -> None:
        """`quotas`: the predecessor's. `shards`: how many there are. `repeats`: the predecessor may
        have written gates in a step that does not count, so all are written anew at first."""
        self._quotas = dict(quotas)
        self._shards = shards
        self._is_unsure = repeats

    @property
    def topics(self) -> Iterable[str]:
        """Return the topics that have a quota."""
        return self._quotas.keys()

    @property
    def rated(self) -> list[str]:
        """Return the topics that have a rate."""
        return [topic for topic, quota in self._quotas.items() if quota.rate]

    def count(
        self, pending: Mapping[str, int], taken: Mapping[str, int], now_ms: int
    ) -> list[Gate]:
        """Note how many messages are pending for each topic, and how many requests were taken for
        each that has a rate; return the gates to write."""
        gates = []
        for topic, quota in self._quotas.items():
            counted = quota._replace(pending=pending[topic], taken=taken.get(topic, 0))
            after = counted._replace(over=over_of(counted))
            if after.over == 0:
                after = after._replace(full_ms=0, written_ms=0)
            elif not quota.is_full:
                after = after._replace(full_ms=now_ms, written_ms=now_ms)
            elif now_ms >= quota.written_ms + AGAIN_MS:
                after = after._replace(written_ms=now_ms)
            is_same = after.written_ms == quota.written_ms and after.shut == counted.shut
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
        self._quotas = obey(self._quotas, order, offset, self._shards)
        if before is None or order.topic in self._quotas:
            return []
        return [Gate(order.topic, now_ms, 0, before.pending, 0, before.taken)]

    def after(self) -> dict[str, Quota]:
        """Return the quotas that a successor must know."""
        return dict(self._quotas)


def _gate(topic: str, quota: Quota, now_ms: int) -> Gate:
    numbers = quota.pending, quota.max_pending, quota.taken, quota.rate
    return Gate(topic, now_ms, quota.over, *numbers)
