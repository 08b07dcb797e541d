"""Rehearse lost commit markers: random ones, on a real Kafka, each time with an audit at the end.

    python tests/marker_rehearsals.py --seeds 10

Each seed makes a cluster with one node, sends messages for two targets with two partitions, some
with ids that are cancelled, some for a topic that comes late, and some bad requests. The node is
killed in the middle of it, the broker is stopped, and of a random choice of partitions the last
marker is taken away, from the end of the log or from its middle. The broker starts again,
`delayd recover marker --yes` runs until it is content, and the node goes on. At the end all must
have been delivered once, as `delayd audit` says it. Prints a line of JSON for each seed, and exits
with 1 if one is not fine.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "integration")]

from clusters import TestCluster, make_cluster  # noqa: E402 - it is found only now
from lost_markers import ends_with_marker, lose_last_marker, lose_tail  # noqa: E402
from nodes import CLOCK, CLUSTER_KEY, HANGS_S, delayd, node_group, wait_for  # noqa: E402
from topics_read import Seen, read_until  # noqa: E402

from delayd.dev.cluster import LocalCluster  # noqa: E402
from delayd.dev.startup import ClusterOptions  # noqa: E402

BROKER = "broker-1"
COUNT = 300
SPREAD_MS = 5_000
LEAD_MS = 2_000
RECOVER_TRIES = 40
AUDIT_S = 600
WAIT_S = 90
"""For the last message of a target."""


def send(cluster: TestCluster, targets: list[str], late: str, chance: random.Random) -> int:
    """Send everything; return when the first message is due."""
    first_ms = CLOCK.wall_ms() + LEAD_MS
    with cluster.client() as client:
        told = []
        for n in range(COUNT):
            target = late if n % 10 == 0 else chance.choice(targets)
            at = first_ms + chance.randrange(SPREAD_MS)
            id = f"m-{n}" if n % 2 else None
            told.append(client.schedule_async(target, b"%d" % n, key=b"%d" % n, id=id, at=at))
        for each in told:
            each.result(HANGS_S)
        for n in range(1, COUNT, 20):
            client.cancel(f"m-{n}", wait=False)
    return first_ms


def lose(data: Path, partitions: list[tuple[str, int]], chance: random.Random) -> list[str]:
    """Take markers away; say which."""
    lost = []
    for topic, number in partitions:
        if chance.random() < 0.5:
            continue
        kind = topic.rpartition("-")[2] if "target" not in topic else topic.rpartition(".")[2]
        if chance.random() < 0.7 and ends_with_marker(data, topic, number):
            lose_tail(data, topic, number)
            lost.append(f"{kind}/{number} end")
        elif lose_last_marker(data, topic, number):
            lost.append(f"{kind}/{number}")
    return lost


def recover(cluster: TestCluster) -> tuple[dict[str, Any], int]:
    """Run the command until it is content; return the first result, and how often it ran."""
    first: dict[str, Any] = {}
    for tries in range(1, RECOVER_TRIES):
        ended = delayd(
            *("recover", "marker", "--bootstrap", cluster.bootstrap, "--etcd", cluster.etcd),
            *("--cluster", cluster.name, "--prefix", f"{cluster.name}-", "--json", "--yes"),
        )
        if ended.stdout:
            result = json.loads(ended.stdout)
            first = first or result
            if result["ok"] or result["problems"]:
                return first, tries
        else:
            print(ended.stderr.strip(), file=sys.stderr)
        time.sleep(1)
    return first, RECOVER_TRIES


def are_over(partitions: int, seen: list[Seen]) -> bool:
    """Was the last message of each partition delivered?"""
    return sum(record.value == b"last" for record in seen) >= partitions


def audited(cluster: TestCluster) -> dict[str, Any]:
    ended = delayd(
        *("audit", "--json", "--bootstrap", cluster.bootstrap, "--cluster", cluster.name),
        *("--prefix", f"{cluster.name}-", "--cluster-key", CLUSTER_KEY, "--memory", "1g"),
        timeout_s=AUDIT_S,
    )
    assert ended.stdout, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    return report | {"exit": ended.returncode}


def rehearse(brokers: LocalCluster, folder: Path, seed: int, *, audits: bool) -> dict[str, Any]:
    """Play one seed; return what came of it."""
    chance = random.Random(seed)
    cluster = make_cluster(brokers, folder, 2, retry_delays_ms=(2_000,) * 20)
    targets = [cluster.target(name, 2) for name in ("a", "b")]
    late = f"target.{cluster.name}.late"
    topics = [*targets, *(f"{cluster.name}-{kind}" for kind in ("buffer", "dead", "receipts"))]
    partitions = [(topic, number) for topic in topics for number in range(2)]
    partitions.append((f"{cluster.name}-frontier", 0))
    with node_group([cluster.node(0)]) as [node]:
        node.start()
        wait_for(node.is_master, "the node leads")
        first_ms = send(cluster, targets, late, chance)
        kill_ms = first_ms + chance.randrange(SPREAD_MS)
        wait_for(lambda: CLOCK.wall_ms() >= kill_ms, "time passes")
        node.kill()
        brokers.stop(BROKER)
        lost = lose(brokers.directory / "data" / BROKER, partitions, chance)
        brokers.start(BROKER)
        result, tries = recover(cluster)
        print(json.dumps({"seed": seed, "lost": lost, "recovered": result}), file=sys.stderr)
        cluster.create_topic(late)
        ends = [(topic, number) for topic in targets for number in range(2)] + [(late, 0)]
        node.start()
        with cluster.client() as client:
            for topic, number in ends:
                at = CLOCK.wall_ms() + SPREAD_MS + LEAD_MS
                client.schedule(topic, b"last", at=at, partition=number)
        counted: Counter[bytes | None] = Counter()
        lasts = Counter(topic for topic, _ in ends)
        alive = {b"%d" % n for n in range(COUNT)} - {b"%d" % n for n in range(1, COUNT, 20)}
        for topic in (*targets, late):
            seen = read_until(cluster.bootstrap, topic, partial(are_over, lasts[topic]), WAIT_S)
            counted.update(record.value for record in seen if record.value != b"last")
        doubled = sorted(n.decode() for n, count in counted.items() if n and count > 1)
        missing = sorted(each.decode() for each in alive - counted.keys())
        report = audited(cluster) if audits else {}
    is_fine = not (doubled or missing or result.get("problems") or report.get("exit"))
    return {
        "seed": seed,
        "ok": is_fine,
        "lost": lost,
        "fates": Counter(
            f"{each['kind']} {each['state']} {each['fate']}" for each in result.get("pieces", ())
        ),
        "runs": tries,
        "problems": result.get("problems"),
        "doubled": doubled,
        "missing": missing,
        "audit": report.get("exit"),
        "findings": report.get("findings", report.get("violations")),
    }


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--no-audit", action="store_true")
    asked = parser.parse_args()
    is_fine = True
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(Path(folder, "brokers"), ClusterOptions(nodes=0)) as brokers,
    ):
        for seed in range(asked.first, asked.first + asked.seeds):
            done = rehearse(brokers, Path(folder, str(seed)), seed, audits=not asked.no_audit)
            is_fine = is_fine and done["ok"]
            print(json.dumps(done), flush=True)
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
