"""The slots that a mastership opens in its wheel: late arrivals first, then what is due soon, in
turns.

A turn does a bounded piece of work, whatever is in the wheel, because the replica's lock is held
meanwhile: ingest, cancels and exports go on between two turns. A second with a million messages is
indexed by many turns, most of them ahead of its time, and opened as steps make room.

Not here: which of them a step takes (`replication.delivery_queue`), how a slot is indexed
(`delayd.wheel.slot_index`). Not thread safe: part of the planner, under the replica's lock.
Source: docs/design/frontier.md, "Full steps" and "Takeover".
"""

from collections import OrderedDict, deque
from collections.abc import Container, Iterable
from dataclasses import dataclass

from delayd.node.replica.retention import is_passed
from delayd.wheel.place import IN_HOUR
from delayd.wheel.slot_index import SlotIndex
from delayd.wheel.storage import Wheel
from replication.delivery_queue import DeliveryQueue
from replication.rank import SLOT_MS, START, Rank, slot_of

OPEN_AHEAD_MS = 200
"""How long before its first due time a slot is opened."""
PREFETCH_AHEAD_MS = 5_000
"""How long before it a slot is indexed that is too large to be indexed in one turn. A million
messages take two seconds."""
PREFETCH_LOOK_MS = 100
"""How often it looks for such slots; a turn at every step would cost more than finding none."""
TURN_WORK_MAX = 20_000
"""Frames to scan and entries to open in one turn: about 1 us each."""
SLOT_WORK = 100
"""What it costs to turn to a slot, however little is in it."""
SLICE_FRAMES = 10_000
"""Frames scanned at once. Slots of no more are neither prefetched nor kept: they cost little."""
FRONT_SLOTS = 1
"""Lanes that are open to so many slots before now do not lag."""
ALL_SLOTS = 1 << 63
"""Beyond any slot."""
INDEXED_FRAMES_MAX = 1_500_000
"""Frames in all indexes that are kept, of 22 bytes each; one slot may have more for itself."""


@dataclass(slots=True)
class _LateSearch:
    """A slot in which there may be late arrivals."""

    slot: int
    end: int
    """Of its file when the mastership began: the delivery queue was told of all that came later."""
    since: Rank
    """Everything in it below this rank has been looked at."""


