"""A cluster whose clock a test moves: weeks pass on real Kafka, and no message notices.

By a consumer of its own (kafka-python): what is due on the way is delivered once, in its order, by
its own second; a series has each of its occurrences; the master may be killed between two moves.
Real nodes, commands and audits refuse the cluster, and its own processes refuse real ones.
Source: docs/guides/testing.md, "Against real Kafka".
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nodes import HANGS_S, delayd, wait_for
from topics_read import Seen, read_until

from delayd.client import Client
from delayd.dev.cluster import LocalCluster
from delayd.dev.parts import LocalClusterError
from delayd.dev.startup import ClusterOptions
from delayd.runtime.virtual_time import VARIABLE

pytestmark = pytest.mark.real

DAY_MS = 86_400_000
SECOND_MS = 1_000
TARGET = "reminders"
KILLED = "killed"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes, and targets that exist. Each test leaves it up; its time goes on."""
    options = ClusterOptions(nodes=2, virtual=True, node_settings={"lease_ttl_s": 2})
    with LocalCluster(tmp_path_factory.mktemp("virtual"), options) as up:
        for topic in (TARGET, KILLED):
            up.create_topic(topic, 1)
        yield up


def advance(cluster: LocalCluster, by: str) -> Any:
    """Let time pass by the command. Return what it says."""
    ended = delayd("dev", "advance", by, "--json", "--dir", str(cluster.directory))
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def delivered(cluster: LocalCluster, topic: str, count: int) -> list[Seen]:
    """Return what is in a topic when time has passed: it is not waited for more."""
    seen = read_until(cluster.bootstrap, topic, lambda seen: len(seen) >= count)
    assert len(seen) == count, seen
    return seen


def mondays(until_ms: int) -> int:
    """Return how often it was Monday, 9 o'clock in UTC, since 1970."""
    return (until_ms - 9 * DAY_MS // 24 + 3 * DAY_MS) // (7 * DAY_MS)


def number_of(record: Seen, header: str) -> int:
    return int(dict(record.headers)[header] or b"")


def test_a_month_passes_and_each_message_is_delivered_by_its_own_second(
    cluster: LocalCluster,
) -> None:
    with Client(cluster.bootstrap) as client:
        client.schedule(TARGET, b"month", in_="30d", id="month")
        client.schedule(TARGET, b"perishable", in_="20d", late="5s")
        client.schedule(TARGET, b"week", cron="0 9 * * MON", id="weekly")
        client.schedule(TARGET, b"cancelled", in_="25d", id="cancelled")
        begun_ms = cluster.status()["virtual_ms"] or 0

        advance(cluster, "21d")
        assert client.cancel("cancelled").verdict == "cancelled"
        cluster.kill(cluster.status()["master"] or "")
        told = advance(cluster, "9d")
        client.cancel("weekly")

    assert 0 <= told["now_ms"] - begun_ms - 30 * DAY_MS < HANGS_S * SECOND_MS
    occurrences = mondays(told["now_ms"]) - mondays(begun_ms)
    seen = delivered(cluster, TARGET, occurrences + 2)
    values = [record.value for record in seen]
    assert values.count(b"week") == occurrences in (4, 5)
    assert values.count(b"month") == values.count(b"perishable") == 1
    dues_ms = [number_of(record, "delayd-due") for record in seen]
    assert dues_ms == sorted(dues_ms)
    assert max(dues_ms) - begun_ms >= 29 * DAY_MS
    for record, due_ms in zip(seen, dues_ms, strict=True):
        assert 0 <= number_of(record, "delayd-fired") - due_ms < 5 * SECOND_MS, record
    restart_the_dead(cluster)


def test_time_goes_on_where_it_was_after_the_cluster_was_down(cluster: LocalCluster) -> None:
    advance(cluster, "3d")
    before_ms = cluster.status()["virtual_ms"] or 0
    with Client(cluster.bootstrap) as client:
        placed = client.schedule(KILLED, b"kept", in_="2h")

    cluster.down()
    with pytest.raises(LocalClusterError, match="virtual"):
        LocalCluster(cluster.directory, ClusterOptions(nodes=2)).up(fresh=False)
    cluster.up(fresh=False)
    assert (cluster.status()["virtual_ms"] or 0) > before_ms
    advance(cluster, "2h")

    [record] = delivered(cluster, KILLED, 1)
    assert record.value == b"kept"
    assert dict(record.headers)["delayd-source"] == placed.source.encode()


def test_programs_of_the_other_kind_refuse_the_cluster(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    real = {name: value for name, value in cluster.variables().items() if name != VARIABLE}
    virtual = cluster.variables()
    for arguments in (["status"], ["audit"], ["send", "-t", TARGET, "x", "--in", "1s"]):
        ended = delayd(*arguments, env=real)
        assert ended.returncode == 1 and "[virtual-cluster]" in ended.stderr, ended
    ended = delayd("audit", env=virtual)
    assert ended.returncode == 1 and "is virtual" in ended.stderr and "[audit]" in ended.stderr

    node = {**real, "DELAYD_DATA_DIR": str(tmp_path / "data"), "DELAYD_ADMIN_PORT": "0"}
    node |= {"DELAYD_CLUSTER_KEY": cluster.cluster_key, "DELAYD_NODE": "real"}
    ended = delayd("node", env=node)
    assert ended.returncode == 1 and "[virtual-cluster]" in ended.stderr, ended


def test_what_a_command_computes_is_of_the_clusters_time(cluster: LocalCluster) -> None:
    ended = delayd(
        *("send", "-t", TARGET, "x", "--in", "1h", "--id", "asked", "--json"),
        env=cluster.variables(),
    )
    assert ended.returncode == 0, ended.stderr
    now_ms = cluster.status()["virtual_ms"] or 0
    assert (
        0
        <= json.loads(ended.stdout)["due_ms"] - now_ms + HANGS_S * SECOND_MS
        < 3_600_000 + (2 * HANGS_S * SECOND_MS)
    )
    ended = delayd("status", "--json", env=cluster.variables())
    told = json.loads(ended.stdout)
    assert ended.returncode == 0 and told["problems"] == [], told
    assert told["cursor_age_ms"] < HANGS_S * SECOND_MS


def test_the_clock_of_a_real_cluster_cannot_be_moved(kafka_and_etcd: LocalCluster) -> None:
    ended = delayd("dev", "advance", "1d", "--dir", str(kafka_and_etcd.directory))
    assert ended.returncode == 1 and "up --virtual" in ended.stderr


def restart_the_dead(cluster: LocalCluster) -> None:
    """Leave the cluster as it was."""
    for node in cluster.status()["nodes"]:
        if node["pid"] is None:
            cluster.restart(node["name"])
    wait_for(lambda: cluster.status()["master"] is not None, "there is a master")
