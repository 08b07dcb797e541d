"""Each rule of the policy goes red: a manifest is broken in memory, and the rule names it."""

import copy
from collections.abc import Callable
from typing import Any, Final

import pytest
from policy import CONTAINER_RULES, NODE_RULES, POD_RULES, containers, pod_spec, problems_of
from rendering import components_for, has_kubectl, render
from schemas import problems_of as schema_problems

pytestmark = pytest.mark.skipif(
    not has_kubectl(), reason="kubectl, whose kustomize renders k8s/, is not installed"
)

Break = Callable[[Any], Any]


def part(of: Any, path: str) -> Any:
    """Return the part of an object at a path of keys and numbers; the first is `pod`, `node` (its
    container) or a key."""
    head, *keys = path.split(".")
    if head == "node":
        at = next(c for c in pod_spec(of)["containers"] if c["name"] == "node")
    else:
        at = pod_spec(of) if head == "pod" else of[head]
    for key in keys:
        at = at[int(key) if key.isdigit() else key]
    return at


def put(path: str, /, **values: object) -> Break:
    """Return a break that changes these values at a path."""
    return lambda of: part(of, path).update(values)


def drop(path: str) -> Break:
    head, _, key = path.rpartition(".")
    return lambda of: (part(of, head) if head else of).pop(key)


def add(path: str, value: object) -> Break:
    return lambda of: part(of, path).append(value)


def as_job(of: Any) -> None:
    of["kind"], of["spec"] = "Job", of["spec"]["jobTemplate"]["spec"]


CONTEXT, LOCKS = "pod.securityContext", "node.securityContext"
SECRET: Final = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
NODES: Final[dict[str, tuple[str, Break]]] = {
    "root is allowed": ("non-root", drop(f"{CONTEXT}.runAsNonRoot")),
    "root runs": ("non-root", put(CONTEXT, runAsUser=0)),
    "a container runs as root": ("non-root", put(LOCKS, runAsUser=0)),
    "the volume is root's": ("non-root", drop(f"{CONTEXT}.fsGroup")),
    "any system call": ("seccomp", drop(f"{CONTEXT}.seccompProfile")),
    "unconfined": ("seccomp", put(CONTEXT, seccompProfile={"type": "Unconfined"})),
    "a token for all": ("no-token", put("pod", automountServiceAccountToken=True)),
    "the node has the sidecar's token": (
        "no-token",
        add("node.volumeMounts", {"name": "role-label-account"}),
    ),
    "service links": ("no-service-links", drop("pod.enableServiceLinks")),
    "the host's network": ("host", put("pod", hostNetwork=True)),
    "the host's files": ("host", add("pod.volumes", {"name": "x", "hostPath": {"path": "/"}})),
    "a folder without end": ("host", add("pod.volumes", {"name": "x", "emptyDir": {}})),
    "latest": ("pinned-image", put("node", image="delayd:latest")),
    "no tag": ("pinned-image", put("node", image="registry:5000/delayd")),
    "pulled at every start": ("pinned-image", put("node", imagePullPolicy="Always")),
    "memory without end": ("limits", drop("node.resources.limits.memory")),
    "no limits": ("limits", drop("node.resources.limits")),
    "no requests": ("limits", drop("node.resources.requests")),
    "the first container too": ("limits", drop("pod.initContainers.0.resources")),
    "a root that can be written": ("locked", drop(f"{LOCKS}.readOnlyRootFilesystem")),
    "escalation": ("locked", put(LOCKS, allowPrivilegeEscalation=True)),
    "capabilities": ("locked", put(f"{LOCKS}.capabilities", add=["NET_RAW"])),
    "privileged": ("locked", put(LOCKS, privileged=True)),
    "no last words": ("last-words", drop("node.terminationMessagePolicy")),
    "a secret in the environment": ("secrets-in-files", add("node.env", SECRET)),
    "all secrets in the environment": (
        "secrets-in-files",
        add("node.envFrom", {"secretRef": {"name": "s"}}),
    ),
    "no liveness": ("probes", drop("node.livenessProbe")),
    "liveness that waits for Kafka": (
        "node-probes",
        put("node.livenessProbe.httpGet", path="/readyz"),
    ),
    "a short start": ("node-probes", put("node.startupProbe", failureThreshold=3)),
    "a short life": ("node-probes", put("node.livenessProbe", failureThreshold=3)),
    "volumes that go with the set": (
        "kept-volumes",
        drop("spec.persistentVolumeClaimRetentionPolicy"),
    ),
    "one after the other": ("parallel", drop("spec.podManagementPolicy")),
    "no time to end": ("parallel", put("pod", terminationGracePeriodSeconds=5)),
    "all on one host": ("spread", drop("pod.topologySpreadConstraints")),
}
JOB: Final = "spec.jobTemplate.spec"
OTHERS: Final[dict[str, tuple[str, str, Break]]] = {
    "an audit without end": ("CronJob", "bounded-job", drop(f"{JOB}.activeDeadlineSeconds")),
    "an audit that is tried for ever": ("CronJob", "bounded-job", drop(f"{JOB}.backoffLimit")),
    "a Job, which no later apply could change": ("CronJob", "no-job", as_job),
    "an account that hands out its token": (
        "ServiceAccount",
        "no-token",
        drop("automountServiceAccountToken"),
    ),
    "any pod": ("Role", "least-rights", drop("rules.0.resourceNames")),
    "any verb": ("Role", "least-rights", put("rules.0", verbs=["*"])),
    "more than labels": ("Role", "least-rights", add("rules.0.resources", "secrets")),
    "every namespace": ("Role", "least-rights", lambda of: of.update(kind="ClusterRole")),
}


def found(kind: str) -> Any:
    for each in render("dev", components_for("dev")):
        if each["kind"] == kind and each["metadata"]["name"].startswith("delayd"):
            return copy.deepcopy(each)
    raise AssertionError(f"there is no {kind}")


def rules_named(problems: list[str]) -> set[str]:
    return {problem.split(": ")[1] for problem in problems}


BROKEN: Final = {name: ("StatefulSet", *each) for name, each in NODES.items()} | OTHERS


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_object_is_named(broken: str) -> None:
    kind, rule, harm = BROKEN[broken]
    of = found(kind)
    assert problems_of([of]) == []
    harm(of)
    assert rule in rules_named(problems_of([of]))


def test_each_rule_is_broken_at_least_once() -> None:
    broken = {rule for _, rule, _ in BROKEN.values()}
    named = {*POD_RULES, *CONTAINER_RULES, *NODE_RULES}
    assert broken == named | {"probes", "bounded-job", "no-job", "least-rights"}
    assert containers(pod_spec(found("StatefulSet")))[0]["name"] == "topics"


@pytest.mark.parametrize("kind", ["StatefulSet", "CronJob", "ServiceMonitor", "PrometheusRule"])
def test_a_field_that_nobody_knows_is_named(kind: str) -> None:
    of = found(kind)
    assert list(schema_problems(of)) == []
    of["spec"]["replica"] = 3
    assert any("replica" in problem for problem in schema_problems(of))


def test_a_kind_that_kubernetes_does_not_know_is_named() -> None:
    of = {"apiVersion": "apps/v1", "kind": "StatelessSet", "metadata": {"name": "delayd"}}
    assert list(schema_problems(of)) != []
