"""More shards, or fewer: the shards there are come to their end, and others begin where they stood.

    1. Partitions are added to the frontier topic, if there are fewer than shards.
    2. Fewer only: each shard is told to rest at a time T, and its master comes to stand there.
    3. Each shard is closed: its masters are fenced, and its last record says that nobody goes on.
    4. One transaction writes the first records of all new shards, under the transactional id of the
       first one's masters.

Between 3 and 4 nobody delivers; nodes wait, and begin anew with the number that they find then.

Killed at any point, run again, run by two at once: a shard that is closed stays so until 4, and of
two that carry out 4 the second is fenced by the first, or finds it done. So what was begun ends
with whichever number is asked for next, that of before too.

Source: docs/design/shards.md, "More or fewer".
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from random import Random
from threading import Event
from typing import Final, TypeVar

from delayd.bus import Bus, TransactionalProducer
from delayd.cluster.frontier_log import FrontierLog, SeenFrontier, commit_frontiers
from delayd.cluster.topics import transactional_id
from delayd.errors import FencedError, FrontierError, ReshardError
from delayd.runtime.clock import Clock
from replication.record import FrontierRecord
from replication.resharding import (
    can_become,
    closed,
    is_at_rest,
    resharded,
    resharding_problem,
    rest_end_ms,
    resting,
)
from replication.settings import Settings

T = TypeVar("T")

OWNER: Final = "delayd-shards"
REST_AHEAD_MS: Final = 2_000
REST_AHEAD_EACH_MS: Final = 500
"""How far ahead T is, and more for each shard: all must have been told by then."""
POLL_MS: Final = 50
ATTEMPTS: Final = 20
"""How often a step is tried in which a master takes its transactional id back."""
ATTEMPT_PAUSE_MS: Final = 100
ATTEMPT_PAUSE_MAX_MS: Final = 3_000
RUNS_MAX: Final = 5
IDLE_STEPS_MS: Final = 20_000
"""How old the newest record of all shards may be: masters that have nothing to do make a step in
less."""


class _OtherShardsError(Exception):
    """The shards are others by now than those that were found."""


@dataclass(frozen=True, slots=True)
class Resharding:
    """What a run has to change shards with."""

    bus: Bus
    settings: Settings
    """Of the cluster, as they were when the run began."""
    clock: Clock
    timeout_ms: int
    """Of one answer of Kafka."""
    rest_timeout_ms: int
    """How long masters may take to come to rest after T."""
    wait: Callable[[float], object] = field(default_factory=lambda: Event().wait)
    """Sleeps so many seconds."""
    chance: Random = field(default_factory=Random)
    """How long it waits after a fence of others: runs that wait alike fence each other again."""

    def to(self, shards: int) -> Settings:
        """Give the cluster so many shards; return its settings then. Ends what another run has
        begun; does nothing if there are as many and nothing is begun.

        Raises ReshardError if there cannot be as many, or not now: then all go on with those there
        are, unless the text says otherwise. And what the drivers raise.
        """
        return self._in_peace(partial(self._to, shards))

    def close(self) -> None:
        """Close all shards, as for a change to as many as there are: `to` opens them, and nobody
        goes on before. Raises as `to` does."""
        self._in_peace(self._close_all)

    def _in_peace(self, change: Callable[[], T]) -> T:
        """Carry out a change, and again while other runs come to their ends meanwhile."""
        for _ in range(RUNS_MAX):
            try:
                return change()
            except _OtherShardsError:
                self.wait(POLL_MS / 1000)
        raise ReshardError(
            "other runs change the shards, too",
            remedy="run this again. If it stays so, a commit marker was lost: run "
            "`delayd recover marker`",
        )

    def _close_all(self) -> None:
        before = len(self._now())
        self._close(before, before)

    def _close(self, before: int, shards: int) -> None:
        for shard in range(before):
            self._repeated(partial(self._follow, shard, before, partial(_closed, shards=shards)))

    def _to(self, shards: int) -> Settings:
        seen = self._now()
        now, before = [each.record for each in seen], len(seen)
        if problem := resharding_problem(now[0].settings, shards):
            raise ReshardError(problem, remedy="nothing was changed")
        if before == shards and not any(map(self._is_begun, now)):
            return now[0].settings
        with closing(self.bus.cluster()) as kafka:
            kafka.add_partitions(self.settings.frontier.name, shards, self.timeout_ms)
        if shards < before and not any(record.resharding for record in now):
            self._rest(seen)
        self._close(before, shards)
        return self._repeated(partial(self._reshard, before, shards))

    def _is_begun(self, record: FrontierRecord) -> bool:
        if record.resharding or not record.rest_ms:
            return record.resharding > 0
        return self.clock.wall_ms() < rest_end_ms(record.rest_ms, record.settings.shards)

    def _now(self) -> list[SeenFrontier]:
        """Return the newest record of each shard that can be read without a fence."""
        with ExitStack() as stack:
            first = self._opened(stack, 0)
            logs = [first]
            logs += [self._opened(stack, n) for n in range(1, _newest(first).settings.shards)]
            found = [each.newest for each in logs if each.newest is not None]
            if len(found) < len(logs) or any(
                each.record.settings.shards != len(logs) for each in found
            ):
                raise _OtherShardsError
            return found

    def _rest(self, seen: Sequence[SeenFrontier]) -> None:
        """Have all shards come to stand at one time; ReshardError if they do not in time."""
        furthest_ms = max(each.record.frontier.highest_cursor.due_ms for each in seen)
        # Idle masters make a step now and then: this clock may be wrong, and the brokers' is not.
        newest_ms = max(each.append_ms for each in seen)
        now_ms = min(self.clock.wall_ms(), newest_ms + IDLE_STEPS_MS)
        ahead_ms = REST_AHEAD_MS + len(seen) * REST_AHEAD_EACH_MS
        rest_ms = max(now_ms, newest_ms, furthest_ms) + ahead_ms
        until_ms = self.clock.monotonic_ms() + ahead_ms + self.rest_timeout_ms
        self._tell(len(seen), rest_ms)
        if behind := self._behind(range(len(seen)), until_ms):
            self._tell(len(seen), 0)
            raise ReshardError(
                f"of {len(seen)} shards these did not come to rest: {', '.join(map(str, behind))}",
                remedy="all go on; see `delayd status` for targets that fail or are far behind, "
                "and run this again",
            )

    def _tell(self, shards: int, rest_ms: int) -> None:
        for shard in range(shards):
            following = partial(_resting, rest_ms=rest_ms)
            self._repeated(partial(self._follow, shard, shards, following))

    def _behind(self, shards: range, until_ms: int) -> list[int]:
        """Return the shards that do not stand at T by then, monotonic ms."""
        with ExitStack() as stack:
            logs = [self._opened(stack, shard) for shard in shards]
            while behind := [each.shard for each in logs if not is_at_rest(_newest(each))]:
                if self.clock.monotonic_ms() >= until_ms:
                    break
                self.wait(POLL_MS / 1000)
                for each in logs:
                    each.poll(0)
            return behind

    def _follow(
        self,
        shard: int,
        before: int,
        following: Callable[[FrontierRecord], FrontierRecord | None],
    ) -> None:
        """Fence the masters of one of `before` shards, and write what follows its last record, if
        anything does. Raises _OtherShardsError if it is none of as many any more."""
        with ExitStack() as stack:
            found = self._opened(stack, shard)
            if _is_closed_of(_newest(found), before):
                return  # And stays so, until it is one of others.
            producer = self._fence(stack, shard)
            found.renew()  # Who leads the partition may have changed with the fence.
            self._read_on(found)
            if _newest(found).settings.shards != before:
                raise _OtherShardsError
            if (record := following(_newest(found))) is not None:
                self._write(producer, [record], [found])

    def _reshard(self, before: int, shards: int) -> Settings:
        """Write the first records of all new shards, once all of before are closed."""
        with ExitStack() as stack:
            producer = self._fence(stack, 0)
            logs = [self._read_on(self._opened(stack, n)) for n in range(max(before, shards))]
            parts = [_newest(each) for each in logs[:before]]
            if not all(_is_closed_of(part, before) for part in parts):
                raise _OtherShardsError
            can_be = can_become(parts, shards)
            others = {e.shard: e.newest.record for e in logs[before:] if e.newest is not None}
            records = resharded(parts, shards if can_be else before, others, OWNER)
            self._write(producer, records, logs)
        if not can_be:
            raise ReshardError(
                f"the {before} shards did not stand together when they were closed",
                remedy="all go on; run this again",
            )
        return records[0].settings

    def _repeated(self, step: Callable[[], T]) -> T:
        """Take a step, and again while masters take their transactional id back meanwhile."""
        for attempt in range(ATTEMPTS):
            try:
                return step()
            except FencedError:
                most_ms = min(ATTEMPT_PAUSE_MAX_MS, ATTEMPT_PAUSE_MS << attempt)
                self.wait(self.chance.uniform(ATTEMPT_PAUSE_MS, most_ms) / 1000)
        raise ReshardError(
            "masters, or other runs, took the transactional ids, again and again",
            remedy="run this again; until then shards may be closed",
        )

    def _fence(self, stack: ExitStack, shard: int) -> TransactionalProducer:
        name = transactional_id(self.settings.realm, shard)
        producer = stack.enter_context(closing(self.bus.transactional_producer(name)))
        producer.init_transactions(self.timeout_ms)
        return producer

    def _opened(self, stack: ExitStack, shard: int) -> FrontierLog:
        log = FrontierLog(self.bus, self.settings.frontier.name, shard)
        found = stack.enter_context(closing(log))
        found.open(self.timeout_ms)
        return found

    def _read_on(self, log: FrontierLog) -> FrontierLog:
        """Return the log of a partition, read to its very end."""
        log.catch_up(log.high_watermark(self.timeout_ms), self.timeout_ms)
        return log

    def _write(
        self,
        producer: TransactionalProducer,
        records: Sequence[FrontierRecord],
        logs: Iterable[FrontierLog],
    ) -> None:
        """Write records in one transaction behind what these have read."""
        topic, read_to = self.settings.frontier.name, {log.shard: log.read_to for log in logs}
        commit_frontiers(producer, topic, records, read_to, self.timeout_ms)


def _is_closed_of(record: FrontierRecord, shards: int) -> bool:
    """Return whether it is the last one of one of so many shards."""
    return record.resharding > 0 and record.settings.shards == shards


def _closed(record: FrontierRecord, shards: int) -> FrontierRecord | None:
    return None if record.resharding else closed(record, shards, OWNER)


def _resting(record: FrontierRecord, rest_ms: int) -> FrontierRecord | None:
    return None if record.resharding else resting(record, rest_ms, OWNER)


def _newest(log: FrontierLog) -> FrontierRecord:
    """Return the newest record read. FrontierError if there is none."""
    if log.newest is None:
        raise FrontierError(
            f"partition {log.shard} of the frontier topic holds no record",
            remedy="see docs/operations.md, 'A lost frontier'; nothing was changed",
        )
    return log.newest.record
