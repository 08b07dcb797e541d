"""Wheels that differ, with all checksums right, and nodes that compare and repair them.

A machine's wheel is changed while its node is down: a message is lost, altered, too many, or alive
though it was killed; on one machine, or on two alike. What is changed is due after the run, so that
nobody delivers it wrongly before it is found.

Real are the comparer and the repairer of each node. Their rounds run in a task of the node's
process, and other nodes are asked in memory, not over an admin port: what is asked of a process
that has died fails.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from random import Random
from typing import Any, Final, cast

from kernel import Kernel, Process
from kernel.threads import SimulatedEvent
from wheel_rewriting import Held, forget_kill, killed_in, messages_in, rewrite

from delayd.node.comparing.comparer import Comparer
from delayd.node.comparing.side import (
    Checkpoint,
    ComparisonError,
    HeldFrame,
    OwnSide,
    Pace,
    Side,
)
from delayd.node.replica.replica import Replica
from delayd.wheel.aside import RepairState, repair_note
from delayd.wheel.comparing.digest_tree import Digest, Level
from simulated.machine import Machine
from simulated.weather import Weather

ROUND_US: Final = 2_500_000
AGAIN_S: Final = 0.5
PLANT_US_MIN: Final = 4_000_000
BEYOND_MS: Final = 20 * 60_000
"""What is changed is due later than that from now: after the end of any run."""
VALUE: Final = 3
"""Where the value stands in the body of a message."""
KINDS: Final = ("lost", "altered", "extra", "revived")


class Differences:
    """A task that changes wheels, and tasks in which nodes compare theirs."""

    def __init__(self, kernel: Kernel, weather: Weather, machines: list[Machine]) -> None:
        self._kernel = kernel
        self._weather = weather
        self._machines = machines
        self._processes: list[Process] = []
        self.planted: dict[str, str] = {}
        """By machine, what was changed there, and is not lost with its disk."""
        self._has_planted = False
        """A node repairs itself once a day."""

    def run(self, chance: Random) -> None:
        """Let nodes compare themselves, and change wheels once; as a task.

        By a stream of its own: other seeds stay as they are.
        """
        # Otherwise if there is nothing to change in that way.
        kinds = chance.sample(KINDS, len(KINDS))
        count = chance.choice((1, 1, 2))
        plant_us = self._kernel.now_us + PLANT_US_MIN + chance.randrange(4_000_000)
        while True:
            self._kernel.sleep(100_000)
            for machine in self._machines:
                self._let_compare(machine)
            is_time = self._kernel.now_us >= plant_us and not self._weather.is_quiet
            if is_time and kinds and not self._has_planted:
                self._plant(kinds.pop(), chance.sample(self._machines, count))
                plant_us += ROUND_US

    def is_over(self) -> bool:
        """Return whether all nodes have found themselves alike."""
        return all(map(self._is_well, self._machines))

    def check(self, may_lack_room: bool) -> None:
        """Raise AssertionError unless each wheel that was changed was repaired, and is kept, if
        there was always room for it."""
        for machine in self._machines:
            note, what = repair_note(machine.data_dir), self.planted.get(machine.name)
            if what is None:
                assert note is None or note.state is RepairState.REPAIRED, (machine.name, note)
                continue
            assert note is not None and note.state is RepairState.REPAIRED, (what, note)
            assert note.is_from_log
            assert may_lack_room or (machine.data_dir / "replaced" / "catalogue").exists()

    def _is_well(self, machine: Machine) -> bool:
        note, view = repair_note(machine.data_dir), machine.view
        if view is None or view.unready() is not None or (note and note.is_under_way):
            return False
        if machine.name in self.planted and note is None:
            return False
        return not view.comparisons.comparer.view.findings

    # To change a wheel.

    def _plant(self, kind: str, machines: Sequence[Machine]) -> None:
        """Change the same thing on these machines, whose nodes are killed for it."""
        for machine in machines:
            if self._weather.is_stuck and machine.process is self._weather.stuck:
                return
        for machine in machines:
            if machine.process is not None and machine.is_up:
                self._kernel.kill(machine.process)
        self._weather.at_brokers(f"plant {kind}", 0, partial(self._plant_on_dead, kind, machines))

    def _plant_on_dead(self, kind: str, machines: Sequence[Machine]) -> None:
        since_ms = machines[0].clock.wall_ms() + BEYOND_MS
        folders = [machine.data_dir for machine in machines]
        if any(machine.is_up or not (machine.data_dir / "format.json").exists()
               for machine in machines):  # fmt: skip
            return
        if kind == "revived":
            first, *others = ({rank: key for key, rank in killed_in(f, since_ms)} for f in folders)
            ranks = sorted(first.keys() & set[Any]().union(*others) if others else first.keys())
            if not ranks:
                return
            for folder in folders:
                forget_kill(folder, first[ranks[0]])
            what = f"{ranks[0].partition}/{ranks[0].offset}"
        else:
            first_held, *other_held = (messages_in(folder, since_ms) for folder in folders)
            known = [held for held in first_held if all(held in other for other in other_held)]
            if not known:
                return
            change = partial(_changed, kind, known[0])
            if not all(rewrite(folder, change, since_ms) for folder in folders):
                return
            what = f"{known[0].partition}/{known[0].offset}"
        self._has_planted = True
        for machine in machines:
            machine.platter.synced_bytes.clear()
            machine.platter.new_files.clear()
            self.planted[machine.name] = what
            self._weather.inject("wheel changed", f"{machine.name}: {kind} {what}")

    # To compare.

    def _let_compare(self, machine: Machine) -> None:
        process, view = machine.process, machine.view
        if view is None or process is None or process in self._processes:
            return
        self._processes.append(process)
        comparer = view.comparisons.comparer
        comparer._others = _Others(self._machines, machine)
        comparer._pace = view.comparisons.answerer._pace = _NoPace(machine.clock)
        comparer._stopping = cast(Any, SimulatedEvent(self._kernel))
        comparer._again_s = AGAIN_S
        process.spawn("comparer", lambda: self._compare(comparer))

    def _compare(self, comparer: Comparer) -> None:
        told = comparer._told
        while True:
            self._kernel.sleep(ROUND_US)
            if comparer._replica.wheel.progress is None:
                continue
            comparer.round()
            while not told.empty():
                if (asked := told.get_nowait()) is not None:
                    comparer.look_at(*asked)


def _changed(kind: str, which: Held, held: Held) -> list[Held]:
    if held[:3] != which[:3]:
        return [held]
    if kind == "lost":
        return []
    other = (*held.fields[:VALUE], b"something else", *held.fields[VALUE + 1 :])
    if kind == "altered":
        return [held._replace(fields=other)]
    return [held, held._replace(offset=0)]


class _NoPace(Pace):
    """Reads take no time here, and must not take any outside."""

    def pause_s(self, size_bytes: int) -> float:
        self.read_bytes += size_bytes
        return 0


class _Others:
    """The other nodes, as one of them sees them."""

    def __init__(self, machines: list[Machine], own: Machine) -> None:
        self._machines = {each.name: each for each in machines if each is not own}
        self._own = own

    def ready(self) -> list[str]:
        found = [
            (machine.has_live_grant, name)
            for name, machine in self._machines.items()
            if machine.view is not None and machine.view.unready() is None
        ]
        return [name for _, name in sorted(found)]

    def announced(self) -> list[str]:
        return [name for name, machine in self._machines.items() if machine.is_up]

    def side(self, name: str) -> Side:
        machine = self._machines[name]
        if machine.view is None or machine.view.replica.wheel.progress is None:
            raise ComparisonError(f"{name} does not answer")
        return _OtherSide(machine)

    def tell(self, side: Side, hour: int) -> None:
        view = self._machines[side.about.node].view
        if view is not None:
            view.comparisons.comparer.look_soon(self._own.name, hour)


class _Unlocked:
    """Another process's replica: what is done with it takes no turn, so no lock is needed."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.changed: Any = nullcontext()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replica, name)


