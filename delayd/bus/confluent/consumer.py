"""Reading partitions with librdkafka: the ingest hot path.

Not here: what a record means; where positions are kept.

Invariants:
- a record is handed out at most once per assignment, in offset order, and `position()` never
  passes a record that was not handed out;
- a failure is remembered: every later poll raises it again, so no record behind it gets out;
- a batch that it cannot read is a BatchError: `delayd.bus.guarded` has another reader look at it;
- a client that does not read on is a StalledError: `delayd.bus.guarded` assigns anew.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import Consumer as Client

from delayd.bus import UNREADABLE_HEADERS, Position, Record
from delayd.bus.confluent.flat_reading import (
    FlatFault,
    FlatMessages,
    FlatReader,
    open_flat,
)
from delayd.bus.confluent.settings import Properties
from delayd.bus.existence import Existence
from delayd.bus.progress import Progress
from delayd.bus.unreadable import BatchError
from delayd.errors import BufferPositionError, ConsumerError, DelaydError
from delayd.runtime.clock import SystemClock
from delayd.runtime.native import Library

QUESTION_WAIT_MS_MAX: Final = 500
"""Longest part of a poll's time-out that a question about the partitions may take."""

_OUT_OF_LOG: Final = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._LOG_TRUNCATION,
        KafkaError._NO_OFFSET,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
