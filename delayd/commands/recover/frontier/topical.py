"""The frontier topic as it is: what it still says of each shard, and whether that is of the wheel's
history. Reads, and writes nothing.

How many shards there are, the topic says, if something of it is left; else the wheel does. Neither
is believed if anything speaks for a change of the number that it does not know, or not to its end:
K of fewer shards would pass messages that one of more had not reached. Then a person must say it.

Source: docs/design/recovering.md, "Several shards".
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from delayd.bus import Bus
from delayd.cluster.frontier_log import FrontierLog
from delayd.errors import RecoverError
from replication.frontier import Frontier
from replication.record import FrontierRecord
from replication.settings import Settings, shards_problem
from replication.shards import shared_out


class Topical(NamedTuple):
    """The frontier topic as it is."""

    topic_id: str | None
    """None: there is none."""
    lasts: tuple[FrontierRecord | None, ...] = ()
    """The newest record of each partition; None of one without."""
    ends: tuple[int, ...] = ()
    """Up to where each was read."""

    def last_of(self, shard: int) -> FrontierRecord | None:
        """Return the newest record of a shard; None without one."""
        return self.lasts[shard] if shard < len(self.lasts) else None

    def end_of(self, shard: int) -> int:
        """Return up to where the partition of a shard was read."""
        return self.ends[shard] if shard < len(self.ends) else 0

    @property
    def current(self) -> list[FrontierRecord]:
        """Return the newest records of partitions that have a shard, as they say themselves."""
        return [
            last
            for partition, last in enumerate(self.lasts)
            if last is not None and last.settings.shards > partition
        ]

    @property
    def step(self) -> int | None:
        """Return the number of the last step, of all shards; None if it holds no record."""
        return sum(last.frontier.step for last in self.current) if self.current else None


def read_topical(bus: Bus, settings: Settings, timeout_ms: int, *, is_fenced: bool) -> Topical:
    """Return what the frontier topic holds; behind the fence, read to its very end."""
    name = settings.frontier.name
    with closing(bus.cluster()) as kafka:
        state = kafka.survey([name], timeout_ms).states.get(name)
        if state is None:
            return Topical(None)
        partitions = len(kafka.end_offsets(name, timeout_ms, committed=True))
    lasts, ends = [], []
    for partition in range(partitions):
        with closing(FrontierLog(bus, name, partition)) as log:
            log.open(timeout_ms)
            if is_fenced:
                log.catch_up(log.high_watermark(timeout_ms), timeout_ms)
            lasts.append(None if log.newest is None else log.newest.record)
            ends.append(log.read_to)
    return Topical(state.topic_id, tuple(lasts), tuple(ends))


class Counted(NamedTuple):
    """How many shards the cluster has, and what speaks against that."""

    shards: int
    doubt: str = ""
    """Why there may be another number, if a shard is lost; empty if nothing speaks for that."""


def shards_of(
    known: FrontierRecord, topical: Topical, said: int | None, copied: int | None = None
) -> Counted:
    """Return how many shards the cluster has: as a person says, else as the topic, else as the
    wheel. `copied`: as etcd's copy of the settings says. Raise RecoverError if what a person says
    cannot be, or if the topic leaves no doubt that it is wrong."""
    counted = _counted(known, topical, copied)
    if said is None:
        return counted
    settings = known.settings
    if problem := shards_problem(said, settings.partitions, settings.guarantee):
        raise RecoverError(problem, remedy="correct --shards; nobody was fenced")
    if topical.current and not counted.doubt and said != counted.shards:
        raise RecoverError(
            f"--shards is {said}, and all records in {settings.frontier.name} say that the cluster "
            f"has {counted.shards}",
            remedy="leave --shards out; nobody was fenced",
        )
    return Counted(said)


def _counted(known: FrontierRecord, topical: Topical, copied: int | None) -> Counted:
    settings, name = known.settings, known.settings.frontier.name
    current = topical.current
    counts = {last.settings.shards for last in current}
    formers = [p for p, last in enumerate(topical.lasts) if last and last.settings.shards <= p]
    shards = min(counts, default=settings.shards)
    if len(counts) > 1 or any(partition < shards for partition in formers):
        names = ", ".join(map(str, sorted(counts | {shards})))
        return Counted(
            shards,
            f"{name} says of some partitions that the cluster has another number of shards than "
            f"of others ({names})",
        )
    is_older = all(
        part.is_within(last.frontier)
        for part, last in _pairs(shared_out(known.frontier, shards), topical)
    )
    # Records of another number, behind what the wheel knows, say what became of the change it saw.
    is_told = bool(counts) and is_older and shards != settings.shards
    if (known.resharding or known.rest_ms) and not is_told:
        becomes = f", to become {known.resharding}" if known.resharding else ""
        return Counted(
            shards,
            f"the wheel saw the number of shards being changed from {settings.shards}{becomes}",
        )
    if shards != settings.shards and not is_older:
        return Counted(
            shards,
            f"{name} says that the cluster has {shards} shards, and lacks steps that the wheel "
            f"knows, of {settings.shards} shards",
        )
    return Counted(shards, _cut_before_change(topical, name, shards, copied))


def _cut_before_change(topical: Topical, name: str, shards: int, copied: int | None) -> str:
    """Return what speaks for a change of the number whose records the topic has lost; empty if
    nothing does."""
    closed = next((last for last in topical.current if last.resharding), None)
    if closed is not None:
        return (
            f"{name}/{closed.frontier.shard} ends where the number of shards was being changed "
            f"from {shards} to {closed.resharding}"
        )
    # A partition that had a shard once keeps a record: one without had a shard that is lost.
    bare = [p for p, last in enumerate(topical.lasts) if p >= shards and last is None]
    if bare:
        return (
            f"{name} has {len(topical.lasts)} partitions for {shards} shards, and partition "
            f"{bare[0]} holds no record of a former one"
        )
    if not topical.current and copied not in (None, shards):
        return f"etcd says that the cluster had {copied} shards, and the wheel knows {shards}"
    return ""


def refuse_unknown_number(counted: Counted, lost: Sequence[int]) -> None:
    """Raise RecoverError if shards are lost, and there may be another number of shards: then the
    masters of others may have delivered."""
    if lost and counted.doubt:
        raise RecoverError(
            f"{counted.doubt}: nobody knows by this how many masters delivered at last",
            remedy="take the data_dir of a node that has run since, or say the number by --shards: "
            "see docs/disaster-recovery.md, 'A lost frontier'; nobody was fenced",
        )


def same_history(known: FrontierRecord, topical: Topical) -> tuple[Frontier, ...]:
    """Return the last frontiers of the topic if they are of the wheel's history; nothing if the
    topic says nothing. Raise RecoverError if one is of another."""
    return tuple(
        last.frontier
        for last in topical.current
        if _is_same_history(known, last, last.frontier.shard)
    )


def _is_same_history(known: FrontierRecord, last: FrontierRecord, shard: int) -> bool:
    ours = known.settings
    if (last.settings.cluster, last.settings.buffer) != (ours.cluster, ours.buffer):
        raise RecoverError(
            f"{ours.frontier.name} holds the frontier of another cluster, "
            f"{last.settings.cluster!r}",
            remedy="check --bootstrap, --prefix and the data_dir; nobody was fenced",
        )
    part = known_parts(known, last.settings.shards)[shard]
    before, after = last.frontier, part
    is_ours = last.settings.frontier.topic_id == ours.frontier.topic_id
    # Frontiers of one history follow each other. A topic may be emptied, and then be used anew.
    if is_ours and (before.is_within(after) or after.is_within(before)):
        return True
    if part.precedes(last.frontier):
        return True  # An earlier run wrote it, or a node after that.
    if last.frontier.step == 0:
        return False  # `topics create --adopt-buffer`, and no node since.
    where = "" if last.settings.shards == 1 else f"/{shard}"
    raise RecoverError(
        f"{ours.frontier.name}{where} was made again, and holds steps of another history: it ends "
        f"at step {last.frontier.step} by {last.owner}, and the wheel knows step {part.step}. "
        "What was delivered by either cannot be told apart",
        remedy="take the data_dir of a node that has run since the topic was made again; "
        "otherwise see docs/disaster-recovery.md, 'A lost frontier'; nobody was fenced",
    )


def known_parts(known: FrontierRecord, shards: int) -> list[Frontier]:
    """Return what the wheel knows of each of so many shards. Term and step are the shard's own if
    the wheel knew as many, else those of all together."""
    parts = shared_out(known.frontier, shards)
    if shards != known.frontier.shards:
        return parts
    return [
        replace(part, term=last.term, step=last.step)
        for part, last in zip(parts, known.steps, strict=True)
    ]


def lost_shards(
    known: FrontierRecord, topical: Topical, floor: Frontier, shards: int
) -> tuple[int, ...]:
    """Return the shards of which the topic does not say what the floor covers, or all that the
    wheel knows."""
    known_now, floors = known_parts(known, shards), shared_out(floor, shards)
    return tuple(
        shard
        for shard in range(shards)
        if not _says_all(known, known_now[shard], floors[shard], topical, shard)
    )


def intact_shards(
    known: FrontierRecord, topical: Topical, floor: Frontier, shards: int
) -> frozenset[int]:
    """Return the shards of which the topic says what is done. None if that of a lost one was cut,
    not emptied: then others may be cut, too, to where the floor does not show it."""
    lost = lost_shards(known, topical, floor, shards)
    if any(topical.last_of(shard) is not None for shard in lost):
        return frozenset()
    return frozenset(range(shards)).difference(lost)


def _says_all(
    known: FrontierRecord, part: Frontier, floor: Frontier, topical: Topical, shard: int
) -> bool:
    last = topical.last_of(shard)
    if last is None or last.settings.frontier.topic_id != topical.topic_id:
        return False
    if last.settings.shards != floor.shards or not floor.is_within(last.frontier):
        return False
    if known.frontier.shards != floor.shards:
        return part.is_within(last.frontier)
    return part == last.frontier or part.precedes(last.frontier)


def _pairs(
    parts: Sequence[Frontier], topical: Topical
) -> Iterator[tuple[Frontier, FrontierRecord]]:
    for part in parts:
        last = topical.last_of(part.shard)
        if last is not None and last.settings.shards == part.shards:
            yield part, last


def refuse_old_checkpoint(known: FrontierRecord) -> None:
    """Raise RecoverError if a wheel does not know the last step of each shard."""
    if len(known.steps) != known.frontier.shards:
        raise RecoverError(
            "the wheel's checkpoint does not say what the last step of each shard was: an earlier "
            "build of delayd made it",
            remedy="take the data_dir of a node that runs this release; nobody was fenced",
        )
