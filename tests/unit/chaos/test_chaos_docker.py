"""Containers without Docker: what is planned, what Docker is asked for, what is removed.

Source: chaos/docker.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError

from chaos.backend import BackendError
from chaos.catalogue import ON_DOCKER, scenarios
from chaos.docker import start
from chaos.docker.engine import OWNER, RUN, Engine, sweep
from chaos.docker.plan import Building, Container, Images, Net, Role, all_of, node
from chaos.docker.start import is_routed
from chaos.scenario import DOCKER, PROCESSES, lacking, with_shards
from delayd.config.node import load

RUN_NAME = "delayd-chaos-1"
RUNNING: dict[str, Any] = {"Running": True, "Paused": False, "Pid": 77, "ExitCode": 0}


def building(**wishes: Any) -> Building:
    images = Images("delayd:1", "servers:1", "servers:1")
    return Building(Path("/run"), images, "10.77", "key-of-sixteen-and-more", "dId", **wishes)


@dataclass
class Thing:
    """A container or a network, as the SDK shows one."""

    name: str
    calls: list[str]
    labels: dict[str, str]
    state: dict[str, Any] = field(default_factory=lambda: dict(RUNNING))
    is_container: bool = True

    @property
    def status(self) -> str:
        return "paused" if self.state["Paused"] else "running"

    @property
    def attrs(self) -> dict[str, Any]:
        if not self.is_container:
            return {"Labels": self.labels}
        return {"State": self.state, "Config": {"Labels": self.labels}}

    def unpause(self) -> None:
        self.calls.append(f"unpause {self.name}")
        self.state["Paused"] = False

    def connect(self, other: "Thing", ipv4_address: str) -> None:
        self.calls.append(f"connect {other.name} {ipv4_address}")

    def __getattr__(self, what: str) -> Any:
        if what == "logs" and not self.is_container:
            raise AttributeError(what)

        def call(**_options: Any) -> None:
            assert what != "kill" or not self.state["Paused"], "Docker kills nothing that is frozen"
            self.calls.append(f"{what} {self.name}")

        return call


class Fake:
    """The SDK's client, as far as it is used."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.made: dict[str, Thing] = {}
        self.options: dict[str, Any] = {}
        self.refusal: str | None = None
        self.api = SimpleNamespace(create_endpoint_config=lambda ipv4_address: ipv4_address)
        self.containers = SimpleNamespace(
            create=self._container, get=lambda name: self.made[name], list=self._list(True)
        )
        self.networks = SimpleNamespace(create=self._network, list=self._list(False))

    def add(self, name: str, labels: dict[str, str], *, is_container: bool = True) -> Thing:
        thing = Thing(name, self.calls, labels, is_container=is_container)
        self.made[name] = thing
        return thing

    def _container(self, image: str, command: list[str], **options: Any) -> Thing:
        self.options = {"image": image, "command": command, **options}
        self.calls.append(f"create {options['name']}")
        return self.add(options["name"], options["labels"])

    def _network(self, name: str, **options: Any) -> Thing:
        if self.refusal is not None:
            raise APIError(self.refusal)
        assert options["internal"], "there must be no way around a cut"
        return self.add(name, options["labels"], is_container=False)

    def _list(self, is_container: bool) -> Any:
        def found(filters: dict[str, str], **_options: Any) -> list[Thing]:
            key, _, value = filters["label"].partition("=")
            return [
                thing
                for thing in self.made.values()
                if thing.is_container == is_container
                and key in thing.labels
                and value in ("", thing.labels[key])
            ]

        return found


def engine_with(*parts: Container) -> tuple[Engine, Fake]:
    fake = Fake()
    engine = Engine(fake, RUN_NAME)
    assert engine.make_networks({net: building().subnet(net) for net in Net})
    for part in parts:
        engine.make(part)
    return engine, fake


# --- What is planned


