"""The backend of containers. Not here: what runs in them (plan.py), Docker itself (engine.py).

Invariant: after `down` no container and no network of it is left, and nothing is mounted,
whatever was struck. The next harness removes what a killed one has left.
"""

import json
import os
import shutil
import urllib.request
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from http.client import HTTPException
from typing import Any, Final

from chaos.backend import BackendError
from chaos.docker.engine import Engine
from chaos.docker.plan import BROKERS, USER, Building, Container, Net, Role
from chaos.docker.plan import all_of as plan_all_of
from chaos.docker.plan import node as plan_node
from chaos.faults import wait_until
from chaos.network import CUT, ETCD, FAIR, KAFKA, Weather
from chaos.processes import harm, resharder
from chaos.processes.clocked_node import write_clock
from chaos.scenario import DOCKER
from chaos.topics import Topics
from delayd.bus.confluent import ConfluentBus
from delayd.cluster.topics import create_topics
from delayd.dev.demo_audit import audit
from delayd.dev.interrupts import interrupts_ignored
from delayd.dev.kafka import replication_factor_for
from delayd.dev.nodes import CLUSTER_NAME, ask_node, master_among, read_status
from delayd.dev.parts import Kind, last_words
from delayd.dev.supervision import does_its_work

RETRY_DELAYS_MS: Final = (2_000, 3_000, 5_000)
START_TIMEOUT_S: Final = 120.0
ETCD_TIMEOUT_S: Final = 2.0
CONTAINED: Final = {KAFKA: Net.KAFKA, ETCD: Net.ETCD}


