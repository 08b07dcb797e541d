"""The run of a recovery of the frontier.

    1. whose cluster is it? buffer and wheel must belong together, and no node may be alive: none
       that etcd knows, and none that writes to the frontier topic for some seconds
    2. read the clues, and work out what became of each message: refuse while anything is in doubt
    3. fence the masters of the lost frontier, and whoever writes to its topic now
    4. the same as 1 and 2 once more: what is read now stays true
    5. write the frontier record, right behind what was read of its topic, and commit

Killed before the commit: nothing has changed, but an empty topic may be there. Killed behind it:
the next run finds that nothing is lost.
"""

import json
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from delayd.bus import Bus, TransactionalProducer
from delayd.cluster.frontier_log import FrontierLog, send_frontiers
from delayd.cluster.topic_checks import check_topics
from delayd.cluster.topics import create_frontier_topic, transactional_id
from delayd.commands.move.source import Source
from delayd.commands.recover.frontier.clues import Clues, Reader, Tell
from delayd.commands.recover.frontier.working_out import Found, work_out
from delayd.coordination import Coordination
from delayd.errors import FencedError, ProducerError, RecoverError
from delayd.runtime.clock import Clock
from replication.frontier import Frontier
from replication.holds import Hold, obey
from replication.quotas import Quota, QuotaOrder
from replication.quotas import obey as obey_quota
from replication.record import FrontierRecord, StepCounts
from replication.recovered import beyond
from replication.settings import AT_LEAST_ONCE, NAMED_BY_CLUSTER, Settings, Topic

OWNER: Final = "delayd-recover"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What is recovered where."""

    bus: Bus
    coordination: Coordination | None
    """None: nobody is asked whether a node is alive."""
    cluster: str
    prefix: str
    proof_key: bytes
    stopped_ms: int
    """When a master delivered last at the latest, Unix ms."""
    takes_doubles: bool
    clock: Clock
    timeout_ms: int
    watch_s: float = 0
    """How long to watch the frontier topic, at least, before anybody is fenced."""


class Topical(NamedTuple):
    """The frontier topic as it is."""

    topic_id: str | None
    """None: there is none."""
    last: FrontierRecord | None
    end: int
    """Up to where it was read."""


class Recovered(NamedTuple):
    """What a run found, and what it came to."""

    known: FrontierRecord
    found: Found
    topical: Topical
    is_lost: bool
    written: Frontier | None
    """None: nothing was written."""
    open_transactions: tuple[str, ...] = ()
    """Partitions that nobody can read to their end; of a plan only, before anybody is fenced."""


def planned(recovery: Recovery, source: Source, tell: Tell) -> Recovered:
    """Return what a run would do now. Writes nothing, and fences nobody. Raises RecoverError if the
    cluster is not the wheel's, or if a node is alive."""
    return _look(recovery, source, tell)[0]


def run(recovery: Recovery, source: Source, tell: Tell) -> Recovered:
    """Recover the frontier. Raises RecoverError if that cannot be done, or while anything is in
    doubt, and what the drivers raise."""
    recovered, _ = _look(recovery, source, tell)
    if not recovered.is_lost:
        return recovered
    if not recovered.open_transactions:
        _refuse_doubt(recovery, recovered.found)
    old = source.known.settings
    with closing(recovery.bus.cluster()) as kafka:
        topic_id = create_frontier_topic(kafka, old, recovery.timeout_ms)
        settings = replace(old, frontier=Topic(old.frontier.name, topic_id))
        if problems := check_topics(kafka, settings, recovery.timeout_ms).broken:
            raise RecoverError(
                f"no node would start: {'; '.join(problems)}",
                remedy="mend that, then run this again; an empty frontier topic may be deleted",
            )
    try:
        with ExitStack() as stack:
            for realm in dict.fromkeys((old.realm, settings.realm)):
                tell(f"fencing {realm}", 0, 1)
                producer = recovery.bus.transactional_producer(transactional_id(realm, 0))
                stack.callback(producer.close)
                producer.init_transactions(recovery.timeout_ms)
            recovered, clues = _look(recovery, source, tell, is_fenced=True)
            if not recovered.is_lost:
                return recovered
            _refuse_doubt(recovery, recovered.found)
            record = _record(recovery, source.known, settings, recovered, clues)
            _write(recovery, producer, record, recovered.topical.end)
    except FencedError as error:
        raise RecoverError(
            "a node of the cluster, or another run of this command, took over meanwhile",
            remedy="stop all nodes, then run this again; nothing was written",
        ) from error
    except ProducerError as error:
        raise RecoverError(
            f"the transaction failed, and its outcome is unknown: {error}",
            remedy="see that the brokers are well, then run this again: it finds out",
        ) from error
    if settings.naming == NAMED_BY_CLUSTER and recovery.coordination is not None:
        recovery.coordination.enter(settings.realm)
        recovery.coordination.put_settings(json.dumps(settings.to_json()))
    return recovered._replace(written=record.frontier)


