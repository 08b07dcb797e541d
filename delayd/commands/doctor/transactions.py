"""Transactions in the topics that matter which stay open: readers wait before each of them."""

import threading
from collections.abc import Iterator
from typing import Final

from delayd.bus.raw import Active, Place, Producers
from delayd.cluster.status import HELD_MS_MAX
from delayd.cluster.topics import transactional_id
from delayd.commands.doctor.case import Case
from delayd.commands.doctor.finding import Finding, Severity
from delayd.commands.wording import local_time

AGAIN_S: Final = 1.0
"""A coordinator ends a transaction before the leaders of its partitions have heard of it."""


def look_at_transactions(case: Case) -> Iterator[Finding]:
    """Yield the transactions that stay open in delayd's topics, and in targets for which something
    is pending."""
    means = case.means
    names = {topic.name for topic in case.settings.topics}.union(case.targets)
    places = [each for each in means.raw.places(means.timeout_ms) if each.topic in names]
    found = means.raw.producers(places, means.timeout_ms)
    opened = _open_in(found)
    if not opened:
        return
    threading.Event().wait(AGAIN_S)
    # In this order: what ended in between is neither still open nor known as open.
    known = means.raw.open_transactions({each.producer.id for _, each in opened}, means.timeout_ms)
    still = _open_in(means.raw.producers({place for place, _ in opened}, means.timeout_ms))
    ours = _own_producers(case, found)
    for place, active in sorted(opened & still):
        transaction = known.get(active.producer.id)
        if transaction is None:
            yield _hanging(place, active, case, is_ours=active.producer.id in ours)
        elif means.clock.wall_ms() - transaction.began_ms > HELD_MS_MAX:
            yield Finding(
                "transaction-open",
                Severity.CRITICAL if place.topic == case.settings.buffer.name else Severity.WARNING,
                f"the producer with transactional.id {transaction.name!r} holds a transaction open "
                f"in {place} since {local_time(transaction.began_ms)} (offset "
                f"{active.open_since}): nobody reads what is behind it",
                f"end that program, and Kafka its transaction; or {_abort(place, active, case)}",
            )


def _hanging(place: Place, active: Active, case: Case, *, is_ours: bool) -> Finding:
    what = (
        f"a transaction of producer {active.producer.id} hangs in {place} since offset "
        f"{active.open_since}: no coordinator knows it, and nobody reads what is behind it"
    )
    abort = _abort(place, active, case)
    if is_ours:
        # An abort could lose what a step has delivered.
        cluster = f"--cluster {case.settings.cluster} --prefix {case.settings.prefix}"
        abort = f"delayd recover marker --bootstrap {case.means.bootstrap} {cluster}"
    return Finding("transaction-hanging", Severity.CRITICAL, what, abort)


def _abort(place: Place, active: Active, case: Case) -> str:
    return (
        f"kafka-transactions.sh --bootstrap-server {case.means.bootstrap} abort --topic "
        f"{place.topic} --partition {place.partition} --start-offset {active.open_since}"
    )


def _open_in(found: Producers) -> set[tuple[Place, Active]]:
    """Return the producers with an open transaction, without what changes while it is open."""
    return {
        (place, each._replace(last_ms=-1))
        for place, active in found.active.items()
        for each in active
        if each.open_since is not None
    }


def _own_producers(case: Case, found: Producers) -> set[int]:
    """Return the ids of the masters' producers."""
    settings, means = case.settings, case.means
    ids = {
        each.producer.id
        for place, active in found.active.items()
        if place.topic == settings.frontier.name
        for each in active
    }
    names = [transactional_id(settings.realm, shard) for shard in range(settings.shards)]
    states = [means.raw.transaction(name, means.timeout_ms) for name in names]
    return ids | {state.producer.id for state in states if state is not None}
