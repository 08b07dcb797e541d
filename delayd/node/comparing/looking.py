"""One look at the wheels of two or more nodes: the hours that two hold differently, and the
messages that several do.

The walk goes on from hour to hour, round by round, so that every hour is compared in the end,
however much each round may read. Hours whose digests are alike on the whole cost nothing.

Source: docs/design/storage.md, "Comparing running nodes".
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from delayd.node.comparing.judging import Holding
from delayd.node.comparing.side import ComparisonError, HeldFrame, Side, Source, Value
from delayd.wheel.comparing.digest_tree import (
    NOTHING,
    PARENTS_MAX,
    ROOT,
    DifferingHour,
    Level,
)

ROUND_FRAMES: Final = 500_000
"""Frames in the hours of a round, which ends with an hour: some half a minute of reading."""
EXCHANGE_FRAMES: Final = 500
"""What an exchange counts for that reads nothing."""
FRAMES_AT_ONCE: Final = 20_000
"""Frames of one node in memory, some 6 MB."""
_END: Final = 2**62
"""Behind all hours."""
DIFFERENCES_MAX: Final = 1_000
"""Messages that a look names; it ends with them."""


@dataclass(slots=True)
class Differing:
    """One message that the nodes of a look do not hold alike."""

    source: Source
    holdings: dict[str, list[Value]]
    lane: int
    id: str | None

    def of(self, nodes: Iterable[str]) -> dict[str, Holding]:
        """Return what each of these nodes holds."""
        return {node: tuple(sorted(self.holdings.get(node, ()))) for node in nodes}

    @property
    def due_ms(self) -> int:
        """The earliest due time that any node has for it."""
        return min(value.due_ms for held in self.holdings.values() for value in held)


@dataclass(slots=True)
class Walk:
    """Where the next round goes on."""

    next_hour: int = 0
    passes: int = 0
    """How often all hours have been compared, but for those that were left out."""
    left_out: set[int] = field(default_factory=set)
    """Hours that broke off twice in a row, and are tried again in the next pass."""
    broken_off: int | None = None
    """The hour that the last round did not end with."""
    again: set[int] = field(default_factory=set)
    """Hours that differed in a round that broke off."""
    hours: int = 0
    """Hours whose common digests were compared."""
    next_kills: int = 0
    """The hour where the next round goes on with killed messages, which are no frames."""

    def round(self, own: Side, peer: Side) -> list[DifferingHour]:
        """Compare two sides, from where the last round ended; return the hours that differ.

        ComparisonError if one of them breaks off. The next round begins with that hour and, if it
        breaks off again, the one after that behind it: none can be so large that the walk stays.
        """
        hours = differing_hours(own, peer)
        spent, again, self.again = 0, sorted(self.again), set()
        found = differing_slots(own, peer, again)
        found += differing_slots(own, peer, self._hours_of_kills(own, peer))
        for hour, frames in hours.items():
            if hour < self.next_hour:
                continue
            if spent >= ROUND_FRAMES or sum(each.frames for each in found) > FRAMES_AT_ONCE:
                self.next_hour = hour
                return found
            found += self._compared(hour, own, peer, found)
            spent += max(frames, EXCHANGE_FRAMES)
            self.hours += 1
        self.next_hour = 0
        self.passes += 1
        self.left_out &= hours.keys()
        return found

    def _hours_of_kills(self, own: Side, peer: Side) -> list[int]:
        """Return the hours, of those that come next, whose killed messages differ."""
        first = self.next_kills
        (ours, our_next), (theirs, their_next) = (side.kill_digests(first) for side in (own, peer))
        self.next_kills = behind = min(our_next or _END, their_next or _END)
        if behind == _END:
            self.next_kills = 0
        return [
            hour
            for hour in sorted(ours.keys() | theirs.keys())
            if hour < behind and ours.get(hour) != theirs.get(hour)
        ]

    def _compared(
        self, hour: int, own: Side, peer: Side, found: Sequence[DifferingHour]
    ) -> list[DifferingHour]:
        try:
            differing = differing_slots(own, peer, [hour])
        except ComparisonError:
            self.again = {each.hour for each in found}
            if self.broken_off == hour:
                self.left_out.add(hour)
                self.broken_off, self.next_hour = None, hour + 1
            else:
                self.broken_off = self.next_hour = hour
            raise
        self.broken_off = None
        self.left_out.discard(hour)
        return differing


def differing_hours(a: Side, b: Side) -> dict[int, int]:
    """Return the hours that two sides do not hold alike on the whole, ascending, with the frames of
    the fuller one: one of them may only have ingested, or forgotten, more."""
    found: dict[int, int] = {}
    days = sorted(_exchange(Level.DAY, ROOT, a, b))
    size = PARENTS_MAX[Level.HOUR]
    for at in range(0, len(days), size):
        found |= _exchange(Level.HOUR, days[at : at + size], a, b)
    return dict(sorted(found.items()))


def differing_slots(a: Side, b: Side, hours: Sequence[int]) -> list[DifferingHour]:
    """Return the slots of these hours in which two sides differ in what both must hold."""
    found = []
    for hour in hours:
        if not _exchange(Level.COMMON_HOUR, [hour], a, b):
            continue
        if slots := _exchange(Level.SLOT, [hour], a, b):
            found.append(DifferingHour(hour, frozenset(slots), sum(slots.values())))
    return found


def _exchange(level: Level, parents: Sequence[int], a: Side, b: Side) -> dict[int, int]:
    """Return the nodes that differ, with the frames of the fuller side."""
    ours, theirs = (side.digests(level, parents) for side in (a, b))
    pairs = {n: (ours.get(n, NOTHING), theirs.get(n, NOTHING)) for n in ours.keys() | theirs.keys()}
    return {n: max(x.frames, y.frames) for n, (x, y) in pairs.items() if x != y}


def differing_messages(
    sides: Mapping[str, Side], hours: Iterable[DifferingHour]
) -> dict[Source, Differing]:
    """Return the frames of these slots that not all sides hold alike, by source. A message that
    has another due time at one of them is found in the slots of both."""
    found: dict[Source, Differing] = {}
    for hour in hours:
        turns = max(1, -(-hour.frames // FRAMES_AT_ONCE))
        for turn in range(turns):
            _add_turn(found, sides, hour, turn, turns)
            if len(found) >= DIFFERENCES_MAX:
                return found
    return found


def _add_turn(
    found: dict[Source, Differing],
    sides: Mapping[str, Side],
    hour: DifferingHour,
    turn: int,
    turns: int,
) -> None:
    held: dict[Source, dict[str, list[Value]]] = defaultdict(lambda: defaultdict(list))
    seen: dict[Source, HeldFrame] = {}
    for name, side in sides.items():
        for frame in side.frames(hour.hour, hour.slots, turn, turns):
            held[frame.source][name].append(frame.value)
            seen[frame.source] = frame
    for source, by in held.items():
        if len({tuple(sorted(by.get(name, ()))) for name in sides}) == 1:
            continue
        frame = seen[source]
        merged = found.setdefault(source, Differing(source, {}, frame.lane, frame.id))
        for name, values in by.items():
            merged.holdings.setdefault(name, []).extend(values)
