"""The consumer twin.

Not here: waiting, unless the brokers were built with `real_time`.

Invariants: as of the port; partitions take turns in a fixed order, so that runs repeat.
"""

from collections.abc import Mapping

from delayd.bus import Position, Record
from delayd.bus.memory.kafka import MemoryKafka
from delayd.bus.memory.link import Link
from delayd.errors import BufferPositionError, ConsumerError, DelaydError


class MemoryConsumer:
    """One topic's partitions, read from given positions; see the port `Consumer`."""

    def __init__(
        self, kafka: MemoryKafka, link: Link, topic: str, *, is_coarse: bool = False
    ) -> None:
        """`is_coarse`: it takes batches as librdkafka does, and needs a `GuardedConsumer`."""
        self._kafka = kafka
        self._link = link
        self._topic = topic
        self._is_coarse = is_coarse
        self._offsets: dict[int, int] = {}
        self._unchecked: dict[int, Position] = {}
        self._metadata = 0
        self._turn = 0
        self._is_cut = False
        """It goes on where it stopped, because librdkafka has fetched the rest already."""
        self._assigned = False
        self._failure: DelaydError | None = None

    def assign(self, positions: Mapping[int, Position]) -> None:
        """See the port; the positions are checked by the first poll that reaches a broker."""
        assert all(p.offset >= 0 for p in positions.values()), f"not positions: {positions}"
        self._offsets = {number: p.offset for number, p in sorted(positions.items())}
        self._metadata = 0 if self._link.meets_zombies else self._kafka.isolations_count
        self._unchecked = dict(positions)
        self._is_cut = False
        self._failure = None
        self._assigned = True

    def poll(self, records_max: int, timeout_ms: int) -> list[Record]:
        """See the port; returns at once unless the brokers were built with `real_time`."""
        assert self._assigned, "assign before polling"
        with self._kafka.changed:
            before = dict(self._offsets)
            records = self._read(records_max)
            if not records and self._kafka.real_time and timeout_ms > 0 and before == self._offsets:
                self._kafka.changed.wait(timeout_ms / 1000)
                records = self._read(records_max)
            return records

    def position(self, partition: int) -> int:
        """See the port."""
        assert self._assigned, "assign before asking for positions"
        return self._offsets[partition]

    def close(self) -> None:
        """See the port."""
        self._assigned = False

    def _read(self, records_max: int) -> list[Record]:
        if self._failure is not None:
            raise self._failure
        if not (self._link.up or self._is_cut) or not self._offsets:
            return []
        self._check()
        if self._is_coarse and records_max > 1:
            records_max -= 1  # An event takes its place, such as the end of a partition.
        numbers = list(self._offsets)
        if not self._is_cut:
            self._turn = (self._turn + 1) % len(numbers)
        records: list[Record] = []
        self._is_cut = False
        for number in numbers[self._turn :] + numbers[: self._turn]:
            left = records_max - len(records)
            log = self._kafka.served_log(self._topic, number, self._metadata)
            found, self._offsets[number] = log.read(
                self._offsets[number], left, coarsely=self._is_coarse
            )
            records += found
            if self._is_coarse and len(records) == records_max:
                self._is_cut, self._turn = True, numbers.index(number)
                break
        return records

    def _check(self) -> None:
        topic = self._kafka.topics.get(self._topic)
        for number, offset in self._offsets.items():
            if topic is None or number >= len(topic.partitions):
                self._fail(ConsumerError(f"{self._topic} has no partition {number}"))
                return
            position = self._unchecked.get(number)
            log = self._kafka.served_log(self._topic, number, self._metadata)
            if not (log.reaches(offset) if position is None else log.holds(position)):
                where = position or Position(offset)
                self._fail(
                    BufferPositionError(
                        f"{self._topic}/{number} cannot be read from {where}",
                        remedy="rebuild this node's state from a peer or an export",
                    )
                )
        self._unchecked.clear()

    def _fail(self, failure: DelaydError) -> None:
        self._failure = failure
        raise failure
