"""The plan of a follower's next batch: its end, by how far Kafka's topics reach.

delayd's own topics hold up everything when they cannot be asked. A target holds up nothing else:
while it cannot be read it stays where it is, unsettled.

Not here: what a batch reads of what lies between two ends (unread.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any, Final, TypeVar

from delayd.audit.errors import AuditError
from delayd.audit.reading.positions import BATCH_OFFSETS_MAX, Ends, Positions
from delayd.audit.reading.shard_records import text_of
from delayd.audit.spans import listed
from delayd.bus import Bus, TopicState
from delayd.cluster.frontier_log import FrontierLog, SeenFrontier
from delayd.errors import DelaydError
from delayd.runtime.clock import Clock
from replication.record import encode

T = TypeVar("T")

TIMEOUT_MS: Final = 10_000
TARGET_TIMEOUT_MS: Final = 3_000
"""For a question about one target: all wait for it."""

TARGETS_FAILED_MAX: Final = 4
"""Targets without an answer in one plan; the others are asked in the next. Each plan begins with
another target, so that they are not always the same."""

SETTLE_MS: Final = 2_000
"""How long a batch waits for the markers of transactions that have just ended."""

SETTLE_POLL_S: Final = 0.02

CLOCKS_MS: Final = 2_000
"""Evidence is read from so long before the frontier record at which watching begins: a record's
time is its producer's."""


@dataclass(frozen=True, slots=True)
class _Look:
    """One plan: when (Unix ms) topics were asked, and until when (monotonic ms) it waits."""

    now_ms: int
    deadline_ms: int


