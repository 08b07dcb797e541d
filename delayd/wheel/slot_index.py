"""An index of one slot: where its messages are, in rank order, in some 22 bytes each.

Made by scanning the slot a slice at a time, so that who holds the wheel's lock can let go of it in
between. It then gives runs of entries from any rank on, as often as they are asked for. What is
appended to the slot meanwhile is scanned by the next slice, and stands where its rank belongs.

What lies in the file of the slot's sparse hour is found by the slot's part, and comes first.

    due time  ->  places, in any order                      of most
              ->  a shelf of leaves, each a range of ranks  of a crowded millisecond

Nothing is sorted before it is reached, and never more than one leaf's worth at a time: a million
messages may be due in the same millisecond. Leaves are cut as places come, so it does not matter
in which order the file has them.

Invariant: what a run gives was verified: the chain of frames, every CRC, and count and digest of
all that the slot holds against its line.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from delayd.errors import CorruptionError
from delayd.wheel import Entry
from delayd.wheel.catalogue import REBUILD
from delayd.wheel.decoding import Scanned, scan
from delayd.wheel.frame import BrokenFrameError
from delayd.wheel.place import (
    IN_HOUR,
    PLACE_BYTES,
    Place,
    entries_at,
    lane_of_place,
    pack,
    rank_number,
    rank_of,
    unpack,
)
from delayd.wheel.reader import SCAN_BYTES, Reader, corruption
from delayd.wheel.segment import DIGEST_MODULO, HOUR_PLACE, Slot
from replication.rank import SLOT_MS, Rank

LEAF_PLACES_MAX = 8_192
"""Places that are sorted at once: about 5 ms, and 1.5 MB while it lasts."""
SLICE_BYTES_MIN = 64 * 1024
"""Read at least, however short frames are: another call would cost more."""
WALK_FACTOR = 4
"""Places that a run may look at for each entry that it may give: one of another lane costs so much
less than one that is given."""


class Run(NamedTuple):
    """Entries in rank order."""

    entries: list[Entry]
    until: Rank
    """Everything stored below this rank, from where the run began, is among them."""
    cost: int
    """In entries: those that were given, or for many of other lanes a quarter of them."""


class SlotIndex:
    """The messages of one slot. Of no use any more after an error."""

    def __init__(self, reader: Reader, slot: Slot) -> None:
        """Empty: `advance` fills it."""
        self._reader = reader
        self.slot = slot
        self._scanned = Scanned(0, 0, 0)
        self._scanned_part = 0
        """Frames of its part that were scanned."""
        self._places: defaultdict[int, bytearray] = defaultdict(bytearray)
        """By due time: places in any order."""
        self._shelves: dict[int, _Shelf] = {}
        """Of due times with more than a leaf's worth; what is in `_places` goes there."""
        self._dues: list[int] = []
        """All due times, ascending."""

    @property
    def is_complete(self) -> bool:
        """Is all in it that the slot holds now?"""
        return self._scanned.bytes == self.slot.end and not self._has_more_of_part

    @property
    def _has_more_of_part(self) -> bool:
        part = self.slot.part
        return part is not None and self._scanned_part < part.count

    @property
    def count(self) -> int:
        """Frames scanned so far."""
        return self._scanned.count + self._scanned_part

    def advance(self, frames_max: int) -> int:
        """Scan on, over about so many frames of the slot's average length, at least one; returns
        how many there were. CorruptionError with slot, byte range and count.

        That takes about 1 us a frame. Nothing happens when it is complete.
        """
        slot, before = self.slot, self._scanned
        end = slot.end
        if self._has_more_of_part:
            return self._scan_part(frames_max)
        if before.bytes == end:
            return 0
        wanted_bytes = min(SCAN_BYTES, max(SLICE_BYTES_MIN, frames_max * end // slot.count))
        found = self._scan(before.bytes, wanted_bytes, end)
        self._scanned = Scanned(*(a + b for a, b in zip(before, found, strict=True)))
        if self._scanned.bytes == end:
            self._compare_with_line()
        self._file()
        return found.count

    def _scan_part(self, frames_max: int) -> int:
        """So many of the frames that lie in the file of the hour, of which the CRCs are known."""
        part = self.slot.part
        assert part is not None, "a slot with a part keeps it"
        first = self._scanned_part * HOUR_PLACE.size
        places = part.places[first : first + frames_max * HOUR_PLACE.size]
        stretches = list(_stretches(HOUR_PLACE.iter_unpack(places)))
        for position, size, count, crcs in stretches:
            data = self._reader.bytes_at(part.hour, position, position + size)
            try:
                found = scan(data, IN_HOUR + position, self._places)
            except BrokenFrameError as error:
                error.position -= IN_HOUR
                raise corruption(part.hour, error, part.count - self._scanned_part) from error
            if found != Scanned(size, count, crcs):
                other = BrokenFrameError(position, size, "is not what it was before")
                raise corruption(part.hour, other, count)
            self._scanned_part += count
        self._file()
        return sum(stretch.count for stretch in stretches)

    def _scan(self, position: int, wanted_bytes: int, end: int) -> Scanned:
        """One slice, of at least one whole frame."""
        while True:
            data = self._reader.bytes_at(self.slot, position, min(position + wanted_bytes, end))
            try:
                found = scan(data, position, self._places)
                if not found.bytes and position + len(data) == end:
                    raise BrokenFrameError(position, end - position, "ends too early")
            except BrokenFrameError as error:
                unread = self.slot.count - self._scanned.count - error.passed
                raise corruption(self.slot, error, unread) from error
            if found.bytes:
                return found
            wanted_bytes *= 2

    def _compare_with_line(self) -> None:
        slot, found = self.slot, self._scanned
        if found.count != slot.count or (found.crcs - slot.digest) % DIGEST_MODULO != 0:
            raise CorruptionError(
                f"slot {slot.number}: bytes 0 to {found.bytes} hold {found.count} frames, "
                f"which are not the {slot.count} frames of its catalogue line",
                remedy=REBUILD,
            )

    def _file(self) -> None:
        """Keep the places of crowded due times on shelves."""
        leaf_bytes_max = LEAF_PLACES_MAX * PLACE_BYTES
        for due_ms, places in self._places.items():
            if len(places) > leaf_bytes_max or (places and due_ms in self._shelves):
                shelf = self._shelves.setdefault(due_ms, _Shelf())
                shelf.add(sorted(unpack(places)))
                self._places[due_ms] = bytearray()
        if len(self._dues) != len(self._places):
            self._dues = sorted(self._places)

    def run(self, since: Rank, entries_max: int, lanes: Container[int] | None = None) -> Run:
        """The messages from this rank on, of these lanes or of all; of a complete index only.

        Ends at the end of the slot, or of the leaf with which there are `entries_max`, or which is
        too far from `since` to look on: so at least one is looked at. Costs 0.5 us an entry.
        """
        assert self.is_complete, "the slot has grown, or was not scanned to its end"
        entries: list[Entry] = []
        walked = 0
        for due_ms in self._dues[bisect_left(self._dues, since.due_ms) :]:
            low = rank_number(since.partition, since.offset) if due_ms == since.due_ms else 0
            for leaf, until in self._leaves(due_ms, low):
                walked += len(leaf) // PLACE_BYTES
                places: Sequence[Place] = sorted(unpack(leaf))
                if low:
                    places = places[bisect_left(places, (low, 0, 0)) :]
                if lanes is not None:
                    places = [place for place in places if lane_of_place(place) in lanes]
                entries += entries_at(due_ms, places)
                if len(entries) >= entries_max or walked >= WALK_FACTOR * entries_max:
                    return Run(entries, until, max(len(entries), walked // WALK_FACTOR))
        until = Rank((self.slot.number + 1) * SLOT_MS, 0, 0)
        return Run(entries, until, max(len(entries), walked // WALK_FACTOR))

    def _leaves(self, due_ms: int, low: int) -> Iterator[tuple[bytearray, Rank]]:
        """The places of a due time that may be at or above a rank number, ascending leaf by leaf;
        with the rank below which each leaf ends."""
        end = Rank(due_ms + 1, 0, 0)
        shelf = self._shelves.get(due_ms)
        if shelf is None:
            yield self._places[due_ms], end
            return
        first = bisect_right(shelf.firsts, low) - 1
        for index in range(first, len(shelf.leaves)):
            is_last = index + 1 == len(shelf.leaves)
            until = end if is_last else rank_of(due_ms, shelf.firsts[index + 1])
            yield shelf.leaves[index], until


class _Stretch(NamedTuple):
    """Frames of an hour's file that lie one behind the other."""

    position: int
    size: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nothing needs
    crcs: int


def _stretches(places: Iterable[tuple[int, int, int]]) -> Iterator[_Stretch]:
    """These frames, put together where one follows the other, up to SCAN_BYTES."""
    one: _Stretch | None = None
    for position, length, crc in places:
        if one is not None and position == one.position + one.size and one.size < SCAN_BYTES:
            one = _Stretch(one.position, one.size + length, one.count + 1, one.crcs + crc)
            continue
        if one is not None:
            yield one
        one = _Stretch(position, length, 1, crc)
    if one is not None:
        yield one


class _Shelf:
    """The places of one due time, cut by rank into leaves of a bounded size."""

    def __init__(self) -> None:
        self.firsts = [0]
        """Of each leaf: the rank number at which it begins."""
        self.leaves = [bytearray()]

    def add(self, places: list[Place]) -> None:
        """File these, which are sorted, each in its leaf."""
        done = 0
        while done < len(places):
            index = bisect_right(self.firsts, places[done][0]) - 1
            end = len(places)
            if index + 1 < len(self.firsts):
                end = bisect_left(places, (self.firsts[index + 1], 0, 0), done)
            self._add_to(index, places[done:end])
            done = end

    def _add_to(self, index: int, places: list[Place]) -> None:
        leaf = self.leaves[index]
        if len(leaf) // PLACE_BYTES + len(places) <= LEAF_PLACES_MAX:
            leaf += pack(places)
            return
        # The first ones full: what comes later mostly belongs at the end.
        places = sorted([*unpack(leaf), *places])
        cut = [places[at : at + LEAF_PLACES_MAX] for at in range(0, len(places), LEAF_PLACES_MAX)]
        self.leaves[index : index + 1] = [pack(each) for each in cut]
        self.firsts[index + 1 : index + 1] = [each[0][0] for each in cut[1:]]
