"""The index of one slot: the places of its messages in rank order, some 22 bytes each.

The slot is scanned a slice at a time, so that the caller can release the wheel's lock in between.
The complete index gives runs of entries from any rank on, as often as needed. The next slice scans
frames that were appended meanwhile, and they get the place of their rank.

Frames in the file of the slot's sparse hour are found by the slot's part, and are scanned first.

    due time  ->  places, in any order                      of most
              ->  a shelf of leaves, each a range of ranks  of a crowded millisecond

Places are sorted when a run reaches them, one leaf at a time: a million messages may be due in the
same millisecond. Leaves are cut as places arrive, so their order in the file does not matter.

Invariant: a run gives verified entries only: the chain of frames, every CRC, and count and digest
of the slot against its line.
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
    partition_of_place,
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
"""Bytes read at least, however short frames are: another call would cost more."""
WALK_FACTOR = 4
"""Places that a run may look at for each entry that it may give: a place of another lane or
partition costs that much less than an entry."""


class Run(NamedTuple):
    """Entries in rank order."""

    entries: list[Entry]
    until: Rank
    """The run has every entry from its beginning up to this rank."""
    cost: int
    """In entries: those given, or a quarter of the places looked at if that is more."""


class SlotIndex:
    """The messages of one slot."""

    def __init__(self, reader: Reader, slot: Slot) -> None:
        """Make an empty index, which `advance` fills."""
        self._reader = reader
        self.slot = slot
        self._scanned = Scanned(0, 0, 0)
        self._scanned_part = 0
        """Frames of its part that were scanned."""
        self._places: defaultdict[int, bytearray] = defaultdict(bytearray)
        """By due time: places in any order."""
        self._shelves: dict[int, _Shelf] = {}
        """Of due times with more places than a leaf holds; their `_places` move there."""
        self._dues: list[int] = []
        """All due times, ascending."""
        self.is_broken = False
        """Was damage found? Then it is of no use any more."""

    @property
    def is_complete(self) -> bool:
        """True if it has every frame that the slot holds now."""
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
        """Scan about so many more frames of the slot's average length, at least one; return how
        many there were. Raise CorruptionError with slot, byte range and count.

        Takes about 1 us a frame. Does nothing once the index is complete.
        """
        try:
            return self._advance(frames_max)
        except CorruptionError:
            self.is_broken = True
            raise

    def _advance(self, frames_max: int) -> int:
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
        """Scan so many of the frames in the hour file, whose CRCs are known."""
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
        """Scan one slice, of at least one whole frame."""
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
        """Move the places of crowded due times to shelves."""
        leaf_bytes_max = LEAF_PLACES_MAX * PLACE_BYTES
        for due_ms, places in self._places.items():
            if len(places) > leaf_bytes_max or (places and due_ms in self._shelves):
                shelf = self._shelves.setdefault(due_ms, _Shelf())
                shelf.add(sorted(unpack(places)))
                self._places[due_ms] = bytearray()
        if len(self._dues) != len(self._places):
            self._dues = sorted(self._places)

    def run(
        self,
        since: Rank,
        entries_max: int,
        lanes: Container[int] | None = None,
        partitions: Container[int] | None = None,
    ) -> Run:
        """Return the messages from this rank on, of these lanes and partitions or of all, of a
        complete index.

        The run ends with the slot, or with the leaf that reaches `entries_max` or the limit of
        places to look at; it looks at one leaf at least. Costs 0.5 us an entry.
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
                if partitions is not None:
                    places = [place for place in places if partition_of_place(place) in partitions]
                entries += entries_at(due_ms, places)
                if len(entries) >= entries_max or walked >= WALK_FACTOR * entries_max:
                    return Run(entries, until, max(len(entries), walked // WALK_FACTOR))
        until = Rank((self.slot.number + 1) * SLOT_MS, 0, 0)
        return Run(entries, until, max(len(entries), walked // WALK_FACTOR))

    def _leaves(self, due_ms: int, low: int) -> Iterator[tuple[bytearray, Rank]]:
        """Yield the places of a due time that may be at or above a rank number, ascending leaf by
        leaf; with the rank below which each leaf ends."""
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
    """Frames of an hour file that follow each other."""

    position: int
    size: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nothing needs
    crcs: int


def _stretches(places: Iterable[tuple[int, int, int]]) -> Iterator[_Stretch]:
    """Join frames that follow each other in the file, up to SCAN_BYTES."""
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
        """Add these sorted places, each to its leaf."""
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
