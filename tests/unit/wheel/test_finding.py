"""Finding messages of a wheel by their ranks: each in any order, and many in the order of the file
without a walk through it for each.

Source: docs/design/rescheduling.md.
"""

from random import Random

import pytest
from wheel_reading import checkpoint

from delayd.wheel import Frame, FrameKind, reader
from delayd.wheel.storage import Wheel
from replication.rank import Rank

HOUR_MS = 3_600_000
FIRST_MS = 30 * HOUR_MS
MESSAGES = 600
PARTITIONS = 2


@pytest.fixture
def messages(wheel: Wheel) -> list[Frame]:
    """Of two far hours and of a slot: in files, and in their tails."""
    made: list[Frame] = []
    for number in range(MESSAGES):
        due_ms = (FIRST_MS, FIRST_MS + HOUR_MS, 5_000)[number % 3] + number * 7 % 900
        body = (b"v" * (number * 13 % 700),)
        place = (number // 3 % PARTITIONS, number)
        made.append(Frame(due_ms, *place, number % 64, FrameKind.MESSAGE, 1_000, body))
        wheel.append(made[-1:])
        if number == MESSAGES * 3 // 4:
            checkpoint(wheel)
    return made


def found(wheel: Wheel, frame: Frame) -> Frame | None:
    return wheel.finder.find(frame.lane, Rank(*frame[:3]))


@pytest.mark.parametrize("order", ["stored", "backwards", "shuffled"])
def test_each_message_is_found_in_any_order(
    wheel: Wheel, messages: list[Frame], order: str
) -> None:
    asked = [*messages]
    if order == "backwards":
        asked.reverse()
    elif order == "shuffled":
        Random(1).shuffle(asked)
    assert [found(wheel, each) for each in asked] == asked
    assert [found(wheel, each) for each in asked[:20] * 2] == asked[:20] * 2


def test_what_is_not_there_is_not_found_and_disturbs_nothing(
    wheel: Wheel, messages: list[Frame]
) -> None:
    for each in messages[::50]:
        assert found(wheel, each) == each
        assert found(wheel, each._replace(offset=MESSAGES + each.offset)) is None
        assert found(wheel, each._replace(lane=63 - each.lane)) is None
        assert found(wheel, each._replace(due_ms=FIRST_MS * 9)) is None


def test_messages_in_the_order_of_the_file_are_found_where_the_last_one_was(
    wheel: Wheel, messages: list[Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk through the file for each would make a job of a group take days."""
    monkeypatch.setattr(reader, "FIND_BYTES", 1_000)
    read_bytes = 0
    bytes_at = reader.Reader.bytes_at

    def counted(self: reader.Reader, *where: object) -> bytes:
        nonlocal read_bytes
        data = bytes_at(self, *where)  # type: ignore[arg-type]
        read_bytes += len(data)
        return data

    monkeypatch.setattr(reader.Reader, "bytes_at", counted)
    assert [found(wheel, each) for each in messages] == messages
    stored = sum(len(each.body[0]) + 60 for each in messages)
    assert read_bytes < 8 * stored, "of 600 messages a walk for each reads 100 times as much"


def test_a_slot_that_was_forgotten_and_made_anew_is_looked_through_from_its_start(
    wheel: Wheel,
) -> None:
    """Its file has the name of the one before."""

    def stored(offset: int, size_bytes: int) -> Frame:
        body = (b"v" * size_bytes,)
        frame = Frame(5_000, 0, offset, 1, FrameKind.MESSAGE, 1_000, body)
        wheel.append([frame])
        return frame

    before = [stored(0, 10), stored(1, 10), stored(2, 300)]
    assert found(wheel, before[1]) == before[1]
    wheel.forget([5])
    after = [stored(3, 20), stored(4, 500)]
    assert [found(wheel, each) for each in reversed(after)] == after[::-1]
    assert found(wheel, before[1]) is None
