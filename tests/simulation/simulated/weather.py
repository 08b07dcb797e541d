"""How long calls take and what happens on their way: drawn from the seed, counted by kind."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from kernel import SECOND_US, Kernel, Killed, Process

WITHIN_CALLS = ("death", "lost answer", "slow call", "stuck call", "lost frontier marker")
"""Faults that strike inside of a call; the others come from `chaos.py`."""


RIVALRY = ("etcd split", "leases ended", "slow call")
"""Faults that make several nodes master at once."""
STUCK_US = 18 * SECOND_US
"""Longer than delivery may be silent (10 s) and a slow keepalive may let the lease run on (6 s)."""


@dataclass(frozen=True, slots=True)
class Habits:
    """What differs from seed to seed."""

    partitions: int
    step_records_max: int
    poll_records_max: int
    export_hold_ms: int
    id_memory_ms: int
    checkpoint_ms: int
    idle_step_ms: int
    horizon_s: int
    """Of the wheels: what is due in an hour that begins later waits in the file of that hour."""
    sparse_bytes_max: int
    """Of the wheels: the file of an hour that is no longer is indexed, and not split."""
    kinds: tuple[str, ...]
    """The faults of this run: not all of them, so that some combinations last."""
    fault_every_ms: int
    death: float
    """Chance that a process dies at one call."""
    freeze: float
    """Chance that it stands still at one call, as by SIGSTOP."""
    slow: float
    stuck: float
    """Chance that a call of a master outlasts every time-out; once in a run."""
    lost_answer: float
    lost_marker: float
    """Chance that the marker of a step's commit on the frontier is lost, and the master too."""
    max_delay_ms: int = 40 * 24 * 3_600_000
    """Of the cluster; the buffer is kept for a day more."""

    @classmethod
    def of(cls, chance: Random, kinds: tuple[str, ...]) -> "Habits":
        """Draw the habits of one run."""
        chosen = tuple(kind for kind in kinds if chance.random() < 0.5)
        if chance.random() < 0.2:
            # Where little else happens, several are master at once for long.
            chosen = tuple(kind for kind in kinds if kind in RIVALRY)
        return cls(
            partitions=chance.choice([1, 2, 3]),
            step_records_max=chance.choice([1, 4, 20, 1_000]),
            poll_records_max=chance.choice([3, 50, 2_000]),
            export_hold_ms=chance.choice([0, 300, 3_000, 900_000]),
            id_memory_ms=chance.choice([100, 2_000, 3_600_000]),
            checkpoint_ms=chance.choice([100, 400, 1_000]),
            idle_step_ms=chance.choice([200, 1_000, 5_000]),
            horizon_s=chance.choice([0, 2, 7_200]),
            kinds=chosen,
            fault_every_ms=chance.choice([300, 1_000, 4_000]),
            death=chance.choice([0.0002, 0.001]) if "death" in chosen else 0,
            freeze=chance.choice([0.0002, 0.002]) if "SIGSTOP" in chosen else 0,
            slow=chance.choice([0.002, 0.02]) if "slow call" in chosen else 0,
            stuck=0.02 if "stuck call" in chosen else 0,
            lost_answer=chance.choice([0.02, 0.1]) if "lost answer" in chosen else 0,
            lost_marker=0.03 if "lost frontier marker" in chosen else 0,
            sparse_bytes_max=chance.choice([0, 0, 1_000, 1 << 20]),
        )


@dataclass(slots=True)
class Weather:
    """What is drawn for each call. `is_quiet`: nothing fails any more."""

    kernel: Kernel
    chance: Random
    habits: Habits
    directory: str
    """Where the run's files are: another place each time, so it is left out of the trace."""
    faults: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    is_quiet: bool = False
    brokers: Process | None = None
    """What happens at the brokers by itself."""
    stuck_until_us: int = 0
    """When the stuck call goes on."""
    frozen_until_us: int = 0
    """When the process goes on that stands still longest."""
    stuck: Process | None = None
    """Whose call that is, or was."""
    at_deposition: Callable[[], None] = lambda: None
    """Called before a node deposes another one, rightly or wrongly."""
    mend: Callable[[], None] = lambda: None
    """Writes the markers of the frontier that got lost."""

    def note(self, line: str) -> None:
        """Add a line to the trace, for whoever reads a failure."""
        line = line.replace(self.directory, "")
        self.trace.append(f"{self.kernel.now_us / 1_000:>10.3f} {line}")

    def inject(self, kind: str, line: str) -> None:
        """Count a fault, and note it."""
        self.faults[kind] += 1
        self.note(f"{kind}: {line}")

    def strikes(self, probability: float) -> bool:
        """Draw whether it happens now."""
        return not self.is_quiet and probability > 0 and self.chance.random() < probability

    def at_brokers(self, name: str, delay_us: int, act: Callable[[], None]) -> None:
        """Let something happen at the brokers after a while, whatever becomes of who asks."""
        assert self.brokers is not None, "the brokers are up"

        def wait() -> None:
            self.kernel.sleep(delay_us)
            act()

        self.brokers.spawn(name, wait)

    @property
    def is_stuck(self) -> bool:
        """Return whether a call is stuck now, in a process that lives."""
        is_alive = self.stuck is not None and not self.stuck.is_dead
        return is_alive and self.kernel.now_us < self.stuck_until_us

    def latency_us(self) -> int:
        """Draw how long one way of a call takes."""
        return self.chance.randrange(50, 1_000)


class Wire:
    """The calls of one process: each takes time, and may be its last."""

    def __init__(self, weather: Weather, process: Process) -> None:
        self._weather = weather
        self._kernel = process.kernel
        self.process = process
        self.after_stuck: Callable[[], None] = lambda: None
        """Called when a call that was stuck goes on."""

    def travel(
        self, what: str, *, weight: float = 1, slow: float = 1, limit_us: int = 5 * SECOND_US
    ) -> int:
        """Spend one way of a call; return how long it took (us). Raises Killed in a dead process.

        `weight`: how much more often than elsewhere the process dies or stands still here; `slow`:
        how much more often it takes long.
        """
        if self.process.is_dead:
            raise Killed
        weather = self._weather
        if weather.strikes(weather.habits.death * weight):
            weather.inject("death", f"{self.process.name} at {what}")
            self._kernel.kill(self.process)
        if weather.strikes(weather.habits.freeze * weight):
            us = int(500_000 * 16 ** weather.chance.random())
            weather.inject("SIGSTOP", f"{self.process.name} at {what} for {us // 1_000} ms")
            frozen_until_us = self._kernel.now_us + us
            weather.frozen_until_us = max(weather.frozen_until_us, frozen_until_us)
            self._kernel.pause(self.process, us)
        took_us = weather.latency_us()
        if weather.strikes(weather.habits.slow * slow):
            took_us = min(limit_us, int(20_000 * 300 ** weather.chance.random()))
            weather.inject("slow call", f"{self.process.name} {what} {took_us // 1_000} ms")
        self._kernel.sleep(took_us)
        return took_us

    def get_stuck(self) -> None:
        """Let a call outlast every time-out."""
        self._weather.stuck = self.process
        self._weather.stuck_until_us = self._kernel.now_us + STUCK_US
        self._kernel.sleep(STUCK_US)
        self.after_stuck()

    def wait(self, us: int) -> None:
        """Let time pass inside of a call, as a time-out does."""
        self._kernel.sleep(us)

    def stumble(self) -> None:
        """Let a thread lose its turn, now and then, where it takes a lock."""
        weather = self._weather
        if weather.chance.random() < 0.02:
            self._kernel.sleep(weather.chance.randrange(2_000))