class _OtherSide:
    """Another node's side; it is gone with its process."""

    def __init__(self, machine: Machine) -> None:
        view = machine.view
        assert view is not None, "it was asked"
        self._machine = machine
        self._process = machine.process
        replayed = view.comparisons.repairer.replayed
        replica = cast(Replica, _Unlocked(view.replica))
        self._side = OwnSide(replica, machine.name, _NoPace(machine.clock), replayed)
        self.about = self._side.about

    def _asked(self, answer: Callable[[], Any]) -> Any:
        if self._machine.process is not self._process or not self._machine.is_up:
            raise ComparisonError(f"{self._machine.name} does not answer any more")
        return answer()

    def agree(self, checkpoints: Sequence[Checkpoint]) -> None:
        self._asked(lambda: self._side.agree(checkpoints))

    def digests(self, level: Level, parents: Sequence[int]) -> Mapping[int, Digest]:
        found: Mapping[int, Digest] = self._asked(lambda: self._side.digests(level, parents))
        return found

    def frames(self, hour: int, slots: Any, turn: int, turns: int) -> Sequence[HeldFrame]:
        ask = partial(self._side.frames, hour, slots, turn, turns)
        found: Sequence[HeldFrame] = self._asked(ask)
        return found

    def kill_digests(self, first_hour: int) -> tuple[Mapping[int, Digest], int | None]:
        found: tuple[Mapping[int, Digest], int | None]
        found = self._asked(lambda: self._side.kill_digests(first_hour))
        return found

    def end(self) -> None:
        if self._machine.process is self._process and self._machine.is_up:
            self._side.end()
