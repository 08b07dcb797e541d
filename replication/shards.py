"""Shards: parts of the buffer that are delivered by masters of their own.

Partition p of the buffer belongs to shard p mod S, and so do its messages and ids. A shard has its
partition of the frontier topic, its transactional id, its leader key and its term, and its frontier
counts what its own partitions have: elsewhere its offsets are 0 and its own writes -1, so it covers
nothing there.

What a node needs of all shards at once, a checkpoint or an export for one, is their *joint*
frontier: it covers exactly what any of theirs covers.

    shard 0    K0[lane]              O[0]  0    O[2]  0
    shard 1             K1[lane]      0   O[1]   0   O[3]
    joint      K0[lane] K1[lane]     O[0] O[1]  O[2] O[3]

Of one shard, the joint frontier is its own. Pure. Source: docs/design/shards.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from itertools import chain

from replication.frontier import ALL_SHARDS, Frontier, first_frontier
from replication.holds import Hold, home_of
from replication.quotas import Quota, joint_quota
from replication.rank import Rank
from replication.record import FrontierRecord, StepCounts
from replication.settings import KEYS_BEFORE_MAX, Settings

FOREVER_MS = 1 << 62


def shard_of(partition: int, shards: int) -> int:
    """Return the shard to which a partition of the buffer belongs."""
    return partition % shards


def home_in(topic: str, shard: int, shards: int, partitions: int) -> int:
    """Return the partition of a shard in which what orders say about a topic stands."""
    return shard + shards * home_of(topic, partitions // shards)


def share_of(rate: int, shard: int, shards: int) -> int:
    """Return how much of a rate a shard has: together they have all of it."""
    return rate // shards + (shard < rate % shards)


def first_of_shard(shard: int, shards: int, partitions: int, lanes: int) -> Frontier:
    """Return the first frontier of a shard: nothing is done."""
    return replace(first_frontier(shard, partitions, lanes), shards=shards)


def joint_frontier(parts: Sequence[Frontier]) -> Frontier:
    """Return the frontier of all shards, from that of each in order. It moves forward only if none
    of them moves back, and each step of one of them is a step of it."""
    if len(parts) == 1:
        return parts[0]
    shards = len(parts)
    assert [part.shard for part in parts] == list(range(shards)), "one frontier of each shard"
    owned = [parts[shard_of(p, shards)] for p in range(len(parts[0].offsets))]
    return Frontier(
        shard=ALL_SHARDS,
        cursors=tuple(chain.from_iterable(part.cursors for part in parts)),
        offsets=tuple(part.offsets[p] for p, part in enumerate(owned)),
        own_writes=tuple(part.own_writes[p] for p, part in enumerate(owned)),
        term=sum(part.term for part in parts),
        step=sum(part.step for part in parts),
        shards=shards,
    )


def lowest_cursors(own: Frontier, joint: Frontier | None) -> tuple[Rank, ...]:
    """Return by lane the lowest cursor of all shards: of one as `own` says, of the others as the
    joint frontier does. None: it is not known yet, so nothing is passed."""
    if own.shards == 1:
        return own.cursors
    if joint is None:
        return (Rank(0, 0, 0),) * len(own.cursors)
    others = [joint.cursors_of(shard) for shard in range(own.shards) if shard != own.shard]
    return tuple(min(cursors) for cursors in zip(own.cursors, *others, strict=True))


def shared_out(joint: Frontier, shards: int) -> list[Frontier]:
    """Return the frontier of each of so many shards, in order, from that of all. Each stands as far
    as any of its partitions did; term and step are those of all."""
    lanes = len(joint.cursors_of(0))
    return [
        Frontier(
            shard=shard,
            cursors=tuple(
                max(joint.cursors_of(p)[lane] for p in range(shard, len(joint.offsets), shards))
                for lane in range(lanes)
            ),
            offsets=tuple(o if p % shards == shard else 0 for p, o in enumerate(joint.offsets)),
            own_writes=tuple(
                r if p % shards == shard else -1 for p, r in enumerate(joint.own_writes)
            ),
            term=joint.term,
            step=joint.step,
            shards=shards,
        )
        for shard in range(shards)
    ]


def joint_record(parts: Sequence[FrontierRecord]) -> FrontierRecord:
    """Return one record of all shards, from the newest of each in order: for checkpoints, exports
    and people, never for the frontier topic. Its owner and time are those of the last step."""
    if len(parts) == 1:
        return parts[0]
    counts = zip(*(astuple(part.counts) for part in parts), strict=True)
    topics = sorted({topic for part in parts for topic in part.holds})
    return replace(
        max(parts, key=lambda part: part.now_ms),
        frontier=joint_frontier([part.frontier for part in parts]),
        counts=StepCounts(*map(sum, counts)),
        digest=sum(part.digest for part in parts),
        settings=joint_settings([part.settings for part in parts]),
        smoothing={},
        barriers=tuple(sorted(chain.from_iterable(part.barriers for part in parts))),
        rest_ms=max(part.rest_ms for part in parts),
        resharding=max(part.resharding for part in parts),
        holds={topic: joint_hold(topic, parts) for topic in topics},
        quotas=joint_quotas(parts),
        last_steps=tuple(chain.from_iterable(part.steps for part in parts)),
    )


def joint_settings(parts: Sequence[Settings]) -> Settings:
    """Return the settings as the first shard's master writes them, with all keys that any of the
    masters' may have signed by before: until when, at the latest. Who signs by another key now than
    the first shard's master may do so for long."""
    first, ends_ms = parts[0], dict[str, int]()
    if all(part is first or part == first for part in parts):
        return first
    for part in parts:
        named = part.keys_before_ms()
        if part.key_fingerprint != first.key_fingerprint:
            named[part.key_fingerprint] = FOREVER_MS
        for key, until_ms in named.items():
            ends_ms[key] = max(until_ms, ends_ms.get(key, 0))
    # Of those before the last so many a master says nothing: they signed nothing after these.
    full = [part.keys_before_ms() for part in parts if len(part.keys_before) >= KEYS_BEFORE_MAX]
    since_ms = max((min(named.values()) for named in full), default=0)
    kept = sorted((until_ms, key) for key, until_ms in ends_ms.items() if until_ms >= since_ms)
    return replace(first, keys_before=tuple(f"{key}/{until_ms}" for until_ms, key in kept))


def joint_quotas(
    parts: Sequence[FrontierRecord], joined: Callable[[Sequence[Quota]], Quota] = joint_quota
) -> dict[str, Quota]:
    """Return the quotas of all topics that have one in any of these shards. One that others do not
    have any more stays: an order may have reached some only."""
    topics = sorted({topic for part in parts for topic in part.quotas})
    return {
        topic: joined([part.quotas[topic] for part in parts if topic in part.quotas])
        for topic in topics
    }


def joint_hold(topic: str, parts: Sequence[FrontierRecord]) -> Hold:
    """Return how long a topic is paused anywhere, and the rate of all that go on with it. Its order
    is that of the first of them."""
    holds = [part.holds[topic] for part in parts if topic in part.holds]
    return Hold(
        min(hold.since_ms for hold in holds),
        max(hold.until_ms for hold in holds),
        sum(hold.rate for hold in holds),
        holds[0].offset,
    )
