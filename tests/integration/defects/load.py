"""A real cluster with a past of everything: what defects are planted in.

Everything of chaos/workload.py, judged right by chaos/judge.py, while a master is killed; then dead
letters are redriven, some of them twice, and messages wait that are due in days. At the end nothing
is due and the cluster is at rest.

Not here: the defects; the audit.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from clusters import BY_APPEND_TIME, TestCluster, make_cluster
from loads import evidence_of, findings_once_over, playing
from nodes import CLOCK, HANGS_S, NodeProcess, master_of, node_group, wait_for
from raw_records import RawHeaders, RawWriter

from chaos.evidence import Evidence, read_all
from chaos.records import Logged
from chaos.workload import Scene, mixture
from delayd.bus.murmur2 import partition_of
from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions

PARTITIONS = 3
NODES = 3
SEED = 5
LEAD_MS = 3_500
RETRY_DELAYS_MS = (1_500, 2_500)
LATE_SHARE = (0.2, 0.7)
"""Beyond the time at which a slow machine has created the late target."""

RETRIED_MIN = 30
"""Retries for the late target that must have been written before it is created."""

KILL_AT = 0.3
REDRIVES = 12
LATE_CANCELS = 4
"""Cancels of messages that are dead already: on a slow machine the load itself has none."""

IDLE_STEP_MS = 50
IDLE_STEPS = 60
"""So many without work at the end, for what is wrong with a frontier and with nothing else."""

EARLY_MARKS = 4
EARLY_MS = 10_000
"""So long before their messages are due, so many cancels and as many replaces are sent: on a slow
machine those of the load are answered too late, too shortly before, or in a step that has another
defect."""

APART_MS = 10 * IDLE_STEP_MS
"""Between them, so that each is answered in a step of its own."""

PENDING = 300
DAY_MS = 24 * 60 * 60 * 1000
PENDING_DAYS = 30

STEPS_MIN = 100
"""About so many steps deliver something, however slow the machine is: defects are planted in some,
each far from the others."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster at rest, with its brokers and nodes still running."""

    brokers: LocalCluster
    cluster: TestCluster
    nodes: list[NodeProcess]
    targets: tuple[str, ...]
    """The first is stamped by the broker, the second by the producer; then one that came late."""

    @property
    def prefix(self) -> str:
        """Of delayd's own topics."""
        return f"{self.cluster.name}-"


@contextmanager
def at_rest(folder: Path, *, requests: int, spread_ms: int) -> Iterator[Stage]:
    """Play about `requests` requests with due times over `spread_ms`, and come to rest."""
    with LocalCluster(folder / "brokers", ClusterOptions(nodes=0)) as brokers:
        cluster = make_cluster(brokers, folder, PARTITIONS, retry_delays_ms=RETRY_DELAYS_MS)
        stamped = cluster.target("stamped", config=BY_APPEND_TIME)
        plain = cluster.target("plain")
        late, never = (f"target.{cluster.name}.{name}" for name in ("late", "never"))
        nodes = [
            cluster.node(
                number,
                idle_step_interval_ms=IDLE_STEP_MS,
                step_records_max=requests // STEPS_MIN,
            )
            for number in range(NODES)
        ]
        with node_group(nodes):
            for node in nodes:
                node.start()
            master_of(nodes)
            stage = Stage(brokers, cluster, nodes, (stamped, plain, late))
            _play(stage, never, requests, spread_ms)
            _redrive_and_wait(stage)
            _rest(nodes)
            yield stage


