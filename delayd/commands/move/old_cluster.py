"""The old cluster's frontier topic: the last master is fenced, the last frontier is read, and the
topic is ended by a record that says where the messages went.

    1. take the masters' transactional id: Kafka refuses what a master writes from then on
    2. read the last frontier: the cut
    3. write the cut once more, as *moved*: no node delivers from such a record, whenever it starts

A node that takes over between 1 and 3 fences this program in turn, and 3 fails: then the old
cluster is not at rest, and nothing was moved. A fence alone would not do: a node that is started
later takes the id back, and goes on from the last frontier.

Source: docs/design/moving.md, "The old cluster".
"""

import dataclasses
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Final, Self

from delayd.bus import Bus, TransactionalProducer
from delayd.bus.reading import read_between
from delayd.cluster.frontier_log import FrontierLog, SeenFrontier, send_frontiers
from delayd.cluster.topics import transactional_id
from delayd.errors import FencedError, FrontierError, MoveError
from delayd.request.settlements import is_settlement
from delayd.runtime.clock import Clock
from replication.record import FrontierRecord, StepCounts
from replication.settings import Settings

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
        self._log = FrontierLog(bus, settings.frontier.name, 0, takes_moved=True)
        self._producer: TransactionalProducer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        if self._producer is not None:
            self._producer.close()

    def fence(self) -> None:
        """Let no master write any more that is there now. Raises ProducerError."""
        name = transactional_id(self._settings.realm, 0)
        self._producer = self._bus.transactional_producer(name)
        self._producer.init_transactions(self._timeout_ms)

    def last(self) -> SeenFrontier:
        """Return the last frontier record, read to the very end of its topic.

        Raises FrontierError if there is none, or it is another cluster's, KafkaUnreachableError.
        """
        self._log.open(self._timeout_ms)
        self._log.catch_up(self._log.high_watermark(self._timeout_ms), self._timeout_ms)
        seen, topic = self._log.newest, self._settings.frontier.name
        if seen is None:
            raise FrontierError(
                f"{topic} holds no frontier record",
                remedy="leave --frontier-from out: then what the wheel knows counts",
            )
        known = (seen.record.settings.realm, seen.record.settings.buffer)
        is_ours = known == (self._settings.realm, self._settings.buffer)
        if not is_ours or not self._log.is_of_topic(seen.record, self._timeout_ms):
            raise FrontierError(
                f"{topic} there belongs to another cluster than the wheel, or was made again",
                remedy="check --frontier-from; or leave it out: then what the wheel knows counts",
            )
        return seen

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

    def end(self, cut: FrontierRecord, moved: str) -> None:
        """Write that the cluster was moved to this realm. Raise MoveError if a node has taken over
        since `fence`, ProducerError if it is unknown whether it was written."""
        assert self._producer is not None, "fence comes first"
        frontier = dataclasses.replace(cut.frontier, step=cut.frontier.step + 1)
        last = dataclasses.replace(
            cut, frontier=frontier, owner=OWNER, counts=StepCounts(), digest=0, moved=moved
        )
        topic, read_to = self._settings.frontier.name, self._log.read_to
        try:
            self._producer.begin()
            landed = send_frontiers(self._producer, topic, [last], self._timeout_ms)
            if landed != {0: read_to}:
                raise MoveError(
                    f"{topic} was read up to offset {read_to}, and goes on to {landed[0]}",
                    remedy="stop the nodes of the old cluster, then run this again: nothing was "
                    "moved",
                )
            self._producer.commit(self._timeout_ms)
        except FencedError as error:
            raise MoveError(
                "a node of the old cluster took over meanwhile",
                remedy="stop all nodes of the old cluster, then run this again: nothing was moved",
            ) from error
