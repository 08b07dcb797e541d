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

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Final, TypeVar

from delayd.bus import Ack, Bus, TransactionalProducer
from delayd.cluster.frontier_log import FrontierLog
from delayd.cluster.topics import transactional_id
from delayd.errors import FencedError, FrontierError, ReshardError
from delayd.runtime.clock import Clock
from replication.record import FrontierRecord, encode, record_key
from replication.resharding import (
    closed,
    is_at_rest,
    resharded,
    resharding_problem,
    resting,
    stand_together,
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

    def to(self, shards: int) -> Settings:
        """Give the cluster so many shards; return its settings then. Ends what another run has
        begun; does nothing if there are as many and nothing is begun.

        Raises ReshardError if there cannot be as many, or not now: then all go on with those there
        are, unless the text says otherwise. And what the drivers raise.
        """
        now = self._now()
        before = len(now)
        if problem := _problem(now, shards):
            raise ReshardError(problem, remedy="nothing was changed")
        if before == shards and not any(record.rest_ms or record.resharding for record in now):
            return now[0].settings
        with closing(self.bus.cluster()) as kafka:
            kafka.add_partitions(self.settings.frontier.name, shards, self.timeout_ms)
        if shards < before and not any(record.resharding for record in now):
            self._rest(now)
        for shard in range(before):
            self._repeated(partial(self._follow, shard, partial(_closed, shards=shards)))
        return self._repeated(partial(self._reshard, before, shards))

    def _now(self) -> list[FrontierRecord]:
        """Return the newest record of each shard that can be read without a fence."""
        with ExitStack() as stack:
            first = self._opened(stack, 0)
            logs = [first]
            logs += [self._opened(stack, n) for n in range(1, _newest(first).settings.shards)]
            return [_newest(each) for each in logs]

    def _rest(self, now: Sequence[FrontierRecord]) -> None:
        """Have all shards come to stand at one time; ReshardError if they do not in time."""
        furthest_ms = max(record.frontier.highest_cursor.due_ms for record in now)
        ahead_ms = REST_AHEAD_MS + len(now) * REST_AHEAD_EACH_MS
        rest_ms = max(self.clock.wall_ms(), furthest_ms) + ahead_ms
        shards = range(len(now))
        for shard in shards:
            self._repeated(partial(self._follow, shard, partial(_resting, rest_ms=rest_ms)))
        if behind := self._behind(shards, rest_ms + self.rest_timeout_ms):
            for shard in shards:
                self._repeated(partial(self._follow, shard, partial(_resting, rest_ms=0)))
            raise ReshardError(
                f"of {len(now)} shards these did not come to rest: {', '.join(map(str, behind))}",
                remedy="all go on; see `delayd status` for targets that fail or are far behind, "
                "and run this again",
            )

    def _behind(self, shards: range, until_ms: int) -> list[int]:
        """Return the shards that do not stand at T by then, Unix ms."""
        with ExitStack() as stack:
            logs = [self._opened(stack, shard) for shard in shards]
            while behind := [each.shard for each in logs if not is_at_rest(_newest(each))]:
                if self.clock.wall_ms() >= until_ms:
                    break
                self.wait(POLL_MS / 1000)
                for each in logs:
                    each.poll(0)
            return behind

    def _follow(
        self, shard: int, following: Callable[[FrontierRecord], FrontierRecord | None]
    ) -> None:
        """Fence a shard's masters, and write what follows its last record, if anything does."""
        with ExitStack() as stack:
            producer = self._fence(stack, shard)
            found = self._read(stack, shard)
            if (record := following(_newest(found))) is not None:
                self._write(producer, [record], [found.read_to])

    def _reshard(self, before: int, shards: int) -> Settings:
        """Write the first records of all new shards, once all of before are closed."""
        with ExitStack() as stack:
            producer = self._fence(stack, 0)
            logs = [self._read(stack, n) for n in range(max(before, shards))]
            parts = [_newest(each) for each in logs[:before]]
            if parts[0].settings.shards == shards and not parts[0].resharding:
                return parts[0].settings  # Another run was first.
            if any(part.settings.shards != before or not part.resharding for part in parts):
                raise ReshardError(
                    "another run has changed the shards meanwhile", remedy="run this again"
                )
            can_be = stand_together(parts, shards)
            others = {e.shard: e.newest.record for e in logs[before:] if e.newest is not None}
            records = resharded(parts, shards if can_be else before, others, OWNER)
            self._write(producer, records, [each.read_to for each in logs[: len(records)]])
        if not can_be:
            raise ReshardError(
                f"the {before} shards did not stand together when they were closed",
                remedy="all go on; run this again",
            )
        return records[0].settings

    def _repeated(self, step: Callable[[], T]) -> T:
        """Take a step, and again while masters take their transactional id back meanwhile."""
        for _ in range(ATTEMPTS):
            try:
                return step()
            except FencedError:
                self.wait(ATTEMPT_PAUSE_MS / 1000)
        raise ReshardError(
            "masters took their transactional ids back, again and again",
            remedy="run this again; see `delayd status`",
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

    def _read(self, stack: ExitStack, shard: int) -> FrontierLog:
        """Return the log of a partition, read to its very end."""
        found = self._opened(stack, shard)
        found.catch_up(found.high_watermark(self.timeout_ms), self.timeout_ms)
        return found

    def _write(
        self,
        producer: TransactionalProducer,
        records: Sequence[FrontierRecord],
        ends: Sequence[int],
    ) -> None:
        """Write records in one transaction, each where the read of its partition ended: else the
        read was stale, and FencedError is raised as if a master had written."""
        landed: dict[int, int] = {}

        def note(ack: Ack) -> None:
            landed[ack.partition] = ack.offset

        topic = self.settings.frontier.name
        producer.begin()
        for record in records:
            shard = record.frontier.shard
            key, value = record_key(shard), encode(record)
            producer.send(topic, key=key, value=value, headers=[], partition=shard, on_ack=note)
        producer.flush(self.timeout_ms)
        wanted = {r.frontier.shard: end for r, end in zip(records, ends, strict=True)}
        if landed != wanted:
            raise FencedError(f"{topic} was read up to {wanted}, and goes on to {landed}")
        producer.commit(self.timeout_ms)


def _problem(now: Sequence[FrontierRecord], shards: int) -> str | None:
    """Return why a cluster may not get so many shards; None if it may."""
    if problem := resharding_problem(now[0].settings, shards):
        return problem
    limited = sorted({topic for record in now for topic in record.quotas})
    if limited and shards > 1:
        return f"targets have limits, which one shard only can count: {', '.join(limited)}"
    return None


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
