"""The bus: what delayd needs of Kafka, as ports.

`confluent/` and `kafka_python/` are drivers of real brokers, either of which runs a whole node;
`memory/` is the deterministic twin that tests use. One conformance suite (`tests/conformance`) runs
on all three.

Invariants that every implementation keeps:
- a consumer sees only committed records (read_committed), in offset order per partition;
- a transactional producer that raised is dead: the caller discards it and makes a new one;
- a call returns or raises within its time-out; a time-out inside a transaction is a failure;
- no topic is ever created except by `create_topic`;
- every driver reads the same log alike, so that nodes with different drivers agree: a header name
  ends at its first NUL, because librdkafka cannot see further.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from delayd.bus.flat import Outgoing

Headers: TypeAlias = list[tuple[str, bytes | None]]
"""Record headers as Kafka keeps them: order and repeats matter."""

UNREADABLE_HEADERS: Final[Headers] = [("delayd-unreadable-headers", None)]
"""Headers that every driver gives a record in which a name is not UTF-8. An unknown `delayd-`
header makes the record a reject, on every node alike."""


class Record(NamedTuple):
    """One committed record. `append_ms` is the broker's log append time (Unix ms)."""

    partition: int
    offset: int
    leader_epoch: int
    """Epoch of the leader that appended it, -1 if unknown."""
    append_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Position(NamedTuple):
    """Where to read on: the next offset, and the leader epoch of the record before it (or -1)."""

    offset: int
    leader_epoch: int = -1


class Ack(NamedTuple):
    """The broker's acknowledgement of one sent record, before the commit."""

    partition: int
    offset: int
    append_ms: int
    """LogAppendTime where the topic has it, else the producer's own timestamp."""


class Consumer(Protocol):
    """Reads partitions of one topic from given positions. Used by one thread at a time."""

    def assign(self, positions: Mapping[int, Position]) -> None:
        """Read these partitions, from exactly there; replaces any earlier assignment."""

    def poll(self, records_max: int, timeout_ms: int) -> Sequence[Record]:
        """Return up to `records_max` records: at once if any are there, else after `timeout_ms` at
        most.

        Raises BufferPositionError if a position is not in the log (below its start, beyond its
        end, or of another leader epoch), ConsumerError for any other fatal failure. Transient
        broker trouble is retried inside and shows as empty batches.
        """

    def position(self, partition: int) -> int:
        """Return the next offset to read; it passes aborted and control records, up to the LSO."""

    def close(self) -> None:
        """Release sockets and threads. Idempotent."""


class Producer(Protocol):
    """Writes records, acknowledged by all replicas in sync. Used by one thread at a time.

    Any exception is final: the object must be closed and never used again; what became of the
    records that were not acknowledged is unknown. The `refusals` of a ProducerError name the topics
    whose records a broker would not take, as far as delivery reports told it. A time-out or a lost
    connection names none. `silent` names, after a time-out, the partitions whose acknowledgements
    are missing.
    """

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None = None,
        on_ack: Callable[[Ack], None] | None = None,
    ) -> None:
        """Queue a record. Without a partition: murmur2 of the key, or any for a null key.

        Blocks for a bounded time when the local queue is full. `on_ack` runs inside a later
        `send`, `flush` or `commit`, on the caller's thread.
        """

    def send_flat(self, records: "Outgoing") -> None:
        """Queue records that need no `on_ack`, in their order, as `send` does."""

    def flush(self, timeout_ms: int) -> None:
        """Wait until every queued record is acknowledged; raises if a single one failed."""

    def close(self) -> None:
        """Discard without waiting; an open transaction is left for a successor to abort."""


class TransactionalProducer(Producer, Protocol):
    """One transactional id, one open transaction at a time.

    FencedError says that a successor took the transactional id, ProducerError anything else
    (outcome unknown if it came from `commit`). A coordinator that refuses to let a partition into
    the transaction need not be named in its `refusals`.
    """

    def init_transactions(self, timeout_ms: int) -> None:
        """Fence every predecessor with this id and abort what it left open."""

    def begin(self) -> None:
        """Open a transaction."""

    def send_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], timeout_ms: int
    ) -> None:
        """Let the open transaction commit where a consumer group reads on, by (topic, number).

        The group has no members: whoever holds the transactional id is the only one that reads."""

    def commit(self, timeout_ms: int) -> None:
        """Commit; all records were acknowledged before, or it raises."""


