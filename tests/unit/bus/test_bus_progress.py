"""When a reader stands still, though there is something to read."""

from collections.abc import Mapping
from contextlib import closing

import pytest
from manual_clock import ManualClock

from delayd.bus import Consumer, Position, Record
from delayd.bus.guarded import GuardedConsumer
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.progress import PROGRESS_CHECK_MS, STALL_MS, Progress, StalledError

TOPIC = "buffer"


def test_a_reader_that_stands_before_an_end_is_stalled_after_a_while() -> None:
    progress = Progress(TOPIC, 0)
    assert progress.note({0: 5, 1: 7}, {0: 5, 1: 9}, 0) is None
    assert progress.note({0: 5, 1: 7}, {0: 5, 1: 9}, STALL_MS - 1) is None
    failure = progress.note({0: 5, 1: 7}, {0: 5, 1: 11}, STALL_MS)
    assert failure is not None and "partition 1 at 7 of 11" in str(failure)


def test_one_that_reads_on_is_not_however_far_the_end_is() -> None:
    progress = Progress(TOPIC, 0)
    for at in range(10):
        assert progress.note({0: at}, {0: 1_000}, at * STALL_MS) is None


def test_one_that_was_at_the_end_meanwhile_is_not() -> None:
    progress = Progress(TOPIC, 0)
    assert progress.note({0: 5}, {0: 6}, 0) is None
    assert progress.note({0: 6}, {0: 6}, 1_000) is None
    assert progress.note({0: 6}, {0: 7}, STALL_MS) is None


def test_a_partition_that_gave_no_end_says_nothing() -> None:
    progress = Progress(TOPIC, 0)
    assert progress.note({0: 5}, {0: 6}, 0) is None
    assert progress.note({}, {}, STALL_MS) is None
    assert progress.note({0: 5}, {0: 6}, 2 * STALL_MS) is None


def test_ends_are_asked_for_once_a_while_whatever_is_answered() -> None:
    progress = Progress(TOPIC, 0)
    assert not progress.is_due(PROGRESS_CHECK_MS - 1) and progress.is_due(PROGRESS_CHECK_MS)
    progress.put_off(PROGRESS_CHECK_MS)
    assert not progress.is_due(2 * PROGRESS_CHECK_MS - 1)


class Deaf:
    """A reader that hears nothing more after some records, until it is assigned anew."""

    def __init__(self, consumer: Consumer, hears: int) -> None:
        self._consumer = consumer
        self._hears = hears
        self.assigned: list[dict[int, Position]] = []

    def assign(self, positions: Mapping[int, Position]) -> None:
        self.assigned.append(dict(positions))
        self._consumer.assign(positions)

    def poll(self, records_max: int, timeout_ms: int) -> list[Record]:
        if len(self.assigned) == 1 and self._hears == 0:
            raise StalledError("deaf")
        found = self._consumer.poll(min(records_max, max(self._hears, 1)), timeout_ms)
        self._hears = max(0, self._hears - len(found))
        return list(found)

    def position(self, partition: int) -> int:
        return self._consumer.position(partition)

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.parametrize("hears", [0, 1, 3])
def test_a_stalled_reader_is_assigned_anew_where_it_stands(hears: int) -> None:
    kafka = MemoryKafka(ManualClock())
    kafka.create_topic(TOPIC, 1, {"message.timestamp.type": "LogAppendTime"})
    for number in range(5):
        kafka.append(TOPIC, 0, None, b"%d" % number)
    deaf = Deaf(MemoryBus(kafka).consumer(TOPIC), hears)
    with closing(GuardedConsumer(TOPIC, deaf, lambda: pytest.fail("no batch"))) as consumer:
        consumer.assign({0: Position(0)})
        read: list[Record] = []
        for _ in range(20):
            read += consumer.poll(10, 0)
    assert [record.offset for record in read] == list(range(5))
    assert [list(places) for places in deaf.assigned] == [[0], [0]]
    assert deaf.assigned[1][0].offset == hears
    if hears:  # the log's history is compared with what was read last
        assert deaf.assigned[1][0].leader_epoch == read[hears - 1].leader_epoch
