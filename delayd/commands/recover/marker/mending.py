"""Ending what hangs of one shard, and writing again what was aborted. Shards are mended one after
the other, each by itself: a step is of one of them.

    1. no node runs, by etcd; and for 3 s no master takes a step, by the frontier's log, or has a
       transaction under way, by its coordinator
    2. take the transactional id of the shard's masters: Kafka refuses what a master still writes
    3. look; write the markers that are missing, the frontier's last; look again
    4. in one transaction, write again what was aborted, and the frontier behind it
    5. look once more: nothing may be left

Killed at any point: the next run finds what is left, and does that. A marker is written only where
nothing has come behind what was read; a record only if it was not written again before; and the
frontier must land where its partition ended.

Source: docs/design/lost-markers.md.
"""

import dataclasses
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from delayd.bus import Ack, Bus, TransactionalProducer
from delayd.bus.raw import RawLog
from delayd.cluster.frontier_log import send_frontiers
from delayd.cluster.topics import transactional_id
from delayd.commands.recover.marker.looking import Facts, Looker
from delayd.commands.recover.marker.pieces import OWNER, Kind
from delayd.coordination import Coordination
from delayd.errors import FencedError, RecoverError
from replication.frontier import begin_term
from replication.record import FrontierRecord, StepCounts
from replication.settings import Settings

