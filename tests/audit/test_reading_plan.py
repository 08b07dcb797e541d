"""delayd.audit.reading: what is read by whom, with which log time, and what stays secret."""

import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.audit.reading.access import Access
from delayd.audit.reading.log_time import QUESTIONS_MAX, TAIL_OFFSETS, LogTimes, newest_before
from delayd.audit.reading.partition import Wanted
from delayd.audit.reading.ranges import OFFSETS_MAX, OFFSETS_MIN, tasks_of
from delayd.audit.spans import Span
from delayd.errors import ConfigError
from replication.log_time import log_time_after

LENGTHS = st.lists(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 2_000_000)), max_size=4), max_size=6
)


@given(LENGTHS, st.integers(1, 64))
def test_tasks_cover_each_offset_once_and_are_not_too_long(
    lengths: list[list[tuple[int, int]]], cores: int
) -> None:
    spans = [
        Span(f"t{n}", tuple(at for at, _ in some), tuple(at + more for at, more in some))
        for n, some in enumerate(lengths)
    ]

    tasks = tasks_of(spans, cores)

    ranges = [one for task in tasks for one in task]
    for span in spans:
        for partition, (start, end) in enumerate(zip(span.starts, span.ends, strict=True)):
            own = sorted(r for r in ranges if (r.topic, r.partition) == (span.topic, partition))
            assert all(r.first == start for r in own)
            edges = [start, *(edge for r in own for edge in (r.start, r.end)), end]
            assert edges[::2] == edges[1::2]
    assert all(one.start < one.end for one in ranges)
    assert all(sum(one.end - one.start for one in task) <= OFFSETS_MAX for task in tasks)


def test_one_partition_keeps_all_cores_busy() -> None:
    assert len(tasks_of([Span("t", (0,), (10 * OFFSETS_MIN,))], cores=2)) >= 8


def test_many_small_topics_are_few_tasks() -> None:
    spans = [Span(f"t{n}", (5, 7), (9, 7)) for n in range(1000)]

    tasks = tasks_of(spans, cores=2)

    assert [len(task) for task in tasks] == [256, 256, 256, 232]


class _Log:
    """A log in memory: by offset, its timestamp and if it is a committed record."""

    def __init__(self, entries: list[tuple[int, bool]]) -> None:
        self.entries = entries
        self.questions = 0
        self.read = 0

    def largest_ms(self, start: int, end: int) -> int | None:
        self.read += end - start
        return max((ms for ms, seen in self.entries[start:end] if seen), default=None)

    def first_ms(self, start: int, end: int) -> int | None:
        return next((ms for ms, seen in self.entries[start:end] if seen), None)

    def first_since(self, timestamp_ms: int) -> int | None:
        self.questions += 1
        return next((n for n, (ms, _) in enumerate(self.entries) if ms >= timestamp_ms), None)


ENTRIES = st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=40)


@given(ENTRIES, st.integers(0, 40), st.integers(0, 40), st.integers(1, 9))
def test_log_time_is_the_largest_of_the_records_before(
    entries: list[tuple[int, bool]], first: int, offset: int, tail: int
) -> None:
    offset = min(offset, len(entries))
    first = min(first, offset)

    log_ms = newest_before(_Log(entries), first, offset, tail)

    assert log_ms == max((ms for ms, seen in entries[first:offset] if seen), default=0)


def test_a_clock_that_does_not_step_back_costs_one_question_and_a_short_read() -> None:
    log = _Log([(1000 + n // 3, n % 7 != 3) for n in range(20_000)])

    assert newest_before(log, 0, 15_000) == 1000 + 14_999 // 3
    assert (log.questions, log.read) == (1, TAIL_OFFSETS)


def test_times_in_any_order_cost_a_bounded_number_of_questions() -> None:
    log = _Log([(n, True) for n in range(5_000)] + [(1, True)] * 1_000)

    assert newest_before(log, 0, 6_000) == 4_999
    assert log.questions == QUESTIONS_MAX


TIMES = st.lists(st.integers(1, 90), max_size=60)


@given(
    TIMES,
    st.integers(0, 60),
    st.lists(st.integers(1, 9), min_size=60),
    st.sampled_from([None, 0, 1, 5, 20]),
)
def test_records_are_judged_as_of_the_times_that_nodes_judge_them_by(
    times: list[int], start: int, sizes: list[int], steady_from: int | None
) -> None:
    """docs/design/frontier.md, Log time; a range begins anywhere and is read in batches.

    Rules: log-time-at-a-switch
    """
    state, expected = (0, 0), []
    for offset, append_ms in enumerate(times):
        is_steady = steady_from is not None and offset >= steady_from
        state = log_time_after(*state, append_ms, 2 if is_steady else 0)
        expected.append(max(append_ms, state[0]))
    start = min(start, len(times))
    floor_ms = None
    if steady_from is not None and steady_from < start:
        floor_ms = max(times[:steady_from], default=0)
    judged = LogTimes(
        max(times[:start], default=0),
        2,
        steady_from,
        lambda offset: times[steady_from or 0 : offset],
        floor_ms,
    )
    found: list[int] = []
    for size in sizes:
        at = start + len(found)
        if batch := times[at : at + size]:
            offsets = np.arange(at, at + len(batch))
            found += judged.take(np.array(batch, np.int64), offsets).tolist()

    assert found == expected[start:]


def test_nothing_is_read_again_while_clocks_step_back_by_little() -> None:
    def never(offset: int) -> list[int]:
        raise AssertionError(f"reads what is before {offset}")

    judged = LogTimes(1_000_000, 100, 0, never)
    times = np.array([1_000_001, 999_950, 5_000_000, 5_000_001], np.int64)
    assert judged.take(times, np.arange(7, 11)).tolist() == times.tolist()


def test_fewer_records_are_asked_for_at_a_time_if_they_are_large() -> None:
    wanted = Wanted()

    wanted.learn(64, 64 * 300)
    assert wanted.records == Wanted.RECORDS_MAX
    wanted.learn(100, 100 * 1024 * 1024)
    assert wanted.records == 4


def test_only_their_owner_can_read_how_to_get_in(tmp_path: Path) -> None:
    access = Access("broker:9092", {"sasl.password": "hush"}, "c", "the cluster's key")
    file = tmp_path / "access"
    file.touch(0o644)

    assert Access.read(access.write(file)) == access
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "hush" not in repr(access) and "key" not in repr(access)


def test_a_setting_of_the_user_cannot_make_aborted_records_visible() -> None:
    with pytest.raises(ConfigError, match=r"isolation\.level"):
        Access("broker:9092", {"consumer.isolation.level": "read_uncommitted"})