class Planner:
    """Plans batches over delayd's own `topics` (by role) and over targets, of a cluster with so
    many shards."""

    def __init__(self, bus: Bus, topics: Mapping[str, str], clock: Clock, shards: int = 1) -> None:
        self._shards = shards
        self._bus = bus
        self._kafka = bus.cluster()
        self._topics = topics
        self._clock = clock
        self._failed = 0

    def close(self) -> None:
        """Give back the connections."""
        self._kafka.close()

    def first(self) -> Positions:
        """Return where watching begins: at the newest frontier of each shard, with all that the
        buffer still holds."""
        frontier = self._topics["frontier"]
        seen = [self._newest(frontier, shard) for shard in range(self._shards)]
        buffer = self._topics["buffer"]
        starts = self._starts(buffer)
        positions = Positions(
            at_ms=self._clock.wall_ms(),
            watch=text_of([encode(part.record).decode() for part in seen]),
            watch_ms=max(part.append_ms for part in seen),
            since_ms=min(part.append_ms for part in seen),
            buffer_starts=starts,
            next={frontier: tuple(part.offset + 1 for part in seen), buffer: starts},
            settled_ms={},
            behind={},
        )
        for role in ("receipts", "dead"):
            topic = self._topics[role]
            starts = self._begins(topic, positions, self._high(topic), TIMEOUT_MS)
            positions = positions.starting(topic, starts)
        return positions

    def _newest(self, frontier: str, shard: int) -> SeenFrontier:
        with closing(FrontierLog(self._bus, frontier, shard)) as log:
            seen = log.open(TIMEOUT_MS)
        if seen is None:
            raise AuditError(
                f"{frontier}/{shard} holds no frontier", remedy="run `delayd topics create`"
            )
        return seen

    def next(self, at: Positions, targets: Iterable[str]) -> Positions:
        """Return the end of the next batch; raise DelaydError if delayd's own topics cannot be
        asked."""
        buffer, frontier = self._topics["buffer"], self._topics["frontier"]
        self._failed = 0
        ends = self._ends_of_own(buffer, at)
        if at.backlog(buffer, ends.stable) > BATCH_OFFSETS_MAX:
            at = at.skipping(buffer, self._starts(buffer))
        if at.backlog(buffer, ends.stable) > BATCH_OFFSETS_MAX:
            return replace(at.reading(buffer, ends, BATCH_OFFSETS_MAX), at_ms=self._clock.wall_ms())
        at = at.reading(frontier, self._ends_of_own(frontier, at), 2**62)
        states = self._readable(sorted({*targets} - {*self._topics.values()}))
        own = [self._topics["receipts"], self._topics["dead"]]
        now_ms = self._clock.wall_ms()
        high = {topic: self._high(topic) for topic in (*own, buffer)}
        turned = _turned(sorted(states), now_ms // 1_000)
        for topic in turned:
            if (ends_now := self._of_target(self._high, topic, TARGET_TIMEOUT_MS)) is not None:
                high[topic] = ends_now
        look = _Look(now_ms, self._clock.monotonic_ms() + SETTLE_MS)
        left = BATCH_OFFSETS_MAX
        for topic in own:
            ends = _own(topic, at, self._settled(topic, high[topic], look, TIMEOUT_MS))
            at, left = self._further(at, topic, ends, look, left, TIMEOUT_MS)
        for topic in (name for name in turned if name in high):
            asked = (at, states[topic], high[topic], look, left)
            at, left = self._of_target(self._target_further, *asked) or (at, left)
        ends = self._settled(buffer, high[buffer], look, TIMEOUT_MS)
        at = at.reading(buffer, ends, 2**62).settling(buffer, ends, now_ms)
        return replace(at, at_ms=now_ms, compacted=_compacted(states.values(), at.compacted))

    def _readable(self, targets: Sequence[str]) -> Mapping[str, TopicState]:
        """Return the targets that are there, have leaders and may be read."""
        if not targets:
            return {}
        try:
            states = self._kafka.survey(targets, TIMEOUT_MS).states
        except DelaydError:  # of no single target; if it is Kafka as a whole, the others will say
            return {}
        return {
            name: state
            for name, state in states.items()
            if state.may_read is not False and not is_leaderless(state)
        }

    def _of_target(self, ask: Callable[..., T], *asked: Any) -> T | None:
        """Return the answer; None if there is none, or too many were missing in this plan."""
        if self._failed >= TARGETS_FAILED_MAX:
            return None
        try:
            return ask(*asked)
        except DelaydError:
            self._failed += 1
            return None

    def _target_further(
        self, at: Positions, state: TopicState, high: tuple[int, ...], look: _Look, left: int
    ) -> tuple[Positions, int]:
        topic, topic_id = state.name, state.topic_id
        if topic not in at.next:  # and is read from the next batch on
            starts = self._begins(topic, at, high, TARGET_TIMEOUT_MS)
            return at.starting(topic, starts, topic_id), left
        if at.is_other(topic, topic_id):
            return at.restarting(topic, len(high), topic_id), left
        ends = self._settled(topic, high, look, TARGET_TIMEOUT_MS)
        if at.is_beyond(topic, ends.stable):
            if topic not in at.ids:
                return at.restarting(topic, len(high), topic_id), left
            return at.cut_off(topic, ends.stable), left
        if topic not in at.ids:
            at = replace(at, ids={**at.ids, topic: topic_id})
        return self._further(at, topic, ends, look, left, TARGET_TIMEOUT_MS)

    def _further(
        self, at: Positions, topic: str, ends: Ends, look: _Look, left: int, timeout_ms: int
    ) -> tuple[Positions, int]:
        """Go further in one topic of evidence; return also how many offsets are left for the
        others."""
        if at.backlog(topic, ends.stable) > left:
            at = at.skipping(topic, self._starts(topic, timeout_ms))
        wanted = at.backlog(topic, ends.stable)
        at = at.reading(topic, ends, max(1, left)).settling(topic, ends, look.now_ms)
        return at, left - wanted

    def _settled(self, topic: str, high: tuple[int, ...], look: _Look, timeout_ms: int) -> Ends:
        """Return the ends of a topic once all that was there is committed or aborted, or the time
        is up."""
        stable = self._stable(topic, timeout_ms)
        while _is_behind(stable, high) and self._clock.monotonic_ms() < look.deadline_ms:
            Event().wait(SETTLE_POLL_S)
            stable = self._stable(topic, timeout_ms)
        return Ends(stable, high)

    def _begins(
        self, topic: str, positions: Positions, high: tuple[int, ...], timeout_ms: int
    ) -> tuple[int, ...]:
        since = self._kafka.offsets_since(topic, positions.begun_ms - CLOCKS_MS, timeout_ms)
        return tuple(min(since.get(number, end), end) for number, end in enumerate(high))

    def _ends_of_own(self, topic: str, at: Positions) -> Ends:
        stable = self._stable(topic)
        return _own(topic, at, Ends(stable, self._high(topic)))

    def _stable(self, topic: str, timeout_ms: int = TIMEOUT_MS) -> tuple[int, ...]:
        return listed(self._kafka.end_offsets(topic, timeout_ms, committed=True))

    def _high(self, topic: str, timeout_ms: int = TIMEOUT_MS) -> tuple[int, ...]:
        return listed(self._kafka.end_offsets(topic, timeout_ms, committed=False))

    def _starts(self, topic: str, timeout_ms: int = TIMEOUT_MS) -> tuple[int, ...]:
        return listed(self._kafka.start_offsets(topic, timeout_ms))


def _own(topic: str, at: Positions, ends: Ends) -> Ends:
    if at.is_beyond(topic, ends.stable):
        raise AuditError(
            f"{topic} ends before what was read of it",
            remedy="it was made again, or lost records: begin anew with an empty --work",
        )
    return ends


def unplanned_file(targets: Path) -> Path:
    """Return the file that says why the last plan could not be made; absent if it was made."""
    return targets.with_name("unplanned")


def is_leaderless(state: TopicState) -> bool:
    """Return whether one of its partitions has no leader."""
    return any(partition.leader is None for partition in state.partitions)


def _compacted(states: Iterable[TopicState], known: tuple[str, ...]) -> tuple[str, ...]:
    said = {state.name: "compact" in state.config.get("cleanup.policy", "") for state in states}
    return tuple(sorted(topic for topic in {*known, *said} if said.get(topic, True)))


def _turned(names: list[str], count: int) -> list[str]:
    """Return the names, beginning with another one."""
    at = count % len(names) if names else 0
    return names[at:] + names[:at]


def _is_behind(stable: tuple[int, ...], high: tuple[int, ...]) -> bool:
    return any(reached < end for reached, end in zip(stable, high, strict=False))
