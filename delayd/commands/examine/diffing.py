"""The comparison of two stopped wheels of one cluster, on the content that both must hold.

1. Check that they are of one cluster and buffer, with one partition count.
2. Find the slots that differ, by the tree of digests (`delayd.wheel.comparing.digest_tree`).
3. Compare the frames of these slots, hour by hour.
4. Compare the killed messages, by rank.

A comparison trusts the catalogues: it reads a file only where they differ, or are not enough.
`verifying.py` compares the files with the catalogue.

Memory: the digests of some hours, and FRAMES_AT_ONCE frames, however much is pending.
Source: docs/design/storage.md, "Comparing two wheels".
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from heapq import merge
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from delayd.commands.examine.frontiers import record_of
from delayd.errors import ConfigError
from delayd.wheel import FrameKind, Progress
from delayd.wheel.comparing.common_cut import CommonCut
from delayd.wheel.comparing.digest_tree import Descent, DifferingHour
from delayd.wheel.comparing.held import HeldWheel
from delayd.wheel.reader import FoundFrame
from delayd.wheel.stopped import StoppedWheel, locked, open_stopped
from replication.frontier import Frontier
from replication.record import FrontierRecord

DIFFERENCES_MAX: Final = 1_000
"""Differences that are listed; further ones are counted."""
FRAMES_AT_ONCE: Final = 200_000
"""Frames of one side in memory, some 50 MB; an hour that differs in more is read several times."""

_SPREAD: Final = 0x9E3779B1
"""A prime that spreads offsets over the turns in which a large hour is compared."""
_CRC_BITS: Final = 32
_PRINTED_KINDS: Final = {
    FrameKind.MESSAGE: "message",
    FrameKind.PENDING_REPLY: "answer",
    FrameKind.CANCEL_MARKER: "mark",
}
_MATCHED: Final = -1


class Where(Enum):
    """How a frame, or a kill, differs."""

    ONLY_A = "only-a"
    ONLY_B = "only-b"
    ALTERED = "altered"
    """Both have this source, with different content."""
    TWICE_A = "twice-a"
    TWICE_B = "twice-b"


class Difference(NamedTuple):
    """A frame, or a kill, that both must hold alike and do not."""

    due_ms: int
    partition: int
    offset: int
    """Its place in the buffer."""
    what: str
    """"message", "answer" (a pending reply), "mark" (a cancel marker), or "kill"."""
    where: Where


@dataclass(slots=True)
class Side:
    """One of the two wheels."""

    directory: str
    progress: Progress
    forgotten: Frontier | None
    """The newest frontier by which it has forgotten."""


@dataclass(slots=True)
class Comparison:
    """The result of a comparison."""

    a: Side
    b: Side
    cut: CommonCut
    counts: dict[Where, int] = field(default_factory=lambda: dict.fromkeys(Where, 0))
    differences: list[Difference] = field(default_factory=list)
    """The first DIFFERENCES_MAX, by hour; then the kills."""
    exchanges: int = 0
    """Exchanges of digests."""
    nodes: int = 0
    """Digests that were compared."""
    frames_exchanges: int = 0
    """Hours whose frames were compared."""
    read_bytes: int = 0
    """Of the files of both."""

    @property
    def is_alike(self) -> bool:
        """Return whether both hold the same."""
        return not any(self.counts.values())

    def add(self, difference: Difference) -> None:
        """Note a difference."""
        self.counts[difference.where] += 1
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(difference)


def diff(a: Path, b: Path, tell: Callable[[int, int], None]) -> Comparison:
    """Compare the wheels in these data directories. `tell` gets the bytes read, and the total.

    Raises ConfigError: no wheel, no checkpoint, not two replicas of one cluster. Raises DiskError:
    a node runs on one, another format. Raises CorruptionError: a file that was read is damaged.
    """
    if a.resolve() == b.resolve():
        raise ConfigError(
            f"{a} and {b} are the same directory", remedy="name those of two stopped nodes"
        )
    with ExitStack() as stack:
        wheels = [
            stack.enter_context(open_stopped(stack.enter_context(locked(directory))))
            for directory in (a, b)
        ]
        comparison = _begin(*wheels)

        def told(count: int) -> None:
            comparison.read_bytes += count
            tell(comparison.read_bytes, sum(side.bytes for side in sides))

        sides: list[HeldWheel] = []
        sides += [HeldWheel(wheel, comparison.cut, told) for wheel in wheels]
        descent = Descent(*sides)
        for hour in descent.differing():
            comparison.frames_exchanges += 1
            for difference in differences_of(hour, *sides):
                comparison.add(difference)
        comparison.exchanges, comparison.nodes = descent.exchanges, descent.nodes
        for difference in _kills_that_differ(*sides):
            comparison.add(difference)
        return comparison


def _begin(a: StoppedWheel, b: StoppedWheel) -> Comparison:
    ours, theirs = _side(a), _side(b)
    if a.partitions != b.partitions:
        raise ConfigError(
            f"{a.layout.root} is for a buffer of {a.partitions} partitions, {b.layout.root} for "
            f"one of {b.partitions}",
            remedy=_ONE_CLUSTER,
        )
    records = _record(a, ours.progress.frontier), _record(b, theirs.progress.frontier)
    known = [record.settings for record in records if record is not None]
    owners = [(settings.cluster, settings.buffer) for settings in known]
    if len(set(owners)) > 1:
        (cluster, buffer), (other, other_buffer) = owners
        raise ConfigError(
            f"{a.layout.root} belongs to the cluster {cluster!r} with buffer {buffer.name} "
            f"({buffer.topic_id}), {b.layout.root} to {other!r} with {other_buffer.name} "
            f"({other_buffer.topic_id})",
            remedy=_ONE_CLUSTER,
        )
    forgotten = [side.forgotten for side in (ours, theirs) if side.forgotten is not None]
    id_memory_ms = known[0].id_memory_ms if known else None
    cut = CommonCut.of((ours.progress, theirs.progress), tuple(forgotten), id_memory_ms)
    return Comparison(ours, theirs, cut)


_ONE_CLUSTER: Final = "name the data directories of two nodes of one cluster"


def _side(wheel: StoppedWheel) -> Side:
    root = wheel.layout.root
    if wheel.progress is None:
        raise ConfigError(
            f"{root} has no checkpoint yet: it holds nothing that could be compared",
            remedy="let its node run for some seconds, and stop it again",
        )
    forgotten = _record(wheel, wheel.progress.forgotten)
    return Side(root, wheel.progress, None if forgotten is None else forgotten.frontier)


def _record(wheel: StoppedWheel, value: bytes) -> FrontierRecord | None:
    return record_of(wheel, value) if value else None


def differences_of(hour: DifferingHour, a: HeldWheel, b: HeldWheel) -> Iterator[Difference]:
    """Yield the frames of these slots that are not alike."""
    turns = -(-hour.frames // FRAMES_AT_ONCE)
    for turn in range(turns):
        held: dict[tuple[int, int, int], int] = {}
        for frame in a.frames(hour.hour, hour.slots):
            if _turn_of(frame, turns) != turn:
                continue
            source = _source(frame)
            if source in held:
                yield _difference(frame, Where.TWICE_A)
            held[source] = _content(frame)
        for frame in b.frames(hour.hour, hour.slots):
            if _turn_of(frame, turns) != turn:
                continue
            source = _source(frame)
            content = held.get(source)
            held[source] = _MATCHED
            if content is None:
                yield _difference(frame, Where.ONLY_B)
            elif content == _MATCHED:
                yield _difference(frame, Where.TWICE_B)
            elif content != _content(frame):
                yield _difference(frame, Where.ALTERED)
        for (kind, partition, offset), content in held.items():
            if content != _MATCHED:
                what = _PRINTED_KINDS[FrameKind(kind)]
                yield Difference(content >> _CRC_BITS, partition, offset, what, Where.ONLY_A)


def _turn_of(frame: FoundFrame, turns: int) -> int:
    return (frame.offset * _SPREAD >> 16) % turns


def _source(frame: FoundFrame) -> tuple[int, int, int]:
    return frame.kind, frame.partition, frame.offset


def _content(frame: FoundFrame) -> int:
    return frame.due_ms << _CRC_BITS | frame.crc


def _difference(frame: FoundFrame, where: Where) -> Difference:
    what = _PRINTED_KINDS[FrameKind(frame.kind)]
    return Difference(frame.due_ms, frame.partition, frame.offset, what, where)


def _kills_that_differ(a: HeldWheel, b: HeldWheel) -> Iterator[Difference]:
    ours = ((rank, marker_offset, Where.ONLY_A) for rank, marker_offset in a.kills())
    theirs = ((rank, marker_offset, Where.ONLY_B) for rank, marker_offset in b.kills())
    both = merge(ours, theirs, key=lambda each: each[0])
    for (due_ms, partition, offset), known in groupby(both, key=lambda each: each[0]):
        told = list(known)
        if len(told) == 1:
            yield Difference(due_ms, partition, offset, "kill", told[0][2])
        elif told[0][1] != told[1][1]:
            yield Difference(due_ms, partition, offset, "kill", Where.ALTERED)
