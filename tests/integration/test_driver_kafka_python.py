"""Nodes without librdkafka: they deliver, die and are succeeded like the others, and by the others.

The witness is kafka-python too, in a process of its own and through its public consumer, of which
the driver uses nothing. Clusters that are all of such nodes are in test_failover_mixed.py.
Source: docs/adr/0014-kafka-python-for-nodes.md.
"""

import signal
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from clusters import RETRY_DELAYS_MS, TestCluster, schedule
from nodes import CLOCK, master_of, node_group, wait_for
from test_failover import batch_on, finish, kill, wait_due
from test_ids import Counter, seen_all
from topics_read import Seen, read_until

from delayd.dev.witness import Witness

pytestmark = pytest.mark.real


@pytest.mark.rehearsal
def test_masters_killed_under_load_are_succeeded_whatever_their_drivers(
    cluster: TestCluster,
) -> None:
    ours, theirs = cluster.node(1, driver="kafka-python"), cluster.node(2)
    targets = (cluster.target("a"), cluster.target("b", partitions=1))
    with node_group([ours, theirs]), cluster.client() as client:
        assert master_of([ours.start()]) is ours
        theirs.start().wait_ready()
        batch = batch_on(targets, 6_000, 18_000)
        with Witness(cluster.bootstrap, batch, log=cluster.folder / "witness.log") as witness:
            schedule(client, batch)
            for share, killed, successor in ((0.15, ours, theirs), (0.6, theirs, ours)):
                wait_due(batch, share)
                kill(killed, witness)
                assert master_of([successor]) is successor
                killed.start().wait_ready()
            verdict = finish(witness, batch)
        assert [failover.counts for failover in verdict.failovers] == [True, True]
        wait_for(lambda: ours.status()["ingested"] == theirs.status()["ingested"], "both have all")


@pytest.fixture
def producer(cluster: TestCluster) -> Iterator[Any]:
    """A plain producer of requests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kafka import KafkaProducer
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=1)
    yield producer
    producer.close()


def origins(records: list[Seen]) -> list[str]:
    """Whom retried messages and dead letters are about."""
    found = [dict(record.headers).get("delayd-origin") for record in records]
    return [origin.decode() for origin in found if origin is not None]


def test_ids_and_failing_targets_pass_from_driver_to_driver_and_back(
    cluster: TestCluster, producer: Any
) -> None:
    """Source: docs/design/frontier.md, "Takeover", "Verdicts" and "Targets"."""
    ours, theirs = cluster.node(1, driver="kafka-python"), cluster.node(2)
    target, missing = cluster.target("fine"), f"target.{cluster.name}.missing"
    small = cluster.target("small", partitions=1, config={"max.message.bytes": "2000"})
    counter = Counter(cluster, [ours, theirs], producer)
    with node_group([ours, theirs]):
        assert master_of([ours.start()]) is ours
        theirs.start().wait_ready()
        due = str(CLOCK.wall_ms() + 6_000)
        kept = [counter.put(f"kept{n}", topic=target, due=due) for n in range(20)]
        doomed = [counter.put(f"doomed{n}", topic=target, due=due) for n in range(4)]
        old = counter.put("swapped", topic=target, due=due)
        new = counter.put("swapped", b"new", topic=target, due=due, op="replace")
        lost = counter.put("lost", topic=missing, due="0")
        large = counter.put("large", b"x" * 5_000, topic=small, due="0")
        cancels = [counter.put(f"doomed{n}", op="cancel") for n in (0, 1)]
        replaced = counter.verdict(new)
        assert (replaced["verdict"], replaced["killed"]) == ("replaced", [old])
        read_until(
            cluster.bootstrap, cluster.buffer, lambda seen: {lost, large} <= set(origins(seen))
        )
        ours.kill()
        assert master_of([theirs]) is theirs
        cancels += [counter.put(f"doomed{n}", op="cancel") for n in (2, 3)]
        told = counter.receipts({*cancels, new})
        for n, cancel in enumerate(cancels):
            assert [(r["verdict"], r["killed"]) for r in told[cancel]] == [
                ("cancelled", [doomed[n]])
            ]
        assert len(told[new]) == 1
        cluster.create_topic(missing)
        assert origins(read_until(cluster.bootstrap, missing, bool)) == [lost]
        letters = read_until(
            cluster.bootstrap, cluster.dead, lambda seen: large in set(origins(seen))
        )
        [letter] = [letter for letter in letters if letter.header("delayd-origin") == large]
        assert letter.header("delayd-attempt") == str(len(RETRY_DELAYS_MS) + 1)
        assert "max.message.bytes" in letter.header("delayd-detail")
        read_until(cluster.bootstrap, target, seen_all({*kept, new}))
        ours.start().wait_ready()
        theirs.signal(signal.SIGTERM)
        assert theirs.wait_exit() == 0, theirs.log
        assert master_of([ours]) is ours
        late = counter.put("kept0", op="cancel")
        assert counter.verdict(late)["verdict"] == "too-late"
        after = counter.put("after", topic=target, due="0")
        seen = read_until(cluster.bootstrap, target, seen_all({after}))
        arrived = sorted(record.header("delayd-source") for record in seen)
        assert arrived == sorted([*kept, new, after]), "none lost, none doubled"


def test_a_record_that_only_the_broker_refuses_is_retried_alone(
    cluster: TestCluster, producer: Any
) -> None:
    """Its topic changed since it was looked at. Source: docs/design/frontier.md, "Targets"."""
    node, fine = cluster.node(1, driver="kafka-python"), cluster.target("fine", partitions=1)
    counter = Counter(cluster, [node], producer)
    guilty: list[str] = []
    with node_group([node]):
        master_of([node.start()])
        while "MSG_SIZE_TOO_LARGE" not in node.log:
            number = len(guilty)
            assert number < 3, "the check before the step stopped it each time"
            changed = cluster.target(f"changed{number}", partitions=1)
            before = counter.put(f"before{number}", topic=changed, due="0")
            read_until(cluster.bootstrap, changed, seen_all({before}))
            # For 5 s the node believes what it knows.
            cluster.alter_topic(changed, "max.message.bytes", "2000")
            due = str(CLOCK.wall_ms() + 200)
            guilty.append(counter.put(f"large{number}", b"x" * 5_000, topic=changed, due=due))
            beside = {counter.put(f"{number}.{n}", topic=changed, due=due) for n in range(20)}
            others = {counter.put(f"o{number}.{n}", topic=fine, due=due) for n in range(20)}
            assert others <= {
                record.header("delayd-source")
                for record in read_until(cluster.bootstrap, fine, seen_all(others))
            }
            seen = read_until(
                cluster.bootstrap,
                changed,
                lambda seen, wanted={before, *beside}: (  # type: ignore[misc]
                    wanted <= {source_or_origin(record) for record in seen}
                ),
            )
            assert len(seen) == 1 + len(beside)
        letters = read_until(
            cluster.bootstrap, cluster.dead, lambda seen: set(guilty) <= set(origins(seen))
        )
        assert sorted(origins(letters)) == sorted(guilty)


def source_or_origin(record: Seen) -> str:
    """Of the user's own request, be it retried or not."""
    headers = dict(record.headers)
    return (headers.get("delayd-origin") or headers["delayd-source"] or b"").decode()