def test_three_brokers_three_members_and_the_nodes_have_addresses_of_their_own() -> None:
    parts = all_of(building())
    roles = [part.role for part in parts]
    assert [roles.count(role) for role in (Role.BROKER, Role.ETCD, Role.NODE)] == [3, 3, 3]
    addresses = [address for part in parts for address in part.addresses.values()]
    assert len(addresses) == len(set(addresses)) == 3 + 3 + 9


def test_a_node_alone_is_on_more_than_one_network() -> None:
    for part in all_of(building()):
        nets = (
            set(Net) if part.role is Role.NODE else {Net[part.role.name.replace("BROKER", "KAFKA")]}
        )
        assert set(part.addresses) == nets, part.name


def test_a_node_is_configured_with_all_members_and_all_brokers(tmp_path: Path) -> None:
    part = node(building(), 2)
    file = tmp_path / "node.toml"
    file.write_text(part.files["node.toml"] + 'data_dir = "/data"\n')
    config = load(file)
    assert config.node == "node-2" and len(config.etcd) == 3
    assert config.bootstrap.split(",") == [f"10.77.1.{10 + n}:9092" for n in (1, 2, 3)]
    assert part.variables["DELAYD_ADMIN_HOST"] == part.addresses[Net.ADMIN]


def test_a_twin_has_the_name_of_another_and_its_own_address_and_folder() -> None:
    twin, other = node(building(), 4, called="node-1"), node(building(), 1)
    assert 'node = "node-1"' in twin.files["node.toml"]
    assert not set(twin.addresses.values()) & set(other.addresses.values())
    assert twin.folders != other.folders


def test_a_broker_keeps_what_it_has_stored() -> None:
    [script] = all_of(building())[3].command
    test, _, rest = script.partition(" || ")
    assert test == "test -e /data/log/bootstrap.checkpoint"
    assert "format" in rest.partition(" && exec ")[0]


def test_a_clock_that_can_be_set_is_of_the_harness_and_the_image_stays_as_it_is() -> None:
    part = node(building(is_clocked=True), 1)
    assert part.entrypoint[-1] == "chaos.processes.clocked_node"
    [harness] = [each for each in part.folders if each.inside == "/harness/chaos"]
    assert not harness.is_writable and (harness.here / "processes" / "clocked_node.py").is_file()
    assert part.image == node(building(), 1).image


# --- What Docker is asked for


def test_a_container_has_all_its_addresses_before_it_starts_and_is_nobodys() -> None:
    engine, fake = engine_with(node(building(), 1))
    engine.start("node-1")
    assert fake.calls == [
        f"create {RUN_NAME}-node-1",
        f"connect {RUN_NAME}-node-1 10.77.1.31",
        f"connect {RUN_NAME}-node-1 10.77.2.31",
        f"start {RUN_NAME}-node-1",
    ]
    assert fake.options["user"] == "65532:65532"
    assert fake.options["networking_config"] == {f"{RUN_NAME}-admin": "10.77.3.31"}


def test_what_is_frozen_is_thawed_to_be_killed() -> None:
    engine, fake = engine_with(node(building(), 1))
    fake.made[f"{RUN_NAME}-node-1"].state["Paused"] = True
    engine.kill("node-1")
    name = f"{RUN_NAME}-node-1"
    assert fake.calls[-3:] == [f"unpause {name}", f"kill {name}", f"wait {name}"]


def test_a_node_that_had_to_be_killed_did_not_end_when_asked() -> None:
    engine, fake = engine_with(node(building(), 1))
    fake.made[f"{RUN_NAME}-node-1"].state["ExitCode"] = 137
    with pytest.raises(BackendError, match="did not end"):
        engine.terminate("node-1")