ROUNDS_MAX: Final = 4
"""Looks after which everything is done: markers, records, and one to see that nothing is left."""
WATCHES: Final = 6
"""A master that has something to deliver takes many steps meanwhile."""
WATCH_S: Final = 0.5
AT_WORK: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""States of a transactional id whose transaction is under way."""


@dataclass(slots=True)
class Mended:
    """What a run has done."""

    committed: int = 0
    """Records that have become visible where they were."""
    aborted: int = 0
    again: int = 0
    """Records that were written again."""


def refuse_running(coordination: Coordination) -> None:
    """Raise RecoverError if etcd knows nodes of the cluster, or not even the cluster. A node that
    etcd has forgotten is found by what it does (`at_work`), and stopped by the fence."""
    if coordination.settings() is None:
        raise RecoverError(
            "this etcd knows nothing of the cluster, so nobody says whether nodes are running",
            remedy="correct --etcd; if etcd has lost its data, see that no node runs, and say "
            "--nodes-are-stopped in its place. Nothing was written",
        )
    members = coordination.members()
    if members:
        raise RecoverError(
            f"nodes are running: {', '.join(sorted(members))}",
            remedy="stop all of them; etcd forgets one that was killed when its lease ends, after "
            "some seconds. Then run this again: nothing was written",
        )


def at_work(
    raw: RawLog, looked: Sequence[tuple[Looker, Facts]], settings: Settings, timeout_ms: int
) -> str:
    """Watch what was looked at for 3 s; return what shows that a master is at work, whatever etcd
    says of it.

    Nothing (an empty text) proves nothing: a master with nothing to deliver takes no steps.
    """
    waiting = threading.Event()
    for _ in range(WATCHES):
        for looker, facts in looked:
            if said := _under_way(raw, settings, looker.shard, timeout_ms):
                return said
            if looker.frontier_end() != facts.end:
                grows = f"{looker.frontier} grows: a master takes steps"
                return f"{grows}, or Kafka has just ended what one left open"
        waiting.wait(WATCH_S)
    return ""


def refuse_at_work(said: str) -> None:
    """Raise RecoverError if something shows that a master is at work."""
    if said:
        raise RecoverError(
            said,
            remedy="stop all nodes; Kafka ends what they left open after 10 s. If it stays so, see "
            "docs/operations.md, 'A transaction that cannot end'. Nothing was written",
        )


def mend(
    bus: Bus, raw: RawLog, looker: Looker, settings: Settings, timeout_ms: int
) -> tuple[Facts, Mended]:
    """Do what is to be done; return what is left, which is nothing unless there are problems.

    Raises RecoverError if a node takes over meanwhile, or brokers refuse.
    """
    refuse_at_work(_under_way(raw, settings, looker.shard, timeout_ms))
    mended = Mended()
    name = transactional_id(settings.realm, looker.shard)
    with closing(bus.transactional_producer(name)) as producer:
        producer.init_transactions(timeout_ms)
        facts = looker.look()
        for _ in range(ROUNDS_MAX):
            if not facts.plan.is_mendable:
                break
            if facts.plan.endings:
                _end(raw, looker, facts, mended, timeout_ms)
            else:
                _write_again(producer, facts, mended, settings, timeout_ms)
            facts = looker.look()
    return facts, mended


def _under_way(raw: RawLog, settings: Settings, shard: int, timeout_ms: int) -> str:
    name = transactional_id(settings.realm, shard)
    state = raw.transaction(name, timeout_ms)
    if state is None or state.state not in AT_WORK:
        return ""
    return f"a transaction of {name} is under way ({state.state})"


def _end(raw: RawLog, looker: Looker, facts: Facts, mended: Mended, timeout_ms: int) -> None:
    for run, marker in facts.plan.endings:
        count = len(run.records)
        if not looker.still_hangs(run, facts):
            raise RecoverError(
                f"somebody writes to {run.place}, or a node takes steps, meanwhile",
                remedy="stop all nodes, and run this again: it goes on",
            )
        raw.write_marker(run.place, marker, timeout_ms)
        if marker.is_commit:
            mended.committed += count
        else:
            mended.aborted += count


def _write_again(
    producer: TransactionalProducer,
    facts: Facts,
    mended: Mended,
    settings: Settings,
    timeout_ms: int,
) -> None:
    """Write again what was aborted, in one transaction with the frontier that covers it."""
    written: list[Ack] = []
    try:
        producer.begin()
        for dealt in facts.plan.again:
            for record in dealt.records:
                producer.send(
                    dealt.piece.place.topic,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                    partition=record.partition,
                    on_ack=written.append if dealt.piece.run.kind is Kind.BUFFER else None,
                )
        producer.flush(timeout_ms)
        topic = settings.frontier.name
        landed = send_frontiers(producer, topic, [_frontier_behind(facts, written)], timeout_ms)
        shard = facts.last.frontier.shard
        if landed != {shard: facts.end}:
            raise RecoverError(
                f"{topic}/{shard} was read up to offset {facts.end}, and goes on to "
                f"{landed[shard]}",
                remedy="stop all nodes, then run this again: this transaction was not committed",
            )
        producer.commit(timeout_ms)
    except FencedError as error:
        raise RecoverError(
            "a node took over meanwhile",
            remedy="stop all nodes, then run this again: it goes on where this run ended",
        ) from error
    mended.again += sum(len(dealt.records) for dealt in facts.plan.again)


def _frontier_behind(facts: Facts, written: list[Ack]) -> FrontierRecord:
    """Return the frontier that covers what was written again: the step's own, or the last one once
    more. It begins a term: a term has one owner. R reaches over what was written to the buffer."""
    of_step = facts.plan.frontier
    if of_step is None:
        record = dataclasses.replace(
            facts.last, frontier=begin_term(facts.last.frontier), counts=StepCounts(), digest=0
        )
    else:
        last = facts.last.frontier
        term = max(last.term, of_step.frontier.term) + 1
        frontier = dataclasses.replace(of_step.frontier, term=term, step=last.step + 1)
        # A shard that was told to rest, or closed, since the step stays so.
        record = dataclasses.replace(
            of_step,
            frontier=frontier,
            rest_ms=facts.last.rest_ms,
            resharding=facts.last.resharding,
        )
    reached = list(record.frontier.own_writes)
    for ack in written:
        reached[ack.partition] = max(reached[ack.partition], ack.offset)
    frontier = dataclasses.replace(record.frontier, own_writes=tuple(reached))
    return dataclasses.replace(record, frontier=frontier, owner=OWNER)
