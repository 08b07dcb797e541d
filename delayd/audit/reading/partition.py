"""One partition's committed messages between two offsets, with librdkafka.

Not here: what is made of them.

Invariants:
- exactly the records in [start, end) that are committed, whatever lies between them;
- it ends: at the end by position, because offsets have gaps (markers, aborted and compacted
  records), or with an error.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final

from confluent_kafka import OFFSET_END, Consumer, KafkaError, Message, TopicPartition

from delayd.audit.reading.access import Access
from delayd.bus import Position, Record
from delayd.bus.confluent import careful_bus
from delayd.bus.confluent.consumer import ConfluentConsumer
from delayd.bus.guarded import GuardedConsumer
from delayd.bus.overrides import of_role
from delayd.errors import BufferPositionError, ConsumerError, DelaydError
from delayd.runtime.clock import SystemClock

QUEUE_KBYTES_MAX: Final = 8 * 1024
"""What is fetched ahead: it hides the way to the broker, and is lost at the end of a range."""

POLL_S: Final = 0.1
POLL_MS: Final = 100

REQUEST_TIMEOUT_S: Final = 15.0

_PASSING: Final = frozenset(
    {
        KafkaError._PARTITION_EOF,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._WAIT_CACHE,
        # Of a group that is never joined.
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)
_DELETED: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


class ReadError(DelaydError):
    """A topic could not be read as far as the audit has to; nothing is said about the cluster."""

    code = "audit-read"


def open_client(access: Access) -> Consumer:
    """Open a client that reads partitions one after the other; the caller closes it."""
    return Consumer(_properties(access))


def guarded_reader(access: Access, topic: str, careful_to: Mapping[int, int]) -> GuardedConsumer:
    """Return a reader of one partition of the buffer that reads unreadable batches as nodes do.

    `careful_to`: by partition, behind which offset it is surely not in the middle of one.
    """
    return GuardedConsumer(
        topic,
        ConfluentConsumer(topic, _properties(access)),
        lambda: careful_bus(access.bootstrap, "delayd-audit", access.kafka).consumer(topic),
        careful_to=careful_to,
    )


def _properties(access: Access) -> dict[str, Any]:
    return {
        "bootstrap.servers": access.bootstrap,
        "client.id": "delayd-audit",
        "group.id": "delayd-audit",  # librdkafka wants one; none is joined
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,  # moves the position over a tail without any record
        "allow.auto.create.topics": False,
        "check.crcs": True,
        "fetch.wait.max.ms": 50,
        "fetch.error.backoff.ms": 50,
        "fetch.queue.backoff.ms": 5,
        "queued.min.messages": 1_000_000,  # the next line is what limits
        "queued.max.messages.kbytes": QUEUE_KBYTES_MAX,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "socket.nagle.disable": True,
        **of_role(access.kafka, "consumer"),
    }


class Partition:
    """One partition of a topic, through a client that reads nothing else meanwhile."""

    def __init__(
        self,
        client: Consumer,
        topic: str,
        partition: int,
        stall_ms: int,
        guarded: Callable[[int], GuardedConsumer] | None = None,
    ) -> None:
        """`guarded`: of the buffer, a reader from an offset on."""
        self._guarded = guarded
        self._client = client
        self._topic = topic
        self._partition = partition
        self._stall_ms = stall_ms
        self._clock = SystemClock()

    def messages(
        self, start: int, end: int, wanted: "Wanted"
    ) -> Iterator[list[Message] | list[Record]]:
        """Yield the committed messages in [start, end), in order, some at a time; raise
        ReadError. Of the buffer they are records, as nodes read them."""
        if start >= end:
            return
        with self._reading(start) as poll:
            position, moved_ms = start, self._clock.monotonic_ms()
            while position < end:
                got, reached = poll(wanted.records)
                if messages := got if reached <= end else _below(end, got):
                    yield messages
                now_ms = self._clock.monotonic_ms()
                if reached > position:
                    position, moved_ms = reached, now_ms
                elif now_ms - moved_ms > self._stall_ms:
                    raise self._stalled(position, end)

    @contextmanager
    def _reading(self, start: int) -> "Iterator[_Poll]":
        """Yield what reads on from an offset: it returns some messages, and the position then."""
        if self._guarded is None:
            self._client.assign([self._at(start)])
            yield self._poll
            return
        with closing(self._guarded(start)) as reader:
            reader.assign({self._partition: Position(start)})
            yield partial(self._poll_guarded, reader)

    def _poll(self, records_max: int) -> tuple[list[Message], int]:
        got = self._client.consume(records_max, 0) or self._client.consume(1, POLL_S)
        messages = self._without_events(got)
        if not messages:
            return [], self._client.position([self._at(0)])[0].offset
        last = messages[-1].offset()
        assert last is not None, "a record has an offset"
        return messages, last + 1

    def _poll_guarded(self, reader: GuardedConsumer, records_max: int) -> tuple[list[Record], int]:
        try:
            records = reader.poll(records_max, POLL_MS)
        except BufferPositionError as error:
            raise self._deleted(str(error)) from error
        except ConsumerError as error:
            where = f"{self._topic}/{self._partition}"
            raise ReadError(f"reading {where} failed: {error}") from error
        return list(records), reader.position(self._partition)

    def largest_ms(self, start: int, end: int) -> int | None:
        """Return the largest timestamp in [start, end); None if nothing is committed there."""
        return max(self.times(start, end), default=None)

    def times(self, start: int, end: int) -> Iterator[int]:
        """Yield the timestamps of the committed records in [start, end)."""
        for messages in self.messages(start, end, Wanted()):
            yield from map(_time_of, messages)

    def first_ms(self, start: int, end: int) -> int | None:
        """Return the timestamp of the first record in [start, end); None if none is committed."""
        for messages in self.messages(start, end, Wanted()):
            return _time_of(messages[0])
        return None

    def first_since(self, timestamp_ms: int) -> int | None:
        """Return the first offset whose record is not older, of committed and aborted ones and
        markers."""
        asked = TopicPartition(self._topic, self._partition, timestamp_ms)
        [found] = self._client.offsets_for_times([asked], timeout=REQUEST_TIMEOUT_S)
        if found.error is not None:
            raise self._error(found.error)
        return None if found.offset in (OFFSET_END, -1) else int(found.offset)

    def _without_events(self, got: list[Message]) -> list[Message]:
        messages = []
        for message in got:
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() not in _PASSING and not error.retriable():
                raise self._error(error)
        return messages

    def _error(self, error: KafkaError) -> ReadError:
        where = f"{self._topic}/{self._partition}"
        if error.code() in _DELETED:
            return self._deleted(error.str())
        return ReadError(f"reading {where} failed: {error.name()}, {error.str()}")

    def _deleted(self, why: str) -> ReadError:
        return ReadError(
            f"{self._topic}/{self._partition}: Kafka deleted its beginning while it was being "
            f"read: {why}",
            remedy="audit again; its retention is shorter than what the audit reads",
        )

    def _stalled(self, position: int, end: int) -> ReadError:
        return ReadError(
            f"{self._topic}/{self._partition}: nothing came for {self._stall_ms / 1000:g} s"
            f" at offset {position}, and it was to be read up to {end}",
            remedy="are all of its brokers up? is a transaction open there?",
        )

    def _at(self, offset: int) -> TopicPartition:
        return TopicPartition(self._topic, self._partition, offset)


_Poll = Callable[[int], tuple[list[Message] | list[Record], int]]


def _below(end: int, messages: list[Message] | list[Record]) -> list[Message] | list[Record]:
    """Return the messages with lower offsets."""
    return [m for m in messages if (m.offset if isinstance(m, Record) else m.offset()) < end]  # type: ignore[return-value,operator]


def _time_of(message: Message | Record) -> int:
    return message.append_ms if isinstance(message, Record) else int(message.timestamp()[1])


class Wanted:
    """How many records to ask for at a time: few if they are large."""

    BYTES: Final = 4 * 1024 * 1024
    RECORDS_MAX: Final = 1024
    RECORDS_MIN: Final = 4

    def __init__(self) -> None:
        self.records = 64

    def learn(self, records: int, size_bytes: int) -> None:
        """Learn from what came last."""
        fitting = self.BYTES * records // max(1, size_bytes)
        self.records = min(self.RECORDS_MAX, max(self.RECORDS_MIN, fitting))
