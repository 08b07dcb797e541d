"""From whom a backup is taken: a member of a running cluster, a follower rather than the master."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from delayd.cluster.connect import open_bus, open_coordination
from delayd.cluster.fetching import ASK_OTHERS, DonorCalls, DonorError, donors_among
from delayd.cluster.member_proof import MemberKeys
from delayd.cluster.topics import load_settings
from delayd.commands.backup import manifest as manifests
from delayd.commands.backup.saving import Saved, Tell, known_in, save
from delayd.commands.backup.stores import Store
from delayd.config.cluster_key import check_key, proof_key
from delayd.config.node import NodeConfig
from delayd.errors import SnapshotError
from delayd.runtime.clock import Clock
from delayd.wheel.layout import FORMAT_VERSION
from replication.settings import Settings

FETCHER = "delayd-backup"
"""Stands where a node that fetches has its name."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster, as far as a backup needs it."""

    settings: Settings
    proof_key: bytes
    members: Callable[[], Mapping[str, str]]
    clock: Clock
    problems: dict[str, str] = field(default_factory=dict)
    """By node, why it gave nothing."""


@contextmanager
def connected(node: NodeConfig, clock: Clock) -> Iterator[Cluster]:
    """Connect as a node does. Raises what keeps a node from its cluster."""
    timeout_ms = int(node.connect_timeout_s * 1000)
    bus = open_bus(node.bootstrap, node.security.properties(), driver=node.driver)
    settings = load_settings(bus, node.cluster, node.prefix, timeout_ms).record.settings
    key = node.cluster_key.get_secret_value()
    check_key(key, settings)
    with closing(open_coordination(node.etcd, node.cluster, node.security)) as coordination:
        coordination.enter(settings.realm)
        coordination.check_reachable(timeout_ms)
        yield Cluster(settings, proof_key(key), coordination.members, clock)


def back_up(
    store: Store,
    cluster: Cluster,
    tell: Tell,
    say: Callable[[str], None],
    only: str | None = None,
) -> Saved:
    """Make a backup from the first node that gives all of its wheel, or from `only`. `say` gets
    what is about to be done, in a line.

    Raises SnapshotError if nobody gave one, BackupError and DiskFullError of the store.
    """
    settings = cluster.settings
    whose = {
        "cluster": settings.cluster,
        "prefix": settings.prefix,
        "realm": settings.realm,
        "buffer": settings.buffer.topic_id,
        "partitions": settings.partitions,
    }
    manifests.claim(store, whose)
    members = {n: value for n, value in cluster.members().items() if only in (None, n)}
    keys = MemberKeys(cluster.proof_key, settings.realm)
    for member in donors_among(members, cluster.problems, lambda member: False):
        calls = DonorCalls(member, keys, cluster.clock)
        try:
            return _from_donor(store, cluster, calls, whose, tell, say)
        except DonorError as error:
            cluster.problems[member.node] = str(error)
    told = "; ".join(f"{n}: {why}" for n, why in sorted(cluster.problems.items()))
    raise SnapshotError(
        f"no node gave its wheel: {told or 'none is announced in etcd'}", remedy=ASK_OTHERS
    )


def _from_donor(
    store: Store,
    cluster: Cluster,
    calls: DonorCalls,
    whose: Mapping[str, Any],
    tell: Tell,
    say: Callable[[str], None],
) -> Saved:
    known = known_in(store, tell)
    about = calls.begin(FETCHER)
    calls.snapshot, calls.catalogue_bytes = about["snapshot"], about["catalogue_bytes"]
    try:
        theirs = tuple(about[name] for name in ("realm", "buffer", "partitions", "format"))
        ours = (whose["realm"], whose["buffer"], whose["partitions"], FORMAT_VERSION)
        if theirs != ours:
            raise DonorError(f"it gives a wheel of {theirs}, and this cluster has {ours}")
        say(
            f"copies the wheel of {about['node']}: {about['files']} files with {about['bytes']} "
            f"bytes, about {about['catalogue_bytes']} bytes of catalogue; what the target has "
            "already is not copied again"
        )
        of_wheel = {name: about[name] for name in ("node", "ingested", "reached")}
        fields = {**whose, "wheel_format": about["format"], **of_wheel}
        return save(store, known, calls, tell, fields, cluster.clock.wall_ms())
    finally:
        calls.end()
