"""The client's ports to a Kafka library; `confluent.py` and `kafka_python/` implement them.

Here, too: what both drivers do alike. Not here: what a record means, how many may be under way,
who waits for what.

Invariants that every driver keeps:
- an accepted record gets exactly one outcome, on a thread of the driver or inside a call to it, and
  at `Sender.close` at the latest;
- a failure is `certain` only if the record cannot be in the log;
- no topic is ever created; a call returns or raises within its time-out.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    get_args,
)

from delayd.bus import Ack, Consumer, Headers, Position
from delayd.bus.overrides import bare
from delayd.errors import ConfigError, NotInitialisedError, TopicMismatchError

if TYPE_CHECKING:
    from delayd.bus.questions import BrokerCluster

RECORDS_MAX: Final = 1_000
"""Receipts that one poll returns."""

DriverName: TypeAlias = Literal["confluent", "kafka-python"]
Role: TypeAlias = Literal["producer", "consumer"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)


class PlainRecord(NamedTuple):
    """A record for the buffer, as any producer can send it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None
    """None: murmur2 of the key, or any without a key."""


class Failure(NamedTuple):
    """A record that was not acknowledged."""

    certain: bool
    """True if it cannot be in the log; False if nobody knows."""
    text: str


OnOutcome: TypeAlias = Callable[[Ack | Failure], None]
"""Called once per record; must return soon, and must not raise."""

Overrides: TypeAlias = Mapping[str, Any]
"""More properties, by the library's own names; `producer.` or `consumer.` limits one to that."""


class Producing(Protocol):
    """Sends records, through the client's own producer or through the user's."""

    def send(self, record: PlainRecord, on_outcome: OnOutcome) -> bool:
        """Take the record, without waiting for its outcome; False if the local queue is full.

        Raises NotTakenError if the library refuses it at once.
        """


class Sender(Producing, Protocol):
    """The client's own producer: all in-sync replicas acknowledge, and nothing is doubled."""

    def wait_for_room(self, timeout_ms: int) -> None:
        """Wait while the local queue is full."""

    def close(self, timeout_ms: int) -> None:
        """End records without an outcome as failures; release sockets and threads. Called once."""


class Driver(Protocol):
    """One library, with its settings. ConfigError for a setting that it does not take."""

    def sender(self) -> Sender:
        """Return the client's producer."""

    def cluster(self, role: Role) -> "BrokerCluster[Any]":
        """Return an administration client with the settings of the producer or the consumer."""

    def consumer(self, topic: str) -> Consumer:
        """Return a reader of committed records."""

    def refusal(self, record: PlainRecord) -> str | None:
        """Return why the library cannot send this record unchanged, or None."""


class Reader:
    """Reads the committed records of one topic from its end. Used by one thread."""

    def __init__(self, driver: Driver, topic: str) -> None:
        self._driver = driver
        self._topic = topic
        self._consumer = driver.consumer(topic)

    def open(self, timeout_ms: int) -> None:
        """Move to the end of every partition: everything produced from now on is read.

        Raises KafkaUnreachableError, NotInitialisedError or ConfigError.
        """
        with closing(self._driver.cluster("consumer")) as cluster, existing(self._topic):
            ends = cluster.end_offsets(self._topic, timeout_ms, committed=False)
        self._consumer.assign({partition: Position(end) for partition, end in ends.items()})

    def poll(self, timeout_ms: int) -> list[tuple[bytes | None, bytes | None]]:
        """Return the keys and values that are there, or none after at most `timeout_ms`.

        Raises ConsumerError or BufferPositionError if it cannot go on; transient trouble shows as
        empty polls.
        """
        return [(each.key, each.value) for each in self._consumer.poll(RECORDS_MAX, timeout_ms)]

    def close(self) -> None:
        """Release sockets and threads. Idempotent."""
        self._consumer.close()


class NotTakenError(Exception):
    """A record that the library refused to take; this error never reaches the user."""


@dataclass(frozen=True, slots=True)
class UserTransaction:
    """The user's own producer, of either library, and its transaction. A `Producing`.

    The library's own exceptions go to the user unchanged.
    """

    producer: Any
    """Has `begin_transaction`, `commit_transaction` and `abort_transaction`."""
    send: Callable[[PlainRecord, OnOutcome], bool]
    flush: Callable[[], None]
    """Waits until every record that was taken has its outcome."""


def refuse_fixed(overrides: Overrides, fixed: Collection[str]) -> None:
    """Raise ConfigError if one of the overrides is fixed, by the contract or by an argument."""
    clash = sorted({bare(name, ROLES) for name in overrides} & set(fixed))
    if clash:
        raise ConfigError(
            f"the producer property {', '.join(clash)} cannot be overridden",
            remedy="delayd's contract fixes it, or an argument of Client sets it",
        )


def cannot_be_made(what: str, error: BaseException) -> ConfigError:
    """Return the error for a library that refuses a property."""
    return ConfigError(
        f"{what} cannot be made: {error}", remedy="correct the property that it names"
    )


@contextmanager
def existing(topic: str) -> Iterator[None]:
    """Raise NotInitialisedError for a topic that brokers do not know, or do not show."""
    try:
        yield
    except TopicMismatchError as error:
        raise NotInitialisedError(
            f"there is no topic {topic}",
            remedy="run `delayd topics create`, or name the right buffer topic",
        ) from error
