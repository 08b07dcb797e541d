"""The local cluster as one object: up, status, kill, restart, down. The CLI is a shell around it.

Not here: how each kind of part is configured (kafka.py, etcd.py, nodes.py) and what starting and
ending all of it means (startup.py).

Invariants: everything about a cluster is in its folder, so any process can take it up where
another left it; at most one process changes a cluster at a time (a lock file).
"""

import contextlib
import fcntl
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from delayd.clock import SystemClock
from delayd.dev.errors import LocalClusterError
from delayd.dev.interrupts import interrupts_ignored
from delayd.dev.parts import PARTIAL_NAME, Kind, State, load, save
from delayd.dev.processes import (
    ProcessIdentity,
    is_stopped,
    processes_of,
    send,
    wait_until_gone,
)
from delayd.dev.report import Report, bootstrap_of, master_of, report_of
from delayd.dev.startup import (
    ClusterOptions,
    end_processes,
    start_everything,
    start_part,
    wait_until_answering,
)

LOCK_TIMEOUT_S = 30.0  # longer than any change but `up`
LOCK_POLL_S = 0.05
KILL_TIMEOUT_MS = 10_000  # the kernel frees a large heap in well under a second
STOP_TIMEOUT_MS = 40_000  # a node may finish its step and hand over; a broker moves its leaders

_OUR_FOLDERS = ("config", "data", "logs")
_LOCK_FILE = "cluster.lock"


