"""The nodes' pulses: what a follower hears of its master, true at most times.

A process that dies ends its lines at once, and its port refuses. One that stands still, or whose
machine has lost its power, is silent. Beside that, lines lie: a living master's line ends and its
port refuses, or all that a node hears is silence.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING

from kernel import Kernel

from delayd.node.election.heartbeat import FAREWELL
from delayd.node.election.pulse_line import Heard, Opened, Place
from replication import pulse
from simulated.weather import Weather

if TYPE_CHECKING:
    from simulated.machine import Machine

SLICE_MS = 25
"""How soon a listener hears what happened."""
PORT = 7070


class Pulses:
    """All lines of a run. `lies`: the chance that one does, at each thing that is heard."""

    def __init__(
        self, kernel: Kernel, weather: Weather, chance: Random, machines: "list[Machine]"
    ) -> None:
        self._kernel = kernel
        self._weather = weather
        self._chance = chance
        self._machines = machines
        self._deaf_until_us: dict[str, int] = {}
        self._lied_until_us: dict[str, int] = {}
        self.lies = chance.choice([0, 0.002, 0.02])
        self.lie_us = 1_000_000

    def exchange_of(self, name: str) -> "SimulatedExchange":
        """Return the way of one node to the others."""
        return SimulatedExchange(self, name)

    def machine(self, name: str) -> "Machine":
        """Return the machine of that name."""
        return next(machine for machine in self._machines if machine.name == name)

    def is_silent(self, listener: str, machine: "Machine") -> bool:
        """Return whether nothing of this machine is heard there now."""
        process, now_us = machine.process, self._kernel.now_us
        is_paused = process is not None and process.paused_until_us > now_us
        return is_paused or machine.is_dark or now_us < self._deaf_until_us.get(listener, 0)

    def is_lied_of(self, machine: "Machine") -> bool:
        """Return whether it seems to be dead, whatever it is."""
        return self._kernel.now_us < self._lied_until_us.get(machine.name, 0)

    def may_lie(self, listener: str, machine: "Machine") -> None:
        """Draw whether a lie about this machine begins."""
        if self._weather.is_quiet or self._chance.random() >= self.lies:
            return
        until_us = self._kernel.now_us + self.lie_us
        if self._chance.random() < 0.5:
            self._weather.inject("pulse refused", machine.name)
            self._lied_until_us[machine.name] = until_us
        else:
            deaf = self._machines if self._chance.random() < 0.5 else [self.machine(listener)]
            self._weather.inject("pulse cut", " ".join(each.name for each in deaf))
            until_us += self._chance.randrange(3_000_000)
            self._deaf_until_us.update({each.name: until_us for each in deaf})


class SimulatedExchange:
    """The port `Exchange` of one node."""

    def __init__(self, pulses: Pulses, name: str) -> None:
        self._pulses = pulses
        self._name = name

    async def open(self, place: Place, life: str, lease_id: int, within_ms: int) -> Opened:
        """See the port."""
        await asyncio.sleep(0.001)
        machine = self._pulses.machine(place.host)
        if self._pulses.is_silent(self._name, machine):
            await asyncio.sleep(within_ms / 1_000)
            return Opened(pulse.Unanswered, None)
        view = machine.view
        if view is None or self._pulses.is_lied_of(machine):
            return Opened(pulse.Refused, None)
        if machine.nonce != life:
            return Opened(pulse.Replaced, None)
        return Opened(pulse.Answered, SimulatedLine(self._pulses, self._name, machine, lease_id))


class SimulatedLine:
    """The port `Line`."""

    def __init__(self, pulses: Pulses, name: str, machine: "Machine", lease_id: int) -> None:
        self.place = Place(machine.name, PORT)
        self._pulses = pulses
        self._name = name
        self._machine = machine
        self._process = machine.process
        self._farewell = FAREWELL % lease_id
        self._said: list[bytes | None] = []
        assert machine.view is not None, "it has answered"
        self._listeners = machine.view.control.heartbeat._listeners
        self._listeners.add(self)  # type: ignore[arg-type]

    def put_nowait(self, line: bytes | None) -> None:
        """Take what the master says, as a queue of its heartbeat."""
        self._said.append(line)

    async def hear(self, within_ms: int) -> Heard:
        """See the port."""
        pulses, machine = self._pulses, self._machine
        pulses.may_lie(self._name, machine)
        for _ in range(within_ms // SLICE_MS):
            process = machine.process
            is_dead = process is not self._process or process is None or process.is_dead
            is_silent = pulses.is_silent(self._name, machine)
            if not is_silent and (is_dead or None in self._said or pulses.is_lied_of(machine)):
                return pulse.Ended
            if not is_silent and self._farewell in self._said:
                return pulse.Parted
            await asyncio.sleep(SLICE_MS / 1_000)
        if pulses.is_silent(self._name, machine):
            return pulse.Silent
        view = machine.view
        is_cut_off = view is not None and view.control.heartbeat.is_cut_off()
        return pulse.CutOff if is_cut_off else pulse.Beaten

    def close(self) -> None:
        """See the port."""
        self._listeners.discard(self)
