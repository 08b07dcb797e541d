"""A load of everything at once on a cluster of real nodes, judged from the topics alone.

Messages with and without ids, cancels and replaces around the due time, a target that comes into
being while its messages are retried and one that never does, bad requests, users' transactions of
which some are aborted (chaos/workload.py). Each request must have one true outcome (chaos/judge.py,
which reads through another driver than the nodes).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass

from clusters import BY_APPEND_TIME, TestCluster
from loads import evidence_of, findings_once_over, playing
from nodes import CLOCK, HANGS_S, NodeProcess, master_of, node_group, wait_for, wait_until_wall

from chaos.evidence import Evidence
from chaos.workload import SHARES, Scene, mixture

SEED = 4
REQUESTS = 4_000
SPREAD_MS = 16_000
LEAD_MS = 3_500
RETRY_DELAYS_MS = (2_000, 3_000, 5_000)
"""What the cluster is to be made with."""

LATE_MS = (3_200, 8_000)
"""Of the spread: when messages are due whose target does not exist yet."""
LATE_AT_MS = 8_800
"""When the late target is created: its first messages are in their last retry by then."""

assert LATE_AT_MS - LATE_MS[0] < sum(RETRY_DELAYS_MS) - 4_000


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster under load. `evidence` is complete when the load is over."""

    nodes: list[NodeProcess]
    cluster: TestCluster
    scene: Scene
    evidence: Evidence

    def wait(self, share: float) -> None:
        """Wait until that share of the due times is over."""
        at_ms = self.scene.first_due_ms + int(self.scene.spread_ms * share)
        wait_until_wall(at_ms)

    def create_late_target(self) -> None:
        """Let the retries succeed from the moment `LATE_AT_MS` on."""
        self.wait(LATE_AT_MS / self.scene.spread_ms)
        self.cluster.create_topic(self.scene.late, 2, BY_APPEND_TIME)


@contextmanager
def under_load(
    cluster: TestCluster,
    nodes: list[NodeProcess],
    *,
    start: Callable[[NodeProcess], object] = NodeProcess.start,
    shares: Mapping[str, int] = SHARES,
    spread_ms: int = SPREAD_MS,
) -> Iterator[Stage]:
    """Start these nodes, and send the load; at the end everything must have had its outcome.
    `spread_ms`: over which the due times of the load are spread."""
    targets = tuple(cluster.target(name, config=BY_APPEND_TIME) for name in "ab")
    late, never = (f"target.{cluster.name}.{name}" for name in ("late", "never"))
    with node_group(nodes), closing(evidence_of(cluster, (*targets, late, never))) as evidence:
        for node in nodes:
            start(node)
        master_of(nodes)
        run, first_ms = f"r{CLOCK.wall_ms()}", CLOCK.wall_ms() + LEAD_MS
        first_late_ms, last_late_ms = LATE_MS
        late_share = (first_late_ms / spread_ms, last_late_ms / spread_ms)
        scene = Scene(run, targets, late, never, first_ms, spread_ms, late_share)
        stage = Stage(nodes, cluster, scene, evidence)
        load = mixture(scene, count=REQUESTS, seed=SEED, shares=shares)
        with ThreadPoolExecutor(1) as aside, playing(cluster, load):
            created = aside.submit(stage.create_late_target)
            yield stage
            created.result()
        findings = findings_once_over(cluster, evidence, targets[0], HANGS_S)
        assert findings.ok, findings
        check_variety(findings.outcomes)
        asked = [r for r in evidence.requests if r.header("delayd-continues") is None]
        for_late = [r for r in asked if r.header("delayd-topic") == late]
        assert len(for_late) == len(evidence.of(late)), "all were retried until it was there"
        wait_for(lambda: have_the_whole_buffer(nodes), "every node has the whole buffer")


def have_the_whole_buffer(nodes: list[NodeProcess]) -> bool:
    """Are all ready, and is what they have ingested the same?"""
    said = [node.status() for node in nodes]
    return all(s.get("ready") and s["ingested"] == said[0]["ingested"] for s in said)


def check_variety(outcomes: Counter[str]) -> None:
    """Check that the load was what it claims to be."""
    for outcome in (
        *("cancel: cancelled", "cancel: too-late", "cancel: not-found"),
        *("replace: replaced", "replace: too-late"),
        *("message: delivered", "message: delivered after retries", "message: killed"),
        *("message: dead after retries", "message: killed after retries"),
        *("message: duplicate", "message: conflict", "bad: rejected"),
    ):
        assert outcomes[outcome], f"nothing was {outcome}: {outcomes}"
