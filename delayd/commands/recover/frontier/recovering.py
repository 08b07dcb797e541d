"""The run of a recovery of the frontier.

    1. whose cluster is it? buffer and wheel must belong together, and no node may be alive: none
       that etcd knows, and none that writes to the frontier topic for some seconds
    2. read the clues, and work out what became of each message: refuse while anything is in doubt
    3. fence the masters of the lost frontier, of all shards, and whoever writes to its topic now
    4. the same as 1 and 2 once more: what is read now stays true
    5. write the frontier record of each shard that is lost, right behind what was read of its
       partition, and commit; the first shard's last, without which no node starts

Each shard's record has a transaction of its own, under the id of that shard's masters: what fences
them. Killed before a commit: that shard is as it was, but an empty topic may be there. Killed
behind it: the next run finds that the shard is not lost.
"""

import json
import threading
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import NamedTuple

from delayd.bus import Bus, TransactionalProducer
from delayd.cluster.frontier_log import send_frontiers
from delayd.cluster.topic_checks import check_topics
from delayd.cluster.topics import create_frontier_topic, transactional_id
from delayd.commands.move.source import Source
from delayd.commands.recover.frontier.clues import Clues, Reader, Tell
from delayd.commands.recover.frontier.making import records_of
from delayd.commands.recover.frontier.topical import (
    Topical,
    intact_shards,
    lost_shards,
    read_topical,
    refuse_old_checkpoint,
    refuse_unknown_number,
    same_history,
    shards_of,
)
from delayd.commands.recover.frontier.working_out import Found, shared_by, work_out
from delayd.coordination import Coordination
from delayd.errors import FencedError, ProducerError, RecoverError
from delayd.runtime.clock import Clock
from replication.frontier import Frontier
from replication.record import FrontierRecord
from replication.settings import AT_LEAST_ONCE, NAMED_BY_CLUSTER, Settings, Topic


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
    shards: int | None = None
    """How many the cluster had at last, if a person says it."""
    watch_s: float = 0
    """How long to watch the frontier topic, at least, before anybody is fenced."""


class Recovered(NamedTuple):
    """What a run found, and what it came to."""

    known: FrontierRecord
    found: Found
    topical: Topical
    shards: int
    """How many the cluster has."""
    lost: tuple[int, ...]
    """The shards whose frontier is lost."""
    written: Frontier | None
    """The frontier of the first of them; None: nothing was written."""
    open_transactions: tuple[str, ...] = ()
    """Partitions that nobody can read to their end; of a plan only, before anybody is fenced."""

    @property
    def is_lost(self) -> bool:
        """Return whether that of any shard is lost."""
        return bool(self.lost)


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
        settings = replace(old, shards=recovered.shards)
        topic_id = create_frontier_topic(kafka, settings, recovery.timeout_ms)
        kafka.add_partitions(old.frontier.name, settings.shards, recovery.timeout_ms)
        settings = replace(settings, frontier=Topic(old.frontier.name, topic_id))
        if problems := check_topics(kafka, settings, recovery.timeout_ms).broken:
            raise RecoverError(
                f"no node would start: {'; '.join(problems)}",
                remedy="mend that, then run this again; an empty frontier topic may be deleted",
            )
    try:
        with ExitStack() as stack:
            realms = dict.fromkeys((old.realm, settings.realm))
            fenced = max(old.shards, settings.shards, len(recovered.topical.lasts))
            producers = _fenced(recovery, stack, realms, fenced, tell)
            recovered, clues = _look(recovery, source, tell, is_fenced=True)
            if not recovered.is_lost:
                return recovered
            if recovered.shards != settings.shards:
                raise FencedError("the number of shards was changed meanwhile")
            _refuse_doubt(recovery, recovered.found)
            records = _record(recovery, source.known, settings, recovered, clues)
            for record in reversed(records):
                shard = record.frontier.shard
                _write(recovery, producers[shard], record, recovered.topical.end_of(shard))
    except FencedError as error:
        raise RecoverError(
            "a node of the cluster, or another run of this command, took over meanwhile",
            remedy="stop all nodes, then run this again: it goes on where this run ended",
        ) from error
    except ProducerError as error:
        raise RecoverError(
            f"the transaction failed, and its outcome is unknown: {error}",
            remedy="see that the brokers are well, then run this again: it finds out",
        ) from error
    if settings.naming == NAMED_BY_CLUSTER and recovery.coordination is not None:
        recovery.coordination.enter(settings.realm)
        recovery.coordination.put_settings(json.dumps(settings.to_json()))
    return recovered._replace(written=records[0].frontier)


