"""A machine room in one OS thread: simulated processes with simulated threads, in virtual time.

Every simulated thread is a greenlet. It goes on until it calls a port of the simulation (a lock, a
wait, a broker, a disk), which gives the turn back to the scheduler; the scheduler draws from the
seed who goes on, and moves the time when nobody can. Nothing else decides, so a run replays.

    kernel = Kernel(Random(seed))
    process = kernel.process("node-1")
    process.spawn("main", work)          # a simulated thread
    kernel.run(until_us)                 # everything, up to a moment
    kernel.kill(process)                 # its threads end where they stand

Not here: what the processes are, and what fails (the rest of `tests/simulation`).
"""

from kernel.clocks import SECOND_US, MachineClock
from kernel.loop import SimulatedLoop
from kernel.scheduler import Kernel, Killed, Process, Task, Waiting
from kernel.threads import SimulatedThreads

__all__ = [
    "SECOND_US",
    "Kernel",
    "Killed",
    "MachineClock",
    "Process",
    "SimulatedLoop",
    "SimulatedThreads",
    "Task",
    "Waiting",
]
