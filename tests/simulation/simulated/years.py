"""Months in virtual time: short spans in which all happens, and leaps over what lies between.

    a span    users send what is due in minutes to weeks, and faults strike as in any run
    a rest    faults are healed; the nodes that are there deliver, ingest and checkpoint everything
    a leap    all machines are suspended for up to some days; the brokers then delete what is old
    an event  a node is away for weeks, loses its disk or comes back

A node that the trimmed log does not reach rebuilds its wheel from what was kept, or refuses to
start; then a person gives it a copy of a healthy one's disk.

A leap is what an idle cluster would have been through without its idle steps: only wall clocks go
on. Nothing is trimmed that a node which is there has not made durable, as within a retention of
days. By a random stream of its own; the faults of the spans are those of `chaos.py`.
"""

import shutil
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from bounds_checker import check, due_of
from kernel import SECOND_US

from delayd.wheel.storage import Wheel
from simulated.disk import Platter
from simulated.machine import Machine
from simulated.replaced_disks import DiskJudge
from simulated.upkeep import BUFFER
from simulated.users import IDS, OPEN_MS_MAX
from simulated.weather import Habits

if TYPE_CHECKING:
    from simulated.world import World

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SPAN_US = (1 * SECOND_US, 3 * SECOND_US)
REST_US_MAX = 120 * SECOND_US
"""Within this the nodes that are there have done all that there is to do."""
STEP_US = SECOND_US // 2
LEAP_MS = (2 * DAY_MS, 40 * DAY_MS)
MEASURED = 0.1
"""How often, after an event, it is looked at what the nodes keep."""
REST_MS = 2_000
"""So long nothing is due when a leap begins: no step is under way."""
SOON_MS = 60_000
"""At the end all that is due so soon is delivered."""
LATEST_MS = 4_000
AWAY_MS = (HOUR_MS, 60 * DAY_MS)
AWAY_MAX = 2
KEPT_LONGER_DAYS = (0, 30, 60, 90, 120)
"""The buffer's retention, beyond what it is created with."""


def slow_down(habits: Habits, chance: Random) -> Habits:
    """Return the habits of a run of months, drawn anew where seconds would be too short."""
    return replace(
        habits,
        fault_every_ms=chance.choice([2_000, 6_000]),
        export_hold_ms=chance.choice([3_000, 900_000]),
        id_memory_ms=chance.choice([2_000, 3_600_000, DAY_MS]),
        checkpoint_ms=1_000,
        idle_step_ms=5_000,
        death=habits.death / 4,
        freeze=habits.freeze / 4,
        max_delay_ms=chance.choice([2, 10, 40]) * DAY_MS,
    )


