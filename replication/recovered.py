"""A frontier that was lost, worked out from what steps have left behind. Pure.

The lost frontier F is a box: Done(K, O). What a step delivered, dead-lettered, requeued or answered
lies in it, and each such *trace* says so of one place. The smallest box that holds a frontier that
was known before F, and all traces since, is the *floor*:

    known <= floor <= F, component by component

All that F covers and that was delivered left a trace, so it is in the floor; all that the floor
covers is covered by F. So both say the same of every message, as long as every trace can be seen.
What is stored is compared with the floor, message by message (`fate_of`), to find where that does
not hold.

Source: docs/design/recovering.md.
"""

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple

from replication.frontier import Frontier
from replication.rank import Rank

FOREVER_MS: Final = 1 << 62
SKEW_MS: Final = 60_000
"""By so much the clocks of masters and brokers may differ."""


class Trace(NamedTuple):
    """A place of the buffer that a step has passed."""

    partition: int
    offset: int
    rank: Rank | None = None
    """Of the message that it dealt with; None of a request that asked for none, or was refused."""
    lane: int = 0
    """Its lane, if it has a rank."""


class Kept(NamedTuple):
    """What a partition of a target still shows."""

    start: int
    """Its first offset."""
    first_ms: int | None
    """All that it received after this time (Unix ms) is there; None if nothing tells."""


class Facts(NamedTuple):
    """What is known of a message that the known frontier does not cover."""

    lane: int
    rank: Rank
    is_over: bool
    """It was delivered, dead-lettered, requeued or refused: its own trace was found."""
    killed_by: int = -1
    """Offset of the cancel marker that killed it; -1 if none did."""
    blind_ms: int = -1
    """What its target received up to this time (Unix ms) is unknown; -1 if all is known."""


class Fate(Enum):
    """What became of a message."""

    OVER = "over"
    KILLED = "killed"
    UNSEEN = "unseen"
    """The floor covers it, and its target does not show what it received then."""
    PENDING = "pending"
    DOUBTFUL = "doubtful"
    """It was delivered, or not: its target does not show it, and the floor does not cover it."""
    MISSING = "missing"
    """The floor covers it, and it is nowhere: the traces are not of one history, or were lost."""


def floor_of(known: Frontier, traces: Iterable[Trace], own_writes: Iterable[Trace]) -> Frontier:
    """Return the smallest frontier that is not before `known` and covers all traces. `own_writes`
    are records that steps wrote into the buffer. Term and step are those of `known`."""
    cursors, offsets = list(known.cursors), list(known.offsets)
    writes = list(known.own_writes)
    for partition, offset, rank, lane in traces:
        offsets[partition] = max(offsets[partition], offset + 1)
        if rank is not None:
            at = known.cursor_at(lane, partition)
            cursors[at] = max(cursors[at], rank._replace(offset=rank.offset + 1))
    for partition, offset, _, _ in own_writes:
        writes[partition] = max(writes[partition], offset)
    return replace(known, cursors=tuple(cursors), offsets=tuple(offsets), own_writes=tuple(writes))


def joined(one: Frontier, other: Frontier) -> Frontier:
    """Return the smallest frontier that holds both; `other` may be that of one shard, where `one`
    is of all."""
    cursors = list(one.cursors)
    for partition in range(len(one.offsets)):
        if other.owns(partition):
            for lane, cursor in enumerate(other.cursors_of(partition)):
                at = one.cursor_at(lane, partition)
                cursors[at] = max(cursors[at], cursor)
    return replace(
        one,
        cursors=tuple(cursors),
        offsets=tuple(map(max, one.offsets, other.offsets)),
        own_writes=tuple(map(max, one.own_writes, other.own_writes)),
        term=max(one.term, other.term),
        step=max(one.step, other.step),
    )


def fate_of(facts: Facts, floor: Frontier, stopped_ms: int) -> Fate:
    """Return what became of a message. No master delivered anything after `stopped_ms`."""
    lane, rank, is_over, killed_by, blind_ms = facts
    if is_over:
        return Fate.OVER
    is_judged = 0 <= killed_by < floor.offsets[rank.partition]
    # Nothing is delivered before it is due.
    is_blind = rank.due_ms <= min(blind_ms, stopped_ms)
    if floor.covers(lane, rank):
        if is_judged:
            return Fate.KILLED
        return Fate.UNSEEN if is_blind else Fate.MISSING
    if killed_by >= 0 and (is_judged or not is_blind):
        return Fate.KILLED
    return Fate.DOUBTFUL if is_blind else Fate.PENDING


def lowered(floor: Frontier, missing: Iterable[Facts]) -> Frontier:
    """Return the frontier below the floor that covers none of these messages. It delivers again
    what of their lanes is beyond the first of them."""
    cursors = list(floor.cursors)
    for lane, rank, *_ in missing:
        at = floor.cursor_at(lane, rank.partition)
        cursors[at] = min(cursors[at], rank)
    return replace(floor, cursors=tuple(cursors))


def blind_until_ms(partitions: Iterable[Kept], since_ms: int) -> int:
    """Return up to when it is unknown what a target received after `since_ms`; -1 if all is known,
    FOREVER_MS if nothing is. No partitions: the topic is not there.

    A topic may have been deleted and made again. One that shows a record from before `since_ms`, in
    whatever partition, was not; then what was not trimmed never lost anything.
    """
    kept = list(partitions)
    is_old = any(each.first_ms is not None and each.first_ms <= since_ms for each in kept)
    blind_ms = -1 if kept else FOREVER_MS
    for start, first_ms in kept:
        if first_ms is not None and first_ms <= since_ms:
            continue
        if start == 0 and is_old:
            continue
        blind_ms = max(blind_ms, FOREVER_MS if first_ms is None else first_ms + SKEW_MS)
    return blind_ms


def beyond(floor: Frontier, since_ms: int, now_ms: int, others: Iterable[Frontier]) -> Frontier:
    """Return the floor with a term and a step that no master can have reached.

    `floor` has those of a step that was made at `since_ms`; `others` are frontiers that were seen
    elsewhere. A step takes more than a millisecond, and a term takes a step.
    """
    at_most = max(0, now_ms - since_ms) + 2 * SKEW_MS
    last = [floor, *others]
    return replace(
        floor,
        term=max(each.term for each in last) + at_most,
        step=max(each.step for each in last) + at_most,
    )
