"""The faults that can be struck: what they are (Fault), and doing one (Striker).

A strike returns when what was done is undone: what was frozen is thawed, what was cut is mended,
what ended is started again. What it broke is the cluster's to recover from.

Each fault makes sure that it took place: a node that should have ended and has not is a
BackendError, and the run is no proof of anything.
"""

import signal
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from chaos.backend import Backend, BackendError
from chaos.history import now_ms
from chaos.network import BOTH, CUT, DEAF, FAIR, MUTE, Weather

ENDS_TIMEOUT_S: Final = 40.0
MASTER_TIMEOUT_S: Final = 60.0
REPLICAS_TIMEOUT_S: Final = 120.0
"""A busy machine takes half a minute to start a broker."""

SWITCH_TIMEOUT_S: Final = 90.0
"""Longer than `delayd upgrade rules` waits for a master."""

RESHARDING_TIMEOUT_S: Final = 90.0
"""Longer than `delayd shards set` waits for masters to come to rest."""
RESHARDINGS_MAX: Final = 3

DOWN_MS: Final = 1_000
"""How long what was killed is away, if nothing else is said."""

POLL_S: Final = 0.05
T = TypeVar("T")


class Kind(Enum):
    """What is done."""

    KILL = "kill"
    TERMINATE = "terminate"
    FREEZE = "freeze"
    WEATHER = "weather"
    FLAP = "flap"
    WIPE = "wipe"
    CORRUPT = "corrupt a slot"
    FILL_DISK = "fill the disk"
    FAIL_FSYNC = "fail fsyncs"
    CLOCK = "set the clock"
    TWIN = "start a twin"
    ROLL = "restart one after the other"
    MOVE = "move to other addresses, one after the other,"
    RECREATE_TARGET = "delete and recreate the target"
    CUT_SWITCH = "kill who switches the rules, and the"
    SWITCH_RULES = "switch the rules, twice at once, and kill the"
    CUT_RESHARDING = "kill who gives the cluster other shards, and"
    RESHARD = "give the cluster other shards, and kill"


class Victim(Enum):
    """What is struck; which part that is, is decided then."""

    MASTER = "master"
    LEADERS = "all that lead shards, but one"
    FOLLOWER = "a follower"
    NODES = "all nodes"
    COORDINATOR = "the transaction coordinator"
    BROKER = "a broker"
    BROKERS = "all brokers"
    ETCD = "etcd"
    ETCD_LEADER = "etcd's leader"
    ETCD_MAJORITY = "etcd's majority"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Fault:
    """`for_ms` is how long it lasts; `to` is where cut or slow wires lead."""

    kind: Kind
    victim: Victim = Victim.NOBODY
    for_ms: int = DOWN_MS
    weather: Weather = FAIR
    to: tuple[str, ...] = BOTH
    offset_ms: int = 0
    drift_ppm: int = 0
    shards: int = 1

    def __str__(self) -> str:
        told = [self.kind.value]
        if self.kind is Kind.WEATHER:
            told = [_WEATHERS.get(self.weather, "slow and lossy")]
        if self.victim is not Victim.NOBODY:
            told.append(self.victim.value)
        if self.kind in (Kind.WEATHER, Kind.FLAP):
            told.append(f"from {' and '.join(self.to)}")
        if self.kind is Kind.CLOCK:
            told.append(f"{self.offset_ms:+} ms, {self.drift_ppm:+} ppm")
        return f"{' '.join(told)} for {self.for_ms / 1000:g} s"


_WEATHERS: Final[Mapping[Weather, str]] = {CUT: "cut", DEAF: "deafen", MUTE: "mute", FAIR: "mend"}


