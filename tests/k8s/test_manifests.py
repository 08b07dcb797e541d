"""k8s/ as kustomize renders it: valid, complete, and within the policy, in every combination.

Not here: whether it runs (k8s/tests, `make k8s-test`). These tests need kubectl and no cluster.
"""

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from policy import containers, pod_spec, pod_template
from policy import problems_of as policy_problems
from rendering import (
    K8S,
    OVERLAYS,
    ROOT,
    Object,
    Rendered,
    components_for,
    has_kubectl,
    render,
    rendered,
)
from schemas import problems_of as schema_problems

from delayd.cluster.topics import topic_names
from delayd.commands.cli import load_command
from delayd.config.node import NodeConfig, load
from image.dockerfile import config_of, steps_of

pytestmark = pytest.mark.skipif(
    not has_kubectl(), reason="kubectl, whose kustomize renders k8s/, is not installed"
)

Combinations = Mapping[tuple[str, tuple[str, ...]], Rendered]
EVERYTHING = {overlay: components_for(overlay) for overlay in OVERLAYS}


@pytest.fixture(scope="module")
def combinations(request: pytest.FixtureRequest) -> Combinations:
    """Render each pair of components, so that no two conflict; with --full every set."""
    return rendered(all_sets=request.config.getoption("--full"))


def named(objects: Rendered, kind: str, name: str) -> Object:
    [found] = [
        each
        for each in objects
        if each["kind"] == kind and re.fullmatch(rf"{name}(-[a-z0-9]{{10}})?", name_of(each))
    ]
    return found


def name_of(each: Object) -> str:
    return str(each["metadata"]["name"])


def pods_of(objects: Rendered) -> Iterator[tuple[str, Any]]:
    for each in objects:
        pod = pod_spec(each)
        if pod is not None:
            yield name_of(each), pod


@pytest.mark.long
def test_every_combination_is_what_kubernetes_takes_and_keeps_the_policy(
    combinations: Combinations,
) -> None:
    wrong: Counter[str] = Counter()
    for objects in combinations.values():
        assert len({(each["kind"], name_of(each)) for each in objects}) == len(objects)
        wrong.update(problem for each in objects for problem in schema_problems(each))
        wrong.update(policy_problems(objects))
    assert not wrong, "\n".join(wrong)
    assert len(combinations) > 30


@pytest.mark.long
def test_whatever_a_pod_names_is_there(
    combinations: Combinations,
) -> None:
    """A name whose hash kustomize did not follow would fail only in the kubelet."""
    missing = set()
    for choice, objects in combinations.items():
        there = {(each["kind"], name_of(each)) for each in objects}
        # The person who runs it makes these, or Kubernetes does.
        there |= {("Secret", "delayd-secrets"), ("ConfigMap", "kube-root-ca.crt")}
        there |= {
            ("PersistentVolumeClaim", f"{claim['metadata']['name']}-{name_of(each)}-0")
            for each in objects
            for claim in each.get("spec", {}).get("volumeClaimTemplates", ())
        }
        for name, pod in pods_of(objects):
            missing |= {(choice, name, *ref) for ref in references(pod) if ref not in there}
    assert missing == set()


def references(pod: Any) -> Iterator[tuple[str, str]]:
    """Yield kind and name of each object that a pod cannot start without."""
    if "serviceAccountName" in pod:
        yield "ServiceAccount", pod["serviceAccountName"]
    for volume in pod.get("volumes", ()):
        for source in (volume, *volume.get("projected", {}).get("sources", ())):
            for kind, key in (("ConfigMap", "configMap"), ("Secret", "secret")):
                said = source.get(key, {})
                if said and not said.get("optional"):
                    yield kind, said.get("name") or said["secretName"]
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]
    for container in containers(pod):
        for source in container.get("envFrom", ()):
            yield "ConfigMap", source["configMapRef"]["name"]


