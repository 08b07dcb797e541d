"""The old cluster's frontier topic: the last master is fenced, the last frontier is read, and the
topic is ended by a record that says where the messages went.

    1. take the masters' transactional id: Kafka refuses what a master writes from then on
    2. read the last frontier: the cut
    3. write the cut once more, as *moved*: no node delivers from such a record, whenever it starts

A node that takes over between 1 and 3 fences this program in turn, and 3 fails: then the old
cluster is not at rest, and nothing was moved. A fence alone would not do: a node that is started
later takes the id back, and goes on from the last frontier.

Several shards are closed before 1, each under the id of its masters, as for a change to as many as
there are: so the joint frontier stays the cut. What opens them has the first shard's id, and so has
3, which is one transaction. Where 3 does not come, they are opened again, under the id that this
run holds still: one that somebody has taken over leaves them to whoever has.

Source: docs/design/moving.md, "The old cluster".
"""

import dataclasses
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Final, Self

import structlog

from delayd.bus import Bus, TransactionalProducer
from delayd.bus.reading import read_between
from delayd.cluster.frontier_log import FrontierLog, SeenFrontier, commit_frontiers, joint_seen
from delayd.cluster.resharding import OWNER as SHARDS_OWNER
from delayd.cluster.resharding import Resharding
from delayd.cluster.topics import transactional_id
from delayd.errors import DelaydError, FencedError, FrontierError, MoveError
from delayd.request.settlements import is_settlement
from delayd.runtime.clock import Clock, SystemClock
from replication.record import FrontierRecord, StepCounts
from replication.resharding import resharded
from replication.settings import Settings

log = structlog.get_logger()

OWNER: Final = "delayd-move"
BEHIND_MAX: Final = 10_000
SETTLED_MS: Final = 5_000
"""A transaction that is open this long is a user's: those of a master are short, and end with the
fence."""
POLL_S: Final = 0.1