def _look(
    recovery: Recovery, source: Source, tell: Tell, *, is_fenced: bool = False
) -> tuple[Recovered, Clues]:
    known = source.known
    refuse_old_checkpoint(known)
    _require_cluster(recovery, known.settings)
    _require_stopped(recovery, known.settings)
    copied = _copied_shards(recovery)
    begun_ms = recovery.clock.monotonic_ms()
    topical = read_topical(recovery.bus, known.settings, recovery.timeout_ms, is_fenced=is_fenced)
    others = same_history(known, topical)
    counted = shards_of(known, topical, recovery.shards, copied)
    shards, sure = counted.shards, shared_by(known.frontier, counted.shards)
    refuse_unknown_number(counted, lost_shards(known, topical, sure, shards))
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
        shards=shards,
        intact=lambda floor: intact_shards(known, topical, floor, shards),
        stopped_ms=recovery.stopped_ms,
        tell=lambda done, total: tell("working out what was delivered", done, total),
    )
    if not is_fenced:
        passed_s = (recovery.clock.monotonic_ms() - begun_ms) / 1000
        threading.Event().wait(max(0.0, recovery.watch_s - passed_s))
        _require_still(recovery, known.settings, topical)
    lost = lost_shards(known, topical, found.floor, shards)
    refuse_unknown_number(counted, lost)
    held = tuple(clues.open_transactions)
    return Recovered(known, found, topical, shards, lost, None, held), clues


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
    shards = range(settings.shards)
    leader = next((each for each in map(etcd.leader, shards) if each is not None), None)
    if alive or leader is not None:
        who = (
            f"nodes {', '.join(alive)}" if alive else f"a master, {leader.owner}" if leader else ""
        )
        raise RecoverError(
            f"etcd knows {who} of the cluster {settings.cluster!r}",
            remedy="stop all nodes, and wait 15 s until etcd forgets them; if they are of another "
            "cluster of this name, leave --etcd out; nobody was fenced by this run",
        )


def _copied_shards(recovery: Recovery) -> int | None:
    """Return how many shards etcd's copy of the settings names, which each master writes when it
    begins; None if nobody can say."""
    copy = None if recovery.coordination is None else recovery.coordination.settings()
    try:
        fields = None if copy is None else json.loads(copy)
    except ValueError:
        return None  # It is for people, and the next master writes it again.
    shards = fields.get("shards", 1) if isinstance(fields, dict) else None
    return shards if isinstance(shards, int) else None


def _require_still(recovery: Recovery, settings: Settings, before: Topical) -> None:
    """Raise RecoverError if somebody has written to the frontier topic since then: a master that
    etcd does not know. If nobody has, a master with nothing to deliver may still be alive: the
    fence ends that one."""
    now = read_topical(recovery.bus, settings, recovery.timeout_ms, is_fenced=False)
    if (now.topic_id, now.lasts) != (before.topic_id, before.lasts):
        raise RecoverError(
            f"{settings.frontier.name} went on to offsets {now.ends} while this run looked at it: "
            "a master takes steps",
            remedy="stop all nodes, also those that etcd does not know; nobody was fenced",
        )


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
) -> list[FrontierRecord]:
    """Return the record of each shard that is lost, in order."""
    lasts = [last.frontier for last in recovered.topical.lasts if last is not None]
    found, wall_ms = recovered.found.frontier, recovery.clock.wall_ms()
    made = records_of(known, settings, found, lasts, clues, wall_ms)
    return [made[shard] for shard in recovered.lost]


def _fenced(
    recovery: Recovery, stack: ExitStack, realms: Iterable[str], shards: int, tell: Tell
) -> dict[int, TransactionalProducer]:
    """Fence the masters of all shards, of each realm; return the producers of the last one's."""
    producers: dict[int, TransactionalProducer] = {}
    for realm in realms:
        for shard in range(shards):
            tell(f"fencing {realm}", shard, shards)
            name = transactional_id(realm, shard)
            producers[shard] = recovery.bus.transactional_producer(name)
            stack.callback(producers[shard].close)
            producers[shard].init_transactions(recovery.timeout_ms)
    return producers


def _write(
    recovery: Recovery, producer: TransactionalProducer, record: FrontierRecord, end: int
) -> None:
    """Commit the record. Raises RecoverError, uncommitted, if the topic was not read to its end."""
    topic, shard = record.settings.frontier.name, record.frontier.shard
    producer.begin()
    landed = send_frontiers(producer, topic, [record], recovery.timeout_ms)
    if landed != {shard: end}:
        raise RecoverError(
            f"{topic}/{shard} was read up to offset {end}, and goes on to {landed[shard]}",
            remedy="stop all nodes, then run this again; nothing more was written",
        )
    producer.commit(recovery.timeout_ms)
