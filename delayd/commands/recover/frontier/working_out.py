"""From clues and a wheel to a frontier: what became of each message, and where to go on. Pure."""

from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol
from zlib import crc32

from delayd.commands.move.planning import OTHER, TOPICS_MAX, Listed
from delayd.commands.move.requests import Named, content_of
from delayd.commands.move.source import Stored
from delayd.commands.recover.frontier.clues import Clues
from delayd.request import DIED, asked_due_of, id_of, origin_of, source_of
from delayd.request.bodies import HEADERS, KEY, TOPIC, VALUE, asked_again
from delayd.request.request import MARKING
from delayd.wheel import FrameKind
from replication.frontier import Frontier
from replication.record import FrontierRecord, LastStep
from replication.recovered import Facts, Fate, Trace, fate_of, floor_of, joined, lowered
from replication.shards import joint_frontier, shard_of, shared_out

NOT_STORED = frozenset({"duplicate", "conflict", "over-quota", "rejected"})
"""Verdicts on a schedule that was refused."""


class Wheel(Protocol):
    """What a stopped node has stored."""

    def stored(self, known: Frontier, tell: Callable[[int, int], None]) -> Iterator[Stored]:
        """Yield what this frontier does not cover."""


@dataclass(slots=True)
class Found:
    """What was worked out."""

    floor: Frontier
    frontier: Frontier
    """To go on from: the floor, or less where something is missing."""
    delivered: int = 0
    """Since the known frontier."""
    doubled: int = 0
    """Deliveries of these beyond the first of a message."""
    dead: int = 0
    requeued: int = 0
    killed: int = 0
    unseen: int = 0
    """Covered by the floor; their targets do not show any more that they were delivered."""
    pending: int = 0
    topics: Counter[str] = field(default_factory=Counter)
    """Pending messages by target."""
    not_read: int = 0
    """Requests behind what the wheel has read; their messages are counted too."""
    doubtful: Listed = field(default_factory=Listed)
    missing: Listed = field(default_factory=Listed)
    again: Listed = field(default_factory=Listed)
    """Delivered already, and delivered once more if what is missing is."""
    unproven: str = ""
    """Why the known frontier itself is in doubt; empty if it is not."""

    @property
    def is_certain(self) -> bool:
        """Return whether nothing is in doubt."""
        return not (self.doubtful.count or self.missing.count or self.unproven)


_ANSWERING = frozenset(op.slug for op in MARKING)
"""Operations whose receipts answer a cancel marker."""


