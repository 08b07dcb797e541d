"""A delayd cluster of a benchmark's own: topics on its brokers, and nodes as processes.

Several may stand beside each other on the same brokers, each with its own topics and its own name.

Invariants: its processes are ended, and its topics and folders gone, when its context is left.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import Any, Final, Self
from uuid import uuid4

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from delayd.bench.brokers import PARTITIONS, Brokers
from delayd.bench.errors import BenchError
from delayd.bus.overrides import of_role
from delayd.cluster.topics import create_topics, topic_names
from delayd.config.cluster_key import new_cluster_key
from delayd.dev.folder import CONTENTS
from delayd.dev.interrupts import interrupts_ignored
from delayd.dev.kafka import create_topic
from delayd.dev.nodes import ask_node, master_of, plan_node, read_status
from delayd.dev.parts import State, last_words
from delayd.dev.ports import pick_ports
from delayd.dev.processes import (
    ProcessIdentity,
    processes_of,
    send,
    wait_until_gone,
    wait_until_stopped,
)
from delayd.dev.startup import wait_until_delivering
from delayd.dev.supervision import end_processes, start_part
from delayd.runtime.clock import SystemClock, wait_until

NO_SETTINGS: Final[Mapping[str, object]] = {}
NODE_MODULE: Final = "delayd.commands.cli"
DELETE_S: Final = 30
STOP_TIMEOUT_MS: Final = 40_000
LOOK_MS: Final = 200
"""Between two looks at a node's status, which costs it some ms."""

INGEST_S_MAX: Final = 900

QUICK_LOOK_MS: Final = 10


