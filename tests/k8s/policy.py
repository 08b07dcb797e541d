"""The policy for every object of k8s/. Pure: objects in, problems out.

Stricter than the Pod Security Standard `restricted`, which a namespace can enforce by itself.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, Final

Object = Mapping[str, Any]

NOBODY: Final = 65532
IMAGE: Final = re.compile(r"[^\s@]+(:[\w][\w.-]*|@sha256:[0-9a-f]{64})")
TOKEN_DOOR: Final = "role-label"
"""The only container that may have a token, by its name."""


def problems_of(objects: Iterable[Object]) -> list[str]:
    """Return the problems of objects, each as `Kind/name: rule: why`."""
    found = []
    for each in objects:
        where = f"{each['kind']}/{each['metadata']['name']}"
        found += [f"{where}: {problem}" for problem in _problems(each)]
    return found


def pod_template(each: Object) -> Any:
    """Return `metadata` and `spec` of the pods that an object makes; None if it makes none."""
    spec = each.get("spec", {})
    match each["kind"]:
        case "StatefulSet" | "Deployment" | "DaemonSet" | "Job":
            return spec["template"]
        case "CronJob":
            return spec["jobTemplate"]["spec"]["template"]
        case "Pod":
            return each
    return None


def pod_spec(each: Object) -> Any:
    """Return the same without its metadata."""
    template = pod_template(each)
    return None if template is None else template["spec"]


def containers(pod: Object) -> list[Any]:
    """Return all containers of a pod, init containers too."""
    return [*pod.get("initContainers", ()), *pod["containers"]]


def _problems(each: Object) -> Iterator[str]:
    pod = pod_spec(each)
    if pod is not None:
        yield from _broken(POD_RULES, pod)
        for container in containers(pod):
            yield from _broken(CONTAINER_RULES, container, f"{container['name']}: ")
    if each["kind"] in ("StatefulSet", "Deployment"):
        for container in pod["containers"]:
            yield from (f"probes: {container['name']}: {why}" for why in _probes(container))
    if each["kind"] == "StatefulSet" and each["metadata"]["name"] == "delayd":
        yield from _broken(NODE_RULES, each["spec"])
    if each["kind"] in ("Job", "CronJob"):
        job = each["spec"] if each["kind"] == "Job" else each["spec"]["jobTemplate"]["spec"]
        if "activeDeadlineSeconds" not in job or "backoffLimit" not in job:
            yield "bounded-job: it could run, or be tried again, for ever"
    if each["kind"] == "Job":
        yield "no-job: no later apply could change its image or the ConfigMap that it names"
    if each["kind"] in ("Role", "ClusterRole"):
        yield from (f"least-rights: {why}" for why in _rights(each))
    if each["kind"] == "ServiceAccount" and each.get("automountServiceAccountToken") is not False:
        yield "no-token: its token is mounted unless a pod says otherwise"


def _broken(rules: Mapping[str, tuple["Check", ...]], of: Object, where: str = "") -> Iterator[str]:
    for rule, checks in rules.items():
        yield from (f"{rule}: {where}{why}" for check in checks for why in check(of))


def _wants(wanted: Mapping[str, object]) -> "Check":
    """Return a check that each path has exactly this value."""

    def check(of: Any) -> Iterator[str]:
        for path, value in wanted.items():
            found = reduce(lambda part, key: (part or {}).get(key), path.split("."), of)
            if found != value:
                yield f"{path} is {found}"

    return check


def _nobody(pod: Object) -> Iterator[str]:
    for container in containers(pod):
        own = container.get("securityContext", {})
        if own.get("runAsUser", NOBODY) != NOBODY or own.get("runAsNonRoot") is False:
            yield f"{container['name']} is somebody else"


def _token(pod: Object) -> Iterator[str]:
    with_token = {
        volume["name"]
        for volume in pod.get("volumes", ())
        for source in volume.get("projected", {}).get("sources", ())
        if "serviceAccountToken" in source
    }
    for container in containers(pod):
        mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
        if mounted & with_token and container["name"] != TOKEN_DOOR:
            yield f"{container['name']} has a token"


def _host(pod: Object) -> Iterator[str]:
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield f"{key} is set"
    for volume in pod.get("volumes", ()):
        if "hostPath" in volume:
            yield f"volume {volume['name']} is the host's"
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield f"volume {volume['name']} has no sizeLimit"


def _image(container: Object) -> Iterator[str]:
    image = container.get("image", "")
    if not IMAGE.fullmatch(image) or image.endswith(":latest"):
        yield f"{image!r} names no version"


def _limits(container: Object) -> Iterator[str]:
    resources = container.get("resources", {})
    for side in ("requests", "limits"):
        for what in ("cpu", "memory"):
            if what not in resources.get(side, {}):
                yield f"no {side} of {what}"


def _privileged(container: Object) -> Iterator[str]:
    if container.get("securityContext", {}).get("privileged"):
        yield "it is privileged"


def _secrets_in_files(container: Object) -> Iterator[str]:
    for variable in container.get("env", ()):
        if "secretKeyRef" in variable.get("valueFrom", {}):
            yield f"{variable['name']} is a secret"
    if any("secretRef" in source for source in container.get("envFrom", ())):
        yield "envFrom takes secrets"


def _probes(container: Object) -> Iterator[str]:
    if container["name"] == TOKEN_DOOR:
        return  # what it does is seen by whoever looks at the label
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe not in container:
            yield f"no {probe}"


def _node_probes(spec: Object) -> Iterator[str]:
    node = next(c for c in spec["template"]["spec"]["containers"] if c["name"] == "node")
    wanted = {"startupProbe": "/livez", "readinessProbe": "/readyz", "livenessProbe": "/livez"}
    for probe, path in wanted.items():
        if node.get(probe, {}).get("httpGet") != {"path": path, "port": "admin"}:
            yield f"{probe} does not ask {path}"
    startup = node.get("startupProbe", {})
    if startup.get("periodSeconds", 10) * startup.get("failureThreshold", 3) < 300:
        yield "startupProbe gives less than 5 minutes"
    liveness = node.get("livenessProbe", {})
    if liveness.get("periodSeconds", 10) * liveness.get("failureThreshold", 3) < 60:
        yield "a node that begins anew has less than a minute"


def _spread(spec: Object) -> Iterator[str]:
    pod = spec["template"]["spec"]
    keys = {each["topologyKey"] for each in pod.get("topologySpreadConstraints", ())}
    if "kubernetes.io/hostname" not in keys:
        yield "nodes may all be on one host"


def _rights(role: Object) -> Iterator[str]:
    if role["kind"] != "Role":
        yield "it reaches beyond the namespace"
    for rule in role["rules"]:
        if "*" in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]:
            yield "it has a wildcard"
        if not rule.get("resourceNames"):
            yield "it is for objects of any name"
        if set(rule["verbs"]) - {"patch"} or set(rule["resources"]) - {"pods"}:
            yield f"it may {rule['verbs']} {rule['resources']}"


Check = Callable[[Any], Iterator[str]]

POD_RULES: Final[Mapping[str, tuple[Check, ...]]] = {
    "non-root": (
        _wants({"securityContext.runAsNonRoot": True, "securityContext.runAsUser": NOBODY}),
        _wants({"securityContext.runAsGroup": NOBODY, "securityContext.fsGroup": NOBODY}),
        _nobody,
    ),
    "seccomp": (_wants({"securityContext.seccompProfile": {"type": "RuntimeDefault"}}),),
    "no-token": (_wants({"automountServiceAccountToken": False}), _token),
    # A service delayd-admin would set DELAYD_ADMIN_PORT.
    "no-service-links": (_wants({"enableServiceLinks": False}),),
    "host": (_host,),
}
CONTAINER_RULES: Final[Mapping[str, tuple[Check, ...]]] = {
    "pinned-image": (_image, _wants({"imagePullPolicy": "IfNotPresent"})),
    "limits": (_limits,),
    "locked": (
        _wants({"securityContext.readOnlyRootFilesystem": True}),
        _wants({"securityContext.allowPrivilegeEscalation": False}),
        _wants({"securityContext.capabilities": {"drop": ["ALL"]}}),
        _privileged,
    ),
    "last-words": (_wants({"terminationMessagePolicy": "FallbackToLogsOnError"}),),
    "secrets-in-files": (_secrets_in_files,),
}
_KEPT: Final = {"whenDeleted": "Retain", "whenScaled": "Retain"}
NODE_RULES: Final[Mapping[str, tuple[Check, ...]]] = {
    "node-probes": (_node_probes,),
    "kept-volumes": (_wants({"persistentVolumeClaimRetentionPolicy": _KEPT}),),
    "parallel": (
        _wants({"podManagementPolicy": "Parallel"}),
        _wants({"template.spec.terminationGracePeriodSeconds": 60}),
    ),
    "spread": (_spread,),
}
