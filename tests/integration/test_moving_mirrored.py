"""A site of two shards is lost, and a new cluster goes on where its targets were mirrored, by a
command that is killed on the way. A kafka-python consumer counts what readers there got.

The mirror is this test: it copies what readers of the old target got, but for the last of each
shard. `test_second_site.py` plays it with MirrorMaker. Source: docs/design/moving.md, "Copies".
"""

import json
import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from clusters import TestCluster, make_cluster
from nodes import CLOCK, HANGS_S, NodeProcess, delayd, master_of, node_group, wait_for
from test_moving import in_topic, killed_move
from topics_read import all_of, read_until

from delayd.bus import Record
from delayd.bus.confluent import ConfluentBus
from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions
from delayd.errors import ExitCode

pytestmark = pytest.mark.real

SHARDS, PARTITIONS = 2, 4
COUNT = 400
"""Of each kind."""
UNMIRRORED = 50
FIRST = b"first"
B_MS, C_MS = 20_000, 75_000
"""After the wheel was copied, and after the first site was lost."""
TIMEOUT_MS = int(HANGS_S * 1000)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("second")
    with LocalCluster(folder / "brokers", ClusterOptions(nodes=0)) as cluster:
        yield cluster


def send(cluster: TestCluster, target: str, kind: str, due_ms: int) -> None:
    """Schedule messages of a kind, in all partitions of the buffer."""
    with cluster.client() as client:
        told = [
            client.schedule_async(
                target, b"%s-%d" % (kind.encode(), n), id=f"{kind}-{n}", at=due_ms
            )
            for n in range(COUNT)
        ]
        places = {each.result(HANGS_S).partition for each in told}
    assert places == {*range(PARTITIONS)}


def delivered(cluster: TestCluster, target: str, count: int) -> list[Record]:
    """What the old cluster has delivered, once it is so much."""
    read_until(cluster.bootstrap, target, lambda seen: len(seen) >= count)
    return all_of(cluster.bootstrap, target, PARTITIONS)


def mirror(new: TestCluster, target: str, records: Sequence[Record]) -> None:
    """Copy them."""
    producer = ConfluentBus(new.bootstrap).idempotent_producer()
    for record in records:
        producer.send(
            target,
            key=record.key,
            value=record.value,
            headers=record.headers,
            partition=record.partition,
        )
    producer.flush(TIMEOUT_MS)
    producer.close()


def last_of_each_shard(records: Sequence[Record], kind: bytes) -> frozenset[bytes]:
    """The values of the last so many of a kind, of each shard."""
    left: dict[int, list[bytes]] = {shard: [] for shard in range(SHARDS)}
    for record in sorted(records, key=lambda each: int(dict(each.headers)["delayd-fired"] or 0)):
        source = dict(record.headers)["delayd-source"] or b""
        if record.value is not None and record.value.startswith(kind):
            left[int(source.split(b"/")[0]) % SHARDS].append(record.value)
    assert all(len(values) > UNMIRRORED for values in left.values())
    return frozenset(value for values in left.values() for value in values[-UNMIRRORED:])


def behind(node: NodeProcess, old: TestCluster, target: str, folder: Path) -> Path:
    """Deliver `a`, copy the wheel of the stopped node, and start it again: of `b` the copy knows no
    frontier. `c` is pending. Return the copy."""
    # A topic cannot show what it received before its oldest delivery.
    with old.client() as client:
        client.schedule(target, FIRST, at=0)
    delivered(old, target, 1)
    begun_ms = CLOCK.wall_ms()
    for kind, after_ms in (("c", C_MS), ("b", B_MS), ("a", 0)):
        send(old, target, kind, begun_ms + after_ms)
    delivered(old, target, 1 + COUNT)
    wait_for(lambda: node.status()["ingested_count"] > 3 * COUNT, "all is ingested")
    node.signal(signal.SIGTERM)
    assert node.wait_exit() == 0
    shutil.copytree(node.data, folder)
    node.start()
    return folder


@pytest.mark.rehearsal
def test_a_mirrored_site_of_two_shards_goes_on_with_each_message_once(
    kafka_and_etcd: LocalCluster, second: LocalCluster, tmp_path: Path
) -> None:
    old = make_cluster(kafka_and_etcd, tmp_path / "old", PARTITIONS, shards=SHARDS)
    new = make_cluster(second, tmp_path / "new", PARTITIONS, shards=SHARDS)
    target = old.target("later", PARTITIONS)
    assert new.create_topic(target, PARTITIONS) == target
    with node_group([old.node(0, export_hold_s=900)]) as [node]:
        node.start().wait_ready()
        wheel = behind(node, old, target, tmp_path / "copy")
        records = delivered(old, target, 1 + 2 * COUNT)
    lacking = last_of_each_shard(records, b"a-") | last_of_each_shard(records, b"b-")
    mirror(new, target, [each for each in records if each.value not in lacking])
    arguments = [str(wheel), "--bootstrap", new.bootstrap, "--cluster", new.name,
                 "--prefix", f"{new.name}-", "--mirrored"]  # fmt: skip
    dry = delayd("move", *arguments, "--dry-run", "--json")
    seen = json.loads(dry.stdout)
    assert dry.returncode == ExitCode.PROBLEM and not seen["ok"], "some were not mirrored"
    assert seen["pending"] == COUNT + len(lacking) and seen["not_mirrored"]["count"], seen
    assert in_topic(new, new.buffer) == 0
    arguments += ["--prefer", "at-least-once", "--yes"]
    killed_move(new, arguments)
    with node_group([new.node(1)]) as [heir]:
        heir.start()
        master_of([heir])
        done = delayd("move", *arguments, "--json", "--timeout-s", str(HANGS_S))
        assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
        result = json.loads(done.stdout)
        assert result["written"] == result["accepted"] == seen["pending"]
        assert 0 < result["written_now"] < seen["pending"], "the killed run has written some"
        kinds = (b"a", b"b", b"c")
        wanted = Counter([FIRST, *(b"%s-%d" % (kind, n) for kind in kinds for n in range(COUNT))])
        got = read_until(new.bootstrap, target, lambda found: len(found) >= wanted.total())
    assert Counter(each.value for each in got) == wanted
