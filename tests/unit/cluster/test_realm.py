"""Clusters of one name: each has its own keys, and those that do not are told before anything."""

import json
from pathlib import Path

import pytest
from manual_clock import ManualClock

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.cluster.lookup import admin_ports
from delayd.cluster.topics import create_topics
from delayd.config.node import NodeConfig
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.errors import ConfigError, OtherClusterError
from delayd.node.startup_checks import enter_cluster
from replication.settings import NAMED_BY_CLUSTER, NAMED_BY_TOPIC, Settings

KEY = "a key that is long enough"


class Site:
    """Kafka and etcd, and any number of clusters with the name `c`."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.bus = MemoryBus(MemoryKafka(clock), clock=clock)
        self.etcd = MemoryEtcd(clock)

    def create(self, prefix: str, naming: int) -> Settings:
        """Make a cluster."""
        return create_topics(
            self.bus, cluster="c", cluster_key=KEY, prefix=prefix, partitions=1, naming=naming
        )

    def enter(self, prefix: str) -> MemoryCoordination:
        """Start a node of a cluster, up to its election."""
        coordination = MemoryCoordination(self.etcd, "c")
        config = NodeConfig(
            bootstrap="nowhere:1",
            etcd=("http://nowhere:1",),
            cluster="c",
            prefix=prefix,
            cluster_key=KEY,  # type: ignore[arg-type]
            data_dir=Path("/nowhere"),
        )
        enter_cluster(self.bus, coordination, config)
        return coordination

    def lead(self, prefix: str, settings: Settings) -> MemoryCoordination:
        """Let a node be master, and announce itself."""
        coordination = self.enter(prefix)
        lease = coordination.grant_lease(60)
        coordination.campaign(0, prefix, lease.id)
        coordination.put_settings(json.dumps(settings.to_json()))
        coordination.put_member("n", json.dumps({"admin": f"{prefix}n:1"}), lease.id)
        return coordination


def test_clusters_of_one_name_do_not_meet() -> None:
    """docs/design/election.md, Realm.

    Rules: realm
    """
    site = Site()
    for prefix in ("a-", "b-"):
        site.lead(prefix, site.create(prefix, NAMED_BY_TOPIC))
    assert [site.enter(prefix).leader(0)[0] for prefix in ("a-", "b-")] == ["a-", "b-"]  # type: ignore[index]


def test_a_cluster_that_exists_keeps_its_keys() -> None:
    """Rules: realm"""
    site = Site()
    old = site.create("a-", NAMED_BY_CLUSTER)
    assert site.create("a-", NAMED_BY_TOPIC) == old, "created again"
    site.lead("a-", old)
    by_name = MemoryCoordination(site.etcd, "c")
    assert by_name.members().keys() == {"n"} and by_name.leader(0) is not None
    assert site.enter("a-").members() == by_name.members()


def test_old_clusters_that_share_their_keys_are_told_before_anyone_is_fenced() -> None:
    """Rules: realm"""
    site = Site()
    first, second = (site.create(prefix, NAMED_BY_CLUSTER) for prefix in ("a-", "b-"))
    assert first.realm == second.realm
    site.lead("a-", first)
    with pytest.raises(OtherClusterError, match="a-frontier") as refused:
        site.enter("b-")
    assert "Two clusters of one name" in refused.value.remedy
    site.enter("a-")


@pytest.mark.parametrize("mirrored", ["", "[]", "{}", '{"frontier": 1}'])
def test_a_copy_of_the_settings_that_says_nothing_stops_nobody(mirrored: str) -> None:
    site = Site()
    site.lead("a-", site.create("a-", NAMED_BY_CLUSTER)).put_settings(mirrored)
    site.enter("a-")


def test_a_lookup_by_a_name_that_two_clusters_have_says_so() -> None:
    """Rules: realm"""
    site = Site()
    by_name = MemoryCoordination(site.etcd, "c")
    assert admin_ports(by_name, None) == ()
    for prefix, found in (("a-", ("a-n:1",)), ("b-", None)):
        site.lead(prefix, site.create(prefix, NAMED_BY_TOPIC))
        if found:
            assert admin_ports(by_name, None) == found
    with pytest.raises(ConfigError, match="2 clusters"):
        admin_ports(by_name, None)
