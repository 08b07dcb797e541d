"""The local cluster as one object: up, status, kill, restart, down. The CLI is a shell around it.

Not here: the configuration of each kind of part (kafka.py, etcd.py, nodes.py), starting and ending
parts (startup.py, supervision.py), the folder (folder.py).

Invariant: everything about a cluster is in its folder, so any process can go on where another
stopped.
"""

import signal
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypedDict

from delayd.cluster.connect import open_bus
from delayd.dev.advancing import ADVANCE_TIMEOUT_S, Advanced, advance
from delayd.dev.folder import ClusterFolder, cluster_key_file
from delayd.dev.interrupts import interrupts_ignored
from delayd.dev.nodes import (
    CLUSTER_NAME,
    api_token_file,
    master_of,
    virtual_time_file,
    virtual_variables,
)
from delayd.dev.parts import Kind, LocalClusterError, Part, State
from delayd.dev.processes import is_stopped, send, wait_until_gone, wait_until_stopped
from delayd.dev.startup import ClusterOptions, start_again, start_everything
from delayd.dev.supervision import end_processes, start_part, wait_until_answering
from delayd.runtime.virtual_time import VirtualTime

LOCK_TIMEOUT_S = 30.0  # longer than any change but `up`
KILL_TIMEOUT_MS = 10_000  # the kernel frees a large heap in well under a second
TOPIC_TIMEOUT_MS = 15_000
STOP_TIMEOUT_MS = 40_000  # a node may finish its step and hand over; a broker moves its leaders


class Report(TypedDict):
    """The cluster now. `master` is the name of the node that delivers, or None; `virtual_ms` what
    time it is in a virtual cluster (Unix ms), None if its clock is real.

    Each part has a `name`, a `pid` (None: it is dead) and where it is: a broker its `address`
    (`host:port`), etcd the `url` for clients, a node the URL of its `admin` port and its `data`.
    """

    bootstrap: str
    brokers: list[dict[str, Any]]
    etcd: dict[str, Any]
    dir: str
    nodes: list[dict[str, Any]]
    master: str | None
    virtual_ms: int | None


