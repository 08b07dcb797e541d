"""Counts of pending messages: by hour and topic, through kills, splits, passing and crashes."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from wheel_reading import PROGRESS, checkpoint, split_all

from delayd.wheel import Frame, FrameKind, counts
from delayd.wheel.counts import OTHER, TOPICS_MAX
from delayd.wheel.kills import Kill
from delayd.wheel.storage import Wheel
from replication.rank import Rank


def message(slot: int, offset: int, topic: str = "a") -> Frame:
    return Frame(1_000 * slot, 0, offset, 0, FrameKind.MESSAGE, 1_000, (topic, b"v"))


def kill(wheel: Wheel, frame: Frame, *, is_refused: bool = False) -> None:
    wheel.ids.note_kill(Rank(*frame[:3]), Kill(99, is_refused, frame.body[0]))


def test_what_is_passed_goes_though_some_of_it_was_killed(wheel: Wheel) -> None:
    """Rules: pending-counts"""
    killed, far = message(5, 1), message(72_005, 2)
    wheel.append([killed, message(5, 3), message(6, 4), far, message(72_005, 5)])
    wheel.append([message(72_006, 6)])
    kill(wheel, killed)
    kill(wheel, far)
    assert wheel.counts.hours == {0: {"a": 2}, 20: {"a": 2}}
    wheel.pass_to(6)
    assert wheel.counts.hours == {0: {"a": 1}, 20: {"a": 2}}
    split_all(wheel, 72_000_000)
    wheel.pass_to(72_000)
    assert wheel.counts.hours == {20: {"a": 2}}
    wheel.pass_to(72_006)
    assert wheel.counts.hours == {20: {"a": 1}}
    wheel.pass_to(72_007)
    assert wheel.counts.hours == {}
    assert wheel.counts.topics == {}


def test_an_hour_that_is_not_split_holds_the_floor(wheel: Wheel) -> None:
    wheel.append([message(72_000, 1), message(72_000, 2)])
    wheel.pass_to(80_000)
    assert wheel.counts.floor == 72_000 and wheel.counts.total == 2
    wheel.forget([], [20])
    wheel.pass_to(80_000)
    assert wheel.counts.floor == 80_000 and wheel.counts.total == 0


def test_what_comes_to_a_passed_slot_or_is_killed_there_is_not_counted(wheel: Wheel) -> None:
    first = message(5, 1)
    wheel.append([first, message(7, 2)])
    wheel.pass_to(6)
    wheel.append([message(5, 3)])
    kill(wheel, first)
    assert wheel.counts.hours == {0: {"a": 1}}
    wheel.pass_to(5)
    assert wheel.counts.floor == 6


def test_a_kill_takes_off_once_wherever_the_message_lies(wheel: Wheel) -> None:
    near, far = message(5, 1), message(72_000, 2)
    wheel.append([near, far, message(5, 3), message(72_000, 4)])
    for frame in (near, far):
        kill(wheel, frame)
        kill(wheel, frame, is_refused=True)
    assert wheel.counts.hours == {0: {"a": 1}, 20: {"a": 1}}


def test_ten_thousand_topics_are_a_hundred_and_the_others(wheel: Wheel, tmp_path: Path) -> None:
    """Rules: pending-counts"""
    wheel.append([message(72_000 + n % 7_200, n, f"t{n}") for n in range(10_000)])
    assert len(wheel.counts.topics) == TOPICS_MAX + 1
    assert wheel.counts.topics[OTHER] == 10_000 - TOPICS_MAX
    wheel.append([message(5, 10_000, "t0"), message(5, 10_001, "t9999")])
    assert (wheel.counts.topics["t0"], wheel.counts.hours[0]) == (2, {"t0": 1, OTHER: 1})
    checkpoint(wheel)
    known = wheel.counts.hours.copy()
    wheel.close()
    assert Wheel.open(tmp_path, partitions=2).counts.hours == known


def test_what_an_older_version_counted_by_name_is_bounded_when_it_is_opened(
    wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "TOPICS_MAX", 10**9)
    frames = [message(5, n, f"t{n}") for n in range(1_000)]
    wheel.append([*frames, message(5, 1_000, "t7")])
    kill(wheel, frames[3])
    checkpoint(wheel)
    wheel.close()
    monkeypatch.undo()
    reopened = Wheel.open(tmp_path, partitions=2)
    assert (reopened.counts.topics["t7"], reopened.counts.total) == (2, 1_000)
    assert len(reopened.counts.topics) == TOPICS_MAX + 1
    reopened.pass_to(6)
    assert reopened.counts.topics == {}


def test_what_comes_after_a_checkpoint_was_begun_is_not_in_it(wheel: Wheel, tmp_path: Path) -> None:
    """It is packed without the lock."""
    wheel.append([message(5, 1)])
    pending = wheel.begin_checkpoint(PROGRESS)
    wheel.append([message(5, 2)])
    pending.sync()
    wheel.finish_checkpoint(pending)
    wheel.close()
    assert Wheel.open(tmp_path, partitions=2).counts.hours == {0: {"a": 1}}


@pytest.mark.parametrize("seed", range(20))
def test_the_hours_are_right_whatever_has_no_name(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names come and go; what is counted by hour stays exact, and nothing falls below zero.

    Rules: pending-counts
    """
    monkeypatch.setattr(counts, "TOPICS_MAX", 2)
    chance = Random(seed)
    wheel = Wheel.open(tmp_path, partitions=2)
    alive: dict[int, Frame] = {}
    floor = 0
    for offset in range(400):
        act = chance.random()
        if act < 0.7:
            slot = chance.choice([0, 72_000]) + chance.randrange(4)
            frame = message(slot, offset, f"t{chance.randrange(6)}")
            wheel.append([frame])
            if slot >= floor:
                alive[offset] = frame
        elif act < 0.85 and alive:
            kill(wheel, alive.pop(chance.choice(list(alive))))
        elif act < 0.9:
            wheel = reopened(wheel, tmp_path)
        elif offset > 200:
            split_all(wheel, 72_000_000)
            floor = max(floor, chance.choice([1, 2, 72_001, 72_002]))
            wheel.pass_to(floor)
            alive = {at: f for at, f in alive.items() if f.due_ms >= 1_000 * floor}
        expected = Counter(frame.due_ms // 3_600_000 for frame in alive.values())
        held = wheel.counts.hours
        assert {hour: sum(topics.values()) for hour, topics in held.items()} == expected
        assert all(n > 0 for topics in held.values() for n in topics.values())
        assert wheel.counts.topics == sum(map(Counter, held.values()), Counter())
        assert len(wheel.counts.topics) <= 3 and wheel.counts.total == len(alive)
    wheel.close()


def reopened(wheel: Wheel, folder: Path) -> Wheel:
    checkpoint(wheel)
    wheel.close()
    return Wheel.open(folder, partitions=2)