def _play(stage: Stage, never: str, requests: int, spread_ms: int) -> None:
    """The mixture, while a master dies and a target comes late; chaos/judge.py must be content."""
    first_ms = CLOCK.wall_ms() + LEAD_MS
    *targets, late = stage.targets
    run = f"r{first_ms}"
    scene = Scene(run, tuple(targets), late, never, first_ms, spread_ms, LATE_SHARE)
    plan = mixture(scene, count=requests * 2 // 3, seed=SEED)  # many kinds are two requests

    kill_ms = first_ms + int(spread_ms * KILL_AT)

    with closing(evidence_of(stage.cluster, (*stage.targets, never))) as evidence:

        def is_time_to_kill() -> bool:
            evidence.read()  # so that little is left to read when retries are waited for
            return CLOCK.wall_ms() >= kill_ms

        with playing(stage.cluster, plan):
            wait_for(is_time_to_kill, "time passes")
            killed = master_of(stage.nodes)
            killed.kill()
            master_of([node for node in stage.nodes if node is not killed])
            killed.start()
            wait_for(lambda: _retries(evidence, late) >= RETRIED_MIN, "retries go on")
            stage.cluster.create_topic(late, 2)
        findings = findings_once_over(stage.cluster, evidence, targets[0], HANGS_S)
        assert findings.ok, findings


def _retries(evidence: Evidence, target: str) -> int:
    """How many continuations for a target are in the buffer."""
    evidence.read()
    return sum(
        record.header("delayd-continues") is not None and record.header("delayd-topic") == target
        for record in evidence.requests
    )


def _redrive_and_wait(stage: Stage) -> None:
    """Redrives, pending messages, and a last one whose delivery ends the wait."""
    dead = [
        row
        for row in read_all(stage.cluster.bootstrap, [stage.cluster.dead])
        if row.fields["reason"] == "dead"
    ]
    letters = dead[:REDRIVES]
    assert len(letters) == REDRIVES, "too few dead letters to redrive"
    named = [row for row in dead[REDRIVES:] if "id" in row.fields][:LATE_CANCELS]
    assert len(named) == LATE_CANCELS, "too few dead letters with an id"
    writer = RawWriter(stage.cluster.bootstrap, stage.cluster.buffer)
    try:
        for letter in (*letters, *letters[: REDRIVES // 2]):
            _send_again(writer, letter, stage.targets[0])
        for letter in named:
            _cancel(writer, letter)
        _send_pending(writer, stage.targets)
        early_ms = CLOCK.wall_ms() + EARLY_MS
        _mark_early(writer, stage.targets[0], early_ms)
        last = writer.send(0, None, b"last", _plain(stage.targets[0], early_ms + 500))
        writer.flush()
        source = last.result(HANGS_S).source
    finally:
        writer.close()

    def is_delivered() -> bool:
        found = read_all(stage.cluster.bootstrap, stage.targets[:1])
        return any(row.fields["source"] == source for row in found)

    wait_for(is_delivered, "the last message arrives")


def _send_again(writer: RawWriter, letter: Logged, target: str) -> None:
    source = letter.fields["source"]
    headers: RawHeaders = [*letter.own, *_plain(target, CLOCK.wall_ms())]
    headers.append(("delayd-redrive", source.encode()))
    writer.send(int(source.partition("/")[0]), letter.key, letter.value, headers)


def _cancel(writer: RawWriter, letter: Logged) -> None:
    id = letter.fields["id"].encode()
    partition = int(letter.fields["source"].partition("/")[0])
    writer.send(partition, id, None, [("delayd-op", b"cancel"), ("delayd-id", id)])


def _mark_early(writer: RawWriter, target: str, due_ms: int) -> None:
    """Messages that are due then, and are cancelled or replaced one by one long before."""
    for number in range(2 * EARLY_MARKS):
        key = b"early-%d" % number
        partition = partition_of(key, PARTITIONS)
        id: RawHeaders = [("delayd-id", key)]
        message = _plain(target, due_ms)
        writer.send(partition, key, b"e%d" % number, [*message, *id])
        if number % 2:
            writer.send(partition, key, b"E%d" % number, [*message, ("delayd-op", b"replace"), *id])
        else:
            writer.send(partition, key, None, [("delayd-op", b"cancel"), *id])
        writer.flush()
        threading.Event().wait(APART_MS / 1000)


def _send_pending(writer: RawWriter, targets: Sequence[str]) -> None:
    """Half of them with an id, some of which are sent again or cancelled."""
    first_ms = CLOCK.wall_ms() + DAY_MS
    for number in range(PENDING):
        due_ms = first_ms + number * PENDING_DAYS * DAY_MS // PENDING
        headers = _plain(targets[number % 3], due_ms)
        key = b"pending-%d" % number
        partition = partition_of(key, PARTITIONS)
        value = b"p%d" % number * 30
        if number % 2:
            headers.append(("delayd-id", key))
        for _ in range(2 if number % 20 == 1 else 1):
            writer.send(partition, key, value, headers)
        if number % 20 == 3:
            writer.send(partition, key, None, [("delayd-op", b"cancel"), ("delayd-id", key)])


def _plain(target: str, due_ms: int) -> RawHeaders:
    return [
        ("trace", b"1"),
        ("delayd-topic", target.encode()),
        ("delayd-due", b"%d" % due_ms),
        ("trace", None),
    ]


def _rest(nodes: list[NodeProcess]) -> None:
    """All nodes have ingested the same, a frontier covers it, and steps follow without work."""
    steps: list[int] = []

    def is_over() -> bool:
        said = [node.status() for node in nodes]
        if not all(s.get("ready") and s.get("frontier") for s in said):
            return False
        ends = said[0]["ingested"]
        if any(s["ingested"] != ends or s["frontier"]["offsets"] != ends for s in said):
            return False
        steps.append(max(s["frontier"]["step"] for s in said))
        return steps[-1] > steps[0] + IDLE_STEPS

    wait_for(is_over, "all nodes are at rest")
