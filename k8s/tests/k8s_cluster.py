"""overlays/dev on the cluster that kubectl points at, what can be done to it, traffic meanwhile.

    KUBECTL        how kubectl is called; may have options (`kubectl --context kind-x`)
    K8S_IMAGES     other images: `apache/kafka=delayd-servers:0.2.0 delayd=delayd:test`
    K8S_CUT, K8S_MEND       shell commands that take a pod off the network and put it back: {ip}
    K8S_FREEZE, K8S_THAW    shell commands that stop and continue the kubelet
    K8S_RATE       messages a second (500)
    K8S_KILL                a shell command that sends SIGKILL to a pod's node: {pod}
    K8S_SHARDS     shards of the cluster that all tests begin with (1)

Waits are bounded and end with what was waited for.
"""

import json
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import yaml
from tally import FAULTS

K8S: Final = Path(__file__).parents[1]
NAMESPACE: Final = "delayd-dev"
COMPONENTS: Final = ("audit", "backup", "chaos", "leader-label", "network-policy")
NODES: Final = "app.kubernetes.io/name=delayd,app.kubernetes.io/component=node"
POLL_S: Final = 1.0
"""kubectl takes a good part of a second of a processor each time."""
CALL_TIMEOUT_S: Final = 120
RATE: Final = int(os.environ.get("K8S_RATE", "500"))
SHARDS: Final = int(os.environ.get("K8S_SHARDS", "1"))
BEGUN: Final = 200
"""So many deliveries, and traffic is under way."""

SECONDS_MAX: Final = 1_200
END_TIMEOUT_S: Final = 400
STEADY_S: Final = 6
"""Between two faults, so that what one has delayed is over before the next."""

IN_SHARDS: Final = f"""
- op: add
  path: /spec/template/spec/initContainers/0/args/-
  value: --shards={SHARDS}
"""
"""What the component `topics` is told of them."""

BACKUPS: Final = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: delayd-backups}
spec: {resources: {requests: {storage: 1Gi}}}
"""
"""As small as the rest of overlays/dev."""

DELETE_RECORDS: Final = """
import os, sys
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
admin = AdminClient({"bootstrap.servers": os.environ["DELAYD_BOOTSTRAP"]})
below = [TopicPartition("delayd-buffer", p, int(o)) for p, o in enumerate(sys.argv[1:])]
for done in admin.delete_records(below).values():
    done.result(30)
"""
"""The request of kafka-delete-records, which not every image of Kafka has."""

T = TypeVar("T")


class KubectlError(RuntimeError):
    """kubectl refused; its words are the message."""


def now_ms() -> int:
    """Unix ms."""
    return time.time_ns() // 1_000_000


def wait_for(what: str, look: Callable[[], T | None], timeout_s: float) -> T:
    """What `look` finds, as soon as it finds anything. TimeoutError with `what`."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if found := look():
                return found
        except KubectlError:
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(POLL_S)