class OldCluster:
    """The old cluster, for one run. Close it."""

    def __init__(self, bus: Bus, settings: Settings, timeout_ms: int) -> None:
        """`settings` are those that the wheel knows."""
        self._bus = bus
        self._settings = settings
        self._timeout_ms = timeout_ms
        self._logs = [self._log_of(0)]
        """Of each shard, once `last` has read how many there are."""
        self._producer: TransactionalProducer | None = None
        self._are_closed = False
        """This run has found all shards closed, or closed them, and has not begun to end them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._are_closed:
            self._open_again()
        for log_of_shard in self._logs:
            log_of_shard.close()
        if self._producer is not None:
            self._producer.close()

    def fence(self) -> None:
        """Let no master write any more that is there now. Raises ProducerError, and ReshardError if
        masters take the ids of their shards back again and again."""
        self._take_id()
        first = self._first().record
        if first.settings.shards > 1 and not first.moved:
            Resharding(
                self._bus, first.settings, SystemClock(), self._timeout_ms, rest_timeout_ms=0
            ).close()
            self._take_id()  # Closing the first shard took it.
            self._are_closed = True

    def last(self) -> SeenFrontier:
        """Return the last frontier record, joint if there are several shards, read to the very end
        of its topic.

        Raises FrontierError if there is none, or it is another cluster's, KafkaUnreachableError,
        ShardsChangedError if it is being changed.
        """
        first = self._first()
        shards = first.record.settings.shards
        self._logs += [self._log_of(shard) for shard in range(len(self._logs), shards)]
        return joint_seen([first, *(self._read(each) for each in self._logs[1:shards])])

    def require_settled(self, clock: Clock) -> None:
        """Raise MoveError if a transaction stays open in the buffer: what lies behind its first
        record is acknowledged, and neither a wheel nor `left_behind` reads it. Raises
        KafkaUnreachableError."""
        buffer = self._settings.buffer.name
        until_ms = clock.monotonic_ms() + min(SETTLED_MS, self._timeout_ms)
        while True:
            with closing(self._bus.cluster()) as kafka:
                ends = kafka.end_offsets(buffer, self._timeout_ms, committed=False)
                stable = kafka.end_offsets(buffer, self._timeout_ms, committed=True)
            held = [f"{buffer}/{p}" for p, end in sorted(ends.items()) if stable[p] < end]
            if not held:
                return
            if clock.monotonic_ms() >= until_ms:
                raise MoveError(
                    f"a transaction is open in {', '.join(held)}: requests behind it are in no "
                    "wheel yet",
                    remedy="end it, or wait until Kafka ends it; let a node catch up, stop it, and "
                    "run this again",
                )
            threading.Event().wait(POLL_S)

    def left_behind(self, reached: Sequence[int], clock: Clock) -> int:
        """Return how many requests of the buffer lie behind what a wheel has read; more than
        BEHIND_MAX are not counted. What lies behind an open transaction counts by its offsets.

        Raises KafkaUnreachableError, ConsumerError.
        """
        buffer = self._settings.buffer.name
        with closing(self._bus.cluster()) as kafka:
            first = kafka.start_offsets(buffer, self._timeout_ms)
            latest = kafka.end_offsets(buffer, self._timeout_ms, committed=False)
            ends = kafka.end_offsets(buffer, self._timeout_ms, committed=True)
        starts = {p: max(reached[p], first.get(p, 0)) for p in ends}
        # What was trimmed unread counts by its offsets.
        count = sum(start - reached[p] for p, start in starts.items())
        count += sum(max(0, latest[p] - end) for p, end in ends.items())
        for records in read_between(
            self._bus,
            buffer,
            starts,
            ends,
            clock,
            records_max=BEHIND_MAX,
            timeout_ms=self._timeout_ms,
        ):
            # Behind the last request there may be commit markers, and settlements, which ask for
            # nothing.
            count += sum(not is_settlement(record.headers) for record in records)
            if count > BEHIND_MAX:
                break
        return count

    def end(self, moved: str) -> None:
        """Write behind what `last` has read that the cluster was moved to this realm. Raise
        MoveError if a node has taken over since `fence`, ProducerError if it is unknown whether it
        was written."""
        parts = self._newest()
        if len(parts) > 1 and not all(part.resharding for part in parts):
            raise MoveError(
                "a node of the old cluster has opened its shards again meanwhile",
                remedy="stop all nodes of the old cluster, then run this again: nothing was moved",
            )
        self._are_closed = False
        try:
            self._write([_moved(part, moved) for part in parts])
        except FencedError as error:
            raise MoveError(
                f"a node of the old cluster took over meanwhile: {error.message}",
                remedy="stop all nodes of the old cluster, then run this again: nothing was moved",
            ) from error

    def _write(self, records: Sequence[FrontierRecord]) -> None:
        """Write behind what `last` has read, in one transaction. Raises FencedError if somebody has
        taken the id since `fence`, or the read was stale, and other ProducerErrors."""
        assert self._producer is not None, "fence comes first"
        topic = self._settings.frontier.name
        read_to = {each.shard: each.read_to for each in self._logs}
        commit_frontiers(self._producer, topic, records, read_to, self._timeout_ms)

    def _take_id(self) -> None:
        if self._producer is not None:
            self._producer.close()
        name = transactional_id(self._settings.realm, 0)
        self._producer = self._bus.transactional_producer(name)
        self._producer.init_transactions(self._timeout_ms)

    def _first(self) -> SeenFrontier:
        """Return the last record of the first shard. Raises FrontierError if it is another
        cluster's."""
        seen, topic = self._read(self._logs[0]), self._settings.frontier.name
        known = (seen.record.settings.realm, seen.record.settings.buffer)
        is_ours = known == (self._settings.realm, self._settings.buffer)
        if not is_ours or not self._logs[0].is_of_topic(seen.record, self._timeout_ms):
            raise FrontierError(
                f"{topic} there belongs to another cluster than the wheel, or was made again",
                remedy="check --frontier-from; or leave it out: then what the wheel knows counts",
            )
        return seen

    def _log_of(self, shard: int) -> FrontierLog:
        return FrontierLog(self._bus, self._settings.frontier.name, shard, takes_moved=True)

    def _read(self, log_of_shard: FrontierLog) -> SeenFrontier:
        """Return the last record of a shard, read to the very end of its partition."""
        log_of_shard.open(self._timeout_ms)
        log_of_shard.catch_up(log_of_shard.high_watermark(self._timeout_ms), self._timeout_ms)
        if log_of_shard.newest is None:
            raise FrontierError(
                f"{self._settings.frontier.name}/{log_of_shard.shard} holds no frontier record",
                remedy="leave --frontier-from out: then what the wheel knows counts",
            )
        return log_of_shard.newest

    def _newest(self) -> list[FrontierRecord]:
        """Return the last record of each shard, as `last` has read them."""
        found = [each.newest.record for each in self._logs if each.newest is not None]
        return found[: found[0].settings.shards]

    def _open_again(self) -> None:
        """Open the shards that were closed in vain, as many as there are, unless somebody else has
        opened them, or goes on from them. If that fails, nodes do so after a while."""
        try:
            self.last()
            parts = self._newest()
            if all(part.resharding for part in parts):
                self._write(resharded(parts, len(parts), {}, SHARDS_OWNER))
        except FencedError:
            log.info("shards_left_to_others")
        except DelaydError as error:
            log.warning("shards_left_closed", why=error.message)


def _moved(last: FrontierRecord, moved: str) -> FrontierRecord:
    """Return the record that ends a shard."""
    frontier = dataclasses.replace(last.frontier, step=last.frontier.step + 1)
    return dataclasses.replace(
        last,
        frontier=frontier,
        owner=OWNER,
        counts=StepCounts(),
        digest=0,
        moved=moved,
        resharding=0,
    )
