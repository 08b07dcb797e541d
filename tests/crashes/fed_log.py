"""The log that feeds a wheel: record n depends on the seed and on n alone.

Each record takes STEP_MS. So within a few thousand records hours come within the horizon, are
delivered and are forgotten.
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
"""The average distance of offsets in one partition: logs have gaps."""
NAMES: Final = 400
KEEP_MS: Final = 600_000
"""How long ids are remembered after they are due."""
NEAR_MS: Final = 120_000
HOURS_MS: Final = 3 * 3_600_000
FAR_MS: Final = 12 * 3_600_000
FORGET_EVERY: Final = 50
LATE_MS: Final = 2 * FORGET_EVERY * STEP_MS
"""How late a late message may be: its slot may be forgotten, and then comes again."""


class Fed(NamedTuple):
    """One record, and what it does."""

    frame: Frame
    name: bytes | None
    """The id whose state becomes `state`; None without an id."""
    state: IdState
    killed: Rank | None
    """The message that it kills."""
    kill: Kill
    forgets_before_ms: int | None
    """Before this record is ingested, the wheel forgets all slots before this time."""


class FedLog:
    """The log of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def record(self, number: int) -> Fed:
        """Return the record of this number, from 0."""
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
    """Return the append time of a record, which is also the time when it is ingested."""
    return BASE_MS + number * STEP_MS


def source_of(number: int) -> tuple[int, int]:
    """Return partition and offset of a record."""
    return number % PARTITIONS, number // PARTITIONS * OFFSETS_APART + number * 7 % OFFSETS_APART


def number_of(partition: int, offset: int) -> int:
    """Return the number of a record: the inverse of `source_of`."""
    return offset // OFFSETS_APART * PARTITIONS + partition


def offsets_after(count: int) -> tuple[int, ...]:
    """Return 1 + the last offset of the first `count` records, by partition."""
    offsets = [0] * PARTITIONS
    for number in range(max(0, count - PARTITIONS), count):
        partition, offset = source_of(number)
        offsets[partition] = offset + 1
    return tuple(offsets)


def count_before(offsets: tuple[int, ...]) -> int:
    """Return how many records lie below these offsets: the inverse of `offsets_after`."""
    taken = [(offset + OFFSETS_APART - 1) // OFFSETS_APART for offset in offsets]
    count = sum(taken)
    assert offsets_after(count) == offsets, f"{offsets} are behind no record"
    return count


def answers_before(time_ms: int) -> tuple[int, ...]:
    """Return 1 + the highest offset of the records before this time, by partition."""
    return offsets_after(max(0, -(-(time_ms - BASE_MS) // STEP_MS)))