@pytest.mark.long
def test_a_mount_is_of_a_volume_that_is_there(
    combinations: Combinations,
) -> None:
    for objects in combinations.values():
        for each in objects:
            pod = pod_spec(each)
            if pod is None:
                continue
            claimed = each["spec"].get("volumeClaimTemplates", ())
            volumes = {volume["name"] for volume in pod.get("volumes", ())}
            volumes |= {claim["metadata"]["name"] for claim in claimed}
            for container in containers(pod):
                mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
                assert mounted <= volumes, (name_of(each), container["name"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_the_budget_and_policies_select_the_pods_that_there_are(overlay: str) -> None:
    objects = render(overlay, EVERYTHING[overlay])
    labels = [template["metadata"]["labels"] for template in map(pod_template, objects) if template]
    assert len(labels) >= 3
    for each in objects:
        spec = each.get("spec", {})
        match each["kind"]:
            case "Service":
                selector = spec["selector"]
            case "PodDisruptionBudget":
                selector = spec["selector"]["matchLabels"]
            case "NetworkPolicy":
                selector = spec["podSelector"]["matchLabels"]
            case _:
                continue
        assert any(selector.items() <= found.items() for found in labels), name_of(each)


@pytest.mark.parametrize("nodes", range(1, 8))
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_node_that_is_not_ready_keeps_no_host_from_being_drained_but_the_last_one(
    overlay: str, nodes: int
) -> None:
    """A node may copy a wheel for hours. Kubernetes rounds a share that may be unavailable up."""
    budget = named(render(overlay), "PodDisruptionBudget", "delayd")["spec"]
    share = int(budget["maxUnavailable"].removesuffix("%"))
    stay = nodes - math.ceil(nodes * share / 100)
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert stay >= 1 or nodes == 1, "the last one that is ready stays"
    assert nodes < 3 or nodes - 1 > stay, "beside one that is not, another one may go"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_changed_setting_is_another_config_map_so_that_nodes_roll(overlay: str) -> None:
    objects = render(overlay)
    for name in ("delayd-cluster", "delayd-node"):
        assert name_of(named(objects, "ConfigMap", name)) != name
    named_by = {ref for _, pod in pods_of(objects) for ref in references(pod)}
    assert ("ConfigMap", name_of(named(objects, "ConfigMap", "delayd-node"))) in named_by


# --- The configuration, loaded by what will load it


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_node_takes_its_configuration(
    overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = render(overlay)
    config = load(laid_out(objects, tmp_path, monkeypatch))
    assert config.node == "delayd-1"
    namespace = named(objects, "StatefulSet", "delayd")["metadata"]["namespace"]
    assert config.admin_address == f"delayd-1.delayd-nodes.{namespace}.svc:7070"
    assert (config.admin_host, config.admin_port) == ("0.0.0.0", 7070)
    assert config.data_dir == Path("/data/wheel")
    assert config.log_json
    assert config.election_times.yield_polls == 1
    assert config.cluster_key.get_secret_value() == "content-of-cluster-key"
    assert config.export_token is not None
    assert config.export_token.get_secret_value() == "content-of-export-token"
    is_guarded = overlay == "prod"
    assert (config.security.kafka_security_protocol == "SASL_SSL") is is_guarded
    assert all(url.startswith("https:") is is_guarded for url in config.etcd)
    if is_guarded:
        assert config.security.properties()["sasl.password"] == "content-of-kafka-password"
        assert config.security.etcd_cert_file is not None


def test_a_key_that_delayd_does_not_know_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = laid_out(render("dev"), tmp_path, monkeypatch)
    file.write_text(file.read_text() + "lease_ttl = 3\n")
    with pytest.raises(Exception, match="lease_ttl: extra inputs are not permitted"):
        load(file)


def test_the_node_stays_the_first_container_beside_the_label() -> None:
    """Whoever patches by index meets it, with or without the component."""
    node = named(render("dev", ("leader-label",)), "StatefulSet", "delayd")
    names = [each["name"] for each in pod_spec(node)["containers"]]
    assert names == ["node", "role-label"]


def test_every_variable_of_a_pod_is_a_key_or_an_option() -> None:
    """Nothing reports a misspelt variable."""
    known = {f"DELAYD_{key.upper()}" for key in NodeConfig.model_fields}
    known |= {"NAMESPACE", "NUMBER", "POD", "HOME", "DELAYD_CONFIG"}
    known |= {"DELAYD_TERMINATION_LOG"}
    known |= {"TRAFFIC_SECONDS", "TRAFFIC_RATE"}
    objects = render("dev", EVERYTHING["dev"])
    maps = {name_of(each): each["data"] for each in objects if each["kind"] == "ConfigMap"}
    said = set()
    for _, pod in pods_of(objects):
        for container in containers(pod):
            said |= {each["name"] for each in container.get("env", ())}
            for source in container.get("envFrom", ()):
                said |= set(maps[source["configMapRef"]["name"]])
    assert said - known == set()
    cluster = name_of(named(objects, "ConfigMap", "delayd-cluster"))
    assert topic_names(maps[cluster]["DELAYD_PREFIX"]).buffer == "delayd-buffer"


def laid_out(objects: Rendered, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lay out file, environment and mounted secrets of node 1 as in its container, with `folder` as
    its root. Return the file."""
    for name in os.environ:
        if name.startswith("DELAYD_"):
            monkeypatch.delenv(name)
    stateful = named(objects, "StatefulSet", "delayd")
    pod = pod_spec(stateful)
    [node] = [each for each in pod["containers"] if each["name"] == "node"]
    fields = {
        "metadata.name": "delayd-1",
        "metadata.labels['apps.kubernetes.io/pod-index']": "1",
        "metadata.namespace": stateful["metadata"]["namespace"],
    }
    image = config_of(steps_of((ROOT / "Dockerfile").read_text()), {}, "")["Env"]
    variables = dict(each.split("=", 1) for each in image if each.startswith("DELAYD_"))
    for source in node["envFrom"]:
        variables |= named(objects, "ConfigMap", source["configMapRef"]["name"][:-11])["data"]
    for each in node["env"]:
        variables[each["name"]] = (
            each.get("value") or fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        )
    for name, text in variables.items():
        monkeypatch.setenv(name, re.sub(r"\$\((\w+)\)", lambda m: variables[m[1]], text))
    secrets = folder / "secrets"
    authority = Authority(folder, "authority")
    leaf = authority.leaf("leaf")
    given = {"ca.crt": authority.file, "tls.crt": leaf.cert, "tls.key": leaf.key}
    [mount] = [each for each in node["volumeMounts"] if each["name"] == "secrets"]
    [volume] = [each for each in pod["volumes"] if each["name"] == "secrets"]
    for source in volume["projected"]["sources"]:
        for item in source["secret"].get("items", ()):
            path = secrets / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(given[item["key"]].read_bytes())
    for key in ("cluster-key", "export-token", "kafka-password"):
        (secrets / key).write_text(f"content-of-{key}\n")
    text = named(objects, "ConfigMap", "delayd-node")["data"]["node.toml"]
    file = folder / "node.toml"
    file.write_text(text.replace(mount["mountPath"], str(secrets)))
    return file


# --- What else must fit together


def test_the_base_names_the_version_that_is_built() -> None:
    version = re.search(r"^ARG VERSION=(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert version is not None
    images = {
        container["image"]
        for overlay in OVERLAYS
        for _, pod in pods_of(render(overlay, EVERYTHING[overlay]))
        for container in containers(pod)
        if container["image"].startswith("delayd")
    }
    assert images == {f"delayd:{version[1]}", f"delayd-audit:{version[1]}"}


def test_alerts_ask_for_metrics_that_there_are() -> None:
    objects = render("dev", EVERYTHING["dev"])
    [rules] = named(objects, "PrometheusRule", "delayd")["spec"]["groups"]
    asked = {
        found for rule in rules["rules"] for found in re.findall(r"\bdelayd_\w+", str(rule["expr"]))
    }
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert len(asked) > 5
    assert asked <= set(re.findall(r"^\| `(delayd_\w+)` \|", page, re.MULTILINE))
    [monitor] = [each for each in objects if each["kind"] == "ServiceMonitor"]
    service = named(objects, "Service", "delayd-nodes")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert sum('job="delayd-nodes"' in str(rule["expr"]) for rule in rules["rules"]) == 1


def test_backups_are_made_and_restored_by_commands_that_there_are() -> None:
    objects = render("dev", ("backup",))
    said = {}
    for name in ("backup", "restore"):
        job = named(objects, "CronJob", f"delayd-{name}")
        [container] = pod_spec(job)["containers"]
        said[name] = [each for each in container["args"] if each != name]
        with load_command(name).make_context(name, [*said[name]]) as context:
            assert context.params["target"] == "/backups/delayd" and context.params["yes"]
        assert job["spec"].get("suspend", False) is (name == "restore"), "restored by hand alone"
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert ("/data" in mounted) is (name == "restore")
    data_dir = {e["name"]: e.get("value") for e in node_of(objects)["env"]}["DELAYD_DATA_DIR"]
    assert f"--into={data_dir}" in said["restore"]


def test_all_backups_are_verified_every_week() -> None:
    objects = render("dev", ("backup",))
    verify, backup = (named(objects, "CronJob", f"delayd-{name}") for name in ("verify", "backup"))
    [container], [of_backup] = (pod_spec(job)["containers"] for job in (verify, backup))
    name, *arguments = container["args"]
    with load_command(name).make_context(name, arguments) as context:
        assert context.params["verify"] and context.params["target"] == of_backup["args"][0]
    assert verify["spec"]["schedule"].split()[2:] == ["*", "*", "0"]
    assert not verify["spec"].get("suspend", False)
    [mount] = [each for each in container["volumeMounts"] if each["mountPath"] == "/backups"]
    assert mount["readOnly"], "it changes nothing"


def test_the_doctor_comes_every_night_with_all_that_its_settings_name() -> None:
    objects = render("prod", ("doctor",))
    job = named(objects, "CronJob", "delayd-doctor")
    assert job["spec"]["schedule"].split()[2:] == ["*", "*", "*"]
    assert not job["spec"].get("suspend", False)
    [container] = pod_spec(job)["containers"]
    [name, *arguments] = container["args"]
    with load_command(name).make_context(name, [*arguments, "--bootstrap=b:1"]) as context:
        assert not context.params["as_json"]
    node = node_of(objects)
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    assert mounted == {each["mountPath"] for each in node["volumeMounts"]} - {"/data"}
    said = {each["name"]: each["value"] for each in container["env"]}
    assert said["DELAYD_CONFIG"] == node["args"][-1]


def node_of(objects: Rendered) -> Any:
    pod = pod_spec(named(objects, "StatefulSet", "delayd"))
    [node] = [each for each in pod["containers"] if each["name"] == "node"]
    return node


def test_production_keeps_nodes_apart() -> None:
    pod = pod_spec(named(render("prod"), "StatefulSet", "delayd"))
    [apart] = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    keys = {each["topologyKey"] for each in pod["topologySpreadConstraints"]}
    assert keys == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}


def test_the_development_overlay_lets_no_other_pod_in() -> None:
    [namespace] = [each for each in render("dev") if each["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_each_component_says_what_it_is_for() -> None:
    for path in (K8S / "components").iterdir():
        assert (path / "kustomization.yaml").read_text().startswith("# "), path.name


def test_all_that_there_is_can_be_found_to_be_taken_away() -> None:
    """Uninstalling finds ConfigMaps of earlier settings too, which no overlay has any more."""
    for each in render("prod", EVERYTHING["prod"]):
        assert each["metadata"]["labels"]["app.kubernetes.io/name"] == "delayd", name_of(each)
