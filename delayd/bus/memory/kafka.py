"""The brokers that every `MemoryBus` shares: topics, transactions, and faults to order.

Not here: clients (their state dies with a node; this one does not).

Invariants:
- deterministic: ids are counted, keyless records go round the partitions, time is the clock's;
- one lock guards everything; `changed` wakes readers when it is built for real threads;
- fencing, markers and visibility follow Kafka's rules (`log.py`, `transactions.py`).
"""

import copy
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Condition
from typing import Final, NamedTuple

from delayd.bus import Ack, Headers, PartitionState, TopicState
from delayd.bus.memory.log import PartitionLog
from delayd.bus.memory.transactions import CommitFault, Coordinator, FlushFault
from delayd.bus.murmur2 import partition_of
from delayd.bus.unreadable import UnreadableBatch
from delayd.runtime.clock import Clock

CONFIG_DEFAULTS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
"""Kafka's own defaults of the topic settings that delayd looks at."""

BROKER_DEFAULTS: Final[Mapping[str, str]] = {"broker.session.timeout.ms": "9000"}
"""The same of brokers."""

RECORD_OVERHEAD_BYTES: Final = 70
"""About what Kafka adds to a lone record: the batch header, lengths and times."""

TRANSACTION_TIMEOUT_MS: Final = 10_000
"""As in confluent/settings.py; `MemoryKafka.expire_transactions` applies it."""


class Refused(Exception):  # noqa: N818 - an answer of the broker, not an error of this program
    """The broker's answer to a record or request, by Kafka's error name."""


class Silence(Exception):  # noqa: N818
    """No answer: the leader of this partition hangs."""

    def __init__(self, partition: int) -> None:
        super().__init__(f"the leader of partition {partition} hangs")
        self.partition = partition