class SlotOpener:
    """What one mastership has opened and indexed of its wheel."""

    def __init__(
        self,
        wheel: Wheel,
        queue: DeliveryQueue,
        partitions: Container[int] | None = None,
    ) -> None:
        """`queue`: new; it is told of every arrival from now on. `partitions`: its shard's, if the
        cluster has several."""
        self._partitions = partitions
        self._wheel = wheel
        self._queue = queue
        self._indexes: OrderedDict[int, SlotIndex] = OrderedDict()
        """By slot, the one last used at the end."""
        self._prefetch_ms = 0
        """When to look again for large slots ahead."""
        self._work = 0
        """Left for this turn."""
        self._late: deque[_LateSearch] = deque()
        for slot in wheel.slots(0, slot_of(queue.frontier.highest_cursor.due_ms)):
            info = wheel.info(slot)
            assert info is not None, "a slot that is listed has a line in the catalogue"
            if not is_passed(info, queue.frontier):
                end = wheel.end_of(slot)
                self._late.append(_LateSearch(slot, end, Rank(slot * SLOT_MS, 0, 0)))
        self.is_busy = bool(self._late)
        """Is there more to do at once, by another turn?"""

    @property
    def has_found_late(self) -> bool:
        """True if the delivery queue knows all late arrivals. Before that nothing can be
        planned."""
        return not self._late

    def turn(self, now_ms: int) -> None:
        """Do some of what is to be done at `now_ms`. CorruptionError if the wheel is damaged."""
        self._split_due(now_ms)
        self._work = TURN_WORK_MAX // 2
        if not self._find_late():
            return
        # Lanes that lag come second, with as much again: they may have a large slot to look through
        # once more, and the others must not wait for that.
        front = slot_of(now_ms) - FRONT_SLOTS
        is_front_done = self._open_due(now_ms, _start_of(front)) and self._prefetch(now_ms)
        self._work += TURN_WORK_MAX // 2
        # An index that was begun is finished and used before another one takes its room: else two
        # of which only one has room would begin anew in turns, for ever.
        begun = min((n for n in self._indexes if n < front and self._is_begun(n)), default=0)
        is_rest_done = self._open_due(now_ms, _start_of(begun), front) and (
            begun == 0 or self._open_due(now_ms, START, front)
        )
        self.is_busy = not (is_front_done and is_rest_done)

    def _split_due(self, now_ms: int) -> None:
        """Split first what is due soon and still in the file of its hour, a piece a turn."""
        # Nothing may arrive in the file of an hour of which a part is opened.
        self._wheel.advance(now_ms + OPEN_AHEAD_MS)
        whole_below = self._wheel.whole_below
        if whole_below is not None and whole_below <= slot_of(now_ms + OPEN_AHEAD_MS):
            self._wheel.split_some()

    def _find_late(self) -> bool:
        """Tell the delivery queue of what was stored and is late; True when there is no more."""
        frontier = self._queue.frontier
        while self._late:
            search = self._late[0]
            # A slot that was forgotten was passed, by another master: this one will learn of it.
            if self._wheel.info(search.slot) is not None:
                index = self._ready_index(search.slot)
                if index is None:
                    return False
                most = min(self._work, SLICE_FRAMES)
                run = index.run(search.since, most, partitions=self._partitions)
                self._work -= run.cost
                for entry in run.entries:
                    if (
                        (entry.position < search.end or entry.position >= IN_HOUR)
                        and entry.offset >= frontier.offsets[entry.partition]
                        and entry < frontier.cursors[entry.lane]
                    ):
                        self._queue.arrived(entry)
                search.since = run.until
                if slot_of(run.until.due_ms) == search.slot:
                    continue
            self._late.popleft()
            self._drop_passed()
        return True

    def _open_due(self, now_ms: int, since: Rank, spared: int = ALL_SLOTS) -> bool:
        """Open what is due soon, of lanes that are open to `since`; True when there is no more.

        What lanes stand in from the slot `spared` on keeps its index.
        """
        queue, wheel = self._queue, self._wheel
        last = self._last_whole(now_ms + OPEN_AHEAD_MS)
        before = _start_of(last + 1)
        if queue.opened_to >= before:  # as most turns find it
            return True
        while (wanted := queue.wanted(before, since)) is not None:
            slot = wheel.next_slot(slot_of(wanted.since.due_ms))
            if slot is None or slot > last:
                queue.open(wanted, (), before)
                continue
            index = self._ready_index(slot, spared)
            if index is None:
                return False
            wanted = queue.wanted(_start_of(slot + 1), since)
            assert wanted is not None, "the lane that wanted the slot wants it still"
            most = min(self._work, SLICE_FRAMES)
            run = index.run(wanted.since, most, wanted.lanes, self._partitions)
            self._work -= run.cost
            queue.open(wanted, run.entries, run.until)
            if slot_of(run.until.due_ms) > slot and index.count <= SLICE_FRAMES:
                del self._indexes[slot]
        self._drop_passed()
        return True

    def _prefetch(self, now_ms: int) -> bool:
        """Index large slots ahead of their time, as far as there is room; True if there is nothing
        left to do for now."""
        if now_ms < self._prefetch_ms:
            return True
        first = slot_of(now_ms + OPEN_AHEAD_MS) + 1
        needed_frames = self._frames_of(self._needed())
        for slot in self._wheel.slots(first, self._last_whole(now_ms + PREFETCH_AHEAD_MS)):
            info = self._wheel.info(slot)
            assert info is not None, "a slot that is listed has a line in the catalogue"
            if info.count <= SLICE_FRAMES:
                continue
            if slot not in self._indexes and needed_frames + info.count > INDEXED_FRAMES_MAX:
                break
            needed_frames += 0 if slot in self._indexes else info.count
            if self._ready_index(slot) is None:
                return False
        self._prefetch_ms = now_ms + PREFETCH_LOOK_MS
        return True

    def _last_whole(self, due_ms: int) -> int:
        """Return the slot of that time, or the last one of which no frame lies in the file of its
        hour."""
        last, whole_below = slot_of(due_ms), self._wheel.whole_below
        return last if whole_below is None else min(last, whole_below - 1)

    def _ready_index(self, slot: int, spared: int = ALL_SLOTS) -> SlotIndex | None:
        """Return the complete index of a slot; None if that takes more than is left of the turn, or
        more room than what is spared leaves."""
        index = self._indexes.get(slot)
        if index is not None and not self._wheel.is_current(index):
            del self._indexes[slot]
            index = None
        if not self._make_room(slot, spared):
            return None
        if index is None:
            index = self._wheel.index(slot, keeps=self._partitions is not None)
            assert index is not None, f"slot {slot} holds nothing"
            self._indexes[slot] = index
        self._indexes.move_to_end(slot)
        self._work -= SLOT_WORK
        while self._work > 0:
            if index.is_complete:
                return index
            self._work -= index.advance(min(self._work, SLICE_FRAMES))
        return None

    def _make_room(self, slot: int, spared: int) -> bool:
        """Evict other indexes until there is room for this slot's, or it is alone; False if lanes
        stand in the others from `spared` on.

        Evicted first: 1. slots no lane needs now, 2. slots no lane has come to; among them the one
        used longest ago.
        """
        info = self._wheel.info(slot)
        assert info is not None, f"slot {slot} holds nothing"
        others = [each for each in self._indexes if each != slot]
        left = self._frames_of(others) + info.count
        if left <= INDEXED_FRAMES_MAX:
            return True
        standing, needed = self._queue.standing, self._needed()
        others.sort(key=lambda each: (each in needed, each in standing))
        for each in others:
            if each >= spared and each in standing:
                continue
            left -= self._indexes.pop(each).slot.frames
            if left <= INDEXED_FRAMES_MAX:
                return True
        return not self._indexes.keys() - {slot}

    def _is_begun(self, slot: int) -> bool:
        return not self._indexes[slot].is_complete

    def _needed(self) -> set[int]:
        """Return the indexed slots that a lane stands in, or that none has come to yet. The others
        will be needed when the lanes that lag come to them: to scan them again then costs no
        more."""
        standing = self._queue.standing
        return {slot for slot in self._indexes if slot in standing or slot > max(standing)}

    def _frames_of(self, slots: Iterable[int]) -> int:
        return sum(self._indexes[slot].slot.frames for slot in slots)

    def _drop_passed(self) -> None:
        """Drop the indexes of slots that no lane needs any more."""
        opened_to = self._queue.opened_to
        for slot in [slot for slot in self._indexes if _start_of(slot + 1) <= opened_to]:
            del self._indexes[slot]


def _start_of(slot: int) -> Rank:
    return Rank(slot * SLOT_MS, 0, 0)