def test_addresses_in_use_are_told_apart_from_a_daemon_that_refuses() -> None:
    fake = Fake()
    fake.refusal = "Pool overlaps with other one on this address space"
    assert not Engine(fake, RUN_NAME).make_networks({Net.KAFKA: "10.77.1.0/24"})
    fake.refusal = "permission denied"
    with pytest.raises(BackendError, match="permission denied"):
        Engine(fake, RUN_NAME).make_networks({Net.KAFKA: "10.77.1.0/24"})


# --- What is removed


def test_all_of_a_run_is_removed_and_nothing_of_another() -> None:
    engine, fake = engine_with(node(building(), 1))
    fake.add("somebody's", {})
    fake.add("another-run", {RUN: "delayd-chaos-2"})
    fake.made[f"{RUN_NAME}-node-1"].state["Paused"] = True
    assert len(engine.left()) == 4
    fake.calls.clear()
    engine.remove_all()
    assert fake.calls == [
        f"unpause {RUN_NAME}-node-1",
        f"remove {RUN_NAME}-node-1",
        *(f"remove {RUN_NAME}-{net}" for net in ("kafka", "etcd", "admin")),
    ]


def test_what_a_killed_harness_left_is_swept_and_a_living_ones_is_not() -> None:
    _, fake = engine_with(node(building(), 1))
    dead = {RUN: "delayd-chaos-0", OWNER: f"{os.getpid()}:0"}  # its number was given again
    fake.add("old-node", dead)
    fake.add("old-net", dead, is_container=False)
    fake.add("older-node", {RUN: "delayd-chaos-9", OWNER: "999999999:5"})
    fake.calls.clear()
    assert sweep(fake) == ["old-node", "older-node", "old-net"]
    assert fake.calls == ["remove old-node", "remove older-node", "remove old-net"]


# --- What is played


def test_the_matrix_of_containers_is_playable_and_has_ten_scenarios_or_more() -> None:
    known = scenarios(0)
    assert len(set(ON_DOCKER)) >= 10
    assert [name for name in ON_DOCKER if lacking(known[name], DOCKER)] == []


def test_what_a_backend_cannot_play_is_said() -> None:
    known = scenarios(0)
    assert "slow or lossy" in str(lacking(known["lossy"], DOCKER))
    assert lacking(known["clock-ahead"], DOCKER) is None
    assert "one etcd" in str(lacking(known["kill-etcd-leader"], PROCESSES))


@pytest.mark.parametrize("name", ["kill-shard-leader", "kill-shard-leaders", "reshard", "cut-both"])
def test_clusters_of_containers_have_the_shards_that_are_wanted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = with_shards(scenarios(0)[name], 4)
    assert lacking(scenario, DOCKER) is None
    made: list[Building] = []
    monkeypatch.setattr(start, "connected", Fake)
    monkeypatch.setattr(start, "images", lambda *_: Images("delayd:1", "servers:1", "servers:1"))
    monkeypatch.setattr(start, "DockerCluster", lambda building, _engine: made.append(building))
    start.maker_of(print, None, {})(tmp_path, scenario.needs, 0)
    assert [each.shards for each in made] == [4]


@pytest.mark.parametrize(("shards", "partitions"), [(1, 4), (2, 4), (4, 4), (3, 6), (8, 8)])
def test_each_shard_has_as_many_partitions(shards: int, partitions: int) -> None:
    assert building(shards=shards).partitions == partitions


@pytest.mark.parametrize(
    ("network", "is_taken"),
    [("10.77", True), ("10.78", False), ("172.17", True), ("192.168", False)],
)
def test_a_network_is_not_taken_from_a_route_of_this_machine(network: str, is_taken: bool) -> None:
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    routes = (
        "eth0 00000000 0102000A 0003 0 0 0 00000000 0 0 0\n"  # the default route
        "br-1 00024D0A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"  # 10.77.2.0/24
        "docker0 000011AC 00000000 0001 0 0 0 0000FFFF 0 0 0\n"  # 172.17.0.0/16
    )
    assert is_routed(network, head + routes) is is_taken
