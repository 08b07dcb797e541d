"""A node whose disk is lost after the buffer was trimmed gets another node's wheel, without hands.

    pytest --full tests/integration/test_fetch.py    killed 20 times while it copies instead of 2

Source: docs/operations.md, "A wheel from another node".
"""

import json
import shutil
import signal
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from certificates import Authority
from clusters import TestCluster, make_cluster
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from nodes import HANGS_S, NodeProcess, delayd, master_of, running, wait_for
from topics_read import read_until

from delayd.dev.cluster import LocalCluster
from delayd.errors import ExitCode

pytestmark = pytest.mark.real


class Size(NamedTuple):
    messages: int
    rate: int
    """Bytes a second that a donor gives: a copy takes ten seconds, in which to be killed."""
    kills: int


SMALL, FULL = Size(8_000, 800_000, 2), Size(40_000, 2_000_000, 20)
VALUE = b"v" * 1_000
FAR_MS = 5 * 3_600_000
PROGRESS_MAX = 500_000
"""Bytes after which it is killed at the latest, so that it is not done before."""
SEED = 20
AWAY, LATER = 4_000, 20
"""Delivered while a node is away, and still pending then."""
LEFT_BYTES = 100_000
"""More than what is pending then takes, and less than what was delivered."""


def trim(cluster: TestCluster, offsets: list[int]) -> None:
    """Delete the buffer below these offsets, as retention does."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    below = [TopicPartition(cluster.buffer, p, offset) for p, offset in enumerate(offsets)]
    for done in admin.delete_records(below).values():
        done.result(HANGS_S)


def lose_disk(node: NodeProcess) -> None:
    """The node is dead; its new volume is empty."""
    node.kill()
    shutil.rmtree(node.data)
    node.data.mkdir()


def copied(node: NodeProcess) -> tuple[str, int]:
    """Whose wheel a node copies, and how much of it there is."""
    fetch = node.status().get("fetch") or {}
    is_copying = fetch.get("stage") in ("catalogue", "files")
    return (fetch.get("donor") or "", fetch["done_bytes"]) if is_copying else ("", 0)


def copies_up_to(node: NodeProcess, enough: int) -> int:
    """Wait until a node that copies has so many bytes; return how many it has."""
    wait_for(lambda: copied(node)[1] >= enough, "it copies")
    return copied(node)[1]


def report_of(cluster: TestCluster) -> str:
    """What `delayd status` says."""
    return delayd("status", "-b", cluster.bootstrap, "--etcd", cluster.etcd,
                  "--cluster", cluster.name, "--prefix", f"{cluster.name}-").stdout  # fmt: skip


def is_alike(a: NodeProcess, b: NodeProcess, count: int) -> bool:
    """Stop both and compare all that both must hold."""
    for node in (a, b):
        node.signal(signal.SIGTERM)
        assert node.wait_exit() == 0
        verified = delayd("wheel", "verify", str(node.data), "--json")
        assert verified.returncode == ExitCode.FINE, verified.stdout
        assert json.loads(verified.stdout)["messages"] >= count
    told = delayd("wheel", "diff", str(a.data), str(b.data), "--json")
    assert told.returncode == ExitCode.FINE, told.stdout
    return bool(json.loads(told.stdout)["alike"])


def test_a_lost_disk_after_a_trim_needs_no_hand(
    kafka_and_etcd: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    count, rate, kills = FULL if request.config.getoption("--full") else SMALL
    cluster = make_cluster(kafka_and_etcd, tmp_path, partitions=2)
    target, random = cluster.target("later"), Random(SEED)
    nodes = [cluster.node(number, snapshot_bytes_per_s=rate) for number in range(3)]
    lost = nodes[2]
    with running(nodes), cluster.client() as client:
        told = [client.schedule_async(target, VALUE, id=f"m-{n}", in_=FAR_MS) for n in range(count)]
        for each in told:
            each.result(HANGS_S)
        wait_for(
            lambda: all(sum(node.status().get("ingested", ())) >= count for node in nodes),
            "all are ingested",
        )
        trim(cluster, nodes[0].status()["ingested"])
        lose_disk(lost)

        # Killed again and again while it copies, it goes on.
        done = 0
        for _ in range(kills):
            lost.start()
            done = copies_up_to(lost, done + random.randrange(PROGRESS_MAX))
            lost.kill()
        begun = [line for line in lost.log.splitlines() if "event=fetch_begun" in line]
        assert any("is_resumed=false" not in line for line in begun), begun

        # Its donor dies: another one gives.
        lost.start().wait_ready()
        lose_disk(lost)
        lost.start()
        wait_for(lambda: copied(lost)[0] != "", "it copies")
        donor = next(node for node in nodes if node.name == copied(lost)[0])
        report = report_of(cluster)
        assert f"{lost.name} copies {donor.name}" in report, report
        donor.kill()
        lost.wait_ready()
        other = next(node for node in nodes if node not in (donor, lost))
        assert f"donor={other.name}" in lost.log
        donor.start().wait_ready()
        assert is_alike(donor, lost, count)

        # It takes over, and knows what only the trimmed records said.
        lost.start()
        other.kill()
        assert master_of([lost]) is lost
        client.schedule(target, b"now", at=0)
        assert len(read_until(cluster.bootstrap, target, lambda seen: len(seen) == 1)) == 1
        assert client.cancel("m-7", timeout_ms=HANGS_S * 1_000).verdict == "cancelled"

        # Damage: fetched again, the damaged wheel is kept aside.
        donor.start().wait_ready()
        lost.kill()
        path = max((lost.data / "slots").rglob("*.*"), key=lambda path: path.stat().st_size)
        path.write_bytes(path.read_bytes()[:-1])
        lost.start().wait_ready()
        assert (lost.data / "replaced" / "format.json").exists()
        assert "code=corruption" in lost.log

        # By hand, and not while it runs.
        by_hand = ("wheel", "fetch", "--config", str(lost.config))
        refused = delayd(*by_hand, "--yes")
        assert refused.returncode != ExitCode.FINE and "runs on" in refused.stderr
        lost.signal(signal.SIGTERM)
        assert lost.wait_exit() == 0
        assert "would copy" in delayd(*by_hand).stdout
        fetched = delayd(*by_hand, "--from", donor.name, "--yes", "--json")
        assert fetched.returncode == ExitCode.FINE, fetched.stderr
        assert json.loads(fetched.stdout)["donor"] == donor.name
        lost.start().wait_ready()
        assert is_alike(donor, lost, count)


def test_a_node_that_was_away_for_long_copies_rather_than_replays(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    """docs/design/storage.md, Copy or replay. For the test a millisecond is long. The donor's admin
    port speaks TLS, that of the other does not."""
    cluster = make_cluster(kafka_and_etcd, tmp_path, partitions=2)
    target = cluster.target("now")
    tls = Authority(tmp_path, "authority").leaf("n0")
    stays = cluster.node(0, admin_cert_file=str(tls.cert), admin_key_file=str(tls.key))
    away = cluster.node(1, replay_max_s=0.001)
    with running([stays, away]), cluster.client() as client:
        away.wait_ready()
        client.schedule(target, VALUE, id="before", in_=FAR_MS)
        wait_for(lambda: sum(away.status()["ingested"]) == 1, "it is ingested")
        away.signal(signal.SIGTERM)
        assert away.wait_exit() == 0
        told = [client.schedule_async(target, b"now", in_=0) for _ in range(AWAY)]
        told += [client.schedule_async(target, b"later", in_=FAR_MS) for _ in range(LATER)]
        for each in told:
            each.result(HANGS_S)
        assert len(read_until(cluster.bootstrap, target, lambda seen: len(seen) >= AWAY)) == AWAY
        wait_for(lambda: stays.status()["wheel"]["bytes"] < LEFT_BYTES, "what was delivered goes")
        away.start().wait_ready()
        assert "event=copy_chosen" in away.log and "event=fetch_ended donor=n0" in away.log
        assert (away.data / "replaced" / "format.json").exists(), "its own is kept aside"
        status = away.status()
        assert status["start"].startswith("copied another node's wheel: a replay of ")
        assert sum(status["ingested"]) > AWAY + LATER
        report = report_of(cluster)
        assert "n0" in report and "unreachable" not in report, report

        # Nobody is left to ask: it replays, and takes over.
        lose_disk(away)
        stays.kill()
        assert master_of([away.start()]) is away
        assert away.status()["start"].startswith("replays the buffer: ")
        assert client.cancel("before", timeout_ms=HANGS_S * 1_000).verdict == "cancelled"
