"""A hot second for a topic with a rate, and the master dies in the middle of what it deferred.

By its own consumer (kafka-python): each message once, in rank order, not faster than the rate; the
neighbour in the same cluster is not put off; what was cancelled while it waited for its turn never
comes; and both the audit and the cross-check agree.
Source: docs/design/frontier.md, "Smoothing".
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clusters import make_cluster
from nodes import CLOCK, HANGS_S, master_of, running
from scraping import scrape
from test_audit import audit
from topics_read import read_until

from chaos.cross_check import agree, cross_check, cut_of
from delayd.client import Client
from delayd.dev.cluster import LocalCluster

pytestmark = pytest.mark.real

RATE = 100
COUNT = 1_000
CANCELLED = 50
LEAD_MS = 4_000
HOT_MS = 200
"""All are due within it."""
AHEAD_AND_BEHIND_MS = 1_250
"""What a topic may borrow of its rate: docs/design/frontier.md, "Smoothing"."""
RETRY_DELAYS_MS = (60_000,)


def schedule(client: Client, target: str, neighbour: str, first_ms: int) -> dict[str, int]:
    """Sources and due times of a hot second; and a steady neighbour."""
    dues_ms = [first_ms + number * HOT_MS // COUNT for number in range(COUNT)]
    futures = [
        client.schedule_async(target, b"%d" % number, at=due_ms, id=f"id-{number}")
        for number, due_ms in enumerate(dues_ms)
    ]
    others = [
        client.schedule_async(neighbour, b"v", at=first_ms + 20 * number) for number in range(100)
    ]
    sources = [future.result(HANGS_S).source for future in futures]
    for other in others:
        other.result(HANGS_S)
    assert CLOCK.wall_ms() < first_ms, "the machine is too slow for this test"
    return dict(zip(sources, dues_ms, strict=True))


def cancel(client: Client, sources: list[str], gone: list[str]) -> None:
    """Cancel, all at once: each waits for its answer, and its turn comes soon."""
    with ThreadPoolExecutor(len(gone)) as threads:
        receipts = threads.map(lambda source: client.cancel(f"id-{sources.index(source)}"), gone)
    for source, receipt in zip(gone, receipts, strict=True):
        assert receipt is not None and receipt.verdict == "cancelled"
        assert receipt.killed == (source,), "its user's own request is named"


def rank_of(source: str, due_ms: int) -> tuple[int, int, int]:
    partition, offset = map(int, source.split("/"))
    return due_ms, partition, offset


@pytest.mark.rehearsal
def test_a_hot_second_keeps_its_order_and_its_rate_through_the_death_of_the_master(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    """Rules: smoothing-rate, smoothing-order, smoothing-alone, smoothing-handed-on"""
    cluster = make_cluster(kafka_and_etcd, tmp_path, retry_delays_ms=RETRY_DELAYS_MS)
    target, neighbour = cluster.target("hot", partitions=1), cluster.target("calm", partitions=1)
    nodes = [cluster.node(number, rate_max={target: RATE}) for number in range(3)]
    with running(nodes) as master, cluster.client() as client:
        first_ms = CLOCK.wall_ms() + LEAD_MS
        dues_ms = schedule(client, target, neighbour, first_ms)
        wanted = sorted(dues_ms, key=lambda source: rank_of(source, dues_ms[source]))

        read_until(cluster.bootstrap, target, lambda seen: len(seen) > 100)
        gone = wanted[-2 * CANCELLED : -CANCELLED]
        cancel(client, list(dues_ms), gone)
        read_until(cluster.bootstrap, target, lambda seen: len(seen) > 250)
        figures = scrape(master.port)
        assert figures.sum("delayd_smoothing_delay_seconds", topic=target) > 1
        assert figures.sum("delayd_smoothing_lateness_seconds_count", topic=target) > 100
        assert figures.sum("delayd_step_messages_total", fate="smoothed") > COUNT / 2
        master.kill()
        master_of([node for node in nodes if node is not master])

        left = [source for source in wanted if source not in gone]
        seen = read_until(cluster.bootstrap, target, lambda seen: len(seen) >= len(left))
        assert [record.origin for record in seen] == left, "each once, in rank order"
        fired_ms = [int(record.header("delayd-fired")) for record in seen]
        for first, from_ms in enumerate(fired_ms):
            for last in range(first, len(fired_ms)):
                most = RATE * (fired_ms[last] - from_ms + AHEAD_AND_BEHIND_MS) / 1_000
                assert last - first <= most, f"{last - first + 1} from {from_ms} on"
        assert not any(name == "delayd-attempt" for record in seen for name, _ in record.headers)

        calm = read_until(cluster.bootstrap, neighbour, lambda seen: len(seen) >= 100)
        assert len(calm) == 100
        assert not any(name == "delayd-origin" for r in calm for name, _ in r.headers)
        assert max(int(r.header("delayd-fired")) for r in calm) < fired_ms[-1] - 2_000

        master.start().wait_ready()
        code, report = audit(cluster)
        assert (code, report["found"]) == (0, {}), report["examples"]
        assert (report["delivered"], report["cancelled"]) == (len(left) + 100, CANCELLED)
        agree(report, cross_check(cluster.bootstrap, f"{cluster.name}-", cut_of(report)))
