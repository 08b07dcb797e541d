"""The content that replicas must all hold, even at different checkpoints. Pure.

Each has ingested the buffer up to its own offsets, and may have forgotten, or never stored, the
messages that the newest frontier covers by which it forgot. So all must hold

    a message     below the offsets of each and in Done of none of the frontiers
    a reply       below the offsets of each and not below the O of any frontier
    a kill        of a message that may be in Done of none; its cancel marker lies below the
                  offsets of each

The bounds follow from the checkpoints alone, so each replica works out the same ones by itself.

A cancel marker keeps the killed messages of its id, which nodes remember for different times: the
comparison takes only those that every node must remember (`cancel_marker_crc`).
Source: docs/design/frontier.md, "Forgetting" and "Verdicts"; docs/design/storage.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from delayd.wheel import FrameKind, Progress, SlotInfo
from delayd.wheel.layout import HOUR_SLOTS, SegmentName
from replication.frontier import Frontier
from replication.ids import KilledMessage
from replication.rank import Rank, slot_of

_MESSAGE = int(FrameKind.MESSAGE)
MOVE_FIELDS = 3
"""Of a marker's body behind what it killed, if it is of a reschedule: the last one has the due
times of each of these."""


@dataclass(frozen=True, slots=True)
class CommonCut:
    """The bounds of a comparison."""

    offsets: tuple[int, ...]
    """The lowest by partition: all have ingested all records below."""
    forgotten: tuple[Frontier, ...]
    """The frontiers by which any has forgotten anything; none, or one of each at most."""
    replies_from: tuple[int, ...]
    """The highest O of these frontiers, by partition."""
    passed_ms: int
    """Their highest cursor's due time: later messages are in Done of none. -1: all are."""
    newest_ms: int
    """No reply is filed later: not before the newest append time that any has seen."""
    id_memory_ms: int | None
    """None: none has forgotten an id."""

    @classmethod
    def of(
        cls,
        checkpoints: Sequence[Progress],
        forgotten: tuple[Frontier, ...],
        id_memory_ms: int | None,
    ) -> "CommonCut":
        """Return the cut of these checkpoints of one cluster."""
        floors = [frontier.offsets for frontier in forgotten]
        zeros = (0,) * len(checkpoints[0].offsets)
        seen_ms = [ms for each in checkpoints for ms in (*each.log_ms, *each.leap_ms)]
        return cls(
            offsets=tuple(map(min, zip(*(each.offsets for each in checkpoints), strict=True))),
            forgotten=forgotten,
            replies_from=tuple(map(max, *floors, zeros, zeros)),
            passed_ms=max((f.highest_cursor.due_ms for f in forgotten), default=-1),
            # Log time is behind it by 13 / 6 of the id memory at most (`replication.log_time`).
            newest_ms=max(seen_ms) + 3 * (id_memory_ms or 0),
            id_memory_ms=id_memory_ms,
        )

    def holds(self, due_ms: int, partition: int, offset: int, lane: int, kind: int) -> bool:
        """Return whether all must hold this frame."""
        if offset >= self.offsets[partition]:
            return False
        if kind != _MESSAGE:
            return offset >= self.replies_from[partition]
        if due_ms > self.passed_ms:
            return True
        rank = Rank(due_ms, partition, offset)
        return not any(frontier.covers(lane, rank) for frontier in self.forgotten)

    def holds_kill(self, rank: Rank, marker_offset: int) -> bool:
        """Return whether all must know this kill. The lane of the message is unknown."""
        partition = rank.partition
        may_be_done = rank.due_ms <= self.passed_ms and rank.offset < self.replies_from[partition]
        # What a reschedule holds is killed from the start, by no marker of its own.
        last_offset = max(marker_offset, rank.offset)
        return last_offset < self.offsets[partition] and not may_be_done

    def holds_all(self, name: SegmentName, info: SlotInfo) -> bool:
        """Return whether all must hold all frames of this file. Then its line is enough."""
        first = name.number * HOUR_SLOTS if name.is_hour else name.number
        return first > slot_of(max(self.passed_ms, self.newest_ms)) and all(
            highest < offset
            for highest, offset in zip(info.highest_offsets, self.offsets, strict=True)
        )

    def cancel_marker_crc(self, due_ms: int, body: tuple[Any, ...]) -> int:
        """Return a number in place of the CRC of a cancel marker's frame, alike on every node."""
        is_replace, id, log_ms, killed, killed_before, *asked = body
        kept = [self._remembered(each, log_ms) for each in (killed, killed_before)]
        if len(asked) == MOVE_FIELDS:
            due_ms_of, repeats, (is_fire, dues_ms) = asked
            pairs = dict(zip(map(tuple, killed), dues_ms, strict=True))
            asked = [due_ms_of, repeats, is_fire, *(pairs[tuple(each)] for each in kept[0])]
        return crc32(repr((due_ms, is_replace, id, log_ms, kept, *asked)).encode())

    def _remembered(self, killed: tuple[tuple[int, ...], ...], log_ms: int) -> list[Any]:
        memory_ms = self.id_memory_ms
        return [
            message
            for message in killed
            if memory_ms is None or KilledMessage(*message).due_ms + memory_ms >= log_ms
        ]
