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


def node(of: Any) -> Any:
    return next(c for c in pod_spec(of)["containers"] if c["name"] == "node")


def context(of: Any) -> Any:
    return pod_spec(of)["securityContext"]


def locks(of: Any) -> Any:
    return node(of)["securityContext"]


def put(at: Break, **values: object) -> Break:
    """Change these values there."""
    return lambda of: at(of).update(values)


def drop(at: Break, key: str) -> Break:
    return lambda of: at(of).pop(key)


def as_job(of: Any) -> None:
    of["kind"], of["spec"] = "Job", of["spec"]["jobTemplate"]["spec"]


NODES: Final[dict[str, tuple[str, Break]]] = {
    "root is allowed": ("non-root", drop(context, "runAsNonRoot")),
    "root runs": ("non-root", put(context, runAsUser=0)),
    "a container runs as root": ("non-root", put(locks, runAsUser=0)),
    "the volume is root's": ("non-root", drop(context, "fsGroup")),
    "any system call": ("seccomp", drop(context, "seccompProfile")),
    "unconfined": ("seccomp", put(context, seccompProfile={"type": "Unconfined"})),
    "a token for all": ("no-token", put(pod_spec, automountServiceAccountToken=True)),
    "the node has the sidecar's token": (
        "no-token",
        lambda of: node(of)["volumeMounts"].append({"name": "role-label-account"}),
    ),
    "service links": ("no-service-links", drop(pod_spec, "enableServiceLinks")),
    "the host's network": ("host", put(pod_spec, hostNetwork=True)),
    "the host's files": (
        "host",
        lambda of: pod_spec(of)["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
    ),
    "a folder without end": (
        "host",
        lambda of: pod_spec(of)["volumes"].append({"name": "x", "emptyDir": {}}),
    ),
    "latest": ("pinned-image", put(node, image="delayd:latest")),
    "no tag": ("pinned-image", put(node, image="registry:5000/delayd")),
    "pulled at every start": ("pinned-image", put(node, imagePullPolicy="Always")),
    "memory without end": ("limits", lambda of: node(of)["resources"]["limits"].pop("memory")),
    "no limits": ("limits", lambda of: node(of)["resources"].pop("limits")),
    "no requests": ("limits", lambda of: node(of)["resources"].pop("requests")),
    "the first container too": (
        "limits",
        lambda of: pod_spec(of)["initContainers"][0].pop("resources"),
    ),
    "a root that can be written": ("locked", drop(locks, "readOnlyRootFilesystem")),
    "escalation": ("locked", put(locks, allowPrivilegeEscalation=True)),
    "capabilities": ("locked", lambda of: locks(of)["capabilities"].update(add=["NET_RAW"])),
    "privileged": ("locked", put(locks, privileged=True)),
    "no last words": ("last-words", drop(node, "terminationMessagePolicy")),
    "a secret in the environment": (
        "secrets-in-files",
        lambda of: node(of)["env"].append(
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
        ),
    ),
    "all secrets in the environment": (
        "secrets-in-files",
        lambda of: node(of)["envFrom"].append({"secretRef": {"name": "s"}}),
    ),
    "no liveness": ("probes", drop(node, "livenessProbe")),
    "liveness that waits for Kafka": (
        "node-probes",
        lambda of: node(of)["livenessProbe"]["httpGet"].update(path="/readyz"),
    ),
    "a short start": (
        "node-probes",
        lambda of: node(of)["startupProbe"].update(failureThreshold=3),
    ),
    "volumes that go with the set": (
        "kept-volumes",
        lambda of: of["spec"].pop("persistentVolumeClaimRetentionPolicy"),
    ),
    "one after the other": ("parallel", lambda of: of["spec"].pop("podManagementPolicy")),
    "no time to end": ("parallel", put(pod_spec, terminationGracePeriodSeconds=5)),
    "all on one host": ("spread", drop(pod_spec, "topologySpreadConstraints")),
}

OTHERS: Final[dict[str, tuple[str, str, Break]]] = {
    "an audit without end": (
        "CronJob",
        "bounded-job",
        lambda of: of["spec"]["jobTemplate"]["spec"].pop("activeDeadlineSeconds"),
    ),
    "an audit that is tried for ever": (
        "CronJob",
        "bounded-job",
        lambda of: of["spec"]["jobTemplate"]["spec"].pop("backoffLimit"),
    ),
    "a Job, which no later apply could change": ("CronJob", "no-job", as_job),
    "an account that hands out its token": (
        "ServiceAccount",
        "no-token",
        lambda of: of.pop("automountServiceAccountToken"),
    ),
    "any pod": ("Role", "least-rights", lambda of: of["rules"][0].pop("resourceNames")),
    "any verb": ("Role", "least-rights", lambda of: of["rules"][0].update(verbs=["*"])),
    "more than labels": (
        "Role",
        "least-rights",
        lambda of: of["rules"][0]["resources"].append("secrets"),
    ),
    "every namespace": ("Role", "least-rights", lambda of: of.update(kind="ClusterRole")),
}


def found(kind: str) -> Any:
    for each in render("dev", components_for("dev")):
        if each["kind"] == kind and each["metadata"]["name"].startswith("delayd"):
            return copy.deepcopy(each)
    raise AssertionError(f"there is no {kind}")


def rules_named(problems: list[str]) -> set[str]:
    return {problem.split(": ")[1] for problem in problems}


@pytest.mark.parametrize("broken", NODES)
def test_a_broken_node_is_named(broken: str) -> None:
    rule, harm = NODES[broken]
    of = found("StatefulSet")
    assert problems_of([of]) == []
    harm(of)
    assert rule in rules_named(problems_of([of]))


@pytest.mark.parametrize("broken", OTHERS)
def test_a_broken_object_is_named(broken: str) -> None:
    kind, rule, harm = OTHERS[broken]
    of = found(kind)
    assert problems_of([of]) == []
    harm(of)
    assert rule in rules_named(problems_of([of]))


def test_each_rule_is_broken_at_least_once() -> None:
    broken = {rule for rule, _ in NODES.values()} | {rule for _, rule, _ in OTHERS.values()}
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