@dataclass(slots=True)
class MemoryTopic:
    """A topic as the brokers keep it."""

    name: str
    topic_id: str
    replication_factor: int
    config: dict[str, str]
    partitions: list[PartitionLog]
    refusal: str | None = None
    may_write: bool = True
    may_read: bool = True
    keyless_count: int = 0

    def state(self) -> TopicState:
        """Return what `describe` answers."""
        return TopicState(
            name=self.name,
            topic_id=self.topic_id,
            partitions=tuple(
                PartitionState(p.leader, self.replication_factor, p.in_sync)
                for p in self.partitions
            ),
            config={**CONFIG_DEFAULTS, **self.config},
            may_write=self.may_write,
            may_read=self.may_read,
        )

    def setting(self, name: str) -> str:
        """Return the effective value of a topic setting."""
        return self.config.get(name, CONFIG_DEFAULTS[name])

    def place(self, key: bytes | None, partition: int | None) -> PartitionLog:
        """Return the partition that Java's default partitioner gives a record."""
        if partition is None:
            if key is None:
                partition = self.keyless_count % len(self.partitions)
                self.keyless_count += 1
            else:
                partition = partition_of(key, len(self.partitions))
        if not 0 <= partition < len(self.partitions):
            raise Refused("_UNKNOWN_PARTITION")
        return self.partitions[partition]

    def check(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Raise what a broker answers to a record that this topic does not take."""
        if self.refusal is not None:
            raise Refused(self.refusal)
        if not self.may_write:
            raise Refused("TOPIC_AUTHORIZATION_FAILED")
        size_bytes = record_bytes(key, value, headers)
        if size_bytes > int(self.setting("max.message.bytes")):
            raise Refused("MSG_SIZE_TOO_LARGE")
        if key is None and "compact" in self.setting("cleanup.policy"):
            raise Refused("INVALID_RECORD")


class Zombie(NamedTuple):
    """A partition leader that is cut off from its controller, and what it still serves."""

    number: int
    """Which isolation made it: clients with older metadata read from it."""
    log: PartitionLog
    """The log when it was cut off. Nothing is added: no replica acknowledges anything to it."""


@dataclass(slots=True)
class MemoryKafka:
    """Brokers in memory. `clock` is the brokers' own; `real_time` lets polls really wait."""

    clock: Clock
    brokers: int = 1
    broker_settings: Mapping[str, str] = field(default_factory=lambda: BROKER_DEFAULTS)
    real_time: bool = False
    topics: dict[str, MemoryTopic] = field(default_factory=dict)
    coordinator: Coordinator = field(init=False)
    changed: Condition = field(default_factory=Condition)
    """The one lock (re-entrant), and the condition that announces new records."""
    topics_made_count: int = 0
    surveys_count: int = 0
    """How often clients asked for the state of topics."""
    hidden: set[str] = field(default_factory=set)
    """Names of topics that nobody may describe, whether they exist or not."""
    silent: set[str] = field(default_factory=set)
    """Names of topics about which no broker answers."""
    misdescribed: dict[str, int] = field(default_factory=dict)
    """How many more descriptions of a topic come from a broker that does not know it (yet)."""
    isolations_count: int = 0
    zombies: dict[tuple[str, int], Zombie] = field(default_factory=dict)
    """By topic and partition. A client's metadata is the number of the last isolation that it
    knows of."""

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(self.log)

    def log(self, topic: str, partition: int) -> PartitionLog:
        """Return the log, for tests that inspect or bend it (`elect`, `truncate`, ...)."""
        return self.topics[topic].partitions[partition]

    def served_log(self, topic: str, partition: int, metadata: int) -> PartitionLog:
        """Return the log that a client with this metadata reads."""
        if not self.zombies:
            return self.topics[topic].partitions[partition]
        zombie = self.zombies.get((topic, partition))
        is_stale = zombie is not None and metadata < zombie.number
        return zombie.log if zombie and is_stale else self.log(topic, partition)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replication_factor: int = 1,
    ) -> MemoryTopic:
        """Make a topic; raises Refused as a broker would."""
        with self.changed:
            if name in self.topics:
                raise Refused("TOPIC_ALREADY_EXISTS")
            if not 1 <= replication_factor <= self.brokers:
                raise Refused("INVALID_REPLICATION_FACTOR")
            self.topics_made_count += 1
            logs = self._logs(range(partitions), replication_factor)
            topic = MemoryTopic(
                name, f"id-{self.topics_made_count}", replication_factor, dict(config or {}), logs
            )
            self.topics[name] = topic
            return topic

    def add_partitions(self, name: str, partitions: int) -> None:
        """Give a topic so many partitions in all."""
        with self.changed:
            topic = self.topics[name]
            more = range(len(topic.partitions), partitions)
            topic.partitions += self._logs(more, topic.replication_factor)

    def _logs(self, numbers: range, in_sync: int) -> list[PartitionLog]:
        return [PartitionLog(n, leader=1 + n % self.brokers, in_sync=in_sync) for n in numbers]

    def delete_topic(self, name: str) -> None:
        """Remove a topic and its records."""
        with self.changed:
            del self.topics[name]

    def append(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
    ) -> Ack:
        """Write a record outside of any transaction; raises Refused as a broker would."""
        return self.write(topic, partition, key, value, headers or [], self.clock.wall_ms(), None)

    def write(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        created_ms: int,
        producer: tuple[str, int] | None,
        metadata: int | None = None,
    ) -> Ack:
        """Write a record, for `producer` = (transactional id, epoch) inside its transaction.

        Raises Refused as a broker would, Silence if nobody answers.
        `metadata`: of the client, which then waits in vain for a zombie to take it.
        """
        with self.changed:
            found = self.topics.get(topic)
            if found is None:
                raise Refused("UNKNOWN_TOPIC_OR_PART")
            log = found.place(key, partition)
            metadata = self.isolations_count if metadata is None else metadata
            if log.leader is None or self.served_log(topic, log.number, metadata) is not log:
                raise Refused("_MSG_TIMED_OUT")
            found.check(key, value, headers)
            if log.in_sync < int(found.setting("min.insync.replicas")):
                raise Refused("NOT_ENOUGH_REPLICAS")
            producer_id = None
            if producer is not None:
                if not self.coordinator.is_current(*producer):
                    raise Refused("_FENCED")
                now_ms = self.clock.monotonic_ms()
                producer_id = self.coordinator.join(producer[0], topic, log.number, now_ms)
            if log.hangs:
                raise Silence(log.number)
            by_broker = found.setting("message.timestamp.type") == "LogAppendTime"
            append_ms = self.clock.wall_ms() + log.ahead_ms if by_broker else created_ms
            record = log.append(append_ms, key, value, headers, producer_id)
            self.changed.notify_all()
            return Ack(record.partition, record.offset, record.append_ms)

    def append_heavy(
        self,
        topic: str,
        partition: int,
        values: list[tuple[bytes, Headers]],
        *,
        is_refused: bool = True,
    ) -> UnreadableBatch:
        """Write a compressed batch of records that is not read; raises Refused as a broker would.

        `is_refused`: librdkafka alone does not read it either.
        """
        with self.changed:
            found = self.topics[topic]
            log = found.partitions[partition]
            if found.setting("compression.type") == "uncompressed":
                raise Refused("MSG_SIZE_TOO_LARGE")
            stands_for_all = log.append_heavy(
                self.clock.wall_ms() + log.ahead_ms, values, is_refused=is_refused
            )
            self.changed.notify_all()
            return stands_for_all

    def fail_next_commit(self, transactional_id: str, *, applied: bool) -> None:
        """Lose the answer to the id's next commit, which is applied or not."""
        fault = CommitFault.APPLIED if applied else CommitFault.NOT_APPLIED
        with self.changed:
            self.coordinator.commit_faults.setdefault(transactional_id, deque()).append(fault)

    def fail_next_flush(self, transactional_id: str, *, is_broker_gone: bool = False) -> None:
        """Let the id's next flush time out, or be given up because a broker was replaced; what was
        sent is in the log, in doubt."""
        fault = FlushFault.BROKER_GONE if is_broker_gone else FlushFault.TIMED_OUT
        with self.changed:
            self.coordinator.flush_faults.setdefault(transactional_id, deque()).append(fault)

    def allow_writes(self, topic: str, *, allowed: bool) -> None:
        """Allow or deny writes, as an access control list does; the topic's state shows it."""
        with self.changed:
            self.topics[topic].may_write = allowed

    def refuse(self, topic: str, error: str | None) -> None:
        """Let every record for the topic fail with this error name; None ends it.

        Nothing of it shows in the topic's state.
        """
        with self.changed:
            self.topics[topic].refusal = error

    def hang(self, topic: str, partition: int) -> None:
        """Let the partition's leader take no records and answer no question.

        Brokers describe it as well, and its coordinator's markers get there.
        """
        with self.changed:
            self.log(topic, partition).hangs = True

    def end_hangs(self) -> None:
        """Let all leaders answer again."""
        with self.changed:
            for topic in self.topics.values():
                for log in topic.partitions:
                    log.hangs = False

    def isolate_leader(self, topic: str, partition: int) -> None:
        """Cut the partition's leader off from its controller, which elects another one.

        The old leader does not know it. Clients that know of no other go on reading from it what
        was there, and cannot write. New clients know the new leader; readers do not if their link
        `meets_zombies`.
        """
        with self.changed:
            self.isolations_count += 1
            log = self.log(topic, partition)
            self.zombies[topic, partition] = Zombie(self.isolations_count, copy.deepcopy(log))
            log.elect()

    def end_zombies(self) -> None:
        """Let all leaders that were cut off learn that others lead; their clients turn to those."""
        with self.changed:
            self.zombies.clear()
            self.changed.notify_all()

    def lose_next_marker(
        self, topic: str, partition: int, transactional_id: str | None = None
    ) -> None:
        """Lose the next commit or abort marker there: its records stay undecided (KAFKA-20734).

        With a transactional id that has been used: the next one of its transactions.
        """
        with self.changed:
            holder = self.coordinator.holders[transactional_id] if transactional_id else None
            whose = (topic, partition, holder.producer_id if holder else None)
            lost = self.coordinator.lost_markers
            lost[whose] = lost.get(whose, 0) + 1

    def is_known(self, topic: str) -> bool:
        """Return whether the broker that is asked next to describe a topic knows it."""
        with self.changed:
            if left := self.misdescribed.get(topic, 0):
                self.misdescribed[topic] = left - 1
            return topic in self.topics and not left

    def hold_markers(self) -> None:
        """From now on acknowledged commits stay invisible until `release_markers`.

        A real broker does that for some milliseconds. The same id's next record or successor
        writes them too, as the real coordinator makes those wait for it.
        """
        with self.changed:
            self.coordinator.hold_markers = True

    def release_markers(self) -> None:
        """Write the markers that were held back."""
        with self.changed:
            self.coordinator.hold_markers = False
            self.coordinator.write_pending()
            self.changed.notify_all()

    def expire_transactions(self) -> list[str]:
        """Abort what has been open for too long, and fence its producers; their ids."""
        with self.changed:
            before_ms = self.clock.monotonic_ms() - TRANSACTION_TIMEOUT_MS
            expired = self.coordinator.expire(before_ms)
            self.changed.notify_all()
            return expired


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return about what Kafka counts for a lone, uncompressed record."""
    own = len(key or b"") + len(value or b"") + RECORD_OVERHEAD_BYTES
    return own + sum(len(name) + len(content or b"") + 2 for name, content in headers)
