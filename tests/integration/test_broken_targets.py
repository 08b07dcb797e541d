"""Targets that fail on real brokers: their messages wait, everybody else's go out.

Each test breaks a target under traffic, sees that the neighbours still arrive and that the status
says what is wrong, mends the target, and counts: all of it arrived, once.
Source: docs/design/frontier.md, "Targets"; docs/operations.md, "Failing targets".
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from clusters import TestCluster, make_cluster, wait_for_brokers
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub exports none
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from nodes import CLOCK, HANGS_S, NodeProcess, running, wait_for
from topics_read import Seen, read_until

from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions

pytestmark = pytest.mark.real

RATE_MS = 25
"""Each target gets a message so often."""
LEAD_MS = 500
RETRY_DELAYS_MS = (1_500,) * 60
"""No message is given up while its test lasts."""

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
_numbers = itertools.count()


class Site:
    """Brokers, which may be killed, and nodes of this module's own."""

    def __init__(self, brokers: LocalCluster, cluster: TestCluster, nodes: list[NodeProcess]):
        self.brokers = brokers
        self.cluster = cluster
        self.nodes = nodes
        self.admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})

    def topic(
        self,
        assignment: Sequence[Sequence[int]],
        config: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> str:
        """Make a topic whose partitions have their replicas on these brokers."""
        name = name or self.name()
        wanted = NewTopic(
            name,
            num_partitions=len(assignment),
            replica_assignment=[list(brokers) for brokers in assignment],
            config=dict(config or {}),
        )
        self.admin.create_topics([wanted])[name].result(HANGS_S)
        return name

    def name(self) -> str:
        """A topic's name that nobody has used."""
        return f"target.{self.cluster.name}.{next(_numbers)}"

    def problem(self, topic: str) -> str | None:
        """What the master's status says of a topic."""
        for node in self.nodes:
            for failing in node.status().get("failing_targets", ()):
                if failing["topic"] == topic:
                    return str(failing["problem"])
        return None

    def wait_problem(self, topic: str, text: str) -> None:
        """Until the status says it."""
        what = f"the status says of {topic}: {text}"
        wait_for(lambda: text in (self.problem(topic) or ""), what)

    def sources(self, topic: str, enough: Callable[[list[Seen]], bool]) -> list[str]:
        """Origins of what a topic holds, once it is enough."""
        seen = read_until(self.brokers.bootstrap, topic, enough)
        return [record.origin for record in seen]

    def wait_later(self, topic: str, source: str) -> None:
        """Until a message has arrived."""
        wanted = self.sources(topic, lambda seen: source in {each.origin for each in seen})
        assert source in wanted, f"{source} did not come to {topic}"


class Traffic:
    """Steady messages to several targets, from a thread of its own."""

    def __init__(self, cluster: TestCluster, targets: Sequence[str]) -> None:
        self.sources: dict[str, list[str]] = {target: [] for target in targets}
        self.others: deque[str] = deque()
        """Further targets, one message each, one for each turn."""
        self._cluster = cluster
        self.stopping = threading.Event()

    def latest(self, target: str) -> str:
        """The source of a message that is scheduled from now on."""
        count = len(self.sources[target])
        wait_for(lambda: len(self.sources[target]) > count, "traffic goes on")
        return self.sources[target][-1]

    def run(self) -> None:
        """Schedule messages until it is stopped."""
        with self._cluster.client() as client:
            while not self.stopping.wait(RATE_MS / 1000):
                other = self.others.popleft() if self.others else None
                due = str(CLOCK.wall_ms() + LEAD_MS)
                sent = {
                    target: client.schedule_async(target, b"v", at=due, key=b"k")
                    for target in self.sources
                }
                if other is not None:
                    client.schedule(other, b"v", at=due)
                for target, future in sent.items():
                    self.sources[target].append(future.result(HANGS_S).source)


@contextmanager
def traffic_to(site: Site, *targets: str) -> Iterator[Traffic]:
    """While it lasts messages are scheduled; after it each has arrived exactly once."""
    traffic = Traffic(site.cluster, targets)
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(traffic.run)
        try:
            yield traffic
        finally:
            traffic.stopping.set()
            sending.result()
    for target, sources in traffic.sources.items():
        wanted = set(sources)
        found = site.sources(target, lambda seen, w=wanted: w <= {s.origin for s in seen})  # type: ignore[misc]
        assert sorted(found) == sorted(sources), f"{target}: each once"


@contextmanager
def site_on(brokers: LocalCluster, folder: Path) -> Iterator[Site]:
    """Brokers and nodes, running."""
    cluster = make_cluster(brokers, folder, retry_delays_ms=RETRY_DELAYS_MS)
    nodes = [cluster.node(number) for number in range(2)]
    with running(nodes):
        yield Site(brokers, cluster, nodes)
    wait_for_brokers(brokers)


@pytest.fixture(scope="module")
def site(three_brokers: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three brokers and two nodes."""
    with site_on(three_brokers, tmp_path_factory.mktemp("broken")) as made:
        yield made


@pytest.fixture
def guarded_site(tmp_path: Path) -> Iterator[Site]:
    """One broker that asks for rights on every topic that has an access control list. (Three would
    need a controller before they know who may talk to it.)"""
    options = ClusterOptions(nodes=0, broker_settings=AUTHORIZER)
    with LocalCluster(tmp_path / "brokers", options) as broker, site_on(broker, tmp_path) as made:
        yield made


@pytest.fixture
def fine(site: Site) -> str:
    """The neighbour: a target on all brokers."""
    return site.topic([[1, 2, 3]] * 2)


@pytest.mark.rehearsal
def test_partitions_without_leader_or_replicas_wait_for_their_broker(site: Site, fine: str) -> None:
    leaderless = site.topic([[3]], {"min.insync.replicas": "1"})
    thin = site.topic([[1, 3]], {"min.insync.replicas": "1"})
    with traffic_to(site, fine, thin) as traffic:
        site.wait_later(thin, traffic.latest(thin))
        site.brokers.kill("broker-3")
        lost = traffic.latest(thin)
        with site.cluster.client() as client:
            orphan = client.schedule(leaderless, b"v", in_="1ms").source
        site.wait_problem(thin, "has one replica in sync")
        site.wait_problem(leaderless, "has no leader")
        site.wait_later(fine, traffic.latest(fine))
        site.brokers.restart("broker-3")
        site.wait_later(thin, lost)
    # It is back, and has one replica only, which is refused on a cluster of three brokers.
    site.wait_problem(leaderless, "would lose what is delivered with it")
    site.admin.delete_topics([leaderless])[leaderless].result(HANGS_S)
    wait_for(lambda: leaderless not in site.admin.list_topics(timeout=10).topics, "it is gone")
    site.topic([[3, 1]], {"min.insync.replicas": "1"}, leaderless)
    assert site.sources(leaderless, bool) == [orphan]


@pytest.mark.parametrize(
    ("brokers", "name", "bad", "good", "problem"),
    [
        ([1, 3], "min.insync.replicas", "2", "1", "no replica to spare (min.insync.replicas = 2)"),
        ([1, 2, 3], "message.timestamp.before.max.ms", "0", "60000", "unable to end a transaction"),
    ],
    ids=["no replica to spare", "times of marks"],
)
def test_a_target_that_could_hold_up_all_others_gets_nothing_until_it_cannot(
    site: Site, fine: str, brokers: list[int], name: str, bad: str, good: str, problem: str
) -> None:
    """Kafka ends no transaction while a partition in it is below `min.insync.replicas`, or refuses
    the mark that ends it.

    Source: docs/operations.md, "A transaction that cannot end".
    """
    fragile = site.topic([brokers], {name: bad})
    with traffic_to(site, fine, fragile) as traffic:
        site.wait_problem(fragile, problem)
        site.wait_later(fine, traffic.latest(fine))
        waited = traffic.latest(fragile)
        site.cluster.alter_topic(fragile, name, good)
        site.wait_later(fragile, waited)


def test_a_topic_that_is_deleted_and_made_again_gets_the_rest(site: Site, fine: str) -> None:
    again = site.topic([[1, 2, 3]])
    with traffic_to(site, fine) as traffic, site.cluster.client() as client:
        site.admin.delete_topics([again])[again].result(HANGS_S)
        sources = [client.schedule(again, b"v", in_="100ms").source for _ in range(20)]
        site.wait_problem(again, "does not exist")
        site.wait_later(fine, traffic.latest(fine))
        site.topic([[1, 2, 3]] * 3, name=again)
        found = site.sources(again, lambda seen: len(seen) >= len(sources))
        assert sorted(found) == sorted(sources)


def test_a_guilty_record_among_innocents_is_the_only_one_that_waits(site: Site, fine: str) -> None:
    """A compacted target takes no record without a key, one that takes little nothing large; a
    record for a partition that is not there waits for it."""
    compacted = site.topic([[1, 2, 3]], {"cleanup.policy": "compact"})
    small = site.topic([[1, 2, 3]], {"max.message.bytes": "4000"})
    with traffic_to(site, fine, compacted, small) as traffic, site.cluster.client() as client:
        keyless = client.schedule(compacted, b"v", in_="200ms").source
        large = client.schedule(small, b"x" * 8_000, in_="200ms").source
        elsewhere = client.schedule(fine, b"v", in_="200ms", partition=2).source
        site.wait_problem(compacted, "each record needs a key")
        site.wait_problem(small, "max.message.bytes")
        site.wait_problem(fine, "has 2 partitions")
        for target in (fine, compacted, small):
            site.wait_later(target, traffic.latest(target))
        # The wish of each is granted, so that it arrives once too.
        traffic.sources[compacted].append(keyless)
        traffic.sources[small].append(large)
        traffic.sources[fine].append(elsewhere)
        site.cluster.alter_topic(compacted, "cleanup.policy", "delete")
        site.cluster.alter_topic(small, "max.message.bytes", "100000")
        add_partition(site, fine, 3)


def test_a_new_bad_name_every_turn_holds_nobody_up(site: Site, fine: str) -> None:
    with traffic_to(site, fine) as traffic:
        traffic.others.extend(site.name() for _ in range(150))
        first = traffic.latest(fine)
        site.wait_later(fine, first)
        wait_for(lambda: not traffic.others, "all were scheduled")
        site.wait_later(fine, traffic.latest(fine))
        counts = [len(node.status().get("failing_targets", ())) for node in site.nodes]
        assert 0 < max(counts) <= 100, "bounded"


def test_a_right_that_is_taken_away_under_traffic_holds_up_its_own_target_only(
    guarded_site: Site,
) -> None:
    site = guarded_site
    fine, denied = site.topic([[1]]), site.topic([[1]])
    with traffic_to(site, fine, denied) as traffic:
        site.wait_later(denied, traffic.latest(denied))
        binding = AclBinding(
            ResourceType.TOPIC,
            denied,
            ResourcePatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            AclOperation.WRITE,
            AclPermissionType.DENY,
        )
        for future in site.admin.create_acls([binding]).values():
            future.result(HANGS_S)
        turned_away = traffic.latest(denied)
        site.wait_problem(denied, "")
        site.wait_later(fine, traffic.latest(fine))
        everything = AclBindingFilter(
            ResourceType.TOPIC,
            denied,
            ResourcePatternType.LITERAL,
            None,  # type: ignore[arg-type]  # any
            None,  # type: ignore[arg-type]
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for future in site.admin.delete_acls([everything]).values():
            future.result(HANGS_S)
        site.wait_later(denied, turned_away)


def add_partition(site: Site, topic: str, count: int) -> None:
    """Give a topic more partitions."""
    wanted = NewPartitions(topic, count, replica_assignment=[[1, 2, 3]])
    for future in site.admin.create_partitions([wanted]).values():
        future.result(HANGS_S)