class LocalCluster:
    """A cluster in one folder; any process may have started it.

    As a context manager it is up inside and down after. All methods raise LocalClusterError with a
    remedy; `up` raises JavaMissingError and JarsError too.
    """

    def __init__(
        self,
        directory: Path,
        options: ClusterOptions | None = None,
        *,
        progress: Callable[[str], None] = lambda _doing: None,
    ) -> None:
        self._folder = ClusterFolder(directory)
        self._options = options or ClusterOptions()
        self._progress = progress

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_error: object) -> None:
        with interrupts_ignored():
            self.down()

    @property
    def directory(self) -> Path:
        """Return the cluster's folder, absolute."""
        return self._folder.path

    @property
    def bootstrap(self) -> str:
        """Return the brokers as Kafka clients want them."""
        return self._folder.state().bootstrap

    @property
    def etcd_url(self) -> str:
        """Return the URL that clients reach etcd at."""
        [etcd] = self._folder.state().of(Kind.ETCD)
        return etcd.address

    def create_topic(self, name: str, partitions: int) -> bool:
        """Create a topic with a replica on each broker; False if it exists. KafkaUnreachableError
        if the brokers do not answer."""
        brokers = len(self._folder.state().of(Kind.BROKER))
        with closing(open_bus(self.bootstrap).cluster()) as kafka:
            return kafka.create_topic(
                name,
                partitions=partitions,
                replication_factor=brokers,
                config={},
                timeout_ms=TOPIC_TIMEOUT_MS,
            )

    def variables(self) -> dict[str, str]:
        """Return the environment in which all commands find this cluster: and `curl` the HTTP API
        of its first node, with a token for everything."""
        found = {
            "DELAYD_BOOTSTRAP": self.bootstrap,
            "DELAYD_ETCD": self.etcd_url,
            "DELAYD_CLUSTER": CLUSTER_NAME,
        }
        token = api_token_file(self.directory)
        if token.exists():
            found["DELAYD_API_TOKEN"] = token.read_text()
        for node in self._folder.state().of(Kind.NODE)[:1]:
            found["DELAYD_API"] = f"{node.address}/v1"
        return found | virtual_variables(self.directory)

    def advance(
        self, by_ms: int, *, at_once: bool = False, timeout_s: float = ADVANCE_TIMEOUT_S
    ) -> Advanced:
        """Let so much time pass in a virtual cluster. See `delayd.dev.advancing.advance`; each stop
        is told to `progress`."""
        state = self._folder.state()
        if not virtual_time_file(self.directory).exists():
            raise LocalClusterError(
                f"the clock of the cluster in {self.directory} is real",
                remedy="make a cluster whose clock is not: "
                + self._folder.command("up --virtual --fresh"),
            )
        virtual = VirtualTime(virtual_time_file(self.directory))
        with self._folder.lock(timeout_s=LOCK_TIMEOUT_S):
            return advance(
                state,
                virtual,
                by_ms,
                at_once=at_once,
                timeout_s=timeout_s,
                command=self.command,
                progress=self._progress,
            )

    def command(self, words: str) -> str:
        """Return the `delayd dev` command that a person types for this cluster."""
        return self._folder.command(words)

    @property
    def cluster_key(self) -> str:
        """Return the delayd cluster's secret, for another node of it."""
        return cluster_key_file(self.directory).read_text()

    def kept(self) -> ClusterOptions | None:
        """Return how many nodes and brokers the cluster has that is down here, with its data; None
        if there is none."""
        kept = self._folder.kept()
        if kept is None:
            return None
        return ClusterOptions(
            nodes=len(kept.of(Kind.NODE)),
            brokers=len(kept.of(Kind.BROKER)),
            virtual=virtual_time_file(self.directory).exists(),
        )

    def up(self, *, fresh: bool = True) -> Report:
        """Start everything, and return when a master delivers. If this fails, nothing is left
        running.

        `fresh` removes the data of the folder's last cluster. Without, that cluster starts again
        with its data; LocalClusterError if it has other numbers of nodes or brokers than asked.
        """
        folder = self._folder
        folder.prepare()
        with folder.lock(timeout_s=0.0):
            if folder.processes():
                raise LocalClusterError(
                    f"a cluster is already up in {folder.path}", remedy=folder.command("down")
                )
            kept = None if fresh else self._fitting()
            if kept is None:
                folder.clear()
            try:
                if kept is None:
                    start_everything(
                        folder.path, self._options, save=folder.save, progress=self._progress
                    )
                else:
                    start_again(kept, folder.path, save=folder.save, progress=self._progress)
                report = self.status()
            except BaseException:
                with interrupts_ignored():
                    end_processes(folder.processes)
                    folder.forget() if kept is None else folder.keep(kept)
                raise
        return report

    def _fitting(self) -> State | None:
        """Return the cluster that is kept here, if there is one, and if it is as was asked."""
        kept, asked = self.kept(), self._options
        if kept is not None and kept.virtual != asked.virtual:
            raise LocalClusterError(
                f"{self.directory} keeps a cluster whose clock is "
                f"{'virtual' if kept.virtual else 'real'}",
                remedy="give another folder with --dir, or remove its data with --fresh",
            )
        if kept is not None and (kept.nodes, kept.brokers) != (asked.nodes, asked.brokers):
            raise LocalClusterError(
                f"{self.directory} keeps a cluster with --nodes {kept.nodes} "
                f"--brokers {kept.brokers}",
                remedy="start it as it was, or remove its data with --fresh",
            )
        return self._folder.kept()

    def status(self) -> Report:
        """Return the state of the cluster now; dead parts have no pid."""
        return _report_of(self._folder.state(), str(self.directory))

    def stopped(self) -> frozenset[str]:
        """Return the names of the parts that SIGSTOP has frozen."""
        return frozenset(
            part.name
            for part in self._folder.state().parts
            if part.process is not None and is_stopped(part.process)
        )

    def kill(self, name: str, signal_number: signal.Signals = signal.SIGKILL) -> str:
        """Signal one part, or the one that is `master`, and return its name. After SIGKILL it is
        gone; after SIGSTOP none of its threads runs."""
        state = self._folder.state()
        part = state.part(self._resolve(name, state))
        if part.process is None or not send(part.process, signal_number):
            raise LocalClusterError(
                f"{part.name} is not running",
                remedy=self._folder.command(f"restart {part.name}"),
            )
        if signal_number is signal.SIGKILL:
            wait_until_gone([part.process], KILL_TIMEOUT_MS)
        if signal_number is signal.SIGSTOP:
            wait_until_stopped(part.process, KILL_TIMEOUT_MS)
        return part.name

    def stop(self, name: str) -> str:
        """End one part in good order (SIGTERM), or by force if it does not end."""
        state = self._folder.state()
        part = state.part(self._resolve(name, state))
        if part.process is not None and part.alive():
            send(part.process, signal.SIGTERM)
            send(part.process, signal.SIGCONT)  # a frozen process gets SIGTERM only when woken
            if wait_until_gone([part.process], STOP_TIMEOUT_MS):
                send(part.process, signal.SIGKILL)
                wait_until_gone([part.process], KILL_TIMEOUT_MS)
        return part.name

    def start(self, name: str, *, env: Mapping[str, str] | None = None, wait: bool = True) -> None:
        """Start one part that is not running, with its data and ports, and wait until it
        answers. `env` is added to its environment, for later starts too."""
        with self._folder.lock(timeout_s=LOCK_TIMEOUT_S):
            state = self._folder.state()
            part = state.part(name)
            if part.alive():
                raise LocalClusterError(f"{name} is already running")
            part = replace(part, env={**part.env, **(env or {})})
            with interrupts_ignored():  # a process that started is in the state file
                part = start_part(part, directory=self.directory)
                state = state.with_part(part)
                self._folder.save(state)
        if wait:
            wait_until_answering(part, state)

    def restart(
        self, name: str, *, env: Mapping[str, str] | None = None, wait: bool = True
    ) -> None:
        """Stop one part if it runs, and start it again."""
        self.start(self.stop(name), env=env, wait=wait)

    def down(self) -> bool:
        """End everything, frozen and forgotten processes too. Return False if nothing ran. The
        files stay: `up` goes on with them, unless it is told to begin afresh."""
        folder = self._folder
        if not folder.path.is_dir():
            return False
        with folder.lock(timeout_s=LOCK_TIMEOUT_S):
            state = folder.state_if_readable()
            was_up = folder.has_state() or bool(folder.processes())
            end_processes(folder.processes, gently=state.of(Kind.NODE) if state else ())
            if state is not None and all(part.process for part in state.parts):
                folder.keep(state)
            elif was_up:
                folder.forget()  # Its start was cut off: there is nothing to go on with.
        return was_up

    def _resolve(self, name: str, state: State) -> str:
        if name != "master":
            return name
        master = master_of(state)
        if master is None:
            raise LocalClusterError("no node delivers at the moment", remedy="try again")
        return master


def _report_of(state: State, directory: str) -> Report:
    """Ask the processes themselves; takes at most a second or two per node that does not answer."""

    def living(part: Part, **where: str) -> dict[str, Any]:
        pid = part.process.pid if part.process is not None and part.alive() else None
        return {"name": part.name, "pid": pid, **where}

    [etcd] = state.of(Kind.ETCD)
    file = virtual_time_file(Path(directory))
    return Report(
        bootstrap=state.bootstrap,
        brokers=[living(part, address=part.address) for part in state.of(Kind.BROKER)],
        etcd=living(etcd, url=etcd.address),
        dir=directory,
        nodes=[
            living(part, admin=part.address, data=str(part.data)) for part in state.of(Kind.NODE)
        ],
        master=master_of(state),
        virtual_ms=VirtualTime(file).now_ms() if file.exists() else None,
    )
