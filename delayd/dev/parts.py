"""A part of the cluster (broker, etcd or node) and the state file that remembers them all.

Not here: how a part is configured (kafka.py, etcd.py, nodes.py) or driven (cluster.py).

Invariants: the file is replaced as a whole; a part's command and ports never change, so a restart
is the same command again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from delayd.dev.processes import ProcessIdentity, is_alive
from delayd.errors import DelaydError

FORMAT = 1
PARTIAL_NAME = "cluster.partial"  # a state file that is being written


class LocalClusterError(DelaydError):
    """The local cluster is not in the state that the command needs, or a part did not start."""

    code = "local-cluster"


class Kind(Enum):
    """What a part is."""

    BROKER = "broker"
    ETCD = "etcd"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Part:
    """One process of the cluster, running or not.

    `address` is `host:port` for a broker, a URL for etcd (client) and a node (admin). `env` is what
    its environment has beyond that of whoever starts it.
    """

    kind: Kind
    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    address: str
    data: Path
    log: Path
    process: ProcessIdentity | None = None

    def alive(self) -> bool:
        """Return whether its process runs (a stopped one does)."""
        return self.process is not None and is_alive(self.process)


@dataclass(frozen=True, slots=True)
class State:
    """What `cluster.json` holds."""

    parts: tuple[Part, ...]

    def of(self, kind: Kind) -> tuple[Part, ...]:
        """Return the parts of one kind, in the order of their numbers."""
        return tuple(part for part in self.parts if part.kind is kind)

    @property
    def bootstrap(self) -> str:
        """Return all brokers, dead ones too: a client needs one that answers."""
        return ",".join(part.address for part in self.of(Kind.BROKER))

    def part(self, name: str) -> Part:
        """Return the part of that name. Raises LocalClusterError if there is none."""
        for part in self.parts:
            if part.name == name:
                return part
        known = ", ".join(part.name for part in self.parts)
        raise LocalClusterError(f"no part is called {name!r}", remedy=f"there are: {known}")

    def with_part(self, changed: Part) -> "State":
        """Return the same with the part of that name replaced."""
        return State(tuple(changed if part.name == changed.name else part for part in self.parts))


_STATE: Final = TypeAdapter(State)


def save(state: State, path: Path) -> None:
    """Replace the state file; a reader sees the old one or the new one."""
    document = {"format": FORMAT, **_STATE.dump_python(state, mode="json")}
    partial = path.with_name(PARTIAL_NAME)
    partial.write_text(json.dumps(document, indent=1))
    partial.rename(path)


def load(path: Path) -> State | None:
    """Return the state, or None if there is no file. Raises LocalClusterError if it is damaged."""
    try:
        document = json.loads(path.read_text())
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}")
        return _STATE.validate_python({"parts": document["parts"]})
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise LocalClusterError(
            f"{path} cannot be read: {problem.strerror}",
            remedy="give the folder of a cluster with --dir",
        ) from problem
    except (ValueError, KeyError, TypeError) as problem:
        raise LocalClusterError(
            f"{path} is damaged: {problem!r}",
            remedy=f"end the cluster with: delayd dev down --dir {path.parent}",
        ) from problem


def last_words(log: Path) -> str:
    """Return the last line of a log that is not a stack frame."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "it left no log"
    telling = [line for line in lines if line.strip() and not line[0].isspace()]
    return telling[-1] if telling else "its log is empty"
