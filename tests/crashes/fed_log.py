"""The log that a wheel is fed from: record n is the same for whoever asks, whenever.

Time passes with the records, STEP_MS each. So hours come within the horizon, are delivered and are
forgotten within a few thousand records.
"""

from random import Random
from typing import Final, NamedTuple

from delayd.wheel import Frame, FrameKind
from delayd.wheel.kills import Kill
from replication.ids import IdState, LiveMessage
from replication.rank import SLOT_MS, Rank

PARTITIONS: Final = 2
LANES: Final = 4
BASE_MS: Final = 1_785_000_000_000
STEP_MS: Final = 2_000
OFFSETS_APART: Final = 3
"""Of records in one partition, about: logs have gaps."""
NAMES: Final = 400
KEEP_MS: Final = 600_000
"""How long ids are remembered after they are due."""
NEAR_MS: Final = 120_000
HOURS_MS: Final = 3 * 3_600_000
FAR_MS: Final = 12 * 3_600_000
FORGET_EVERY: Final = 50
LATE_MS: Final = 2 * FORGET_EVERY * STEP_MS
"""How long ago a late message was due: its slot may be forgotten by then, and comes again."""


class Fed(NamedTuple):
    """What is done with one record."""

    frame: Frame
    name: bytes | None
    """What is remembered of its id from now on: `state`."""
    state: IdState
    killed: Rank | None
    """The message that it kills."""
    kill: Kill
    forgets_before_ms: int | None
    """Before it is taken in all slots before this time are forgotten."""


class FedLog:
    """By seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def record(self, number: int) -> Fed:
        """The record of this number, from 0."""
        draw = Random(self.seed << 40 | number)
        now_ms = time_of(number)
        partition, offset = source_of(number)
        reach_ms = draw.choices((-LATE_MS, NEAR_MS, HOURS_MS, FAR_MS), (1, 8, 8, 4))[0]
        due_ms = now_ms + int(draw.random() * reach_ms)
        kind = draw.choices(
            (FrameKind.MESSAGE, FrameKind.PENDING_REPLY, FrameKind.CANCEL_MARKER), (86, 8, 6)
        )[0]
        if kind is not FrameKind.MESSAGE:
            due_ms = now_ms
        size = draw.choices((0, 40, 300, 6_000), (1, 4, 4, 1))[0]
        body = (b"key-%d" % number, draw.randbytes(draw.randint(0, size)))
        frame = Frame(due_ms, partition, offset, draw.randrange(LANES), kind, now_ms, body)
        name, state = None, IdState()
        if kind is FrameKind.MESSAGE and draw.random() < 0.3:
            name = b"i%d" % draw.randrange(NAMES)
            live = LiveMessage(due_ms, offset, frame.lane, draw.randbytes(16))
            state = IdState((live,), (), -1)
        killed = None
        if kind is FrameKind.CANCEL_MARKER:
            killed = Rank(now_ms + draw.randrange(HOURS_MS), partition, offset)
        return Fed(
            frame,
            name,
            state,
            killed,
            Kill(offset, draw.random() < 0.5),
            now_ms - now_ms % SLOT_MS if number and number % FORGET_EVERY == 0 else None,
        )


def time_of(number: int) -> int:
    """When the record was appended, and what time it is when it is taken in."""
    return BASE_MS + number * STEP_MS


def source_of(number: int) -> tuple[int, int]:
    """Partition and offset of a record."""
    return number % PARTITIONS, number // PARTITIONS * OFFSETS_APART + number * 7 % OFFSETS_APART


def number_of(partition: int, offset: int) -> int:
    """The inverse."""
    return offset // OFFSETS_APART * PARTITIONS + partition


def offsets_after(count: int) -> tuple[int, ...]:
    """1 + the last offset of the first `count` records, by partition."""
    offsets = [0] * PARTITIONS
    for number in range(max(0, count - PARTITIONS), count):
        partition, offset = source_of(number)
        offsets[partition] = offset + 1
    return tuple(offsets)


def count_before(offsets: tuple[int, ...]) -> int:
    """The inverse: how many records lie below these offsets."""
    taken = [(offset + OFFSETS_APART - 1) // OFFSETS_APART for offset in offsets]
    count = sum(taken)
    assert offsets_after(count) == offsets, f"{offsets} are behind no record"
    return count


def answers_before(time_ms: int) -> tuple[int, ...]:
    """Of records before this time: 1 + the highest offset, by partition."""
    return offsets_after(max(0, -(-(time_ms - BASE_MS) // STEP_MS)))
