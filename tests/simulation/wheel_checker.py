"""What must hold of the nodes' own disks once a run is over, and every node has ended.

all nodes have ingested the same, up to the same log time (but for those that were rebuilt from a
log without its beginning: they learn the log time from what was kept)
what each holds that is not Done is exactly what the log says, byte for byte the same everywhere
what a frontier older than `export_hold` covers is gone
each knows of ids what the log says (`id_checker.py`)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from at_least_once_checker import AtLeastOnceChecker
from id_checker import IdChecker
from log_rules import Step
from simulation_checker import Checker
from wheel_reading import entries_in

from delayd.wheel import Frame, FrameKind
from delayd.wheel.layout import HOUR_SLOTS
from delayd.wheel.storage import Wheel

SLOT_MS = 1_000
HOUR_MS = 3_600_000
VALUE = 3
"""Where the value stands in the body of a message."""


class WheelChecker:
    """The wheels of one finished run; `judge` has read the log."""

    def __init__(
        self,
        judge: Checker | AtLeastOnceChecker,
        directories: Mapping[Path, int],
        partitions: int,
    ) -> None:
        """`directories`: each with the time from which on its node knows what was due; 0 if it
        knows all."""
        self._judge = judge
        self._directories = directories
        self._partitions = partitions

    def check(self, export_hold_ms: int, grace_ms: int) -> None:
        """Raise AssertionError, with the node that breaks a rule. `grace_ms`: time to forget in."""
        found = [self._read(directory) for directory in self._directories]
        first, progress, _ = found[0]
        log_times = {
            reached[1]
            for (_, reached, _), from_ms in zip(found, self._directories.values(), strict=True)
            if not from_ms
        }
        assert len(log_times) <= 1, f"nodes differ in log time: {log_times}"
        expected = {
            message.source: message.value
            for message in self._judge.messages
            if not self._judge.steps[-1].is_done(message)
        }
        assert {source: frame.body[VALUE] for source, frame in first.items()} == expected
        for directory, (pending, reached, _) in zip(self._directories, found, strict=True):
            assert reached[0] == progress[0], f"{directory.name} has ingested something else"
            assert pending == first, f"{directory.name} holds something else"
        cut = self._cut(export_hold_ms + grace_ms)
        for directory, (_, _, wheel) in zip(self._directories, found, strict=True):
            kept = [slot for slot, highest in wheel if self._is_covered(slot, highest, cut)]
            assert not kept, f"{directory.name} keeps slots that are covered: {kept}"

    def _read(
        self, directory: Path
    ) -> tuple[dict[str, Frame], tuple[Any, ...], list[tuple[int, tuple[int, ...]]]]:
        """Return the pending messages by source, how far the node has come, and the highest
        offsets of each file, with the last slot that it is of."""
        wheel = Wheel.open(directory, partitions=self._partitions)
        try:
            # Whatever is far is brought to its slot; in memory, nothing of it is written down.
            wheel.advance(max((hour + 1) * HOUR_MS for hour in (0, *wheel.hours())))
            while wheel.split_some():
                pass
            pending, files = {}, []
            for hour in wheel.hours():
                info = wheel.hour_info(hour)
                assert info is not None, "a listed hour has a line"
                files.append(((hour + 1) * HOUR_SLOTS - 1, info.highest_offsets))
            for slot in wheel.slots():
                info = wheel.info(slot)
                assert info is not None, "a listed slot holds something"
                if wheel.end_of(slot):
                    files.append((slot, info.highest_offsets))
                for frame in wheel.read(entries_in(wheel, slot)):
                    source = f"{frame.partition}/{frame.offset}"
                    if frame.kind == FrameKind.MESSAGE and not self._is_done(frame):
                        pending[source] = frame
            if isinstance(self._judge, Checker):
                known_from_ms = self._directories[directory]
                IdChecker(self._judge, known_from_ms).check(directory.name, wheel)
            assert wheel.progress is not None, "a node that ended has made a checkpoint"
            return pending, (wheel.progress.offsets, wheel.progress.log_ms), files
        finally:
            wheel.close()

    def _is_done(self, frame: Frame) -> bool:
        last = self._judge.steps[-1]
        rank = (frame.due_ms, frame.partition, frame.offset)
        cursor = last.cursor_of(frame.lane, frame.partition)
        return rank < cursor and frame.offset < last.offsets[frame.partition]

    def _cut(self, age_ms: int) -> Step:
        """Return the newest frontier that is at least so old, by the broker's clock."""
        ages = self._judge.step_times
        found = [
            step
            for step, at_ms in zip(self._judge.steps, ages, strict=True)
            if at_ms <= ages[-1] - age_ms
        ]
        return (found or self._judge.steps)[-1 if found else 0]

    def _is_covered(self, slot: int, highest: tuple[int, ...], cut: Step) -> bool:
        lowest_ms = min(cursor[0] for cursor in cut.cursors)
        return slot < lowest_ms // SLOT_MS and all(
            offset < bound for offset, bound in zip(highest, cut.offsets, strict=True)
        )