@dataclass
class Cluster:
    """Three nodes, Kafka and etcd in a namespace of their own."""

    settings: dict[str, str] = field(default_factory=dict)
    """More lines of node.toml."""

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """What it prints. KubectlError with what it says if it fails."""
        command = [*shlex.split(os.environ.get("KUBECTL", "kubectl")), *arguments]
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=CALL_TIMEOUT_S,
        )
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def inside(self, *arguments: str, given: str | None = None) -> str:
        """The same, in the namespace."""
        return self.kubectl("-n", NAMESPACE, *arguments, given=given)

    def read(self, *arguments: str) -> Any:
        """Objects as JSON."""
        return json.loads(self.inside("get", *arguments, "-o", "json"))

    def apply(self) -> None:
        """overlays/dev with components, the images of K8S_IMAGES, and `settings`."""
        with tempfile.TemporaryDirectory() as name:
            self._lay_out(Path(name))
            rendered = self.kubectl("kustomize", name)
        self.kubectl("apply", "-f", "-", given=rendered)

    def _lay_out(self, folder: Path) -> None:
        def path(name: str) -> str:
            return os.path.relpath(K8S / name, folder.resolve())

        base = (K8S / "base" / "node.toml").read_text()
        lines = [f"{key} = {value}\n" for key, value in self.settings.items()]
        (folder / "node.toml").write_text("".join((base, *lines)))
        generated = {"name": "delayd-node", "behavior": "replace", "files": ["node.toml"]}
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": NAMESPACE,
            "resources": [path("overlays/dev")],
            "components": [path(f"components/{name}") for name in COMPONENTS],
            "configMapGenerator": [generated],
            "patches": [
                {"patch": BACKUPS},
                {"patch": IN_SHARDS, "target": {"kind": "StatefulSet", "name": "delayd"}},
            ],
            "images": [_image(each) for each in os.environ.get("K8S_IMAGES", "").split()],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))

    def remove(self) -> None:
        """Everything, volumes too."""
        self.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=100s")

    # --- Nodes

    def pods(self, selector: str = NODES) -> list[Any]:
        """Of the nodes, by name."""
        found = self.read("pods", "-l", selector)["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def ready(self, count: int) -> list[str] | None:
        """The names of the nodes, if exactly so many are there and all of them are ready."""
        pods = self.pods()
        if len(pods) == count and all(is_ready(pod) for pod in pods):
            return [pod["metadata"]["name"] for pod in pods]
        return None

    def status(self, pod: str) -> Any:
        """What a node says of itself."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:7070/proxy/status"
        return json.loads(self.kubectl("get", "--raw", path))

    def master(self) -> str | None:
        """The node that says it delivers."""
        for pod in self.pods():
            try:
                if self.status(pod["metadata"]["name"])["delivering"]:
                    return str(pod["metadata"]["name"])
            except KubectlError:
                continue
        return None

    def leads(self) -> dict[str, list[int]]:
        """The shards that each node says it delivers; of nodes that answer."""
        found = {}
        for pod in self.pods():
            name = str(pod["metadata"]["name"])
            try:
                found[name] = list(self.status(name)["shards_led"])
            except (KubectlError, KeyError):
                continue
        return found

    def are_led(self, shards: int) -> dict[str, list[int]] | None:
        """The same, if each of so many shards is delivered, by one node."""
        found = self.leads()
        return (
            found
            if sorted(shard for led in found.values() for shard in led) == [*range(shards)]
            else None
        )

    def are_spread(self, shards: int, pods: int) -> dict[str, list[int]] | None:
        """The same, if no node delivers more than its part."""
        found = self.are_led(shards)
        part = -(-shards // pods)
        is_spread = found and len(found) == pods and max(map(len, found.values())) <= part
        return found if is_spread else None

    def run_in(self, pod: str, *command: str) -> str:
        """What a command prints, in the container of a node."""
        return self.inside("exec", pod, "-c", "node", "--", *command)

    def wait_master(self) -> str:
        """Whoever it is, soon."""
        return wait_for("a master that delivers", self.master, 120)

    def wait_ready(self, count: int = 3, timeout_s: float = 300) -> list[str]:
        """All nodes."""
        return wait_for(f"{count} nodes that are ready", lambda: self.ready(count), timeout_s)

    @contextmanager
    def replacing(self, pod: str) -> Iterator[None]:
        """What is done inside ends a pod; another one has its name at the end, and is ready."""
        uid = self.read("pod", pod)["metadata"]["uid"]
        yield

        def is_back() -> bool:
            found = self.read("pod", pod)
            return found["metadata"]["uid"] != uid and is_ready(found)

        wait_for(f"{pod} to be back", is_back, 300)

    def wait_rolled(self, before: str) -> None:
        """Every node is of another revision than `before`, and ready."""

        def is_rolled() -> bool:
            said = self.read("statefulset", "delayd")
            status = said["status"]
            return bool(
                status["updateRevision"] != before
                and status.get("observedGeneration") == said["metadata"]["generation"]
                and status.get("updatedReplicas") == said["spec"]["replicas"]
                and status.get("readyReplicas") == said["spec"]["replicas"]
            )

        wait_for("the rolling update", is_rolled, 600)

    def evict(self, pod: str) -> None:
        """What draining a host does."""
        metadata = {"name": pod, "namespace": NAMESPACE}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
        self.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(body))

    def lose_volume(self, pod: str) -> None:
        """Its claim goes with it; the StatefulSet makes both again, empty."""
        self.inside("delete", "pvc", f"data-{pod}", "--wait=false")
        self.inside("delete", "pod", pod, "--force", "--grace-period=0")

    def node_events(self, pod: str) -> list[str]:
        """What its node has logged since it was started last, by the names of the events."""
        lines = self.inside("logs", pod, "-c", "node").splitlines()
        return [json.loads(line).get("event", "") for line in lines if line.startswith("{")]

    def trim_buffer(self) -> list[int]:
        """Delete from the buffer what the checkpoints of all nodes have, as kafka-delete-records
        does. Return where it begins now."""
        names = [pod["metadata"]["name"] for pod in self.pods()]
        read = [self.status(name)["ingested"] for name in names]
        since = time.monotonic()

        def is_kept() -> bool:
            ages = [self.status(name)["checkpoint_age_ms"] for name in names]
            return bool(max(ages) < 1_000 * (time.monotonic() - since))

        wait_for("a checkpoint of each node", is_kept, 60)
        begins = [min(offsets) for offsets in zip(*read, strict=True)]
        tool = ("-c", "node", "--", "python", "-c", DELETE_RECORDS)
        self.inside("exec", names[0], *tool, *map(str, begins))
        return begins

    def shell(self, variable: str, **values: str) -> None:
        """The command that an environment variable holds."""
        command = os.environ[variable].format(**values)
        subprocess.run(command, shell=True, check=True, timeout=CALL_TIMEOUT_S)

    # --- Jobs

    def start_job(self, template: str, name: str, variables: dict[str, str]) -> None:
        """A Job from a CronJob, with other values of some variables."""
        options = (f"--from=cronjob/{template}", "--dry-run=client", "-o", "json")
        job = json.loads(self.inside("create", "job", name, *options))
        [container] = job["spec"]["template"]["spec"]["containers"]
        kept = [each for each in container.get("env", ()) if each["name"] not in variables]
        container["env"] = [*kept, *({"name": n, "value": v} for n, v in variables.items())]
        self.inside("apply", "-f", "-", given=json.dumps(job))

    def log(self, job: str) -> list[str]:
        """The lines of its one pod so far."""
        return self.inside("logs", f"job/{job}").splitlines()

    def wait_job(self, name: str, timeout_s: float) -> bool:
        """Return whether it ended well, once it has ended."""

        def ended() -> str | None:
            for condition in self.read("job", name)["status"].get("conditions", ()):
                if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
                    return str(condition["type"])
            return None

        return wait_for(f"the end of job {name}", ended, timeout_s) == "Complete"


def is_ready(pod: Any) -> bool:
    """And not on its way out."""
    conditions: Sequence[Any] = pod["status"].get("conditions", ())
    return "deletionTimestamp" not in pod["metadata"] and any(
        each["type"] == "Ready" and each["status"] == "True" for each in conditions
    )


def node_state(pod: Any) -> Any:
    """Of the container `node`: `restartCount`, `state`, `lastState`."""
    statuses = pod["status"].get("containerStatuses", ())
    return next((each for each in statuses if each["name"] == "node"), {})


def last_words(pod: Any) -> str:
    """What its node, or what goes before it, said as it ended; empty if it has not, or only
    well."""
    kinds = ("state", "lastState")
    ends = (each.get(kind, {}).get("terminated", {}) for each in _states(pod) for kind in kinds)
    return "".join(end.get("message", "") for end in ends if end.get("exitCode", 0) != 0)


def is_held_back(pod: Any) -> bool:
    """Return whether Kubernetes waits before it starts the node, or what goes before it, again."""
    waiting = (each.get("state", {}).get("waiting", {}) for each in _states(pod))
    return any(each.get("reason") == "CrashLoopBackOff" for each in waiting)


def _states(pod: Any) -> list[Any]:
    """Return the states of what a pod runs before its node, and of the node."""
    return [*pod["status"].get("initContainerStatuses", ()), node_state(pod)]


def _image(said: str) -> dict[str, str]:
    name, _, image = said.partition("=")
    new, _, tag = image.rpartition(":")
    return {"name": name, "newName": new, "newTag": tag}


class Run:
    """A Job of the component chaos: under way inside of `with`, and judged after it."""

    def __init__(self, cluster: Cluster, name: str, delay_s: int = 6) -> None:
        """`delay_s`: the longest delay of a message."""
        self._cluster = cluster
        self._delay_s = delay_s
        self._name = f"{name}-{now_ms()}"
        self.marks: list[tuple[str, int, float]] = []
        """What was done, when, and how many seconds it took to be ready again."""
        self.report: dict[str, Any] = {}

    def __enter__(self) -> "Run":
        variables = {
            "TRAFFIC_SECONDS": str(SECONDS_MAX),
            "TRAFFIC_RATE": str(RATE),
            "TRAFFIC_DELAY_S": str(self._delay_s),
        }
        self._cluster.start_job("delayd-chaos", self._name, variables)
        wait_for("deliveries", lambda: self._last().get("delivered", 0) > BEGUN, 120)
        return self

    def __exit__(self, kind: object, _error: object, _traceback: object) -> None:
        stop = "import os, signal; os.kill(1, signal.SIGTERM)"
        self._cluster.inside("exec", f"job/{self._name}", "--", "python", "-c", stop)
        if kind is None:
            self._cluster.wait_job(self._name, END_TIMEOUT_S)
            self.report = self._last()

    @contextmanager
    def mark(self, what: str) -> Iterator[None]:
        """What is done inside is timed."""
        at_ms, since = now_ms(), time.monotonic()
        yield
        self.marks.append((what, at_ms, time.monotonic() - since))

    def gap_ms(self, number: int) -> int:
        """The longest pause of deliveries from a mark to the next one."""
        begin_ms = self.marks[number][1]
        later = [at_ms for _, at_ms, _ in self.marks[number + 1 :]]
        end_ms = min(later, default=1 << 62)
        within = (
            gap["for_ms"]
            for gap in self.report["gaps"]
            if gap["from_ms"] + gap["for_ms"] > begin_ms and gap["from_ms"] < end_ms
        )
        return max(within, default=0)

    def rows(self) -> list[str]:
        """A line of the table for each mark."""
        wrong = " ".join(str(self.report.get(fault, "?")) for fault in FAULTS)
        late, sent = self.report["late_ms"], self.report["sent"]
        return [
            f"| {what} | {self.gap_ms(number)} ms | {ready_s:.1f} s | {sent} | {wrong} |"
            f" {late['p99']} / {late['max']} ms |"
            for number, (what, _, ready_s) in enumerate(self.marks)
        ]

    def _last(self) -> dict[str, Any]:
        lines = [line for line in self._cluster.log(self._name) if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {}


class Traffic(Protocol):
    """Makes a test's runs, which are judged at their end."""

    def __call__(self, name: str, delay_s: int = 6) -> AbstractContextManager[Run]:
        """By the name of the run."""


HEAD: Final = (
    "| what | longest pause | ready again | sent | "
    + " ".join(FAULTS)
    + " | late p99 / max |\n|---|---|---|---|---|---|"
)