def _look(
    recovery: Recovery, source: Source, tell: Tell, *, is_fenced: bool = False
) -> tuple[Recovered, Clues]:
    known = source.known
    _require_cluster(recovery, known.settings)
    _require_stopped(recovery, known.settings)
    begun_ms = recovery.clock.monotonic_ms()
    topical = _topical(recovery, known.settings, is_fenced=is_fenced)
    others = _same_history(known, topical)
    reader = Reader(
        recovery.bus, known, source.progress, recovery.proof_key, recovery.clock,
        recovery.timeout_ms,
    )  # fmt: skip
    clues = reader.read(source.topics(), tell, is_fenced=is_fenced)
    found = work_out(
        source,
        known,
        clues,
        others=others,
        stopped_ms=recovery.stopped_ms,
        tell=lambda done, total: tell("working out what was delivered", done, total),
    )
    if not is_fenced:
        passed_s = (recovery.clock.monotonic_ms() - begun_ms) / 1000
        threading.Event().wait(max(0.0, recovery.watch_s - passed_s))
        _require_still(recovery, known.settings, topical)
    is_lost = _is_lost(known, topical, found)
    return Recovered(known, found, topical, is_lost, None, tuple(clues.open_transactions)), clues


def _require_cluster(recovery: Recovery, settings: Settings) -> None:
    """Raise RecoverError unless wheel, names and buffer are of one cluster."""
    named, wheel = (recovery.cluster, recovery.prefix), (settings.cluster, settings.prefix)
    if named != wheel:
        raise RecoverError(
            f"the wheel belongs to the cluster {wheel[0]!r} with prefix {wheel[1]!r}, not to "
            f"{named[0]!r} with prefix {named[1]!r}",
            remedy="check --cluster, --prefix and the data_dir; nobody was fenced",
        )
    if settings.guarantee == AT_LEAST_ONCE:
        raise RecoverError(
            "the cluster delivers at least once: nobody can be fenced there, and nothing be "
            "written in a transaction",
            remedy="see docs/disaster-recovery.md, 'A lost frontier'",
        )
    buffer = settings.buffer
    with closing(recovery.bus.cluster()) as kafka:
        state = kafka.survey([buffer.name], recovery.timeout_ms).states.get(buffer.name)
    if state is None or state.topic_id != buffer.topic_id:
        there = "is not there" if state is None else f"is another topic ({state.topic_id})"
        raise RecoverError(
            f"{buffer.name} {there}; the wheel belongs to {buffer.topic_id}",
            remedy="is it the right Kafka (--bootstrap)? If the buffer is lost, see docs/guides/"
            "moving.md; nobody was fenced",
        )


def _require_stopped(recovery: Recovery, settings: Settings) -> None:
    """Raise RecoverError if etcd knows a node of this cluster that is alive."""
    etcd = recovery.coordination
    if etcd is None:
        return
    etcd.enter(settings.realm)
    alive = sorted({node for nodes in etcd.members_by_realm().values() for node in nodes})
    leader = etcd.leader(0)
    if alive or leader is not None:
        who = (
            f"nodes {', '.join(alive)}" if alive else f"a master, {leader.owner}" if leader else ""
        )
        raise RecoverError(
            f"etcd knows {who} of the cluster {settings.cluster!r}",
            remedy="stop all nodes, and wait 15 s until etcd forgets them; if they are of another "
            "cluster of this name, leave --etcd out; nobody was fenced by this run",
        )


def _require_still(recovery: Recovery, settings: Settings, before: Topical) -> None:
    """Raise RecoverError if somebody has written to the frontier topic since then: a master that
    etcd does not know. If nobody has, a master with nothing to deliver may still be alive: the
    fence ends that one."""
    now = _topical(recovery, settings, is_fenced=False)
    if (now.topic_id, now.last) != (before.topic_id, before.last):
        raise RecoverError(
            f"{settings.frontier.name} went on to offset {now.end} while this run looked at it: a "
            "master takes steps",
            remedy="stop all nodes, also those that etcd does not know; nobody was fenced",
        )


def _topical(recovery: Recovery, settings: Settings, *, is_fenced: bool) -> Topical:
    """Return what the frontier topic holds; behind the fence, read to its very end."""
    name, timeout_ms = settings.frontier.name, recovery.timeout_ms
    with closing(recovery.bus.cluster()) as kafka:
        state = kafka.survey([name], timeout_ms).states.get(name)
    if state is None:
        return Topical(None, None, 0)
    with closing(FrontierLog(recovery.bus, name, 0)) as log:
        log.open(timeout_ms)
        if is_fenced:
            log.catch_up(log.high_watermark(timeout_ms), timeout_ms)
        last = None if log.newest is None else log.newest.record
        return Topical(state.topic_id, last, log.read_to)


