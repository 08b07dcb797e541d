"""The backend of real processes on this machine.

Not here: its start (startup.py); signals to processes (delayd/dev).

Invariant: after `down` nothing of it runs and nothing is mounted, whatever was struck.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from chaos.backend import BackendError
from chaos.network import FAIR, Weather, Wires
from chaos.processes import harm, resharder
from chaos.processes.addresses import BrokerAddresses
from chaos.processes.clocked_node import write_clock
from chaos.processes.dying_switch import BARRIERS_VARIABLE
from chaos.processes.startup import ROOT, plan_all
from chaos.scenario import PROCESSES, Needs
from chaos.topics import Topics
from delayd.dev.cluster import LocalCluster
from delayd.dev.demo_audit import audit
from delayd.dev.folder import ClusterFolder
from delayd.dev.interrupts import interrupts_ignored
from delayd.dev.kafka import replication_factor_for
from delayd.dev.nodes import CLUSTER_NAME, master_of, read_status
from delayd.dev.parts import Kind, Part, State
from delayd.dev.ports import pick_ports
from delayd.dev.processes import processes_of
from delayd.dev.startup import start_planned
from delayd.dev.supervision import environment_for, start_part

RETRY_DELAYS_MS: Final = (1_000, 2_000, 3_000)
COMMAND_TIMEOUT_S: Final = 120.0
OLDER_RULES: Final = 3
"""The rules version before the newest."""


class ProcessCluster:
    """A Backend that is up from `__init__`, which raises the errors of startup, to `down`."""

    name = PROCESSES
    prefix = "delayd-"

    def __init__(
        self, directory: Path, needs: Needs, seed: int, *, sabotage_file: Path | None = None
    ) -> None:
        self._folder = ClusterFolder(directory)
        self._cluster = LocalCluster(directory)
        self._wires: Wires | None = None
        self._addresses: BrokerAddresses | None = None
        self._folder.prepare()
        self._folder.clear()
        try:
            self._plan, nodes = plan_all(self._folder.path, needs, sabotage_file)
            self._addresses = self._plan.addresses
            if self._plan.wires:
                self._wires = Wires(self._plan.wires, seed)
            start_planned(
                self._folder.path,
                self._plan.servers,
                nodes,
                retry_delays_ms=RETRY_DELAYS_MS,
                rules_version=OLDER_RULES if needs.has_older_rules else None,
                shards=needs.shards,
                save=self._folder.save,
            )
        except BaseException:
            with interrupts_ignored():
                self._end()
            raise
        state = self._state()
        self.nodes, self.brokers, self.etcd = (
            tuple(part.name for part in state.of(kind))
            for kind in (Kind.NODE, Kind.BROKER, Kind.ETCD)
        )
        self.bootstrap = state.bootstrap
        copies = replication_factor_for(needs.brokers)
        self.topics = Topics(self.bootstrap, copies=copies, cluster=CLUSTER_NAME)

    def etcd_leader(self) -> str:
        [only] = self.etcd
        return only

    def master(self) -> str | None:
        return master_of(self._state())

    def status(self, node: str) -> Mapping[str, Any]:
        part = self._part(node)
        return (read_status(part.address) if part.alive() else None) or {}

    def is_running(self, part: str) -> bool:
        return self._part(part).alive()

    def kill(self, part: str) -> None:
        self._cluster.kill(part, signal.SIGKILL)

    def terminate(self, part: str) -> None:
        self._cluster.stop(part)

    def freeze(self, part: str) -> None:
        self._cluster.kill(part, signal.SIGSTOP)

    def thaw(self, part: str) -> None:
        self._cluster.kill(part, signal.SIGCONT)

    def start(self, part: str, *, wait: bool = True) -> None:
        self._cluster.start(part, wait=wait)
        if self._addresses is not None:
            self._addresses.arrive()

    def move(self, broker: str) -> None:
        if self._addresses is None or self.is_running(broker):
            raise BackendError(f"{broker} runs, or keeps its address")
        self._addresses.leave(broker)

    def lose_data(self, part: str) -> None:
        if self.is_running(part):
            raise BackendError(f"{part} runs: its data cannot be taken away")
        shutil.rmtree(self._part(part).data)

    def corrupt_slot(self, node: str) -> None:
        harm.corrupt_slot(self._part(node).data)

    def fill_disk(self, node: str) -> None:
        harm.fill_disk(self._part(node).data.parent)

    def free_disk(self, node: str) -> None:
        harm.free_disk(self._part(node).data.parent)

    def fail_fsyncs(self, node: str, timeout_s: float) -> bool:
        process = self._part(node).process
        if process is None:
            raise BackendError(f"{node} does not run")
        log = self._folder.path / "logs" / "strace.log"
        return harm.fail_fsyncs(process.pid, log, lambda: self.is_running(node), timeout_s)

    def set_clock(self, node: str, offset_ms: int, drift_ppm: int) -> None:
        if not self._plan.needs.is_clocked:
            raise BackendError("these nodes' clocks cannot be set")
        write_clock(self._plan.clock_file(node), offset_ms, drift_ppm)

    def start_twin(self, node: str) -> str:
        state = self._state()
        [port] = pick_ports(1)
        twin = self._plan.node(len(self.nodes) + 1, port, called=node)
        twin = start_part(twin, directory=self._folder.path)
        self._folder.save(State((*state.parts, twin)))
        return twin.name

    def remove_twin(self, twin: str) -> None:
        if self.is_running(twin):
            self.kill(twin)
        state = self._state()
        self._folder.save(State(tuple(part for part in state.parts if part.name != twin)))

    def command(self, *arguments: str) -> int:
        folder = self._folder.path
        command = (sys.executable, "-m", "delayd.commands.cli", *arguments)
        options = ("--bootstrap", self.bootstrap, "--cluster", CLUSTER_NAME)
        told = {"PYTHONPATH": str(ROOT), "DELAYD_CLUSTER_KEY": self._cluster.cluster_key}
        with (folder / "logs" / "operator.log").open("ab") as log:
            env = environment_for(told, folder)
            try:
                return subprocess.run(
                    (*command, *options), env=env, stdout=log, stderr=log, timeout=COMMAND_TIMEOUT_S
                ).returncode
            except subprocess.TimeoutExpired as error:
                raise BackendError(f"it did not end: {' '.join(arguments)}") from error

    def start_rules_switch(self, barriers_max: int | None = None) -> Callable[[float], int]:
        folder, state = self._folder.path, self._state()
        [etcd] = state.of(Kind.ETCD)
        program = "delayd.commands.cli" if barriers_max is None else "chaos.processes.dying_switch"
        command = (sys.executable, "-m", program, "upgrade", "rules")
        options = ("--bootstrap", self.bootstrap, "--etcd", etcd.address, "--cluster", CLUSTER_NAME)
        told = {
            "PYTHONPATH": str(ROOT),
            "DELAYD_CLUSTER_KEY": self._cluster.cluster_key,
            BARRIERS_VARIABLE: str(barriers_max),
        }
        with (folder / "logs" / "upgrade.log").open("ab") as log:
            env = environment_for(told, folder)
            person = subprocess.Popen((*command, *options), env=env, stdout=log, stderr=log)

        def wait(timeout_s: float) -> int:
            try:
                return person.wait(timeout_s)
            except subprocess.TimeoutExpired as error:
                raise BackendError(f"the rules were not switched in {timeout_s:.0f} s") from error

        return wait

    def start_resharding(self, shards: int) -> Callable[[float], int]:
        return resharder.started(shards, self.bootstrap, self._folder.path)

    def weather(self, weather: Weather, nodes: Collection[str], to: Collection[str]) -> None:
        if self._wires is not None:
            self._wires.set(weather, nodes=nodes, to=to)
        elif weather != FAIR:
            raise BackendError("this cluster has no wires that could be cut")

    def audit(self) -> Mapping[str, Any]:
        folder = self._folder.path
        log = folder / "logs" / "audit.log"
        return audit(folder, folder / "logs" / "audit.html", log=log, tell=lambda _: None).report

    def down(self) -> list[str]:
        self._end()
        left = [f"process {process.pid}" for process in processes_of(self._folder.path)]
        return [*left, *harm.mounted_in(self._folder.path)]

    def _end(self) -> None:
        try:
            self._cluster.down()
        finally:
            if self._wires is not None:
                self._wires.close()
                self._wires = None
            if self._addresses is not None:
                self._addresses.close()
            harm.release_disks(self._folder.path)

    def _state(self) -> State:
        return self._folder.state()

    def _part(self, name: str) -> Part:
        return self._state().part(name)