class Striker:
    """Strikes at one cluster. `target` is the topic that RECREATE_TARGET is about; `choose` picks
    one of several victims."""

    def __init__(
        self, backend: Backend, target: str, choose: Callable[[Collection[str]], str]
    ) -> None:
        self._backend = backend
        self._target = target
        self._choose = choose
        self._strike: Mapping[Kind, Callable[[Fault, tuple[str, ...]], None]] = {
            Kind.KILL: partial(self._restart, backend.kill),
            Kind.TERMINATE: partial(self._restart, backend.terminate),
            Kind.FREEZE: partial(self._hold, backend.freeze, backend.thaw),
            Kind.WEATHER: self._weather,
            Kind.FLAP: self._flap,
            Kind.WIPE: partial(self._restart, self._kill_and_wipe),
            Kind.CORRUPT: partial(self._restart, self._corrupt_and_wipe),
            Kind.FILL_DISK: self._fill_disk,
            Kind.FAIL_FSYNC: partial(self._restart, self._fail_fsyncs),
            Kind.CLOCK: self._clock,
            Kind.TWIN: self._twin,
            Kind.ROLL: self._roll,
            Kind.MOVE: self._move,
            Kind.RECREATE_TARGET: self._recreate_target,
            Kind.CUT_SWITCH: self._cut_switch,
            Kind.SWITCH_RULES: self._switch_rules,
            Kind.CUT_RESHARDING: self._cut_resharding,
            Kind.RESHARD: self._reshard,
        }
        self.struck: list[tuple[str, int]] = []
        """What was struck at whom, and when (Unix ms)."""

    def strike(self, fault: Fault) -> None:
        """Do it and undo it. BackendError if it cannot be done."""
        victims = self._victims(fault.victim)
        self.struck.append((f"{fault} ({', '.join(victims)})" if victims else str(fault), now_ms()))
        self._strike[fault.kind](fault, victims)

    def _victims(self, victim: Victim) -> tuple[str, ...]:
        backend = self._backend
        match victim:
            case Victim.MASTER:
                return (self._master(),)
            case Victim.LEADERS:
                return self._leaders()
            case Victim.FOLLOWER:
                master = self._master()
                return (self._choose([node for node in backend.nodes if node != master]),)
            case Victim.NODES:
                return backend.nodes
            case Victim.COORDINATOR:
                self._await_replicas()
                return (backend.topics.coordinator(),)
            case Victim.BROKER:
                self._await_replicas()
                return (self._choose(backend.brokers),)
            case Victim.BROKERS:
                self._await_replicas()
                return backend.brokers
            case Victim.ETCD:
                return backend.etcd
            case Victim.ETCD_LEADER:
                return (backend.etcd_leader(),)
            case Victim.ETCD_MAJORITY:
                leader, members = backend.etcd_leader(), backend.etcd
                others = sorted(member for member in members if member != leader)
                return (leader, *others[: len(members) // 2])
            case Victim.NOBODY:
                return ()

    def _master(self) -> str:
        if (master := wait_until(self._backend.master, MASTER_TIMEOUT_S)) is None:
            raise BackendError(f"no node has delivered for {MASTER_TIMEOUT_S:.0f} s")
        return master

    def _leaders(self) -> tuple[str, ...]:
        """Return the nodes that lead shards. If all do, one is spared: somebody takes over."""
        nodes = self._backend.nodes

        def look() -> list[str]:
            return [node for node in nodes if self._backend.status(node).get("shards_led")]

        if not (leading := wait_until(look, MASTER_TIMEOUT_S)):
            raise BackendError(f"no node has led a shard for {MASTER_TIMEOUT_S:.0f} s")
        spared = self._choose(leading) if len(leading) == len(nodes) else ""
        return tuple(node for node in leading if node != spared)

    def _await_replicas(self) -> None:
        """Wait until the brokers have recovered from the last strike: with two of three away, Kafka
        takes nothing, whatever delayd does."""
        if not wait_until(self._backend.topics.are_in_sync, REPLICAS_TIMEOUT_S):
            raise BackendError(f"a replica was not in sync for {REPLICAS_TIMEOUT_S:.0f} s")

    def _restart(self, end: Callable[[str], None], fault: Fault, victims: tuple[str, ...]) -> None:
        for part in victims:
            end(part)
        pause(fault.for_ms)
        self._start(victims)

    def _kill_and_wipe(self, part: str) -> None:
        self._backend.kill(part)
        self._backend.lose_data(part)

    def _hold(
        self,
        begin: Callable[[str], None],
        end: Callable[[str], None],
        fault: Fault,
        victims: tuple[str, ...],
    ) -> None:
        for part in victims:
            begin(part)
        try:
            pause(fault.for_ms)
        finally:
            for part in victims:
                end(part)

    def _weather(self, fault: Fault, victims: tuple[str, ...]) -> None:
        def change(weather: Weather, node: str) -> None:
            self._backend.weather(weather, (node,), fault.to)

        self._hold(partial(change, fault.weather), partial(change, FAIR), fault, victims)

    def _flap(self, fault: Fault, victims: tuple[str, ...]) -> None:
        """Cut and mended again, each for as long as a lease is good for or not quite."""
        times_ms = (700, 300, 1_500, 500, 3_500, 800)
        until_ms, number = now_ms() + fault.for_ms, 0
        try:
            while not number or now_ms() < until_ms:
                weather = FAIR if number % 2 else fault.weather
                self._backend.weather(weather, victims, fault.to)
                pause(times_ms[number % len(times_ms)])
                number += 1
        finally:
            self._backend.weather(FAIR, victims, fault.to)

    def _corrupt_and_wipe(self, node: str) -> None:
        """What operations.md says of `corruption`: empty the folder, start again."""
        self._backend.corrupt_slot(node)
        self._await_end(node, "read a corrupted slot")
        self._backend.lose_data(node)

    def _fail_fsyncs(self, node: str) -> None:
        if not self._backend.fail_fsyncs(node, ENDS_TIMEOUT_S):
            raise BackendError(f"{node} went on although its fsyncs failed")

    def _fill_disk(self, fault: Fault, victims: tuple[str, ...]) -> None:
        for node in victims:
            self._backend.fill_disk(node)
        try:
            pause(fault.for_ms)
        finally:
            for node in victims:
                self._backend.free_disk(node)

    def _clock(self, fault: Fault, victims: tuple[str, ...]) -> None:
        def set_wrong(node: str) -> None:
            self._backend.set_clock(node, fault.offset_ms, fault.drift_ppm)

        self._hold(set_wrong, lambda node: self._backend.set_clock(node, 0, 0), fault, victims)

    def _twin(self, fault: Fault, victims: tuple[str, ...]) -> None:
        for node in victims:
            twin = self._backend.start_twin(node)
            try:
                pause(fault.for_ms)
            finally:
                self._backend.remove_twin(twin)

    def _roll(self, _fault: Fault, victims: tuple[str, ...]) -> None:
        for node in victims:
            self._backend.terminate(node)
            self._backend.start(node)  # and wait until it is ready: docs/operations.md

    def _move(self, fault: Fault, victims: tuple[str, ...]) -> None:
        for broker in victims:
            if broker != victims[0]:
                self._await_replicas()
                self.struck.append((f"{fault} ({broker})", now_ms()))
            self._backend.terminate(broker)
            self._backend.move(broker)
            pause(fault.for_ms)  # Connections that hang are under way when it comes back.
            self._backend.start(broker)

    def _recreate_target(self, fault: Fault, _victims: tuple[str, ...]) -> None:
        self._backend.topics.delete(self._target)
        pause(fault.for_ms)
        self._backend.topics.create(self._target, 2)

    def _cut_switch(self, fault: Fault, victims: tuple[str, ...]) -> None:
        """One partition gets its barrier, about when there is no master."""
        wait = self._backend.start_rules_switch(barriers_max=1)
        self._restart(self._backend.kill, fault, victims)
        if (code := wait(SWITCH_TIMEOUT_S)) != -signal.SIGKILL:
            raise BackendError(f"who switched the rules ended with {code}, and was not killed")

    def _switch_rules(self, fault: Fault, victims: tuple[str, ...]) -> None:
        waits = [self._backend.start_rules_switch() for _ in range(2)]
        self._restart(self._backend.kill, fault, victims)
        waits.append(self._backend.start_rules_switch())
        if any(codes := [wait(SWITCH_TIMEOUT_S) for wait in waits]):
            raise BackendError(f"who switched the rules ended with {codes}")

    def _cut_resharding(self, fault: Fault, victims: tuple[str, ...]) -> None:
        """Whoever does it is killed about when some shards are closed, and there is no master."""
        wait = self._backend.start_resharding(fault.shards)
        self._restart(self._backend.kill, fault, victims)
        wait(0)

    def _reshard(self, fault: Fault, victims: tuple[str, ...]) -> None:
        """Masters that die meanwhile may come to rest too late: then it is said, and done again."""
        wait = self._backend.start_resharding(fault.shards)
        self._restart(self._backend.kill, fault, victims)
        for _ in range(RESHARDINGS_MAX):
            if not (code := wait(RESHARDING_TIMEOUT_S)):
                return
            wait = self._backend.start_resharding(fault.shards)
        raise BackendError(f"who gave the cluster {fault.shards} shards ended with {code}")

    def _await_end(self, node: str, why: str) -> None:
        if not wait_until(lambda: not self._backend.is_running(node), ENDS_TIMEOUT_S):
            raise BackendError(f"{node} {why}, and went on")

    def _start(self, parts: tuple[str, ...]) -> None:
        for part in parts:
            self._backend.start(part, wait=False)


def wait_until(look: Callable[[], T], timeout_s: float) -> T:
    """Look until that returns something true, and return it; what is false, after the time."""
    deadline_ms = now_ms() + int(timeout_s * 1000)
    while not (found := look()) and now_ms() <= deadline_ms:
        threading.Event().wait(POLL_S)
    return found


def pause(for_ms: int) -> None:
    """Do nothing for a time that is part of the plan, not wait for something."""
    threading.Event().wait(for_ms / 1000)
