"""Requests of random bytes, through real nodes: no crash, no stall, one outcome each.

Small in the suite; 100,000 of them with `--full` (and with `-s`, which shows the counts).
"""

import json
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from nodes import CLOCK, CLUSTER_KEY, NodeProcess, master_of, node_group, wait_for
from outcomes_read import OutcomesRead
from random_model import RandomModel
from random_requests import CONTENTS, Mixture, record
from raw_records import RawHeaders, RawWriter, Written

from chaos.judge import Findings
from delayd.bus import Headers, Record
from delayd.cluster.topic_checks import RECORD_MARGIN_BYTES
from delayd.config.cluster_key import proof_key
from delayd.dev.cluster import LocalCluster
from delayd.request import Op, Reason, RequestLimits, Verdict

pytestmark = [pytest.mark.real, pytest.mark.timeout(1_800)]

SEED = 57
SMALL, FULL = 5_000, 100_000
PARTITIONS = 4
LARGE = 0.002
"""The share of records around the limit, which take a thousand times the room of others."""

RETRY_DELAYS_MS = (1_000, 1_500)
HOUR_MS = 3_600_000
RECORD_BYTES_MAX = 1_048_588 - RECORD_MARGIN_BYTES
SETTLED_TIMEOUT_S = 300
SETTLED_TIMEOUT_FULL_S = 1_200


@pytest.fixture
def count(request: pytest.FixtureRequest) -> int:
    return FULL if request.config.getoption("--full") else SMALL


@pytest.fixture
def cluster(kafka_and_etcd: LocalCluster, tmp_path: Path) -> TestCluster:
    return make_cluster(
        kafka_and_etcd,
        tmp_path,
        PARTITIONS,
        max_delay_ms=24 * HOUR_MS,
        retry_delays_ms=RETRY_DELAYS_MS,
    )


def test_any_requests_have_one_outcome_each_and_no_node_crashes_or_stalls(
    cluster: TestCluster, count: int
) -> None:
    targets = (
        cluster.target("a", partitions=4),
        cluster.target("one", partitions=1),
        cluster.target("small", partitions=1, config={"max.message.bytes": "2000"}),
        cluster.target("compacted", partitions=2, config={"cleanup.policy": "compact"}),
    )
    late = f"late.{cluster.name}"  # what waits for it is delivered after a retry
    nodes = [cluster.node(0, driver="confluent"), cluster.node(1, driver="kafka-python")]
    begun_ms = CLOCK.wall_ms()
    with (
        node_group(nodes),
        closing(OutcomesRead(cluster, targets, PARTITIONS)) as seen,
        closing(RawWriter(cluster.bootstrap, cluster.buffer)) as writer,
    ):
        for node in nodes:
            node.start()
        master_of(nodes)
        model = RandomModel(limits_of(cluster, CLUSTER_KEY), far_ms=begun_ms + HOUR_MS)
        killed: NodeProcess | None = None
        acks: list[Future[Written]] = []
        for number, asked in enumerate(records(cluster, (*targets, late), count)):
            if number == count // 2:
                killed = master_of(nodes)
                killed.kill()
                killed.start()
            if number == count * 3 // 4:
                # So that the rest is about ids that have been delivered, too.
                wait_until_delivered(nodes, CLOCK.wall_ms())
                cluster.create_topic(late, partitions=2)
                seen.follow(late)
            headers = raw(asked.headers)
            acks.append(writer.send(asked.partition, asked.key, asked.value, headers))
        writer.flush()
        assert len({ack.result(0).source for ack in acks}) == count, "the broker took all"
        written_ms = CLOCK.wall_ms() - begun_ms
        settle(nodes, seen, model, count)
        settled_ms = CLOCK.wall_ms() - begun_ms
        findings = model.judge(seen)
        figures = {
            "requests": count,
            "written_s": written_ms / 1000,
            "settled_s": settled_ms / 1000,
            "judged_s": (CLOCK.wall_ms() - begun_ms) / 1000,
            "buffer_records": len(seen.log),
            "outcomes": dict(sorted(findings.outcomes.items())),
        }
        print(json.dumps(figures))
        assert findings.ok, str(findings)
        for node in nodes:
            assert node.process is not None and node.process.poll() is None, node.log[-3000:]
            assert node.log.count("node_started") == (2 if node is killed else 1)
        check_coverage(seen, findings)


