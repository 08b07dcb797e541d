"""More shards, or fewer: what the frontiers of a cluster become. Pure.

Each number is a multiple of the other. A new shard goes on where its *sources* stood, the shards
that had its partitions:

    2 to 4     0 of 0    1 of 1    2 of 0    3 of 1        K as its source, its part of O and R
    4 to 2     0 of 0, 2           1 of 1, 3               K is the same of both, all of O and R

    rest       fewer only: no step passes a time T, so that all come to stand at K = (T, 0, 0)
    close      the last record of a shard of before: nobody goes on from it
    reshard    the first records of all new shards, in one transaction

A record that closes, and one that rests, begins a term, as a master's does. Steps and terms never
fall in a partition, nor does their sum: what is merged has those of all its sources. A partition of
the frontier topic that has no shard any more keeps a record without O and R, by which a later shard
of that number goes on counting.

Source: docs/design/shards.md, "More or fewer".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from replication.frontier import Frontier, begin_term
from replication.holds import Hold
from replication.now import MS_NS
from replication.quotas import Quota, unsure_quota
from replication.rank import Rank
from replication.record import FrontierRecord, StepCounts
from replication.settings import Settings, shards_problem
from replication.shards import (
    joint_frontier,
    joint_hold,
    joint_quotas,
    joint_settings,
    share_of,
)
from replication.smoothing import SHIFTS_MAX, Queue

REST_MS: Final = 20_000
REST_EACH_MS: Final = 1_000
"""How long after T a master still rests, and more for each shard that is closed meanwhile: whoever
asked for it is gone by then."""


def resharding_problem(settings: Settings, shards: int) -> str | None:
    """Return why a cluster may not get so many shards; None if it may."""
    before = settings.shards
    if problem := shards_problem(shards, settings.partitions, settings.guarantee):
        return problem
    if shards % before and before % shards:
        return (
            f"{before} shards can become a multiple of that, or a number of which {before} is one,"
            f" not {shards}"
        )
    return None


class Standstill:
    """The time T that the steps of a master do not pass, while it counts."""

    def __init__(self, rest_ms: int, shards: int) -> None:
        self._shards = shards
        self.rest_ms = rest_ms
        """T, Unix ms; 0 if there is none."""

    def now_ms(self, now_ms: int) -> int:
        """Return the `now` of a step."""
        if now_ms >= rest_end_ms(self.rest_ms, self._shards):
            self.rest_ms = 0
        return min(now_ms, self.rest_ms - 1) if self.rest_ms else now_ms


def rest_end_ms(rest_ms: int, shards: int) -> int:
    """Return until when masters of so many shards rest that stand at T = `rest_ms`, Unix ms."""
    return rest_ms + REST_MS + shards * REST_EACH_MS


def resting(record: FrontierRecord, rest_ms: int, owner: str) -> FrontierRecord:
    """Return the record after which no step of the shard passes T = `rest_ms`; with 0, after which
    they do again."""
    return replace(_standing(record, owner), rest_ms=rest_ms)


def closed(record: FrontierRecord, shards: int, owner: str) -> FrontierRecord:
    """Return the last record of a shard, from which nobody goes on: there will be `shards`."""
    return replace(_standing(record, owner), resharding=shards)


def is_at_rest(record: FrontierRecord) -> bool:
    """Return whether all lanes of the shard stand at its T."""
    rest = Rank(record.rest_ms, 0, 0)
    return record.rest_ms > 0 and all(cursor == rest for cursor in record.frontier.cursors)


def sources_of(shard: int, before: int, shards: int) -> range:
    """Return which of the shards before a new one goes on from, of so many."""
    if shards < before:
        return range(shard, before, shards)
    return range(shard % before, shard % before + 1)


def stand_together(parts: Sequence[FrontierRecord], shards: int) -> bool:
    """Return whether the shards of before, in order, can become so many: what becomes one stands at
    one cursor in each lane."""
    before = len(parts)
    return all(
        parts[source].frontier.cursors == parts[shard].frontier.cursors
        for shard in range(min(shards, before))
        for source in sources_of(shard, before, shards)
    )


def can_become(parts: Sequence[FrontierRecord], shards: int) -> bool:
    """Return whether closed shards, in order, can become so many: what becomes one stands
    together. As many as they are they always can."""
    return shards == len(parts) or stand_together(parts, shards)


def resharded(
    parts: Sequence[FrontierRecord],
    shards: int,
    others: Mapping[int, FrontierRecord],
    owner: str,
) -> list[FrontierRecord]:
    """Return the first records of `shards` shards, in order, and then the last ones of partitions
    that have none any more.

    `parts`: the closed records of all shards before, in order. `others`: what partitions beyond
    these hold, of shards that were there once.
    """
    assert can_become(parts, shards), "what becomes one shard stands at one cursor"
    before = len(parts)
    found = [_first(parts, shard, shards, others.get(shard), owner) for shard in range(shards)]
    return found + [_last(parts[shard], shards, owner) for shard in range(shards, before)]


def _standing(record: FrontierRecord, owner: str) -> FrontierRecord:
    return replace(
        record,
        frontier=begin_term(record.frontier),
        owner=owner,
        counts=StepCounts(),
        digest=0,
    )


def _first(
    parts: Sequence[FrontierRecord],
    shard: int,
    shards: int,
    former: FrontierRecord | None,
    owner: str,
) -> FrontierRecord:
    sources = [parts[source] for source in sources_of(shard, len(parts), shards)]
    known = [source.frontier for source in sources]
    term = step = 0
    if shard < len(parts):
        term, step = sum(each.term for each in known), sum(each.step for each in known)
    elif former is not None:
        term, step = former.frontier.term, former.frontier.step
    all_of = joint_frontier([part.frontier for part in parts])
    frontier = Frontier(
        shard=shard,
        cursors=known[0].cursors,
        offsets=tuple(o if p % shards == shard else 0 for p, o in enumerate(all_of.offsets)),
        own_writes=tuple(r if p % shards == shard else -1 for p, r in enumerate(all_of.own_writes)),
        term=term + 1,
        step=step + 1,
        shards=shards,
    )
    return FrontierRecord(
        frontier=frontier,
        owner=owner,
        now_ms=max(source.now_ms for source in sources),
        counts=StepCounts(),
        digest=0,
        settings=replace(joint_settings([each.settings for each in sources]), shards=shards),
        smoothing=_queues(sources),
        barriers=tuple(
            barrier
            for barrier in sorted(each for source in sources for each in source.barriers)
            if frontier.owns(barrier.partition)
        ),
        holds=_holds(sources, shard // len(parts), max(1, shards // len(parts))),
        quotas=_quotas(sources, shards, is_same=shards == len(parts)),
    )


def _quotas(sources: Sequence[FrontierRecord], shards: int, *, is_same: bool) -> dict[str, Quota]:
    """Return the quotas of one of so many shards. If there were as many before, they are its
    own."""
    if is_same:
        return dict(sources[0].quotas)
    return joint_quotas(sources, partial(unsure_quota, shards=shards))


def _last(record: FrontierRecord, shards: int, owner: str) -> FrontierRecord:
    frontier = replace(
        begin_term(record.frontier),
        offsets=(0,) * len(record.frontier.offsets),
        own_writes=(-1,) * len(record.frontier.own_writes),
        shards=shards,
    )
    return FrontierRecord(
        frontier=frontier,
        owner=owner,
        now_ms=record.now_ms,
        counts=StepCounts(),
        digest=0,
        settings=replace(record.settings, shards=shards),
    )


def _holds(sources: Sequence[FrontierRecord], nth: int, pieces: int) -> dict[str, Hold]:
    """Return the holds of the `nth` of so many shards that the sources become. Their orders may
    have had another home, so no offset names them."""
    topics = sorted({topic for source in sources for topic in source.holds})
    found = {}
    for topic in topics:
        hold = joint_hold(topic, sources)
        rate = max(1, share_of(hold.rate, nth, pieces))
        found[topic] = hold._replace(rate=rate, offset=-1)
    return found


def _queues(sources: Sequence[FrontierRecord]) -> dict[str, Queue]:
    topics = sorted({topic for source in sources for topic in source.smoothing})
    return {
        topic: _joined([source.smoothing[topic] for source in sources if topic in source.smoothing])
        for topic in topics
    }


def _joined(queues: Sequence[Queue]) -> Queue:
    """Return one queue in which every turn that one of them has given keeps its place or comes
    later, so that it knows each again."""
    if len(queues) == 1:
        return queues[0]
    shifts = _ascending(shift for queue in queues for shift in queue.shifts)
    last_ms = shifts[-1][1] if shifts else 0
    return Queue(
        served_ns=max(queue.served_ns for queue in queues),
        next_ns=max(queue.next_ns + (last_ms - queue.shift_ms) * MS_NS for queue in queues),
        tail_ms=max(queue.tail_ms + last_ms - queue.shift_ms for queue in queues),
        tail_partition=1 << 31,
        shifts=shifts,
    )


def _ascending(shifts: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return these shifts without those that others from earlier turns on surpass."""
    kept: list[tuple[int, int]] = []
    for from_ms, by_ms in sorted(shifts):
        if kept and kept[-1][0] == from_ms:
            kept[-1] = (from_ms, by_ms)
        elif not kept or by_ms > kept[-1][1]:
            kept.append((from_ms, by_ms))
    while len(kept) > SHIFTS_MAX:
        kept[-2:] = [(kept[-2][0], kept[-1][1])]
    return tuple(kept)
