"""The cluster of a rehearsal, what is asked of it, and the count of what came.

Nodes and servers are those of `delayd dev`. Some messages have ids, and some of these are cancelled
once all are sent, and get a verdict: they may come or not, which the audit judges. All others must
come once.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.backend import BackendError
from chaos.evidence import read_all
from chaos.faults import pause
from chaos.history import now_ms
from chaos.topics import Topics
from delayd.client import Client
from delayd.dev.cluster import LocalCluster
from delayd.dev.nodes import CLUSTER_NAME, read_status
from delayd.dev.parts import State
from delayd.dev.parts import load as load_state
from delayd.dev.startup import ClusterOptions
from delayd.dev.supervision import environment_for
from delayd.errors import ExitCode

COUNT: Final = 400
"""Messages of a rehearsal."""
LEAD_MS: Final = 4_000
SPREAD_MS: Final = 15_000
STRIKE: Final = (0.2, 0.8)
"""Shares of the time in which messages are due: the disaster comes within."""
CANCELLED: Final = frozenset(map(str, range(1, COUNT, 20)))
"""Values of messages that are cancelled as soon as they are sent."""
TARGETS: Final = ("target.a", "target.b")
LATE: Final = "target.late"
"""Is made behind the disaster: until then its messages are requeued."""
PARTITIONS: Final = 2
NODES: Final = ("node-1", "node-2")
SETTINGS: Final = {"lease_ttl_s": 3, "kafka": {"consumer.fetch.wait.max.ms": "100"}}
TIMEOUT_S: Final = 600.0
"""Of one wait, on a machine with other work."""
PAUSE_S: Final = 1.0
NOT_YET: Final = ("nodes are running", "etcd knows", "is under way", "a master takes steps")
"""A command says this while Kafka or etcd still remember what was killed."""


def wait_for(holds: Callable[[], bool], what: str) -> None:
    """Wait until it holds. TimeoutError if it takes long."""
    until_s = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {TIMEOUT_S:.0f} s: {what}")
        time.sleep(PAUSE_S)


def made(directory: Path, stack: ExitStack, shards: int = 1) -> LocalCluster:
    """Return a cluster of two nodes, which is up until the stack is closed."""
    options = ClusterOptions(nodes=len(NODES), node_settings=SETTINGS, shards=shards)
    return stack.enter_context(LocalCluster(directory, options))


def lost_of(sent: Collection[str], counts: Counter[str]) -> list[str]:
    """Return the values that were sent and did not come, without those that were cancelled."""
    return sorted(value for value in sent if value not in CANCELLED and not counts[value])


@dataclass
class Course:
    """A rehearsal under way."""

    directory: Path
    cluster: LocalCluster
    stack: ExitStack
    """Ends all clusters."""
    chance: Random
    tell: Callable[[str], None]
    shards: int = 1
    """Of the cluster that it begins with."""
    first_ms: int = 0
    """When the first message is due."""
    sent: dict[str, str] = field(default_factory=dict)
    """By value: the target."""
    told: list[dict[str, Any]] = field(default_factory=list)
    """What commands answered."""

    @property
    def bootstrap(self) -> str:
        """The brokers."""
        return self.cluster.bootstrap

    @property
    def data(self) -> Path:
        """Where the parts have their data, each in a folder of its name."""
        return self.cluster.directory / "data"

    def config(self, node: str) -> str:
        """A node's own configuration."""
        return str(self.cluster.directory / "config" / f"{node}.toml")

    def make_targets(self, targets: Iterable[str] = TARGETS) -> None:
        """Make targets."""
        topics = Topics(self.bootstrap, copies=1, cluster=CLUSTER_NAME)
        for target in targets:
            topics.create(target, PARTITIONS)

    def client(self) -> Client:
        """A client of the cluster."""
        return Client(self.bootstrap, buffer="delayd-buffer")

    def send(self, numbers: Iterable[int], *, late_every: int = 0) -> None:
        """Schedule these messages, due at random times from `first_ms` on, and cancel some. Of
        `late_every` one is for the target that comes late."""
        with closing(self.client()) as client:
            told, chosen = [], list(numbers)
            for n in chosen:
                is_late = bool(late_every) and n % late_every == 0
                target = LATE if is_late else self.chance.choice(TARGETS)
                self.sent[str(n)] = target
                at = self.first_ms + self.chance.randrange(SPREAD_MS)
                id = f"m-{n}" if n % 2 else None
                told.append(client.schedule_async(target, b"%d" % n, id=id, at=at))
            for each in told:
                each.result(TIMEOUT_S)
            for n in (n for n in chosen if str(n) in CANCELLED):
                client.cancel(f"m-{n}")

    def warm_up(self) -> None:
        """Deliver one message to each partition: a target that shows something from long before a
        disaster was not made again since."""
        with closing(self.client()) as client:
            for target in TARGETS:
                for number in range(PARTITIONS):
                    value = f"warm {target} {number}"
                    self.sent[value] = target
                    client.schedule(target, value.encode(), at=0, partition=number)
        wait_for(lambda: not lost_of(self.sent, self.counted()), "the first messages are delivered")

    def strike_at(self) -> None:
        """Wait for a random moment of the time in which messages are due."""
        pause(self.first_ms + int(SPREAD_MS * self.chance.uniform(*STRIKE)) - now_ms())

    def kill(self, parts: Iterable[str] = NODES) -> None:
        """End parts by SIGKILL."""
        for part in parts:
            self.cluster.kill(part)

    def run(self, *arguments: str) -> dict[str, Any]:
        """Run a command of delayd that answers in JSON; while something is not forgotten yet,
        again. BackendError if it is not content."""
        command = (sys.executable, "-m", "delayd.commands.cli", *arguments, "--json")
        until_s = time.monotonic() + TIMEOUT_S
        while True:
            env = environment_for({}, self.cluster.directory)
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
            is_early = any(each in done.stderr for each in NOT_YET)
            if not is_early or time.monotonic() > until_s:
                break
            time.sleep(PAUSE_S)
        name = " ".join(arguments[:2])
        if done.returncode != ExitCode.FINE or not done.stdout:
            raise BackendError(f"{name}: {done.stdout[-2_000:]} {done.stderr[-2_000:]}")
        result: dict[str, Any] = json.loads(done.stdout)
        self.told.append(result)
        return result

    def start(self) -> None:
        """Start the nodes, one after the other."""
        for node in NODES:
            self.cluster.start(node)

    def reach(self, node: str) -> None:
        """Wait until a node has taken in all records that the buffer holds now. Markers behind the
        last of them do not count."""
        partitions: dict[str, int] = {}
        records = read_all(self.bootstrap, ["delayd-buffer"], partitions)
        ends = [0] * partitions["delayd-buffer"]
        for record in records:
            ends[record.partition] = max(ends[record.partition], record.offset + 1)
        address = self._state().part(node).address

        def has_read() -> bool:
            read = (read_status(address) or {}).get("ingested", ())
            return len(read) == len(ends) and all(a >= b for a, b in zip(read, ends, strict=True))

        wait_for(has_read, f"{node} has read the buffer")

    def counted(self) -> Counter[str]:
        """How often each value is in the targets."""
        records = read_all(self.bootstrap, (*TARGETS, LATE))
        return Counter((record.value or b"").decode() for record in records)

    def _state(self) -> State:
        state = load_state(self.cluster.directory / "cluster.json")
        assert state is not None, "the cluster is up"
        return state
