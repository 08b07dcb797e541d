"""The log as it lies on the brokers: batches with their producers, markers, open transactions.

For repairs. Nodes read committed records only (`delayd.bus`), and never need this.

Invariant: nothing here changes the log, except `RawLog.write_marker`.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from delayd.bus import Record


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class ProducerEpoch(NamedTuple):
    """A producer as the log names it."""

    id: int
    epoch: int


class Marker(NamedTuple):
    """A control batch that ends the transaction of a producer in one partition."""

    producer: ProducerEpoch
    is_commit: bool
    coordinator_epoch: int
    offset: int


class Batch(NamedTuple):
    """A batch of records of one producer."""

    producer: ProducerEpoch
    is_transactional: bool
    first_sequence: int
    """-1 of a producer that is not idempotent."""
    records: list[Record]


class Active(NamedTuple):
    """What the leader of a partition knows of a producer that has written there lately."""

    producer: ProducerEpoch
    coordinator_epoch: int
    """Of its last marker there; -1 for none."""
    last_ms: int
    """When its last record there was written, Unix ms; -1 if unknown."""
    open_since: int | None
    """The first offset of its transaction that has no marker yet; None without one."""


@dataclass(frozen=True, slots=True)
class Producers:
    """The answers of the partitions' leaders."""

    active: Mapping[Place, tuple[Active, ...]]
    refused: Mapping[Place, str]
    """Why a leader does not say it."""


class TransactionState(NamedTuple):
    """What the coordinator knows of a transactional id."""

    state: str
    """As Kafka names it: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, ..."""
    producer: ProducerEpoch


class OpenTransaction(NamedTuple):
    """What its coordinator knows of a transaction that has begun and is not over."""

    name: str
    """The transactional id."""
    state: str
    """As of `TransactionState`."""
    began_ms: int
    """Unix ms; -1 if unknown."""


class RawLog(Protocol):
    """The logs of one Kafka cluster. Every call raises KafkaUnreachableError after its time-out,
    and TopicMismatchError for what brokers refuse."""

    def places(self, timeout_ms: int) -> list[Place]:
        """Return all partitions of all topics, but Kafka's own."""

    def producers(self, places: Iterable[Place], timeout_ms: int) -> Producers:
        """Return the producers that have written to these partitions lately (Kafka forgets them
        after `producer.id.expiration.ms`, a day)."""

    def transaction(self, transactional_id: str, timeout_ms: int) -> TransactionState | None:
        """Return the state of a transactional id; None if no coordinator knows it."""

    def open_transactions(
        self, producers: Iterable[int], timeout_ms: int
    ) -> Mapping[int, OpenTransaction]:
        """Return the transactions that are open, of those of these producers that a coordinator
        knows, by the producer's id."""

    def features(self, timeout_ms: int) -> Mapping[str, tuple[int, int]]:
        """Return the level at which the cluster runs each feature that has levels, and the highest
        that the broker which answers knows."""

    def read(
        self, place: Place, start: int, end: int, producers: Container[int], timeout_ms: int
    ) -> Iterator[Batch | Marker]:
        """Yield what these producers wrote from one offset up to another, whether committed or not.
        The time-out is of each answer."""

    def write_marker(self, place: Place, marker: Marker, timeout_ms: int) -> None:
        """Write this marker at the end of a partition; its offset does not count. It ends the
        transaction of that producer there, whatever its coordinator says."""

    def start_offsets(self, topic: str, timeout_ms: int) -> dict[int, int]:
        """As of `Cluster`."""

    def end_offsets(self, topic: str, timeout_ms: int, *, committed: bool) -> dict[int, int]:
        """As of `Cluster`."""

    def offsets_since(self, topic: str, at_ms: int, timeout_ms: int) -> dict[int, int]:
        """As of `Cluster`."""

    def close(self) -> None:
        """Release sockets and threads. Idempotent."""