_TRANSIENT: Final = frozenset(
    {
        KafkaError._PARTITION_EOF,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._WAIT_CACHE,
        # The coordinator of a group that no reader joins: its errors do not matter here.
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)
_UNKNOWN_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
_UNREAD_BATCH: Final = frozenset(
    {
        KafkaError._BAD_COMPRESSION,
        KafkaError._BAD_MSG,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError._UNDERFLOW,
    }
)
"""It cannot be expanded within librdkafka's limits, or is not laid out as it should be."""


class ConfluentConsumer:
    """One topic's partitions, read from given positions; see the port `Consumer`."""

    def __init__(self, topic: str, properties: Properties, library: Library | None = None) -> None:
        """`library`: it reads in C, and hands out flat records (`delayd.bus.flat`)."""
        self._topic = topic
        self._properties = properties
        self._library = library
        self._flat: FlatReader | None = None
        self._clock = SystemClock()
        self._client: Client | None = None
        self._start_offsets: dict[int, int] = {}
        self._failure: DelaydError | None = None
        self._is_drained = False
        """The last poll gave all that was there: the next one waits at once."""
        self._existence = Existence(topic, 0)
        self._progress = Progress(topic, 0)

    def assign(self, positions: Mapping[int, Position]) -> None:
        """Read on from `positions`. The leader epochs are checked against the log's history.

        Every assignment gets a client of its own: librdkafka 2.x compares leader epochs only when
        it meets a partition for the first time, so a re-used one would skip the check.
        """
        assert all(p.offset >= 0 for p in positions.values()), f"not positions: {positions}"
        self.close()
        self._failure = None
        self._existence = Existence(self._topic, self._clock.monotonic_ms())
        self._progress = Progress(self._topic, self._clock.monotonic_ms())
        self._start_offsets = {number: p.offset for number, p in positions.items()}
        self._flat = None if self._library is None else open_flat(self._library, self._properties)
        self._client = Client(self._properties) if self._flat is None else self._flat.client
        self._client.assign(
            [
                TopicPartition(self._topic, number, p.offset, leader_epoch=p.leader_epoch)
                for number, p in positions.items()
            ]
        )

    def poll(self, records_max: int, timeout_ms: int) -> Sequence[Record]:
        """See the port. A time-out of 0 never asks about the partitions."""
        assert self._client is not None, "assign before polling"
        if self._failure is not None:
            raise self._failure
        try:
            is_waiting = self._is_drained and timeout_ms > 0
            messages = [] if is_waiting else self._consume(records_max, 0)
            if not messages and timeout_ms > 0:
                timeout_ms -= self._check_existence(timeout_ms)
                timeout_ms -= self._check_progress(timeout_ms)
                messages = self._consume(records_max, timeout_ms)
            self._is_drained = len(messages) < records_max
        except KafkaException as error:
            self._fail(_consumer_error(self._topic, error.args[0]))
        if isinstance(messages, FlatMessages):
            for message in messages.faults:
                self._judge(message)
            return messages.records or []
        return self._records(messages) if messages else []

    def position(self, partition: int) -> int:
        """See the port; from librdkafka, which counts what `poll` handed out or skipped."""
        assert self._client is not None, "assign before asking for positions"
        offset = self._client.position([TopicPartition(self._topic, partition)])[0].offset
        return max(offset, self._start_offsets[partition])

    def close(self) -> None:
        if self._flat is not None:
            self._flat.close()
        elif self._client is not None:
            self._client.close()
        self._client = self._flat = None

    def _consume(self, messages_max: int, timeout_ms: int) -> list[Message] | FlatMessages:
        """Wait for one message; return what is there then."""
        if self._flat is not None:
            return self._flat.consume(messages_max, timeout_ms)
        assert self._client is not None, "only poll calls this"
        if timeout_ms <= 0:
            return self._client.consume(messages_max, 0)
        # librdkafka would wait until a whole batch is there.
        messages = self._client.consume(1, timeout_ms / 1000)
        if messages and messages_max > 1:
            messages += self._client.consume(messages_max - 1, 0)
        return messages

    def _records(self, messages: list[Message]) -> list[Record]:
        faults = [message for message in messages if message.error() is not None]
        if faults:
            for message in faults:
                self._judge(message)
            messages = [message for message in messages if message.error() is None]
        records: list[Record] = []
        while len(records) < len(messages):
            try:
                _append_records(records, messages[len(records) :])
            except (SystemError, UnicodeDecodeError):
                # The message now holds half-built headers: do not ask it for them again.
                records.append(_record_without_headers(messages[len(records)]))
        return records

    def _judge(self, message: Message | FlatFault) -> None:
        error = message.error()
        assert error is not None, "only messages that carry an error come here"
        code = error.code()
        if code in _OUT_OF_LOG:
            self._fail(
                BufferPositionError(
                    f"{self._topic}/{message.partition()} cannot be read from offset "
                    f"{message.offset()}: {error.name()}, {error.str()}",
                    remedy="the log was trimmed, truncated or replaced behind this position: "
                    "rebuild this node's state from a peer or an export",
                )
            )
        partition, offset = message.partition(), message.offset()
        if code in _UNREAD_BATCH and partition is not None and offset is not None and offset >= 0:
            said = f"{_consumer_error(self._topic, error)}, partition {partition} offset {offset}"
            self._fail(BatchError(said, partition=partition, offset=offset))
        if code not in _TRANSIENT and not error.retriable():
            self._fail(_consumer_error(self._topic, error))

    def _check_existence(self, timeout_ms: int) -> int:
        """Ask now and then whether the partitions exist; return how many ms that took."""
        assert self._client is not None, "only poll calls this"
        now_ms = self._clock.monotonic_ms()
        if not self._existence.is_due(now_ms):
            return 0
        wait_ms = min(timeout_ms, QUESTION_WAIT_MS_MAX)
        self._existence.put_off(now_ms)
        try:
            seen = self._client.list_topics(self._topic, timeout=wait_ms / 1000)
        except KafkaException:
            return wait_ms  # no broker answers: that says nothing about the topic
        topic = seen.topics[self._topic]
        if topic.error is not None and topic.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._fail(_consumer_error(self._topic, topic.error))  # a fetch would never say so
        if topic.error is not None and topic.error.code() not in _UNKNOWN_TOPIC:
            return min(timeout_ms, self._clock.monotonic_ms() - now_ms)
        missing = self._start_offsets.keys() - topic.partitions.keys()
        if failure := self._existence.note(missing, now_ms):
            self._fail(failure)
        return min(timeout_ms, self._clock.monotonic_ms() - now_ms)

    def _check_progress(self, timeout_ms: int) -> int:
        """Ask now and then for the partitions' ends; return how many ms that took."""
        assert self._client is not None, "only poll calls this"
        now_ms = self._clock.monotonic_ms()
        if timeout_ms <= 0 or not self._progress.is_due(now_ms):
            return 0
        wait_ms = min(timeout_ms, QUESTION_WAIT_MS_MAX)
        self._progress.put_off(now_ms)
        places = [TopicPartition(self._topic, n, OFFSET_END) for n in self._start_offsets]
        try:
            # Before which a reader of committed records gets to, as this client is one.
            answers = self._client.offsets_for_times(places, timeout=wait_ms / 1000)
        except KafkaException:
            return wait_ms  # no broker answers
        ends = {at.partition: at.offset for at in answers if at.error is None and at.offset >= 0}
        positions = {partition: self.position(partition) for partition in ends}
        if failure := self._progress.note(positions, ends, self._clock.monotonic_ms()):
            self._fail(failure)
        return min(timeout_ms, self._clock.monotonic_ms() - now_ms)

    def _fail(self, failure: DelaydError) -> None:
        self._failure = failure
        raise failure


_new = tuple.__new__
"""Building the named tuple without its Python-level `__new__` halves the cost of a record."""


def _append_records(records: list[Record], messages: list[Message]) -> None:
    # An exception leaves in `records` whatever came before the message that it is about.
    append = records.append
    for m in messages:
        epoch = m.leader_epoch()
        append(
            _new(
                Record,
                (
                    m.partition(),
                    m.offset(),
                    -1 if epoch is None else epoch,
                    m.timestamp()[1],
                    m.key(),
                    m.value(),
                    m.headers() or [],
                ),
            )
        )


def _record_without_headers(message: Message) -> Record:
    partition, offset, epoch = message.partition(), message.offset(), message.leader_epoch()
    assert partition is not None and offset is not None, "a record has a place in the log"
    return Record(
        partition,
        offset,
        -1 if epoch is None else epoch,
        message.timestamp()[1],
        message.key(),
        message.value(),
        list(UNREADABLE_HEADERS),
    )


def _consumer_error(topic: str, error: KafkaError) -> ConsumerError:
    return ConsumerError(f"reading {topic} failed: {error.name()}, {error.str()}")
