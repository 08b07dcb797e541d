"""Do two replicas hold the same? Two stopped wheels of one cluster, at what both must hold.

1. Are they of one cluster and buffer, and of one partition count?
2. The tree of digests (`digest_tree.py`): which slots differ.
3. The frames of these slots, hour by hour, one side against the other.
4. Killed messages, by rank, one stream beside the other.

The catalogues are believed: a file is read only where they differ, or do not tell enough. Whether
the files are what the catalogues say is asked of `verifying.py`.

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

from delayd.commands.examine.common_cut import CommonCut
from delayd.commands.examine.digest_tree import Descent, DifferingHour
from delayd.commands.examine.frontiers import record_of
from delayd.commands.examine.held import HeldFrame, HeldWheel
from delayd.errors import ConfigError
from delayd.wheel import FrameKind, Progress
from delayd.wheel.stopped import StoppedWheel, locked, open_stopped
from replication.frontier import Frontier
from replication.record import FrontierRecord

DIFFERENCES_MAX: Final = 1_000
"""That are listed; further ones are counted."""
FRAMES_AT_ONCE: Final = 200_000
"""Of one side in memory, some 50 MB; an hour that differs in more is read several times."""

_SPREAD: Final = 0x9E3779B1
"""A prime by which offsets are spread over the turns in which a large hour is compared."""
_CRC_BITS: Final = 32
_PRINTED_KINDS: Final = {
    FrameKind.MESSAGE: "message",
    FrameKind.PENDING_REPLY: "answer",
    FrameKind.CANCEL_MARKER: "mark",
}
_MATCHED: Final = -1


class Where(Enum):
    """What is wrong with a frame, or a kill."""

    ONLY_A = "only-a"
    ONLY_B = "only-b"
    ALTERED = "altered"
    """Both hold one of this source, and not the same."""
    TWICE_A = "twice-a"
    TWICE_B = "twice-b"


class Difference(NamedTuple):
    """One that both must hold alike, and do not."""

    due_ms: int
    partition: int
    offset: int
    """Where in the buffer it came from."""
    what: str
    """"message", "answer", "mark", or "kill": that the message is known to be killed."""
    where: Where


@dataclass(slots=True)
class Side:
    """One of the two."""

    directory: str
    progress: Progress
    forgotten: Frontier | None
    """The newest frontier by which it has forgotten."""


@dataclass(slots=True)
class Comparison:
    """What came of it."""

    a: Side
    b: Side
    cut: CommonCut
    counts: dict[Where, int] = field(default_factory=lambda: dict.fromkeys(Where, 0))
    differences: list[Difference] = field(default_factory=list)
    """The first DIFFERENCES_MAX, by hour; then the kills."""
    exchanges: int = 0
    """Digests were exchanged so many times."""
    nodes: int = 0
    """Digests that were compared."""
    frames_exchanges: int = 0
    """Hours of which frames were compared."""
    read_bytes: int = 0
    """Of the files of both."""

    @property
    def is_alike(self) -> bool:
        """Do both hold the same?"""
        return not any(self.counts.values())

    def add(self, difference: Difference) -> None:
        """Note one."""
        self.counts[difference.where] += 1
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(difference)


def diff(a: Path, b: Path, tell: Callable[[int, int], None]) -> Comparison:
    """Compare the wheels in these data directories. `tell` is told the bytes read, and of how many.

    Raises ConfigError: no wheel, no checkpoint, not two replicas of one cluster. Raises DiskError:
    a node runs on one, another format. Raises CorruptionError: what had to be read is damaged.
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
    cut = CommonCut.of(ours.progress, theirs.progress, tuple(forgotten), id_memory_ms)
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
    """The frames of these slots that are not alike."""
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
                due_ms = content >> _CRC_BITS
                frame = HeldFrame(kind, partition, offset, due_ms, 0)
                yield _difference(frame, Where.ONLY_A)


def _turn_of(frame: HeldFrame, turns: int) -> int:
    return (frame.offset * _SPREAD >> 16) % turns


def _source(frame: HeldFrame) -> tuple[int, int, int]:
    return frame.kind, frame.partition, frame.offset


def _content(frame: HeldFrame) -> int:
    return frame.due_ms << _CRC_BITS | frame.crc


def _difference(frame: HeldFrame, where: Where) -> Difference:
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