def records(cluster: TestCluster, targets: tuple[str, ...], count: int) -> Iterator[Record]:
    """The records to write; now and then one of the last again."""
    random = Random(SEED)
    ids = (*(f"order-{n}".encode() for n in range(count // 40)), "ü".encode(), b"x" * 256)
    missing = tuple(f"missing.{cluster.name}.{n}" for n in range(20))
    mixture = Mixture(
        # Signed, but not with the key of this cluster.
        limits_of(cluster, "the key of another cluster"),
        ids=ids,
        topics=tuple(topic.encode() for topic in (*targets * 20, *missing)),
        target_partitions=(b"0", b"0", b"3", b"4"),
        due=due,
        value=value,
        redrives=count // 50,
        noise=0.3,
        retries=0.1,
    )
    recent: list[Record] = []
    for _ in range(count):
        if recent and random.random() < 0.1:
            yield random.choice(recent)
            continue
        recent = [*recent[-20:], record(random, mixture)]
        yield recent[-1]


def due(random: Random) -> tuple[str, bytes | None]:
    """A minute ago to 20 s from now, in all forms, and now and then far away."""
    match random.randrange(8):
        case 0 | 1 | 2:
            return "delayd-due", b"%d" % (CLOCK.wall_ms() + random.randrange(-60_000, 20_000))
        case 3 | 4:
            return "delayd-delay", b"%dms" % random.randrange(20_000)
        case 5:
            return "delayd-delay", random.choice([b"0s", b"1s", b"5s", b"20s"])
        case 6:
            return "delayd-level", random.choice([b"1", b"2", b"3"])
        case _:
            return "delayd-delay", random.choice([b"2h", b"24h", b"86400000ms", b"25h", b"5s"])


def value(random: Random) -> bytes | None:
    """Small, but for the few around the limit."""
    if random.random() < LARGE:
        return b"v" * (RECORD_BYTES_MAX - random.choice([0, 0, 200, 400]))
    return random.choice([None, b"", b"v", b"w", b"v" * 700, b"v" * 1_900, random.choice(CONTENTS)])


def raw(headers: Headers) -> RawHeaders:
    """With the names that no library would write as their bytes."""
    return [
        (name if is_usual(name) else name.encode("utf-8", "surrogatepass"), content)
        for name, content in headers
    ]


def is_usual(name: str) -> bool:
    return "\0" not in name and not any("\ud800" <= letter <= "\udfff" for letter in name)


def limits_of(cluster: TestCluster, key: str) -> RequestLimits:
    return RequestLimits(
        max_delay_ms=24 * HOUR_MS,
        record_bytes_max=RECORD_BYTES_MAX,
        partitions=PARTITIONS,
        cluster=cluster.name,
        proof_key=proof_key(key),
        prefix=f"{cluster.name}-",
    )


def wait_until_delivered(nodes: list[NodeProcess], due_ms: int) -> None:
    """Wait until steps have passed what was due by then."""

    def has_passed() -> bool:
        frontier = master_of(nodes).status().get("frontier")
        return frontier is not None and frontier["cursor_ms"] > due_ms

    wait_for(has_passed, "the new master delivers")


def settle(nodes: list[NodeProcess], seen: OutcomesRead, model: RandomModel, count: int) -> None:
    """Wait until both nodes have ingested all, and steps have passed all that is due soon."""
    taken = 0
    last_step = 0
    states: list[dict[str, Any]] = []

    def is_settled() -> bool:
        nonlocal taken
        if seen.read():
            return False
        for each in seen.log[taken:]:
            model.take(each)
        taken = len(seen.log)
        states[:] = [node.status() for node in nodes]
        return taken >= count and all(has_passed(state, model, last_step) for state in states)

    timeout_s = SETTLED_TIMEOUT_S if count == SMALL else SETTLED_TIMEOUT_FULL_S
    wait_for(is_settled, "both nodes have passed all that is due", timeout_s)
    # One step more: what would be written twice has been written by then.
    last_step = max(state["frontier"]["step"] for state in states)
    wait_for(is_settled, "another step", timeout_s)
    seen.read_to_the_ends()


def has_passed(state: dict[str, Any], model: RandomModel, last_step: int) -> bool:
    """Return whether a node reports that it has ingested all, and that steps have passed all that
    is due."""
    if not state or state["frontier"] is None:
        return False
    ends = [model.ends.get(partition, 0) for partition in range(PARTITIONS)]
    frontier = state["frontier"]
    return (
        list(state["ingested"]) == ends
        and list(frontier["offsets"]) == ends
        and frontier["cursor_ms"] > model.horizon_ms
        and frontier["step"] > last_step
    )


def check_coverage(seen: OutcomesRead, findings: Findings) -> None:
    """That this could have found anything: all outcomes were met."""
    met = {str(letter.header("delayd-reason")) for each in seen.letters.values() for letter in each}
    met |= {f"{told['op']}: {told['verdict']}" for each in seen.receipts.values() for told in each}
    met |= findings.outcomes.keys()
    # Of batches; of older rules; of limits, and there is none.
    of_others = {Reason.UNREADABLE_BATCH, Reason.NOT_SUPPORTED, Reason.OVER_QUOTA}
    wanted = {reason.slug for reason in Reason if reason not in of_others}
    wanted |= {"message: delivered", "message: killed", "message: pending"}
    for op, verdicts in (
        (Op.SCHEDULE, (Verdict.DUPLICATE, Verdict.CONFLICT)),
        (Op.REDRIVE, (Verdict.DUPLICATE,)),
        (Op.REPLACE, (Verdict.REPLACED, Verdict.TOO_LATE, Verdict.SCHEDULED)),
        (Op.CANCEL, (Verdict.CANCELLED, Verdict.TOO_LATE, Verdict.NOT_FOUND)),
    ):
        wanted |= {f"{op.slug}: {verdict.slug}" for verdict in verdicts}
    assert wanted <= met, f"seed {SEED}: {wanted - met} of {findings.outcomes}"
