"""Reading partitions with kafka-python: its fetcher, without its group, commits and resets.

Not here: what a record means; where positions are kept.

Invariants:
- a record is handed out at most once per assignment, in offset order, and `position()` never
  passes a record that was not handed out;
- no position is ever reset: what the log does not hold is an error;
- a position with a leader epoch is compared with the log's history before anything is read;
- a failure is remembered: every later poll raises it again, so no record behind it gets out.
"""

from collections.abc import Mapping
from threading import Event
from typing import Any, Final, NoReturn

from delayd.bus import Position, Record
from delayd.bus.existence import Existence
from delayd.bus.kafka_python.connections import close_driven, open_client, was_answered
from delayd.bus.kafka_python.failures import told
from delayd.bus.kafka_python.library import (
    OffsetAndMetadata,
    SubscriptionState,
    TopicPartition,
    errors,
)
from delayd.bus.kafka_python.records import CommittedFetcher
from delayd.bus.kafka_python.settings import Properties
from delayd.errors import BufferPositionError, ConsumerError, DelaydError
from delayd.runtime.clock import SystemClock

IDLE_MS: Final = 20
"""Pause while there is nobody to ask: no leader known, or no broker reached."""

_OUT_OF_LOG: Final = (
    errors.OffsetOutOfRangeError,
    errors.LogTruncationError,
    errors.NoOffsetForPartitionError,
)


class KafkaPythonConsumer:
    """One topic's partitions, read from given positions; see the port `Consumer`."""

    def __init__(self, topic: str, properties: Properties) -> None:
        self._topic = topic
        self._properties = properties
        self._clock = SystemClock()
        self._client: Any = None
        self._fetcher: Any = None
        self._positions: Any = None
        self._numbers: frozenset[int] = frozenset()
        self._failure: DelaydError | None = None
        self._existence = Existence(topic, 0)
        self._asked: Any = None

    def assign(self, positions: Mapping[int, Position]) -> None:
        """Read on from `positions`, with connections of its own for each assignment.

        Positions that carry a leader epoch are compared with the log's history by the first polls,
        which hand out nothing before.
        """
        assert all(p.offset >= 0 for p in positions.values()), f"not positions: {positions}"
        self.close()
        self._failure = None
        self._asked = None
        self._existence = Existence(self._topic, self._clock.monotonic_ms())
        self._numbers = frozenset(positions)
        self._positions = SubscriptionState(offset_reset_strategy="none")
        self._positions.assign_from_user([self._place(number) for number in positions])
        for number, position in positions.items():
            place = self._place(number)
            self._positions.seek(
                place, OffsetAndMetadata(position.offset, "", position.leader_epoch)
            )
            self._positions.request_position_validation(place)
        self._client = open_client(self._properties)
        self._fetcher = CommittedFetcher(self._client, self._positions, **self._properties)
        self._client._net.start()
        self._client.cluster.set_topics([self._topic])

    def poll(self, records_max: int, timeout_ms: int) -> list[Record]:
        """See the port. A time-out of 0 never looks whether the topic still exists."""
        assert self._client is not None, "assign before polling"
        if self._failure is not None:
            raise self._failure
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        left_ms = timeout_ms
        while True:
            records, idle = self._fetch(records_max, left_ms)
            if records or timeout_ms == 0:
                return records
            self._check_existence()
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return records
            if idle:
                Event().wait(min(IDLE_MS, left_ms) / 1000)

    def position(self, partition: int) -> int:
        """See the port; kafka-python counts what `poll` handed out or skipped."""
        assert self._client is not None, "assign before asking for positions"
        offset: int = self._positions.position(self._place(partition)).offset
        return offset

    def close(self) -> None:
        if self._client is not None:
            close_driven(self._client)
            self._client = None

    def _place(self, number: int) -> Any:
        return TopicPartition(self._topic, number)

    def _fetch(self, records_max: int, timeout_ms: int) -> tuple[list[Record], bool]:
        try:
            self._fetcher.maybe_validate_positions()
            self._fetcher.validate_offsets_if_needed()
            answers, idle = self._fetcher.fetch_records(records_max, timeout_ms=timeout_ms)
        except _OUT_OF_LOG as error:
            self._fail(
                BufferPositionError(
                    f"{self._topic} cannot be read from where this node was: {told(error)}",
                    remedy="the log was trimmed, truncated or replaced behind this position: "
                    "rebuild this node's state from a peer or an export",
                )
            )
        except errors.RetriableError:
            return [], True
        except errors.KafkaError as error:
            self._fail(ConsumerError(f"reading {self._topic} failed: {told(error)}"))
        return [record for records in answers.values() for record in records], idle

    def _check_existence(self) -> None:
        """Ask, now and then, if the partitions exist; a later poll reads the answer."""
        now_ms = self._clock.monotonic_ms()
        if self._asked is None:
            if self._existence.is_due(now_ms):
                self._asked = self._client.cluster.request_update()
            return
        if not self._asked.is_done:
            return
        told_nothing = not was_answered(self._asked)
        self._asked = None
        self._existence.put_off(now_ms)
        if told_nothing:
            return  # no broker answers: that says nothing about the topic
        if self._topic in self._client.cluster.unauthorized_topics:
            self._fail(ConsumerError(f"reading {self._topic} failed: TOPIC_AUTHORIZATION_FAILED"))
        missing = self._numbers - (self._client.cluster.partitions_for_topic(self._topic) or set())
        if failure := self._existence.note(missing, now_ms):
            self._fail(failure)

    def _fail(self, failure: DelaydError) -> NoReturn:
        self._failure = failure
        raise failure
