"""The local cluster with real processes: what it promises of starting, killing and leaving nothing.

Source: docs/reference/cli.md.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from confluent_kafka import Producer
from etcd3gw.client import Etcd3Client
from nodes import HANGS_S, delayd, wait_for
from topics_read import read_until

from delayd.bus.confluent import ConfluentBus
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import create_topic
from delayd.dev.parts import LocalClusterError, load
from delayd.dev.processes import processes_of
from delayd.dev.startup import ClusterOptions

pytestmark = pytest.mark.real

COMMAND = [sys.executable, "-m", "delayd.commands.cli", "dev"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker and etcd. Each test leaves it up, with all parts alive."""
    with LocalCluster(tmp_path_factory.mktemp("dev"), ClusterOptions(nodes=0)) as up:
        yield up


def test_status_has_exactly_the_promised_shape(cluster: LocalCluster) -> None:
    answer = delayd("dev", "status", "--json", "--dir", str(cluster.directory))

    report = json.loads(answer.stdout)
    assert list(report) == ["bootstrap", "brokers", "etcd", "dir", "nodes", "master", "virtual_ms"]
    assert [list(broker) for broker in report["brokers"]] == [["name", "pid", "address"]]
    assert list(report["etcd"]) == ["name", "pid", "url"]
    assert report["bootstrap"] == report["brokers"][0]["address"]
    assert report["dir"] == str(cluster.directory)
    assert report["nodes"] == []
    assert report["master"] is None and report["virtual_ms"] is None


def test_a_second_up_is_refused_and_says_how_to_end_the_first(cluster: LocalCluster) -> None:
    before = cluster.status()

    answer = delayd("dev", "up", "--nodes", "0", "--dir", str(cluster.directory))

    assert answer.returncode == 1
    assert f"delayd dev down --dir {cluster.directory}" in answer.stderr
    assert cluster.status() == before


def test_a_killed_broker_is_shown_dead_and_comes_back_with_its_data(cluster: LocalCluster) -> None:
    address = cluster.status()["brokers"][0]["address"]
    create_topic(ConfluentBus(cluster.bootstrap), "kept")
    produce(cluster, "kept", b"before the kill")

    assert cluster.kill("broker-1") == "broker-1"
    assert cluster.status()["brokers"][0]["pid"] is None
    with pytest.raises(LocalClusterError, match=r"not running.*delayd dev restart broker-1"):
        cluster.kill("broker-1")
    cluster.restart("broker-1")

    assert cluster.status()["brokers"][0]["address"] == address
    assert first_value(cluster, "kept") == b"before the kill"


def test_a_killed_etcd_comes_back_with_its_data(cluster: LocalCluster) -> None:
    _etcd(cluster).put("key", "value")

    cluster.kill("etcd")
    cluster.restart("etcd")

    assert _etcd(cluster).get("key") == [b"value"]


def test_a_frozen_part_is_alive_and_goes_on_when_woken(cluster: LocalCluster) -> None:
    pid = cluster.status()["etcd"]["pid"]
    cluster.kill("etcd", signal.SIGSTOP)
    try:
        wait_for(lambda: cluster.stopped() == {"etcd"}, "etcd is frozen")
        assert cluster.status()["etcd"]["pid"] == pid
    finally:
        cluster.kill("etcd", signal.SIGCONT)

    wait_for(lambda: cluster.stopped() == frozenset(), "etcd runs again")
    _etcd(cluster).status()


def test_a_name_that_no_part_has_is_refused_with_the_names_there_are(cluster: LocalCluster) -> None:
    answer = delayd("dev", "kill", "broker-7", "--dir", str(cluster.directory))

    assert answer.returncode == 1
    assert "broker-1, etcd" in answer.stderr


def test_up_prints_one_json_object_and_down_ends_dead_frozen_and_forgotten_parts_alike(
    tmp_path: Path,
) -> None:
    cluster = LocalCluster(tmp_path)
    try:
        up = delayd("dev", "up", "--nodes", "0", "--json", "--dir", str(tmp_path))
        status = delayd("dev", "status", "--json", "--dir", str(tmp_path))
        cluster.kill("broker-1", signal.SIGSTOP)
        cluster.kill("etcd")
        state_file = tmp_path / "cluster.json"
        state_file.write_text(state_file.read_text()[:200])  # as if its writer had died half-way
    finally:
        down = delayd("dev", "down", "--dir", str(tmp_path))

    assert (up.returncode, status.returncode, down.returncode) == (0, 0, 0)
    assert "the cluster is down" in down.stdout
    assert json.loads(up.stdout) == json.loads(status.stdout)
    assert processes_of(tmp_path) == frozenset()
    with pytest.raises(LocalClusterError, match="no cluster is up"):
        cluster.status()


@pytest.mark.parametrize(
    ("interrupt", "begun"), [(signal.SIGINT, "etcd"), (signal.SIGTERM, "broker-1")]
)
def test_an_interrupted_up_leaves_nothing_running(
    tmp_path: Path, interrupt: signal.Signals, begun: str
) -> None:
    up = _delayd_in_background("up", "--nodes", "0", "--dir", str(tmp_path))
    with up:
        wait_for(lambda: _has_started(tmp_path, begun), f"{begun} was started")
        up.send_signal(interrupt)
        up.communicate(timeout=HANGS_S)

    assert up.returncode == 128 + interrupt
    assert processes_of(tmp_path) == frozenset()


