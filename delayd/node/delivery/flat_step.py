"""Native path of a step: frames of plain messages become the records that deliver them in C, run by
run.

It takes what `fast_step.py` takes, but for messages with an id, and leaves all else to it, in the
order of the messages. A run is unpacked before its targets are asked about, so that all of them are
known then. Where a target does not take everything, its messages are left to Python, too.

Invariant: the records, their order, and what the step keeps of them are as they would be without
the native library (`tests/unit/node/delivery/test_fast_step.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from delayd.bus import Producer
from delayd.bus.flat import Outgoing
from delayd.node.delivery.fast_step import FastTarget
from delayd.node.delivery.planner import PLAIN_RUN_MIN, FlatPiece, Piece
from delayd.runtime import native
from delayd.runtime.native.unpacking import Unpacked, Unpacker, Unpacking
from delayd.wheel import Entry


class Run(NamedTuple):
    """Messages that were unpacked together."""

    entries: Sequence[Entry]
    unpacked: Unpacking

    @property
    def lanes(self) -> dict[str, int]:
        """The targets, with their lanes."""
        return {each.name: self.entries[each.first].lane for each in self.unpacked.targets}


class Stretch(NamedTuple):
    """Consecutive messages of a run, all of which may be sent as they are, or none."""

    entries: Sequence[Entry]
    records: Outgoing | None
    """None if they are left to Python."""
    digest: int
    """Sum of the CRC-32 of the sources."""


NEVER: Final = 1 << 62
"""Of plain messages in a row: all are taken by Python."""


class FlatStep:
    """Unpacks the pieces of steps. Used by one thread."""

    def __init__(self, run_min: int = PLAIN_RUN_MIN) -> None:
        """`run_min`: fewer plain messages in a row are taken by Python."""
        self._run_min = run_min
        self._unpacker: Unpacker | None = None
        if native.library is not None:
            self._unpacker = Unpacker(native.library, run_min=run_min)

    def runs(self, piece: FlatPiece, fired_ms: int) -> Iterator[Run | Piece]:
        """Yield all of a piece: runs, and what Python has to read between them."""
        entries, first, at = piece.entries, 0, 0
        while self._unpacker is not None and len(entries) - first >= self._run_min:
            found = self._unpacker.unpack(piece.frames, first, at, fired_ms)
            if isinstance(found, int):
                others = entries[first : first + found]
                yield piece.read(others)
                first, at = first + found, at + sum(entry.length for entry in others)
            else:
                yield Run(entries[first : first + found.taken], found)
                first, at = first + found.taken, at + found.frame_bytes
        if first < len(entries):
            yield piece.read(entries[first:])


def send_run(
    run: Run,
    targets: Mapping[str, FastTarget],
    producer: Producer,
    otherwise: Callable[[Sequence[Entry]], None],
) -> tuple[int, int]:
    """Send the messages to these targets, and hand the others to `otherwise`, in their order.

    Returns how many were sent, and the sum of the CRC-32 of their sources. Raises ProducerError.
    """
    count = digest = 0
    for entries, records, crcs in _stretches(run, targets):
        if records is None:
            otherwise(entries)
            continue
        producer.send_flat(records)
        count += len(entries)
        digest += crcs
    return count, digest


def _stretches(run: Run, targets: Mapping[str, FastTarget]) -> Iterator[Stretch]:
    """Yield the stretches of a run. What its targets keep of a stretch, they have by then."""
    entries, unpacked = run
    names, end = [each.name for each in unpacked.targets], unpacked.record_bytes
    found = [targets.get(name) for name in names]
    is_whole = all(
        target is not None and each.partition_max < target.partition_count
        for each, target in zip(unpacked.targets, found, strict=True)
    )
    if is_whole and len(found) == 1:
        [target] = found
        assert target is not None, "a target that is there takes all of the run"
        target.sources.entries.extend(entries)
        target.dues_ms.extend(map(itemgetter(0), entries))
        yield Stretch(entries, Outgoing(names, unpacked.records, 0, end), unpacked.crcs)
        return

    def target_of(message: tuple[int, Unpacked]) -> FastTarget | None:
        target = found[message[1].target]
        is_there = target is not None and message[1].partition < target.partition_count
        return target if is_there else None

    messages = list(enumerate(unpacked.messages))
    for takes_all, some in groupby(messages, lambda each: target_of(each) is not None):
        stretch = list(some)
        (first, begin), after = stretch[0], stretch[-1][0] + 1
        records = None
        if takes_all:
            stop = messages[after][1].begin if after < len(messages) else end
            records = Outgoing(names, unpacked.records, begin.begin, stop)
            for index, message in stretch:
                target = found[message.target]
                assert target is not None, "a stretch goes to targets that take all of it"
                target.sources.entries.append(entries[index])
                target.dues_ms.append(entries[index].due_ms)
        yield Stretch(entries[first:after], records, sum(each.crc for _, each in stretch))