class DockerCluster:
    """A Backend that is up from `__init__`, which raises BackendError, to `down`. Needs root."""

    name = DOCKER
    prefix = "delayd-"

    def __init__(self, building: Building, engine: Engine) -> None:
        if os.geteuid() != 0:
            raise BackendError("containers' folders belong to their user: run it as root")
        self._building = building
        self._engine = engine
        self._logs = building.directory / "logs"
        self._parts: dict[str, Container] = {}
        self._behind_rules: set[str] = set()
        self.is_running, self.terminate = engine.is_running, engine.terminate
        self.kill, self.freeze, self.thaw = engine.kill, engine.freeze, engine.thaw
        try:
            self._start_all()
        except BaseException:
            with interrupts_ignored():
                self._end()
            raise
        self.bootstrap = building.bootstrap
        copies = replication_factor_for(BROKERS)
        self.topics = Topics(self.bootstrap, copies=copies, cluster=CLUSTER_NAME)

    def etcd_leader(self) -> str:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for name in filter(self.is_running, self.etcd):
            url = f"{self._parts[name].address}/v3/maintenance/status"
            # A member that gives no valid answer in time does not lead.
            with (
                suppress(OSError, HTTPException, ValueError, LookupError),
                opener.open(url, b"{}", ETCD_TIMEOUT_S) as answer,
            ):
                status = json.load(answer)
                if status["leader"] == status["header"]["member_id"]:
                    return name
        raise BackendError("no member of etcd leads")

    def master(self) -> str | None:
        running = [name for name in self.nodes if self.is_running(name)]
        return master_among({name: ask_node(self._parts[name].address) for name in running})

    def status(self, node: str) -> Mapping[str, Any]:
        found = read_status(self._parts[node].address) if self.is_running(node) else None
        return found or {}

    def start(self, part: str, *, wait: bool = True) -> None:
        self._engine.start(part)
        if wait:
            self._wait_for(part)

    def move(self, broker: str) -> None:
        raise BackendError("containers keep their addresses")

    def lose_data(self, part: str) -> None:
        if self.is_running(part):
            raise BackendError(f"{part} runs: its data cannot be taken away")
        for each in self._building.data(part).iterdir():
            shutil.rmtree(each)

    def corrupt_slot(self, node: str) -> None:
        harm.corrupt_slot(self._building.data(node) / "wheel")

    def fill_disk(self, node: str) -> None:
        harm.fill_disk(self._building.data(node))

    def free_disk(self, node: str) -> None:
        harm.free_disk(self._building.data(node))

    def fail_fsyncs(self, node: str, timeout_s: float) -> bool:
        process_id, log = self._engine.process_id(node), self._logs / "strace.log"
        return harm.fail_fsyncs(process_id, log, lambda: self.is_running(node), timeout_s)

    def set_clock(self, node: str, offset_ms: int, drift_ppm: int) -> None:
        if not self._building.is_clocked:
            raise BackendError("these nodes' clocks cannot be set")
        write_clock(self._building.clock_file(node), offset_ms, drift_ppm)

    def start_twin(self, node: str) -> str:
        twin = plan_node(self._building, len(self.nodes) + 1, called=node)
        self._make(twin)
        self._engine.start(twin.name)
        return twin.name

    def remove_twin(self, twin: str) -> None:
        self._engine.remove(twin)
        del self._parts[twin]

    def command(self, *arguments: str) -> int:
        raise BackendError(f"nobody gives orders to clusters of containers: {arguments}")

    def start_resharding(self, shards: int) -> Callable[[float], int]:
        return resharder.started(shards, self.bootstrap, self._building.directory)

    def start_rules_switch(self, barriers_max: int | None = None) -> Callable[[float], int]:
        raise BackendError("clusters of containers are made with the newest rules")

    def weather(self, weather: Weather, nodes: Collection[str], to: Collection[str]) -> None:
        """Take nodes off the network (both ways), or set firewall rules (one way).

        Slow and lossy wires: BackendError.
        """
        if weather.delay_ms or weather.stall_chance:
            raise BackendError("containers' wires are not slow or lossy, only cut")
        for name in nodes:
            for net in (CONTAINED[each] for each in to):
                if weather == CUT:
                    self._engine.take_off(name, net)
                elif weather == FAIR:
                    self._mend(name, net)
                else:
                    self._behind_rules.add(name)
                    chain = ("INPUT", "-s") if weather.down_is_cut else ("OUTPUT", "-d")
                    subnet = self._building.subnet(net)
                    self._iptables(name, "-A", *chain, subnet, "-j", "DROP")

    def _mend(self, name: str, net: Net) -> None:
        self._engine.put_on(self._parts[name], net)
        # A container loses its rules when it starts again.
        if name in self._behind_rules and self._engine.process_id(name):
            self._iptables(name, "-F")
        self._behind_rules.discard(name)

    def _iptables(self, name: str, *words: str) -> None:
        """Change the rules in a container's own network namespace, from this machine as root."""
        process_id = str(self._engine.process_id(name))
        harm.run_as_root("nsenter", "-t", process_id, "-n", "iptables", "-w", *words)

    def audit(self) -> Mapping[str, Any]:
        building = self._building
        where = ("--bootstrap", building.bootstrap, "--etcd", ",".join(building.etcd_urls))
        return audit(
            building.directory,
            self._logs / "audit.html",
            log=self._logs / "audit.log",
            tell=lambda _: None,
            where=(*where, "--cluster", CLUSTER_NAME, "--nodes", str(len(self.nodes))),
            secrets={"DELAYD_CLUSTER_KEY": building.cluster_key},
        ).report

    def down(self) -> list[str]:
        self._end()
        return [*self._engine.left(), *harm.mounted_in(self._building.directory)]

    def _start_all(self) -> None:
        self._logs.mkdir(parents=True)
        for part in plan_all_of(self._building):
            self._make(part)
        self.nodes, self.brokers, self.etcd = (
            tuple(part.name for part in self._parts.values() if part.role is role)
            for role in (Role.NODE, Role.BROKER, Role.ETCD)
        )
        servers = (*self.etcd, *self.brokers)
        for name in servers:
            self._engine.start(name)
        for name in servers:
            self._wait_for(name)
        create_topics(
            ConfluentBus(self._building.bootstrap, client_id="delayd-chaos"),
            cluster=CLUSTER_NAME,
            cluster_key=self._building.cluster_key,
            retry_delays_ms=RETRY_DELAYS_MS,
            partitions=self._building.partitions,
            shards=self._building.shards,
        )
        for name in self.nodes:
            self._engine.start(name)
        self._wait(lambda: self.master() is not None, "no master delivers", self.nodes)
        for name in self.nodes:
            self._wait_for(name)

    def _make(self, part: Container) -> None:
        data, config = self._building.data(part.name), self._building.config(part.name)
        config.mkdir(parents=True)
        for name, text in part.files.items():
            (config / name).write_text(text)
        if self._building.is_clocked:
            write_clock(self._building.clock_file(part.name), 0, 0)
        if part.role is Role.NODE and self._building.has_small_disks:
            harm.mount_disk(data)
        data.mkdir(parents=True, exist_ok=True)
        for path in (data, config, *config.iterdir()):
            os.chown(path, USER, USER)
        self._engine.make(part)
        self._parts[part.name] = part

    def _wait_for(self, name: str) -> None:
        kind, address = Kind[self._parts[name].role.name], self._parts[name].address

        def answers() -> bool:
            return does_its_work(kind, address, sum(map(self.is_running, self.brokers)))

        self._wait(answers, f"{name} does not answer", (name,))

    def _wait(self, condition: Callable[[], bool], what: str, watched: Collection[str]) -> None:
        """Wait for a condition; end at once if a part that is watched has ended."""
        ended: list[str] = []

        def is_over() -> bool:
            ended[:] = [name for name in watched if not self._engine.is_running(name)]
            return bool(ended) or condition()

        if not wait_until(is_over, START_TIMEOUT_S):
            raise BackendError(f"{what} within {START_TIMEOUT_S:.0f} s")
        if ended:
            self._engine.write_logs(self._logs)
            words = last_words(self._logs / f"{ended[0]}.log")
            raise BackendError(f"{ended[0]} ended while starting: {words}")

    def _end(self) -> None:
        with ExitStack() as ends:
            ends.callback(harm.release_disks, self._building.directory)
            ends.callback(self._engine.remove_all)
            self._engine.write_logs(self._logs)
