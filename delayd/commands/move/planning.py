"""What a move would do: how many messages, which of them are in doubt or would be refused."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from delayd.commands.move.mirrored import Copies
from delayd.commands.move.requests import Named, asked_of, named, problem_of
from delayd.commands.move.source import Letter, Message
from delayd.request import RequestLimits, id_of
from delayd.wheel.segment import DIGEST_MODULO

NAMED_MAX: Final = 10_000
"""Messages that are listed by name; more are only counted."""
TOPICS_MAX: Final = 1_000
OTHER: Final = "other"
"""Counts the messages of all further topics."""


@dataclass(slots=True)
class Listed:
    """Messages by name, as many as may be listed, and how many there are."""

    count: int = 0
    names: list[Named] = field(default_factory=list)

    def add(self, each: Named) -> None:
        """Add one."""
        self.count += 1
        if len(self.names) < NAMED_MAX:
            self.names.append(each)


@dataclass(slots=True)
class Plan:
    """What is pending, and what of it a person must know before it is moved."""

    pending: int = 0
    digest: int = 0
    """Sum of the frames' CRCs: the same from every wheel that holds the same."""
    topics: Counter[str] = field(default_factory=Counter)
    first_due_ms: int | None = None
    last_due_ms: int | None = None
    doubtful: Listed = field(default_factory=Listed)
    """May have been delivered after the cut."""
    unmirrored: Listed = field(default_factory=Listed)
    """Delivered by the old cluster, and not among the copies."""
    revocable: Listed = field(default_factory=Listed)
    """May have been cancelled or replaced after the cut: those with an id that are not doubtful."""
    refused: Listed = field(default_factory=Listed)
    """The new cluster would reject them."""
    replies_open: int = 0
    """Verdicts and dead letters that the old cluster had still to write."""
    letters: Sequence[Letter] = ()
    """The dead letters among them, as many as are listed."""


def plan_of(
    messages: Iterable[Message],
    limits: RequestLimits,
    *,
    doubt_ms: int | None,
    now_ms: int,
    copies: Copies | None = None,
) -> Plan:
    """Return the plan for these messages. What was due up to `doubt_ms` may have been delivered
    after the cut, and what has an id may have been cancelled; None if the cut is the last frontier,
    so that nothing was. `copies` are what the new Kafka has of its deliveries, if it mirrors the
    old one. Times are Unix ms."""
    plan = Plan()
    for message in messages:
        body, due_ms = message.body, message.rank.due_ms
        plan.pending += 1
        plan.digest = (plan.digest + message.crc) % DIGEST_MODULO
        topic = body[0]
        is_counted = topic in plan.topics or len(plan.topics) < TOPICS_MAX
        plan.topics[topic if is_counted else OTHER] += 1
        if plan.first_due_ms is None:
            plan.first_due_ms = due_ms
        plan.last_due_ms = due_ms
        if copies is not None and copies.is_done(message):
            plan.unmirrored.add(named(message))
        elif doubt_ms is not None and due_ms <= doubt_ms:
            plan.doubtful.add(named(message))
        elif doubt_ms is not None and id_of(body) is not None:
            plan.revocable.add(named(message))
        problem = problem_of(asked_of(message, limits.partitions), limits, now_ms)
        if problem is not None:
            plan.refused.add(named(message, problem))
    return plan
