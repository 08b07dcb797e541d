"""The switch of a running cluster to newer ingest rules: a barrier in each partition of the buffer.

1. Every node that etcd knows says that it knows the new version.
2. A barrier is written to one partition, unless the last frontier names one.
3. A frontier record names it: from then on no node of an older release delivers, nor starts.
4. The nodes are asked again: one of an older release may have been started meanwhile.
5. The same for all other partitions that are not switched.

Killed half-way, run again, run by two people at once: a partition keeps the first barrier that
switches it, and a second one there changes nothing (`replication.rules`).

Source: docs/design/frontier.md, "Rules switch".
"""

import json
from collections.abc import Mapping
from contextlib import closing

from delayd.bus import Ack, Bus
from delayd.cluster.frontier_log import POLL_MS
from delayd.cluster.joint_log import JointLog
from delayd.cluster.topics import load_settings
from delayd.config.cluster_key import check_key, signing_key
from delayd.coordination import Coordination
from delayd.errors import UpgradeError
from delayd.request.internal import BufferRecord, barrier
from delayd.request.request import RequestLimits, Switch
from delayd.runtime.clock import Clock
from replication.features import FEATURES, rules_feature
from replication.record import FrontierRecord
from replication.settings import Settings


def switch_rules(
    bus: Bus,
    coordination: Coordination,
    clock: Clock,
    *,
    cluster: str,
    prefix: str,
    cluster_key: str,
    version: int,
    timeout_ms: int,
) -> list[int]:
    """Switch the cluster to a version of the rules; return the partitions that got a barrier.

    Raises UpgradeError if a node does not know the version, and if no frontier names the barriers
    in time; WrongClusterKeyError, and what `load_settings` and the drivers raise.
    """
    record = load_settings(bus, cluster, prefix, timeout_ms).record
    settings = record.settings
    check_key(cluster_key, settings)
    coordination.enter(settings.realm)
    refuse_unready(coordination.members(), version)
    left = left_to_switch(record, version)
    is_begun = len(left) < settings.partitions
    for part in [left] if is_begun else [left[:1], left[1:]]:
        if part:
            barriers = barriers_for(settings, part, version, cluster_key)
            write_barriers(bus, barriers, settings, timeout_ms)
            _wait_named(bus, clock, settings, part, version, timeout_ms)
        refuse_unready(coordination.members(), version)
    return left


def refuse_unready(members: Mapping[str, str], version: int) -> None:
    """Raise UpgradeError unless there are nodes, and all say that they know the version."""
    if not members:
        raise UpgradeError(
            "etcd knows no node of this cluster, so nobody says which rules they know",
            remedy="start the nodes, and wait until `delayd status` shows them",
        )
    unready = [name for name, value in sorted(members.items()) if version not in _known(value)]
    if unready:
        raise UpgradeError(
            f"{', '.join(unready)} do not say that they know rules version {version}",
            remedy=f"replace them by delayd {FEATURES[rules_feature(version)]} or later, wait "
            "until `delayd status` shows them, then run this again",
        )


def left_to_switch(record: FrontierRecord, version: int) -> list[int]:
    """Return the partitions of the buffer that a frontier shows under older rules."""
    rules = record.rules
    return [p for p in range(record.settings.partitions) if rules.last(p) < version]


def barriers_for(
    settings: Settings, partitions: list[int], version: int, cluster_key: str
) -> list[BufferRecord]:
    """Return the barriers of these partitions, with their proofs: under the key by which the master
    signs, because some nodes may not accept another one yet, or any more."""
    limits = RequestLimits.of(settings, signing_key(cluster_key, settings))
    switch = Switch(version, FEATURES[rules_feature(version)])
    return [barrier(partition, switch, limits) for partition in partitions]


def write_barriers(
    bus: Bus, barriers: list[BufferRecord], settings: Settings, timeout_ms: int
) -> None:
    """Append barriers to the buffer, and wait for their acknowledgement; raises ProducerError."""
    acks: list[Ack] = []
    with closing(bus.idempotent_producer()) as producer:
        for partition, key, value, headers in barriers:
            producer.send(
                settings.buffer.name,
                key=key,
                value=value,
                headers=headers,
                partition=partition,
                on_ack=acks.append,
            )
        producer.flush(timeout_ms)
    assert len(acks) == len(barriers), "a flush acknowledges all, or raises"


def _wait_named(
    bus: Bus,
    clock: Clock,
    settings: Settings,
    partitions: list[int],
    version: int,
    timeout_ms: int,
) -> None:
    """Wait until a frontier shows these partitions to be switched; raises UpgradeError."""
    waited_for = set(partitions)
    deadline_ms = clock.monotonic_ms() + timeout_ms
    with closing(JointLog(bus, settings)) as log:
        log.open(timeout_ms)
        while log.newest is None or waited_for & {*left_to_switch(log.newest.record, version)}:
            if clock.monotonic_ms() > deadline_ms:
                raise UpgradeError(
                    f"barriers are written to partitions {', '.join(map(str, partitions))}, and no "
                    "master that knows them has passed them all yet",
                    remedy="see `delayd status`, then run this again: it changes nothing twice",
                )
            log.poll(POLL_MS)


def _known(member: str) -> list[int]:
    """Return the versions of the rules that a node says it knows; a release before 0.2.0 says
    nothing."""
    try:
        said = json.loads(member)["rules"]
        return [int(version) for version in said]
    except (ValueError, KeyError, TypeError):
        return []