def test_an_interrupted_fetch_leaves_neither_java_nor_half_a_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    up = _delayd_in_background(
        "up", "--nodes", "0", "--dir", str(tmp_path / "dev"), DELAYD_CACHE=str(cache)
    )
    with up:
        wait_for(lambda: bool(processes_of(tmp_path / "dev")), "Ivy was started")
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=HANGS_S)

    assert up.returncode == 128 + signal.SIGTERM
    assert processes_of(tmp_path / "dev") == frozenset()
    assert list(cache.glob("kafka-*")) == []


def test_down_ends_what_a_killed_up_left(tmp_path: Path) -> None:
    up = _delayd_in_background("up", "--nodes", "0", "--dir", str(tmp_path))
    with up:
        wait_for(lambda: _has_started(tmp_path, "broker-1"), "broker-1 was started")
        up.kill()

    assert processes_of(tmp_path) != frozenset()
    assert LocalCluster(tmp_path).down() is True
    assert processes_of(tmp_path) == frozenset()


def test_an_up_whose_node_ends_fails_with_its_last_words_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    options = ClusterOptions(nodes=1, node_settings={"no_such_setting": 1})

    with pytest.raises(LocalClusterError, match=r"node-1 ended while starting: .*no_such_setting"):
        LocalCluster(tmp_path, options).up()

    assert processes_of(tmp_path) == frozenset()


def test_a_killed_master_is_replaced_and_comes_back_as_a_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Variables for the command line do not reach the nodes.
    monkeypatch.setenv("DELAYD_BOOTSTRAP", "192.0.2.1:9092")
    monkeypatch.setenv("DELAYD_CLUSTER", "production")
    with LocalCluster(tmp_path, ClusterOptions(nodes=2)) as cluster:
        first = cluster.status()["master"]
        assert first in {"node-1", "node-2"}

        assert cluster.kill("master") == first
        wait_for(
            lambda: cluster.status()["master"] not in {None, first},
            "another node delivers",
        )
        cluster.restart(first, env={"DELAYD_CLOCK_OFFSET_MS": "7"})

        report = cluster.status()
        assert report["master"] != first
        [pid] = [node["pid"] for node in report["nodes"] if node["name"] == first]
        assert psutil.Process(pid).environ()["DELAYD_CLOCK_OFFSET_MS"] == "7"
    assert processes_of(tmp_path) == frozenset()


@pytest.mark.rehearsal
def test_a_cluster_that_was_brought_down_goes_on_with_what_the_http_api_scheduled(
    tmp_path: Path,
) -> None:
    """docs/reference/http-api.md and cli.md, on real parts."""
    with LocalCluster(tmp_path, ClusterOptions(nodes=1)) as cluster:
        found = cluster.variables()
        with _api_of(found) as api:
            for id in ("kept", "gone"):
                message = {"topic": "orders", "value": "v", "delay": "1h", "id": id}
                placed = api.post("/messages", json=message)
                assert placed.status_code == 201, placed.text
            verdict = api.delete("/messages/gone", params={"wait": True}).json()
            assert verdict["verdict"] == "cancelled"
            assert httpx.delete(f"{found['DELAYD_API']}/messages/kept").status_code == 401
        cluster.down()
        again = LocalCluster(tmp_path, cluster.kept())
        assert again.up(fresh=False)["bootstrap"] == found["DELAYD_BOOTSTRAP"]
        assert again.variables() == found
        with _api_of(found) as api:
            states = {
                id: api.get(f"/messages/{id}").json()["messages"][0]["state"]
                for id in ("kept", "gone")
            }
            assert states == {"kept": "pending", "gone": "cancelled"}
            [pending] = api.get("/pending").json()["messages"]
            assert (pending["id"], pending["topic"]) == ("kept", "orders")
            assert api.get("/cluster").json()["healthy"]


def _api_of(variables: dict[str, str]) -> httpx.Client:
    return httpx.Client(
        base_url=variables["DELAYD_API"],
        headers={"authorization": f"Bearer {variables['DELAYD_API_TOKEN']}"},
        timeout=60,
    )


def _delayd_in_background(*arguments: str, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _has_started(directory: Path, name: str) -> bool:
    state = load(directory / "cluster.json")
    return state is not None and state.part(name).alive()


def produce(cluster: LocalCluster, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    send(producer, topic, value)


def send(producer: Producer, topic: str, value: bytes) -> None:
    failures: list[object] = []
    producer.produce(topic, value, on_delivery=lambda error, _message: failures.append(error))
    assert producer.flush(HANGS_S) == 0, "the record was acknowledged in time"
    assert failures == [None]


def first_value(cluster: LocalCluster, topic: str) -> bytes | None:
    [first, *_] = read_until(cluster.bootstrap, topic, bool)
    return first.value


def _etcd(cluster: LocalCluster) -> Etcd3Client:
    host, _, port = cluster.etcd_url.removeprefix("http://").partition(":")
    return Etcd3Client(host=host, port=int(port), api_path="/v3/", timeout=5)
