"""What every object of k8s/ must keep, whatever else it is. Pure: objects in, problems out.

Stricter than the Pod Security Standard `restricted`, which a namespace can enforce by itself.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

Object = Mapping[str, Any]

NOBODY: Final = 65532
IMAGE: Final = re.compile(r"[^\s@]+(:[\w][\w.-]*|@sha256:[0-9a-f]{64})")
TOKEN_DOOR: Final = "role-label"
"""The one container that may have a token: it says so in its name."""


def problems_of(objects: Iterable[Object]) -> list[str]:
    """What is wrong, `Kind/name: rule: why`."""
    found = []
    for each in objects:
        where = f"{each['kind']}/{each['metadata']['name']}"
        found += [f"{where}: {problem}" for problem in _problems(each)]
    return found


def pod_template(each: Object) -> Any:
    """Of whatever makes pods, `metadata` and `spec`; else None."""
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
    """The same without its metadata."""
    template = pod_template(each)
    return None if template is None else template["spec"]


def containers(pod: Object) -> list[Any]:
    """All, those that initialise too."""
    return [*pod.get("initContainers", ()), *pod["containers"]]


def _problems(each: Object) -> Iterator[str]:
    pod = pod_spec(each)
    if pod is not None:
        for rule, check in POD_RULES.items():
            yield from (f"{rule}: {why}" for why in check(pod))
        for container in containers(pod):
            for rule, check in CONTAINER_RULES.items():
                yield from (f"{rule}: {container['name']}: {why}" for why in check(container))
    if each["kind"] in ("StatefulSet", "Deployment"):
        for container in pod["containers"]:
            yield from (f"probes: {container['name']}: {why}" for why in _probes(container))
    if each["kind"] == "StatefulSet" and each["metadata"]["name"] == "delayd":
        for rule, check in NODE_RULES.items():
            yield from (f"{rule}: {why}" for why in check(each["spec"]))
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


def _nobody(pod: Object) -> Iterator[str]:
    said = pod.get("securityContext", {})
    if said.get("runAsNonRoot") is not True:
        yield "runAsNonRoot is not true"
    for key in ("runAsUser", "runAsGroup", "fsGroup"):
        if said.get(key) != NOBODY:
            yield f"{key} is {said.get(key)}"
    for container in containers(pod):
        own = container.get("securityContext", {})
        if own.get("runAsUser", NOBODY) != NOBODY or own.get("runAsNonRoot") is False:
            yield f"{container['name']} is somebody else"


def _seccomp(pod: Object) -> Iterator[str]:
    if pod.get("securityContext", {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "seccompProfile is not RuntimeDefault"


def _token(pod: Object) -> Iterator[str]:
    if pod.get("automountServiceAccountToken") is not False:
        yield "automountServiceAccountToken is not false"
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


def _service_links(pod: Object) -> Iterator[str]:
    # A service delayd-admin would set DELAYD_ADMIN_PORT.
    if pod.get("enableServiceLinks") is not False:
        yield "enableServiceLinks is not false"


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
    if container.get("imagePullPolicy") != "IfNotPresent":
        yield f"imagePullPolicy is {container.get('imagePullPolicy')}"


def _limits(container: Object) -> Iterator[str]:
    resources = container.get("resources", {})
    for side in ("requests", "limits"):
        for what in ("cpu", "memory"):
            if what not in resources.get(side, {}):
                yield f"no {side} of {what}"


def _locked(container: Object) -> Iterator[str]:
    said = container.get("securityContext", {})
    if said.get("readOnlyRootFilesystem") is not True:
        yield "its root can be written"
    if said.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if said.get("capabilities") != {"drop": ["ALL"]}:
        yield "capabilities are not dropped"
    if said.get("privileged"):
        yield "it is privileged"


def _last_words(container: Object) -> Iterator[str]:
    if container.get("terminationMessagePolicy") != "FallbackToLogsOnError":
        yield "its last line does not become its status"


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


def _kept(spec: Object) -> Iterator[str]:
    wanted = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    if spec.get("persistentVolumeClaimRetentionPolicy") != wanted:
        yield "volumes may go with the nodes"


def _together(spec: Object) -> Iterator[str]:
    if spec.get("podManagementPolicy") != "Parallel":
        yield "nodes wait for each other"
    if spec["template"]["spec"].get("terminationGracePeriodSeconds") != 60:
        yield "a node has not 60 s to end"


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

POD_RULES: Final[Mapping[str, Check]] = {
    "non-root": _nobody,
    "seccomp": _seccomp,
    "no-token": _token,
    "no-service-links": _service_links,
    "host": _host,
}
CONTAINER_RULES: Final[Mapping[str, Check]] = {
    "pinned-image": _image,
    "limits": _limits,
    "locked": _locked,
    "last-words": _last_words,
    "secrets-in-files": _secrets_in_files,
}
NODE_RULES: Final[Mapping[str, Check]] = {
    "node-probes": _node_probes,
    "kept-volumes": _kept,
    "parallel": _together,
    "spread": _spread,
}