class BenchNodes:
    """The cluster, as a context manager: its topics exist inside; nodes are started by name."""

    def __init__(
        self,
        brokers: Brokers,
        nodes: int,
        envs: Sequence[Mapping[str, str]] = (),
        *,
        shards: int = 1,
        partitions: int = PARTITIONS,
        settings: Mapping[str, object] = NO_SETTINGS,
        module: str = NODE_MODULE,
    ) -> None:
        """`envs`: what each node's environment has beside this process's; none has anything
        without it. `partitions`: of the buffer. `settings`: of each node. `module`: what each
        runs."""
        self._module = module
        self._shards = shards
        self._partitions = partitions
        self._settings = settings
        self._envs = envs or [{}] * nodes
        self.brokers = brokers
        self.clock = SystemClock(offset_ms=0)
        self._name = f"bench-{uuid4().hex[:8]}"
        self.buffer = f"{self._name}-buffer"
        """The topic that requests are written to."""
        self.names = tuple(f"node-{number}" for number in range(1, nodes + 1))
        self._opened = contextlib.ExitStack()
        self._state = State(())
        self._topics: list[str] = []
        self._frozen: set[str] = set()

    def __enter__(self) -> Self:
        with self._opened:
            folder = self._opened.enter_context(tempfile.TemporaryDirectory(prefix="delayd-bench-"))
            self._directory = Path(folder)
            for name in CONTENTS:
                (self._directory / name).mkdir()
            key, prefix = new_cluster_key(), f"{self._name}-"
            self._opened.callback(self._delete_topics)
            self._topics += topic_names(prefix)
            create_topics(
                self.brokers.bus,
                cluster=self._name,
                prefix=prefix,
                partitions=self._partitions,
                shards=self._shards,
                cluster_key=key,
            )
            self._opened.callback(end_processes, lambda: processes_of(self._directory))
            settings = {"cluster": self._name, "prefix": prefix, **self.brokers.node_settings}
            settings |= self._settings
            self._state = State(
                tuple(
                    plan_node(
                        self._directory,
                        number,
                        port=port,
                        bootstrap=self.brokers.bootstrap,
                        etcd_url=self.brokers.etcd_url,
                        cluster_key=key,
                        settings=settings,
                        env=env,
                        module=self._module,
                    )
                    for number, (port, env) in enumerate(
                        zip(pick_ports(len(self.names)), self._envs, strict=True), 1
                    )
                )
            )
            self._opened = self._opened.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        with interrupts_ignored():
            self._opened.close()

    def target_named(self, name: str) -> str:
        """Return the topic that `create_target` makes of a name."""
        return f"{self._name}.{name}"

    def create_target(self, name: str | None = None) -> str:
        """Create a topic to deliver to, with Kafka's time of append. Return it."""
        topic = self.target_named(name or uuid4().hex[:8])
        self._topics.append(topic)
        by_append_time = {"message.timestamp.type": "LogAppendTime"}
        return create_topic(self.brokers.bus, topic, PARTITIONS, by_append_time)

    def start(self, *names: str) -> None:
        """Start these nodes, or all; returns at once."""
        for name in names or self.names:
            part = start_part(self._state.part(name), directory=self._directory)
            self._state = self._state.with_part(part)

    def start_and_wait(self) -> None:
        """Start all nodes; returns when one delivers and all are ready."""
        self.start()
        wait_until_delivering(self._state)

    def end(self, name: str, signal: Signals) -> int:
        """End a node with SIGTERM or SIGKILL. Return the wall time at which it was surely gone."""
        process = self._process(name)
        part = self._state.part(name)
        send(process, signal)
        if wait_until_gone([process], STOP_TIMEOUT_MS):
            raise BenchError(f"{name} did not end: {last_words(part.log)}")
        self._state = self._state.with_part(replace(part, process=None))
        return self.clock.wall_ms()

    def freeze(self, name: str) -> int:
        """Stop a node with SIGSTOP; until `thaw` nobody asks it anything. Return the wall time at
        which it surely stood still."""
        process = self._process(name)
        send(process, Signals.SIGSTOP)
        if not wait_until_stopped(process, STOP_TIMEOUT_MS):
            raise BenchError(f"{name} was not stopped")
        self._frozen.add(name)
        return self.clock.wall_ms()

    def thaw(self, name: str) -> None:
        """Let a frozen node go on."""
        send(self._process(name), Signals.SIGCONT)
        self._frozen.discard(name)

    def pid(self, name: str) -> int:
        """Return the process id of a running node."""
        return self._process(name).pid

    def master(self) -> str | None:
        """Return the node that says it delivers."""
        asked = [part for part in self._state.parts if part.name not in self._frozen]
        return master_of(State(tuple(asked)))

    def term(self) -> int:
        """Return the newest term that a node knows of: one more for each takeover."""
        return max(int(self.status(name).get("term") or 0) for name in self.names)

    def is_ready(self, name: str) -> bool:
        """Return whether a node says that it could take over."""
        answer = ask_node(self._state.part(name).address)
        return answer is not None and answer.ready

    def status(self, name: str) -> dict[str, Any]:
        """Return `GET /status`; empty while the node does not answer."""
        return read_status(self._state.part(name).address) or {}

    def count(self, name: str, what: str) -> int:
        """Return `ingested_count` or `delivered_count` of a node since its start."""
        return int(self.status(name).get(what) or 0)

    def wait_until_ingested(self, count: int) -> None:
        """Wait until each running node has ingested so many since its start. Raises as `wait`."""
        running = [part.name for part in self._state.parts if part.process is not None]
        self.wait(
            lambda: all(self.count(name, "ingested_count") >= count for name in running),
            INGEST_S_MAX,
            f"{count} messages are taken in",
        )

    def wait(
        self, condition: Callable[[], bool], timeout_s: float, what: str, look_ms: int = LOOK_MS
    ) -> None:
        """Wait for the condition. Raises BenchError if a node that was started ends, or time is
        up."""

        def holds() -> bool:
            if condition():
                return True
            for part in self._state.parts:
                if part.process is not None:
                    self._process(part.name)  # it runs
            return False

        if not wait_until(holds, int(timeout_s * 1000), look_ms):
            raise BenchError(
                f"not within {timeout_s:.0f} s: {what}",
                remedy="measure when this machine does nothing else, or smaller sizes",
            )

    def _process(self, name: str) -> ProcessIdentity:
        part = self._state.part(name)
        if part.process is None or not part.alive():
            raise BenchError(f"{name} ended: {last_words(part.log)}")
        return part.process

    def _delete_topics(self) -> None:
        if self._topics:
            properties = of_role(self.brokers.security.properties(), "admin")
            kafka = AdminClient({"bootstrap.servers": self.brokers.bootstrap, **properties})
            for deleted in kafka.delete_topics(self._topics, operation_timeout=DELETE_S).values():
                with contextlib.suppress(KafkaException):  # the brokers are gone: so are the topics
                    deleted.result()


@contextlib.contextmanager
def running(brokers: Brokers, nodes: int) -> Iterator[BenchNodes]:
    """Yield a cluster whose nodes all run, one of them delivering."""
    with BenchNodes(brokers, nodes) as cluster:
        cluster.start_and_wait()
        yield cluster