class PartitionState(NamedTuple):
    """Health of a topic's partition."""

    leader: int | None
    """The leader's broker id; None while there is no leader."""
    replicas: int
    in_sync: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as the brokers describe it; `config` holds effective values as strings."""

    name: str
    topic_id: str
    partitions: tuple[PartitionState, ...]
    config: Mapping[str, str]
    may_write: bool | None = None
    """Whether the brokers let this program write there; None if they did not say."""
    may_read: bool | None = None
    """Whether they let it read there; None if they did not say."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The brokers' answers about many topics. A name that is in none of them does not exist."""

    states: Mapping[str, TopicState]
    refused: Mapping[str, str]
    """Reasons why a topic may not be described, by its name; it need not exist."""
    silent: frozenset[str]
    """Names for which no answer came in time; ask again later."""


class Cluster(Protocol):
    """Administration and metadata. Every call raises KafkaUnreachableError after `timeout_ms`."""

    def broker_count(self, timeout_ms: int) -> int:
        """Return how many brokers are registered and alive."""

    def broker_settings(self, timeout_ms: int) -> dict[int, Mapping[str, str]]:
        """Return the settings of each broker that tells them to this client, by the broker's id.

        KafkaUnreachableError only if it is not known which brokers there are."""

    def describe(self, topics: Iterable[str], timeout_ms: int) -> dict[str, TopicState]:
        """Return the states of those topics that exist.

        TopicMismatchError if a single one may not be described.
        """

    def survey(self, topics: Iterable[str], timeout_ms: int) -> Survey:
        """Describe each topic by itself, in two requests for all of them.

        KafkaUnreachableError only if there was no answer for any.
        """

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str],
        timeout_ms: int,
    ) -> bool:
        """Create a topic and wait until it can be used; False if it existed."""

    def add_partitions(self, topic: str, partitions: int, timeout_ms: int) -> bool:
        """Give a topic so many partitions in all and wait until they can be used; False if it had
        as many, or more. TopicMismatchError if it does not exist, or Kafka refuses."""

    def start_offsets(self, topic: str, timeout_ms: int) -> dict[int, int]:
        """Return the first offset still in the log, by partition."""

    def end_offsets(self, topic: str, timeout_ms: int, *, committed: bool) -> dict[int, int]:
        """Return the last stable offset (`committed=True`) or high watermark, by partition."""

    def offsets_since(self, topic: str, at_ms: int, timeout_ms: int) -> dict[int, int]:
        """Return the first offset whose timestamp is `at_ms` (Unix ms) or later, by partition.

        Partitions without one are absent. Later records may have earlier timestamps."""

    def group_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]], timeout_ms: int
    ) -> dict[tuple[str, int], int]:
        """Return where a consumer group reads on in these partitions, (topic, number).

        Those of which it has committed nothing are absent. Waits for open transactions that are
        about to commit some."""

    def answering(
        self, partitions: Iterable[tuple[str, int]], timeout_ms: int
    ) -> set[tuple[str, int]]:
        """Return those of these partitions, (topic, number), whose leaders say where they end, or
        that they do not say it, or that do not exist. Each is asked by itself.

        KafkaUnreachableError only if no broker describes the topics."""

    def close(self) -> None:
        """Release sockets and threads. Idempotent."""


class Bus(Protocol):
    """A Kafka cluster, seen through one driver: the factory of everything above."""

    def consumer(
        self,
        topic: str,
        *,
        careful: bool = False,
        careful_to: Mapping[int, int] | None = None,
        may_be_flat: bool = False,
        wait_ms: int | None = None,
    ) -> Consumer:
        """Return a reader of one topic; assign it before polling.

        `careful`: it expands no batch further than one that is read may be
        (`delayd.bus.unreadable`), for a topic whose brokers take compressed batches. It may be
        slower. `careful_to`: it does so until it has reached these offsets, by partition, for a
        topic whose brokers took such batches once.

        `may_be_flat`: what it returns may be `delayd.bus.flat.FlatRecords`, where the native
        library reads for it.

        `wait_ms`: how long brokers may wait for more records before they send what there is."""

    def transactional_producer(self, transactional_id: str) -> TransactionalProducer:
        """Return a producer that has fenced nobody yet: call `init_transactions` first."""

    def idempotent_producer(self) -> Producer:
        """Return a producer without transactions: a repeated record is stored once, and nobody is
        fenced."""

    def cluster(self) -> Cluster:
        """Return administration of the same cluster."""