def work_out(
    wheel: Wheel,
    known: FrontierRecord,
    clues: Clues,
    *,
    others: tuple[Frontier, ...] = (),
    shards: int = 1,
    intact: Callable[[Frontier], Container[int]] = lambda floor: (),
    stopped_ms: int,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Found:
    """Return what became of all that `known` does not cover. `others`: frontiers of the same
    history. `shards`: how many the cluster has; the floor is of all.
    `intact`: those of several whose frontier is known, given the floor: it says what is done."""
    left = (
        _trace(each, outcome)
        for each in _all(wheel, known, clues, tell)
        if (outcome := _outcome(each, clues)) is not None
    )
    floor = floor_of(shared_by(known.frontier, shards), chain(clues.traces, left), clues.own_writes)
    for other in others:
        floor = joined(floor, other)
    found = Found(floor, floor, unproven=_unproven(known, clues))
    lacking: list[Facts] = []
    known_shards = intact(floor)
    for stored in _all(wheel, known, clues, tell):
        if stored.kind == FrameKind.MESSAGE:
            is_exact = shards > 1 and shard_of(stored.rank.partition, shards) in known_shards
            facts = _count(found, stored, clues, stopped_ms, is_exact=is_exact)
            lacking += [facts] if facts is not None else []
    found.not_read = len({stored.rank[1:] for stored in clues.tail})
    if lacking:
        found.frontier = lowered(floor, lacking)
        for stored in _all(wheel, known, clues, tell):
            _count_again(found, stored, clues)
    return found


def shared_by(known: Frontier, shards: int) -> Frontier:
    """Return the same frontier as of so many shards."""
    if known.shards == shards:
        return known
    of_all = joint_frontier(shared_out(known, shards))
    return replace(of_all, term=known.term, step=known.step)


def _all(
    wheel: Wheel, known: FrontierRecord, clues: Clues, tell: Callable[[int, int], None]
) -> Iterator[Stored]:
    yield from wheel.stored(known.frontier, tell)
    yield from clues.tail


def _trace(stored: Stored, outcome: str) -> Trace:
    rank = stored.rank
    if outcome in ("answered", "refused"):
        return Trace(rank.partition, rank.offset)
    return Trace(rank.partition, rank.offset, rank, stored.lane)


def _outcome(stored: Stored, clues: Clues) -> str | None:
    """Return what a step made of this, by its own trace; None if there is none. A request behind
    what the wheel has read may have been refused, as its id was taken: that says nothing of its
    rank."""
    _, partition, offset = stored.rank
    source = source_of(partition, offset)
    if stored.kind != FrameKind.MESSAGE:
        return "answered" if _is_answered(stored, source, clues) else None
    if stored.is_continued or source in clues.over:
        return "requeued"
    if _deliveries(stored, source, clues):
        return "delivered"
    if source in clues.letters:
        content = content_of(*asked_again(stored.body))
        if any(each.content == content and each.topic in DIED for each in clues.letters[source]):
            return "dead"
    # Behind what the wheel has read: a node stores no message.
    told = clues.receipts.get(source, ())
    return "refused" if any(each.verdict in NOT_STORED for each in told) else None


def _deliveries(stored: Stored, source: str, clues: Clues) -> int:
    """Return how often a message is in its target."""
    if source not in clues.arrivals:
        return 0
    body = stored.body
    asked = (body[TOPIC], asked_due_of(body), id_of(body))
    content = content_of(body[KEY], body[VALUE], body[HEADERS])
    return sum((*each[:3], each.content) == (*asked, content) for each in clues.arrivals[source])


def _is_answered(stored: Stored, source: str, clues: Clues) -> bool:
    """Return whether the receipt or dead letter of a request that is no message is there."""
    told = clues.receipts.get(source, ())
    if stored.kind == FrameKind.CANCEL_MARKER:
        return any(each.id == stored.body[1] and each.op in _ANSWERING for each in told)
    dead, owed, *_ = stored.body
    if owed is not None and any(each.id == owed[0] for each in told):
        return True
    if dead is None or source not in clues.letters:
        return False
    key, value, headers, slug, *_ = dead
    content = content_of(key, value, headers)
    # The topic of a letter is its reason here; one whose record was too large lacks the value.
    return any(
        each.topic == slug
        and (each.content == content or slug in ("too-large", "unreadable-batch"))
        for each in clues.letters[source]
    )


def _facts(stored: Stored, clues: Clues, *, is_over: bool) -> Facts:
    rank, body = stored.rank, stored.body
    source = source_of(rank.partition, rank.offset)
    killed_by = stored.killed_by
    if killed_by < 0:
        origin = origin_of(body, rank.partition, rank.offset)
        killed_by = clues.killed.get(source, clues.killed.get(origin, -1))
    if killed_by < 0:
        killed_by = clues.superseded_by(stored)
    return Facts(stored.lane, rank, is_over, killed_by, clues.blind_ms.get(body[TOPIC], -1))


_KNOWN = {Fate.DOUBTFUL: Fate.PENDING, Fate.MISSING: Fate.UNSEEN}
"""What would be in doubt, where the frontier is known."""


def _count(
    found: Found, stored: Stored, clues: Clues, stopped_ms: int, *, is_exact: bool
) -> Facts | None:
    """Count a message; return its facts if it is missing."""
    rank = stored.rank
    source, outcome = source_of(rank.partition, rank.offset), _outcome(stored, clues)
    if outcome == "refused":
        return None
    facts = _facts(stored, clues, is_over=outcome is not None)
    fate = fate_of(facts, found.floor, stopped_ms)
    match _KNOWN.get(fate, fate) if is_exact else fate:
        case Fate.OVER:
            times = _deliveries(stored, source, clues)
            found.delivered += outcome == "delivered"
            found.doubled += max(0, times - 1)
            found.dead += outcome == "dead"
            found.requeued += outcome == "requeued"
        case Fate.KILLED:
            found.killed += 1
        case Fate.UNSEEN:
            found.unseen += 1
        case Fate.PENDING:
            found.pending += 1
            topic = stored.body[TOPIC]
            is_counted = topic in found.topics or len(found.topics) < TOPICS_MAX
            found.topics[topic if is_counted else OTHER] += 1
        case Fate.DOUBTFUL:
            why = clues.why_blind.get(stored.body[TOPIC], "")
            what = f"its cancel would say `cancelled`; {why}" if facts.killed_by >= 0 else why
            found.doubtful.add(_named(stored, what))
        case Fate.MISSING:
            found.missing.add(_named(stored, "nowhere, and others of its lane are further"))
            return facts
    return None


def _count_again(found: Found, stored: Stored, clues: Clues) -> None:
    """Note a message that is over, and that the lowered frontier does not cover."""
    if stored.kind == FrameKind.MESSAGE and _outcome(stored, clues) not in (None, "refused"):
        is_in = found.frontier.covers(stored.lane, stored.rank)
        if not is_in:
            found.again.add(_named(stored, ""))


def _named(stored: Stored, problem: str) -> Named:
    rank, body = stored.rank, stored.body
    source = source_of(rank.partition, rank.offset)
    return Named(source, id_of(body), body[TOPIC], asked_due_of(body), problem)


def _unproven(known: FrontierRecord, clues: Clues) -> str:
    """Return why the known frontier may be of a step that was undone; empty if nothing speaks
    for that."""
    written = {(trace.partition, trace.offset) for trace in clues.own_writes}
    for partition, offset in enumerate(known.frontier.own_writes):
        if offset >= clues.buffer_from.get(partition, 0) and (partition, offset) not in written:
            return f"its step wrote {partition}/{offset} into the buffer, which is not there"
    for shard, last in enumerate(known.steps):
        if why := _lacking(shard, known, last, clues):
            return why
    return ""


def _lacking(shard: int, known: FrontierRecord, last: LastStep, clues: Clues) -> str:
    """Return why the last known step of a shard may be undone; empty if nothing speaks for that."""
    if any(blind_ms >= last.now_ms for blind_ms in clues.blind_ms.values()):
        return ""
    sources = [
        source
        for source, arrivals in clues.arrivals.items()
        for each in arrivals
        if each.at_ms == last.now_ms and _shard_of(source, known.frontier.shards) == shard
    ]
    digest = sum(crc32(source.encode()) for source in sources)
    if len(sources) < last.delivered:
        whose = "its step" if known.frontier.shards == 1 else f"the last step of shard {shard}"
        return (
            f"{whose} delivered {last.delivered} messages (digest {last.digest}), and "
            f"{len(sources)} of them are in the targets (digest {digest})"
        )
    return ""


def _shard_of(source: str, shards: int) -> int:
    partition = source.partition("/")[0]
    return shard_of(int(partition), shards) if partition.isdecimal() else 0
