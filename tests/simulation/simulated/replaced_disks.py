"""Disks that are lost and replaced by empty ones, and what a node may store on those.

A node that rebuilds its wheel reads the whole buffer, most of which was delivered long ago. It
stores what was pending when its disk was replaced, and nothing else: that bounds its bytes, and its
files, each of which begins with a frame.
"""

import shutil
from collections.abc import Callable
from functools import partial
from random import Random

from kernel import Kernel
from log_rules import Step

from delayd.wheel import FrameKind
from delayd.wheel.frame import walk
from simulated.machine import Machine
from simulated.weather import Weather

DISKS_EVERY_US = 4_000_000


class ReplacedDisks:
    """A task that takes disks away."""

    def __init__(
        self,
        kernel: Kernel,
        weather: Weather,
        machines: list[Machine],
        newest_step: Callable[[], Step],
        planted: dict[str, str],
    ) -> None:
        """`newest_step` returns the last committed frontier; `planted`: by machine, in what its
        wheel was made to differ."""
        self._kernel = kernel
        self._weather = weather
        self._machines = machines
        self._newest_step = newest_step
        self._planted = planted

    def run(self, chance: Random) -> None:
        """Replace a disk now and then, until all is quiet; as a task.

        By a stream of its own: other seeds stay as they are.
        """
        while True:
            self._kernel.sleep(chance.randrange(2 * DISKS_EVERY_US))
            if self._weather.is_quiet:
                return
            machine = chance.choice(self._machines)
            # A master that is stuck is left alone: it must let its lease go by itself.
            if self._weather.is_stuck and machine.process is self._weather.stuck:
                continue
            self._weather.inject("disk replaced", machine.name)
            if machine.process is not None and machine.is_up:
                # Only after the process was buried: its files are closed then.
                machine.process.at_death.append(partial(self._replace, machine))
                self._kernel.kill(machine.process)
            else:
                self._replace(machine)

    def _replace(self, machine: Machine) -> None:
        shutil.rmtree(machine.data_dir, ignore_errors=True)
        self._planted.pop(machine.name, None)
        machine.platter.synced_bytes.clear()
        machine.platter.new_files.clear()
        machine.platter.judge = DiskJudge(machine.name, self._newest_step()).check


class DiskJudge:
    """Judges what is written to one disk since it was replaced."""

    def __init__(self, name: str, step: Step) -> None:
        self._name = name
        self._step = step

    def check(self, data: bytes) -> None:
        """Raise AssertionError if frames are written that were done when the disk was replaced."""
        for due_ms, partition, offset, lane, kind, *_ in walk(data, 0):
            is_done = offset < self._step.offsets[partition]
            if kind == FrameKind.MESSAGE:
                is_done = is_done and (due_ms, partition, offset) < self._step.cursors[lane]
            assert not is_done, f"{self._name} stores {partition}/{offset}, which was done before"
