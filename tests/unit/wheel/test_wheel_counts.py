"""Counts of pending messages: by hour and topic, through kills, splits, passing and crashes."""

from wheel_reading import split_all

from delayd.wheel import Frame, FrameKind
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