class LocalCluster:
    """A cluster in one folder, whoever started it.

    As a context manager it is up inside and down after. All methods raise LocalClusterError with
    what to do; `up` raises JavaMissingError and JarsError too.
    """

    def __init__(
        self,
        directory: Path,
        options: ClusterOptions | None = None,
        *,
        progress: Callable[[str], None] = lambda _doing: None,
    ) -> None:
        self.directory = directory.resolve()
        self._options = options or ClusterOptions()
        self._progress = progress
        self._state_file = self.directory / "cluster.json"

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        with interrupts_ignored():
            self.down()

    @property
    def bootstrap(self) -> str:
        """The brokers as Kafka clients want them."""
        return bootstrap_of(self._state())

    @property
    def etcd_url(self) -> str:
        """Where etcd's clients reach it."""
        [etcd] = self._state().of(Kind.ETCD)
        return etcd.address

    def up(self) -> Report:
        """Starts everything and returns when a master delivers. Starts from nothing: the data of
        the folder's last cluster is removed. If it fails, nothing is left running."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._refuse_a_foreign_folder()
        with self._lock(timeout_s=0.0):
            if self._processes():
                raise LocalClusterError(
                    f"a cluster is already up in {self.directory}", remedy=self._down_command()
                )
            self._state_file.unlink(missing_ok=True)
            for name in _OUR_FOLDERS:
                shutil.rmtree(self.directory / name, ignore_errors=True)
            try:
                start_everything(
                    self.directory, self._options, save=self._save, progress=self._progress
                )
                report = self.status()
            except BaseException:
                with interrupts_ignored():
                    end_processes(self._processes)
                    self._state_file.unlink(missing_ok=True)
                raise
        return report

    def status(self) -> Report:
        """The cluster now; dead parts have no pid."""
        return report_of(self._state(), str(self.directory))

    def stopped(self) -> frozenset[str]:
        """The names of the parts that are frozen by SIGSTOP."""
        return frozenset(
            part.name
            for part in self._state().parts
            if part.process is not None and is_stopped(part.process)
        )

    def kill(self, name: str, signal_number: signal.Signals = signal.SIGKILL) -> str:
        """Signals one part, or whoever is `master`; returns its name. After SIGKILL it is gone."""
        state = self._state()
        part = state.part(self._resolve(name, state))
        if part.process is None or not send(part.process, signal_number):
            raise LocalClusterError(
                f"{part.name} is not running",
                remedy=f"delayd dev restart {part.name} --dir {self.directory}",
            )
        if signal_number is signal.SIGKILL:
            wait_until_gone([part.process], KILL_TIMEOUT_MS)
        return part.name

    def stop(self, name: str) -> str:
        """Ends one part in good order (SIGTERM), or by force if it does not end."""
        state = self._state()
        part = state.part(self._resolve(name, state))
        if part.process is not None and part.alive():
            send(part.process, signal.SIGTERM)
            send(part.process, signal.SIGCONT)  # a frozen process gets SIGTERM only when woken
            if wait_until_gone([part.process], STOP_TIMEOUT_MS):
                send(part.process, signal.SIGKILL)
                wait_until_gone([part.process], KILL_TIMEOUT_MS)
        return part.name

    def start(self, name: str, *, env: Mapping[str, str] | None = None, wait: bool = True) -> None:
        """Starts one part that is not running, with its data and ports, and waits until it
        answers. `env` is added to its environment, for later starts too."""
        with self._lock(timeout_s=LOCK_TIMEOUT_S):
            state = self._state()
            part = state.part(name)
            if part.alive():
                raise LocalClusterError(f"{name} is already running")
            part = replace(part, env={**part.env, **(env or {})})
            with interrupts_ignored():  # a process that started is in the state file
                part = start_part(part, directory=self.directory)
                state = state.with_part(part)
                self._save(state)
        if wait:
            wait_until_answering(part, state)

    def restart(
        self, name: str, *, env: Mapping[str, str] | None = None, wait: bool = True
    ) -> None:
        """Stops one part if it runs, and starts it again."""
        self.start(self.stop(name), env=env, wait=wait)

    def down(self) -> bool:
        """Ends everything, frozen or forgotten processes too; False if there was nothing to end.
        The files stay, for whoever wants to look, until the next `up`."""
        if not self.directory.is_dir():
            return False
        with self._lock(timeout_s=LOCK_TIMEOUT_S):
            state = self._state_if_readable()
            was_up = self._state_file.exists() or bool(self._processes())
            end_processes(self._processes, gently=state.of(Kind.NODE) if state else ())
            self._state_file.unlink(missing_ok=True)
        return was_up

    def _state(self) -> State:
        state = load(self._state_file)
        if state is None:
            raise LocalClusterError(
                f"no cluster is up in {self.directory}",
                remedy=f"delayd dev up --dir {self.directory}",
            )
        return state

    def _state_if_readable(self) -> State | None:
        try:
            return load(self._state_file)
        except LocalClusterError:
            return None

    def _save(self, state: State) -> None:
        save(state, self._state_file)

    def _processes(self) -> frozenset[ProcessIdentity]:
        """What runs of this cluster: what the state file knows, and what only /proc knows."""
        state = self._state_if_readable()
        known = (part.process for part in state.parts if part.alive()) if state else ()
        return frozenset(process for process in known if process) | processes_of(self.directory)

    def _resolve(self, name: str, state: State) -> str:
        if name != "master":
            return name
        master = master_of(state)
        if master is None:
            raise LocalClusterError("no node delivers at the moment", remedy="try again")
        return master

    def _refuse_a_foreign_folder(self) -> None:
        """`up` removes the last cluster's data: never in a folder that holds anything else."""
        ours = {*_OUR_FOLDERS, _LOCK_FILE, self._state_file.name, PARTIAL_NAME}
        foreign = sorted(entry.name for entry in self.directory.iterdir() if entry.name not in ours)
        if foreign:
            raise LocalClusterError(
                f"{self.directory} holds other things ({foreign[0]})",
                remedy="give an empty or a new folder with --dir",
            )

    @contextlib.contextmanager
    def _lock(self, *, timeout_s: float) -> Iterator[None]:
        clock = SystemClock()
        deadline_ms = clock.monotonic_ms() + int(timeout_s * 1000)
        with (self.directory / _LOCK_FILE).open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if clock.monotonic_ms() >= deadline_ms:
                        raise LocalClusterError(
                            f"another command is at work on the cluster in {self.directory}",
                            remedy=f"let it end, then {self._down_command()}",
                        ) from None
                    threading.Event().wait(LOCK_POLL_S)
            yield

    def _down_command(self) -> str:
        return f"delayd dev down --dir {self.directory}"
