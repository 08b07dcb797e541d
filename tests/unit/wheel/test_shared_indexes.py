"""One index of a slot for all who use it at a time. Source: delayd/wheel/shared_indexes.py."""

from pathlib import Path

import pytest
from wheel_disks import flip
from wheel_reading import checkpoint

from delayd.errors import CorruptionError
from delayd.wheel import Frame, FrameKind
from delayd.wheel.shared_indexes import KEPT, SMALL_FRAMES
from delayd.wheel.slot_index import SlotIndex
from delayd.wheel.storage import Wheel


def store(wheel: Wheel, slot: int, count: int = 3) -> None:
    wheel.append(
        [
            Frame(slot * 1_000, 0, slot * 100_000 + n, 0, FrameKind.MESSAGE, 1, (b"v",))
            for n in range(count)
        ]
    )


def index_of(wheel: Wheel, slot: int, *, keeps: bool = True) -> SlotIndex:
    index = wheel.index(slot, keeps=keeps)
    assert index is not None
    return index


def filled(wheel: Wheel, slot: int, *, keeps: bool = True) -> None:
    """Use an index, and give it up."""
    index = index_of(wheel, slot, keeps=keeps)
    while index.advance(SMALL_FRAMES):
        pass


def test_a_slot_is_scanned_once_for_all_who_use_it(wheel: Wheel) -> None:
    store(wheel, 5)
    first = index_of(wheel, 5, keeps=False)
    first.advance(10)
    second = index_of(wheel, 5, keeps=False)
    assert second is first and second.is_complete


def test_a_small_index_is_kept_for_who_comes_next_and_no_longer(wheel: Wheel) -> None:
    for slot in range(5, 6 + KEPT):
        store(wheel, slot)
    filled(wheel, 5)
    assert index_of(wheel, 5).is_complete
    for slot in range(6, 6 + KEPT):
        filled(wheel, slot)
    assert not index_of(wheel, 5).is_complete, "others took its place"


def test_a_large_index_and_one_of_a_single_shard_are_not_kept(wheel: Wheel) -> None:
    store(wheel, 5, SMALL_FRAMES + 1)
    filled(wheel, 5)
    assert not index_of(wheel, 5).is_complete
    store(wheel, 6)
    filled(wheel, 6, keeps=False)
    assert not index_of(wheel, 6).is_complete


def test_the_index_of_a_forgotten_slot_is_nobodys_any_more(wheel: Wheel) -> None:
    store(wheel, 5)
    old = index_of(wheel, 5)
    wheel.forget([5])
    assert wheel.index(5) is None
    store(wheel, 5, 2)
    assert index_of(wheel, 5) is not old


def test_an_index_that_found_damage_is_not_shared(wheel: Wheel, tmp_path: Path) -> None:
    store(wheel, 5)
    checkpoint(wheel)
    path = next(path for path in (tmp_path / "slots").rglob("*") if path.is_file())
    flip(path, 60, 2)
    broken = index_of(wheel, 5)
    with pytest.raises(CorruptionError):
        broken.advance(10)
    assert not wheel.is_current(broken), "nor is it used by who has it already"
    again = index_of(wheel, 5)
    assert again is not broken
    with pytest.raises(CorruptionError):
        again.advance(10)


def test_an_index_of_other_frames_than_its_line_says_is_of_no_use_to_anybody(wheel: Wheel) -> None:
    """It looks complete."""
    store(wheel, 5)
    checkpoint(wheel)
    mine, others = index_of(wheel, 5), index_of(wheel, 5)
    mine.slot.digest += 1
    with pytest.raises(CorruptionError):
        mine.advance(10)
    assert others.is_complete and not wheel.is_current(others)