def _same_history(known: FrontierRecord, topical: Topical) -> tuple[Frontier, ...]:
    """Return the last frontier of the topic if it is of the wheel's history; nothing if the topic
    says nothing. Raise RecoverError if it is of another one."""
    last = topical.last
    if last is None:
        return ()
    ours = known.settings
    if (last.settings.cluster, last.settings.buffer) != (ours.cluster, ours.buffer):
        raise RecoverError(
            f"{ours.frontier.name} holds the frontier of another cluster, "
            f"{last.settings.cluster!r}",
            remedy="check --bootstrap, --prefix and the data_dir; nobody was fenced",
        )
    before, after = last.frontier, known.frontier
    is_ours = last.settings.frontier.topic_id == ours.frontier.topic_id
    # Frontiers of one history follow each other. A topic may be emptied, and then be used anew.
    if is_ours and (before.is_within(after) or after.is_within(before)):
        return (last.frontier,)
    if known.frontier.precedes(last.frontier):
        return (last.frontier,)  # An earlier run wrote it, or a node after that.
    if last.frontier.step == 0:
        return ()  # `topics create --adopt-buffer`, and no node since.
    raise RecoverError(
        f"{ours.frontier.name} was made again, and holds steps of another history: it ends at "
        f"step {last.frontier.step} by {last.owner}, and the wheel knows step "
        f"{known.frontier.step}. What was delivered by either cannot be told apart",
        remedy="take the data_dir of a node that has run since the topic was made again; "
        "otherwise see docs/disaster-recovery.md, 'A lost frontier'; nobody was fenced",
    )


def _is_lost(known: FrontierRecord, topical: Topical, found: Found) -> bool:
    last = topical.last
    if last is None or last.settings.frontier.topic_id != topical.topic_id:
        return True
    is_known = known.frontier == last.frontier or known.frontier.precedes(last.frontier)
    floor = found.floor
    return not (is_known and floor.is_within(last.frontier))


def _refuse_doubt(recovery: Recovery, found: Found) -> None:
    """Raise RecoverError while anything is in doubt, unless doubles are taken for it."""
    if found.unproven:
        raise RecoverError(
            f"the newest frontier that this wheel knows may have been undone: {found.unproven}",
            remedy="take the data_dir of another node; nothing was written",
        )
    if recovery.takes_doubles or found.is_certain:
        return
    listed = found.doubtful if found.doubtful.count else found.missing
    first = listed.names[0]
    raise RecoverError(
        f"{found.doubtful.count} messages may have been delivered or not, and "
        f"{found.missing.count} that should have been are nowhere; first "
        f"{first.id or first.source} to {first.topic}: {first.problem}",
        remedy="--dry-run lists them. If you know when the last node stopped, say so by "
        "--stopped-at. --prefer=at-least-once delivers them, and some may be doubled. Nothing was "
        "written",
    )


def _record(
    recovery: Recovery,
    known: FrontierRecord,
    settings: Settings,
    recovered: Recovered,
    clues: Clues,
) -> FrontierRecord:
    last = recovered.topical.last
    others: Sequence[Frontier] = [] if last is None else [last.frontier]
    seen_ms = [each.at_ms for found in clues.arrivals.values() for each in found]
    now_ms = max(recovery.clock.wall_ms(), known.now_ms, *seen_ms)
    frontier = beyond(recovered.found.frontier, known.now_ms, now_ms, others)
    return FrontierRecord(
        frontier=frontier,
        owner=OWNER,
        now_ms=now_ms,
        counts=StepCounts(),
        digest=0,
        settings=settings,
        smoothing=known.smoothing,
        barriers=clues.rules.below(frontier.offsets),
        holds=_holds_at(frontier, known, clues, now_ms),
        quotas=_quotas_at(frontier, known, clues),
    )


def _holds_at(
    frontier: Frontier, known: FrontierRecord, clues: Clues, now_ms: int
) -> dict[str, Hold]:
    """Return the holds at a frontier: those that are known, and what orders made of them since."""
    holds = dict(known.holds)
    for partition, offset, order in sorted(clues.orders):
        if known.frontier.offsets[partition] <= offset < frontier.offsets[partition]:
            holds = obey(holds, order, offset, now_ms)
    return holds


def _quotas_at(frontier: Frontier, known: FrontierRecord, clues: Clues) -> dict[str, Quota]:
    """Return the quotas at a frontier: those that are known, and what orders made of them since.
    Whether a topic is full is what a step has said last, which is in the log."""
    quotas = dict(known.quotas)
    for partition, offset, said in sorted(clues.quotas, key=lambda each: each[:2]):
        if isinstance(said, QuotaOrder):
            if known.frontier.offsets[partition] <= offset < frontier.offsets[partition]:
                quotas = obey_quota(quotas, said, offset)
        elif said.topic in quotas:
            at_ms = said.at_ms if said.is_full else 0
            over = 0 if said.shut is None else said.shut.limit
            state = {"full_ms": at_ms, "written_ms": at_ms, "over": over}
            quotas[said.topic] = quotas[said.topic]._replace(**state)
    return quotas


def _write(
    recovery: Recovery, producer: TransactionalProducer, record: FrontierRecord, end: int
) -> None:
    """Commit the record. Raises RecoverError, uncommitted, if the topic was not read to its end."""
    topic = record.settings.frontier.name
    producer.begin()
    landed = send_frontiers(producer, topic, [record], recovery.timeout_ms)
    if landed != {0: end}:
        raise RecoverError(
            f"{topic} was read up to offset {end}, and goes on to {landed[0]}",
            remedy="stop all nodes, then run this again; nothing was written",
        )
    producer.commit(recovery.timeout_ms)
