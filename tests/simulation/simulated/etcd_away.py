"""etcd that is away for longer than any lease, comes back without its data, or is heard one way
only.
"""

from random import Random

from kernel import SECOND_US, Kernel

from delayd.coordination.memory import MemoryEtcd
from simulated.chaos import Chaos
from simulated.machine import Machine
from simulated.weather import Weather
from simulated.witness import Witness

EVERY_US = 2 * SECOND_US


def lose_etcd(
    kernel: Kernel,
    weather: Weather,
    etcd: MemoryEtcd,
    machines: list[Machine],
    chaos: Chaos,
    witness: Witness,
    chance: Random,
    *,
    may_be_emptied: bool,
) -> None:
    """Let etcd be away for a while, or one machine's way to it, again and again; as a task.

    By a stream of its own: seeds without it stay as they are.
    """
    while not chaos.is_done:
        kernel.sleep(chance.randrange(2 * EVERY_US))
        if chaos.is_done:
            return
        if weather.is_quiet:
            continue
        lasts_us = int(SECOND_US / 2 * 30 ** chance.random())
        machine = chance.choice(machines)
        match chance.choice(["away", "away", "emptied", "deaf", "mute"]):
            case "deaf":
                weather.inject("etcd not heard", machine.name)
                machine.deafen_to_etcd(True)
            case "mute":
                weather.inject("etcd not reached", machine.name)
                machine.cut_from_etcd(True)
            case kind:
                weather.inject("etcd away", "")
                etcd.pause()
                if kind == "emptied" and may_be_emptied:
                    weather.inject("etcd emptied", "")
                    etcd.wipe()
                    witness.excuse()
        kernel.sleep(lasts_us)
        etcd.resume()
        machine.deafen_to_etcd(False)
        machine.cut_from_etcd(False)
