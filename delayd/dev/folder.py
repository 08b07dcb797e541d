"""A local cluster's folder: its state file, its lock, and the processes that belong to it.

Not here: what is done with the parts (cluster.py), the contents of the state file (parts.py).

Invariants: nothing is removed in a folder that holds anything but a cluster; at most one process
changes a cluster at a time.
"""

import shutil
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from delayd.dev.locks import locked
from delayd.dev.parts import PARTIAL_NAME, LocalClusterError, State, load, save
from delayd.dev.processes import ProcessIdentity, processes_of

CONTENTS = ("config", "data", "logs")
REPORT = "delayd-audit.html"
"""What a demo leaves beside them."""

_STATE_FILE = "cluster.json"
_KEPT_FILE = "cluster.kept.json"
"""The state of a cluster that is down, for the next `up`: no part has a process."""
_LOCK_FILE = "cluster.lock"


def cluster_key_file(directory: Path) -> Path:
    """Return the file with the cluster's key, which another node of it needs."""
    return directory / "config" / "cluster-key"


class ClusterFolder:
    """The folder `path`, absolute. All methods raise LocalClusterError with what to do."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._state_file = self.path / _STATE_FILE
        self._kept_file = self.path / _KEPT_FILE

    def prepare(self) -> None:
        """Make the folder. Refuse one that cannot be written, or holds other things: `up` may
        remove data in it."""
        ours = {*CONTENTS, _STATE_FILE, _KEPT_FILE, _LOCK_FILE, PARTIAL_NAME, REPORT}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            foreign = sorted(entry.name for entry in self.path.iterdir() if entry.name not in ours)
            if not foreign:
                (self.path / _LOCK_FILE).touch()
        except OSError as error:
            raise LocalClusterError(
                f"{self.path} cannot hold a cluster: {error.strerror}",
                remedy="give a folder that you may write with --dir",
            ) from error
        if foreign:
            raise LocalClusterError(
                f"{self.path} holds other things ({foreign[0]})",
                remedy="give an empty or a new folder with --dir",
            )

    def clear(self) -> None:
        """Remove what the last cluster left. The caller holds the lock and nothing runs."""
        self.forget()
        for name in CONTENTS:
            shutil.rmtree(self.path / name, ignore_errors=True)

    def keep(self, state: State) -> None:
        """Remember a cluster that is down, with its data, for the next `up`."""
        without = tuple(replace(part, process=None) for part in state.parts)
        save(State(without), self._kept_file)
        self._state_file.unlink(missing_ok=True)

    def kept(self) -> State | None:
        """Return the cluster that is down, and whose data is here; None if there is none."""
        return load(self._kept_file)

    def state(self) -> State:
        """Return the state of the cluster that is up."""
        state = load(self._state_file)
        if state is None:
            raise LocalClusterError(f"no cluster is up in {self.path}", remedy=self.command("up"))
        return state

    def state_if_readable(self) -> State | None:
        """Return the state, or None if there is none or its file is damaged."""
        try:
            return load(self._state_file)
        except LocalClusterError:
            return None

    def has_state(self) -> bool:
        """Return whether there is a state file, damaged or not."""
        return self._state_file.exists()

    def save(self, state: State) -> None:
        """Replace the state file."""
        save(state, self._state_file)

    def forget(self) -> None:
        """Remove the state files: no cluster is up here any more, and none is kept."""
        self._state_file.unlink(missing_ok=True)
        self._kept_file.unlink(missing_ok=True)

    def processes(self) -> frozenset[ProcessIdentity]:
        """Return the processes of this cluster: those in the state file, and those that only
        their environment names."""
        state = self.state_if_readable()
        known = (part.process for part in state.parts if part.alive()) if state else ()
        return frozenset(process for process in known if process) | processes_of(self.path)

    def lock(self, *, timeout_s: float) -> AbstractContextManager[None]:
        """Return a context in which no other process changes the cluster."""
        refusal = LocalClusterError(
            f"another command is at work on the cluster in {self.path}",
            remedy=f"let it end, then {self.command('down')}",
        )
        return locked(self.path / _LOCK_FILE, timeout_s=timeout_s, refusal=refusal)

    def command(self, words: str) -> str:
        """Return the `delayd dev` command that a person should type for this folder."""
        return f"delayd dev {words} --dir {self.path}"
