"""The frontier topic as a log: the last committed record, and what comes after it.

Read by followers (to know what is done), by a successor (to know where to go on) and by the
commands. Only committed records are ever seen. A record under another key than the shard's is no
frontier, whoever wrote it: it is counted, logged and skipped.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

import structlog

from delayd.bus import Ack, Bus, Position, Producer, Record, TransactionalProducer
from delayd.errors import (
    BufferPositionError,
    FencedError,
    FrontierError,
    KafkaUnreachableError,
    ShardsChangedError,
)
from replication.record import FrontierFormatError, FrontierRecord, decode, encode, record_key
from replication.settings import AT_LEAST_ONCE
from replication.shards import joint_record

log = structlog.get_logger()

WINDOW_OFFSETS = 64
"""How far before the end the search for the last record begins; it doubles until one is found."""

POLL_RECORDS_MAX = 500
POLL_MS = 50
"""One wait for records. Short: behind a commit marker a broker answers only when it ends."""


class SeenFrontier(NamedTuple):
    """A committed frontier record and where it stands in its topic."""

    record: FrontierRecord
    offset: int
    append_ms: int
    parts: tuple["SeenFrontier", ...] = ()
    """Of a joint one: the newest of each shard, in order."""


def joint_seen(parts: Sequence[SeenFrontier]) -> SeenFrontier:
    """Return the joint frontier of all shards, from the newest of each in order. Its offset counts
    the records of all, its time is that of the last. Raises ShardsChangedError if they do not say
    that there are as many."""
    if any(part.record.settings.shards != len(parts) for part in parts):
        raise ShardsChangedError(
            f"the number of shards changes: there were {len(parts)}",
            remedy="run this again in a moment. If it stays so, a commit marker was lost: run "
            "`delayd recover marker`",
        )
    if len(parts) == 1:
        return parts[0]
    return SeenFrontier(
        joint_record([part.record for part in parts]),
        sum(part.offset for part in parts),
        max(part.append_ms for part in parts),
        tuple(parts),
    )


def unreadable(where: str, error: FrontierFormatError) -> FrontierError:
    """Return the error for a frontier record that cannot be read."""
    if error.moved:
        remedy = (
            "stop the nodes and the producers of this cluster for good, see "
            "docs/guides/moving.md, 'The old cluster'; nothing was delivered"
        )
    elif error.since:
        remedy = f"run delayd {error.since} or later here; nothing was delivered"
    else:
        remedy = (
            "run the newest version of delayd that any node has run; if it was not delayd that "
            "wrote this record, see docs/operations.md, 'A forged frontier record'; nothing was "
            "delivered"
        )
    return FrontierError(f"{where}: {error}", remedy=remedy)


def send_frontiers(
    producer: Producer, topic: str, records: Sequence[FrontierRecord], timeout_ms: int
) -> dict[int, int]:
    """Send frontier records, each to the partition of its shard, and return the offset of each by
    its shard, once brokers have them. Raises ProducerError.

    In a transaction, whoever has read the topic compares them with the ends of what was read before
    the commit: else a broker that leads no more may have answered, and the records are not the next
    ones."""
    landed: dict[int, int] = {}

    def note(ack: Ack) -> None:
        landed[ack.partition] = ack.offset

    for record in records:
        shard = record.frontier.shard
        key, value = record_key(shard), encode(record)
        producer.send(topic, key=key, value=value, headers=[], partition=shard, on_ack=note)
    producer.flush(timeout_ms)
    return landed


def commit_frontiers(
    producer: TransactionalProducer,
    topic: str,
    records: Sequence[FrontierRecord],
    read_to: Mapping[int, int],
    timeout_ms: int,
) -> None:
    """Write frontier records in one transaction, each where the read of its shard ended: else the
    read was stale, and FencedError is raised as if a master had written. Raises ProducerError."""
    producer.begin()
    landed = send_frontiers(producer, topic, records, timeout_ms)
    wanted = {each.frontier.shard: read_to[each.frontier.shard] for each in records}
    if landed != wanted:
        raise FencedError(f"{topic} was read up to {wanted}, and goes on to {landed}")
    producer.commit(timeout_ms)


class FrontierLog:
    """Reads one shard's partition of the frontier topic. Used by one thread."""

    def __init__(
        self,
        bus: Bus,
        topic: str,
        shard: int,
        *,
        takes_moved: bool = False,
        wait_ms: int | None = None,
    ) -> None:
        """`takes_moved`: also read the last record of a cluster that was moved. `wait_ms`: how long
        brokers may wait for the next record; the driver's time without it."""
        self._wait_ms = wait_ms
        self._takes_moved = takes_moved
        self._bus = bus
        self._cluster = bus.cluster()
        self._consumer = bus.consumer(topic, wait_ms=wait_ms)
        self._topic = topic
        self.shard = shard
        self.newest: SeenFrontier | None = None
        """The newest record read so far."""
        self.strays_count = 0
        """Records under another key that were skipped. Any thread may read it."""
        self._looked_at = range(0)
        """Offsets that `open` has read, and reads again if it has to look further back."""

    def open(self, timeout_ms: int) -> SeenFrontier | None:
        """Find the last committed record and continue from there; return None without one."""
        start = self._cluster.start_offsets(self._topic, timeout_ms).get(self.shard, 0)
        end = self.stable_end(timeout_ms)
        window = WINDOW_OFFSETS
        while self.newest is None and end > start:
            first = max(start, end - window)
            self._consumer.assign({self.shard: Position(first)})
            self.catch_up(end, timeout_ms)
            self._looked_at = range(first, end)
            if first == start:
                break
            window *= 2
        if self.newest is None:
            self._consumer.assign({self.shard: Position(end)})
        return self.newest

    @property
    def read_to(self) -> int:
        """Return the offset up to which the partition was read."""
        return self._consumer.position(self.shard)

    def renew(self) -> None:
        """Read on over new connections, which ask the brokers anew who leads."""
        read_to = self.read_to
        self.close()
        self._cluster = self._bus.cluster()
        self._consumer = self._bus.consumer(self._topic, wait_ms=self._wait_ms)
        self._consumer.assign({self.shard: Position(read_to)})

    def poll(self, timeout_ms: int) -> list[SeenFrontier]:
        """Return the records that have come since, oldest first."""
        seen, key = [], record_key(self.shard)
        records = self._consumer.poll(POLL_RECORDS_MAX, timeout_ms)
        self._report_strays([record for record in records if record.key != key])
        for record in records:
            if record.key != key:
                continue
            try:
                decoded = decode(record.value or b"", takes_moved=self._takes_moved)
                if decoded.frontier.shard != self.shard:
                    raise FrontierFormatError(f"it is of shard {decoded.frontier.shard}")
            except FrontierFormatError as error:
                where = f"{self._topic}/{self.shard} offset {record.offset}"
                # Whoever reads on meets it again: nobody takes over from what is before it.
                self._consumer.assign({self.shard: Position(record.offset)})
                raise unreadable(where, error) from error
            if self._is_late(decoded):
                continue
            self.newest = SeenFrontier(decoded, record.offset, record.append_ms)
            seen.append(self.newest)
        return seen

    def catch_up(self, end: int, timeout_ms: int) -> None:
        """Read up to an end offset; KafkaUnreachableError if that takes longer than the bound."""
        waits = max(1, timeout_ms // POLL_MS)
        while (read_to := self.read_to) < end:
            try:
                self.poll(POLL_MS)
            except BufferPositionError as error:
                # New connections may lead to a broker that leads no more: its log is shorter.
                raise KafkaUnreachableError(f"{self._topic}: {error}") from error
            waits -= self.read_to == read_to
            if waits <= 0:
                raise KafkaUnreachableError(
                    f"{self._topic} could not be read up to offset {end} in {timeout_ms} ms",
                    remedy="check the brokers and their transaction coordinator. If they are well "
                    "and it stays so, a commit marker was lost: run `delayd recover marker`",
                )

    def stable_end(self, timeout_ms: int) -> int:
        """Return the last stable offset of the shard's partition."""
        return self._end(timeout_ms, committed=True)

    def high_watermark(self, timeout_ms: int) -> int:
        """Return the high watermark of the shard's partition."""
        return self._end(timeout_ms, committed=False)

    def is_of_topic(self, record: FrontierRecord, timeout_ms: int) -> bool:
        """Return if the topic is still the one that the record names.

        If so, everything read before this call came from it: no two topics have the same id."""
        states = self._cluster.describe([self._topic], timeout_ms)
        if self._topic not in states:
            raise KafkaUnreachableError(
                f"no broker knows {self._topic}",
                remedy="run `delayd topics check`",
            )
        return states[self._topic].topic_id == record.settings.frontier.topic_id

    def close(self) -> None:
        """Release the connections."""
        self._consumer.close()
        self._cluster.close()

    def _report_strays(self, strays: list[Record]) -> None:
        """Count and log records that no master wrote; a record that is read again counts once."""
        offsets = [record.offset for record in strays if record.offset not in self._looked_at]
        if offsets:
            self.strays_count += len(offsets)
            log.warning(
                "frontier_strays_skipped",
                topic=self._topic,
                partition=self.shard,
                first_offset=offsets[0],
                last_offset=offsets[-1],
                count=len(offsets),
            )

    def _is_late(self, record: FrontierRecord) -> bool:
        """Return if a newer record was read before.

        Without a fence, a superseded master's last record may come behind its successor's records;
        etcd has both in their order."""
        if self.newest is None or record.settings.guarantee != AT_LEAST_ONCE:
            return False
        return record.frontier.precedes(self.newest.record.frontier) or (
            record.frontier == self.newest.record.frontier
        )

    def _end(self, timeout_ms: int, *, committed: bool) -> int:
        ends = self._cluster.end_offsets(self._topic, timeout_ms, committed=committed)
        if self.shard not in ends:
            raise FrontierError(
                f"{self._topic} has no partition {self.shard}",
                remedy="run `delayd topics check`",
            )
        return ends[self.shard]


def no_record(bus: Bus, topic: str, shard: int, timeout_ms: int) -> FrontierError:
    """Return the error for a shard's partition of the frontier topic that holds no visible
    record."""
    with closing(FrontierLog(bus, topic, shard)) as log:
        hangs = log.stable_end(timeout_ms) < log.high_watermark(timeout_ms)
    if hangs:
        return FrontierError(
            f"the first record of {topic}/{shard} is not visible: a commit marker was lost",
            remedy="run `delayd recover marker`; nothing was delivered",
        )
    return FrontierError(
        f"{topic}/{shard} holds no frontier record: that of shard {shard} was lost",
        remedy="see docs/operations.md, 'A lost frontier'; nothing was delivered",
    )