class Years:
    """The days of one run."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._kernel = world.kernel
        self._weather = world.weather
        self._machines = world.machines
        self._chance = Random(f"{world.seed}: years")
        self._back_at_ms: dict[str, int] = {}
        """By node that is away: when it comes back."""
        self._clocks_are_lost = self._chance.random() < 0.3
        """In few seeds: the judge of times allows for clocks that were set back."""
        kept = Random(f"{world.seed}: retention").choice(KEPT_LONGER_DAYS)
        buffer = world.kafka.topics[BUFFER]
        buffer.config["retention.ms"] = str(int(buffer.setting("retention.ms")) + kept * DAY_MS)
        users = world.users
        users.far_share = 0.7
        delays_ms = world.habits.max_delay_ms - HOUR_MS
        users.far_ms = lambda: self._drawn((60_000, delays_ms))

    def pass_days(self, days: int) -> None:
        """Let so many days pass; then all nodes are there."""
        world = self._world
        world.soon_ms = REST_MS
        end_ms = self._now_ms() + days * DAY_MS
        while self._now_ms() < end_ms:
            self._live()
            self._rest()
            self._leap()
            self._event()
            if self._chance.random() < MEASURED:
                self._rest()
                self._pass_hold()
                self._rest()
                self._check_bounds()
        for machine in self._machines:
            self._bring_back(machine)
        self._rest()
        self._pass_hold()
        self._rest()
        self._check_bounds()
        world.soon_ms = SOON_MS

    def _pass_hold(self) -> None:
        """Let so much time pass that everything may be forgotten that was delivered by now.

        A node remembers a frontier for each 16th of `export_hold`.
        """
        world, hold_ms = self._world, self._world.habits.export_hold_ms
        self._kernel.suspend(hold_ms * 1_000 // 16)
        world.let_pass(2 * world.habits.idle_step_ms * 1_000)
        self._kernel.suspend(hold_ms * 1_000)

    def _check_bounds(self) -> None:
        """Let the nodes forget, and check what each of them keeps."""
        world, hold_ms = self._world, self._world.habits.export_hold_ms
        world.let_pass(world.forget_ms * 1_000)
        frontiers = world.records("delayd-frontier")
        old_ms = frontiers[-1].append_ms - hold_ms - hold_ms // 16 - world.forget_ms
        cut = [frontier for frontier in frontiers if frontier.append_ms <= old_ms][-1]
        records = world.records(BUFFER)
        for machine in self._machines:
            if machine.view is not None and not machine.is_held:
                log_ms = machine.view.replica.log_ms
                due = due_of(records, cut, log_ms, world.habits.id_memory_ms)
                check(machine.name, machine.view, due)

    def _now_ms(self) -> int:
        return self._world.kafka.clock.wall_ms()

    def _drawn(self, span: tuple[int, int]) -> int:
        """Draw from a span, short ones as often as long ones."""
        low, high = span
        return int(low * (high / low) ** self._chance.random())

    def _live(self) -> None:
        """Let users send and faults strike for a while."""
        day = self._now_ms() // DAY_MS
        users = self._world.users
        users.ids = (*IDS, f"of day {day}", f"of week {day // 7}")
        users.is_away = self._weather.is_quiet = False
        if self._clocks_are_lost and self._chance.random() < 0.3:
            machine = self._chance.choice(self._machines)
            by_ms = self._chance.choice([-1, 1]) * self._drawn((HOUR_MS, 400 * DAY_MS))
            self._world.chaos.lose_time(machine, by_ms)
        self._world.let_pass(self._chance.randrange(*SPAN_US))
        users.is_away = self._weather.is_quiet = True

    def _rest(self) -> None:
        """Heal everything, and wait until the nodes that are there have nothing left to do."""
        world = self._world
        until_us = self._kernel.now_us + REST_US_MAX
        world.let_pass(OPEN_MS_MAX * 1_000)  # A user may still end a transaction.
        world.chaos.heal()
        ends = self._ends()
        while self._mend() or not (world.is_settled() and self._is_durable(ends)):
            assert self._kernel.now_us < until_us, "the nodes do not come to rest"
            world.let_pass(STEP_US)

    def _leap(self) -> None:
        """Let days pass, or all until shortly before something is due, and let brokers clean up."""
        leap_ms = self._drawn(LEAP_MS)
        if self._chance.random() < 0.5:
            leap_ms = self._until_due(leap_ms)
        durable = self._durable()
        self._kernel.suspend(leap_ms * 1_000)
        trimmed = self._world.upkeep.trim(durable)
        compacted = self._world.upkeep.compact()
        self._weather.note(
            f"{leap_ms / DAY_MS:.2f} days later: {trimmed} trimmed, {compacted} compacted"
        )

    def _until_due(self, leap_ms: int) -> int:
        """Return how long it is until shortly before the last message that is due within a leap;
        the leap itself if there is none."""
        due_ms = self._world.backlog.last_due_ms(self._now_ms() + leap_ms)
        until_ms = due_ms - self._now_ms() - self._chance.randrange(LATEST_MS)
        return until_ms if until_ms > 0 else leap_ms

    def _event(self) -> None:
        """Let a node go away, come back or lose its disk."""
        for machine in self._machines:
            back_ms = self._back_at_ms.get(machine.name)
            if back_ms is not None and back_ms <= self._now_ms():
                self._bring_back(machine)
        there = [m for m in self._machines if m.is_up and not m.is_held]
        if len(there) <= len(self._machines) - AWAY_MAX:
            return
        machine = self._chance.choice(there)
        if self._chance.random() < 0.25:
            self._stop(machine)
            self._back_at_ms[machine.name] = self._now_ms() + self._drawn(AWAY_MS)
            self._weather.inject("node away", machine.name)
        elif self._chance.random() < 0.3:
            self._stop(machine)
            self._give(machine, None)
            machine.is_held = False
            self._weather.inject("disk lost", machine.name)

    def _bring_back(self, machine: Machine) -> None:
        if self._back_at_ms.pop(machine.name, None) is not None:
            self._weather.note(f"{machine.name} comes back")
            machine.is_held = False

    def _mend(self) -> bool:
        """Give nodes that the log does not reach any more the disk of one that goes on. Return
        whether there was one."""
        refused = [m for m in self._machines if m.has_refused and m.name not in self._back_at_ms]
        for machine in refused:
            self._check_refusal(machine)
            healthy = [m for m in self._machines if m.is_up and m.view and not m.is_held]
            if healthy:
                source = self._chance.choice(healthy)
                self._weather.inject("disk copied", f"from {source.name} to {machine.name}")
                self._stop(source)
                self._give(machine, source)
                machine.has_refused = False
                source.is_held = machine.is_held = False
        return bool(refused)

    def _stop(self, machine: Machine) -> None:
        """Keep a node from running; what it had in memory is lost."""
        machine.is_held = True
        if machine.process is not None:
            self._kernel.kill(machine.process)

    def _give(self, machine: Machine, source: Machine | None) -> None:
        """Give a machine an empty disk, or a copy of another one."""
        shutil.rmtree(machine.data_dir, ignore_errors=True)
        machine.platter = Platter()
        machine.known_from_ms = 0 if source is None else source.known_from_ms
        if source is not None:
            shutil.copytree(source.data_dir, machine.data_dir)
        else:
            machine.platter.judge = DiskJudge(machine.name, self._world.newest_step()).check

    def _check_refusal(self, machine: Machine) -> None:
        """Raise AssertionError if a node refuses a log that still holds what it has to read, and
        that it has read from its beginning."""
        logs = self._world.kafka.topics[BUFFER].partitions
        reached = (0,) * len(logs)
        if machine.data_dir.exists():
            wheel = Wheel.open(machine.data_dir, partitions=len(logs))
            progress = wheel.progress
            wheel.close()
            if progress is not None and progress.began:
                return
            if progress is not None:
                reached = tuple(map(max, progress.offsets, progress.reached or progress.offsets))
        starts = [log.start_offset for log in logs]
        assert any(own < start for own, start in zip(reached, starts, strict=True)), (
            f"{machine.name} at {reached} refuses a buffer that begins at {starts}"
        )

    def _ends(self) -> dict[int, int]:
        logs = self._world.kafka.topics[BUFFER].partitions
        return {log.number: log.stable_offset for log in logs}

    def _is_durable(self, ends: dict[int, int]) -> bool:
        """Return whether every node that is there has made durable what lies before these ends."""
        durable = self._durable()
        return bool(durable) and all(durable[number] >= end for number, end in ends.items())

    def _durable(self) -> dict[int, int]:
        """Return up to where every node that is there has made the buffer durable; nothing if one
        is being started."""
        durable: dict[int, int] = {}
        for machine in self._machines:
            if machine.is_held:
                continue
            if machine.view is None or (progress := machine.view.replica.wheel.progress) is None:
                return {}
            reached = map(max, progress.offsets, progress.reached or progress.offsets)
            for number, offset in enumerate(reached):
                durable[number] = min(offset, durable.get(number, offset))
        return durable
