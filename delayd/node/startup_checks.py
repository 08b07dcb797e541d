"""Checks of a node before it starts: log, disk and settings belong together.

Not here: topics and broker settings (`delayd.cluster.topics`), crash recovery of the wheel.
"""

import contextlib
import json
import shutil
from collections.abc import Mapping
from typing import Final

import structlog

from delayd.bus import Bus
from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.key_checks import check_keys_before, unnamed_keys_lack
from delayd.cluster.topic_checks import check_topics
from delayd.cluster.topics import last_frontier, load_settings
from delayd.config.node import NodeConfig
from delayd.coordination import Coordination
from delayd.errors import (
    BufferPositionError,
    ConfigError,
    DiskError,
    KafkaUnreachableError,
    LogNotEnoughError,
    OtherClusterError,
    TopicMismatchError,
)
from delayd.node.replica.replica import Replica
from delayd.runtime.clock import Clock
from delayd.runtime.threads import Threads
from replication.record import FrontierRecord
from replication.settings import EXACTLY_ONCE, NAMED_BY_CLUSTER, SMOOTHING_RULES, Settings

log = structlog.get_logger()

MARKER_POLL_S = 0.1

SETTINGS_MS: Final = 2_000
"""How long brokers are asked for their settings, which nothing of a start depends on."""

BROKER_SESSION: Final = "broker.session.timeout.ms"
BROKER_SESSION_MS_MAX: Final = 10_000
"""Until a broker's session is over Kafka keeps it as leader and replica, though it is frozen or
dead, and no transaction ends that needs it. A little more than Kafka's default of 9 s."""

QUORUM_FETCH: Final = "controller.quorum.fetch.timeout.ms"
QUORUM_FETCH_MS_MAX: Final = 5_000
"""For so long the other controllers wait for one that leads them and is dead, before any session
can end. Kafka's default is 2 s."""


def newest_of(
    bus: Bus,
    replica: Replica,
    seen: SeenFrontier,
    timeout_ms: int,
    clock: Clock,
    threads: Threads,
) -> SeenFrontier:
    """Return the last committed frontier, once its log shows what this node knew before it was
    started.

    The commit marker of the step that the last checkpoint remembers may still be on its way.
    """
    deadline_ms = clock.monotonic_ms() + timeout_ms
    while replica.lost_steps(seen.record.frontier) and clock.monotonic_ms() < deadline_ms:
        threads.event().wait(MARKER_POLL_S)
        again = last_frontier(bus, replica.settings.frontier.name, timeout_ms)
        seen = again or seen
    return seen


def check_guarantee(config: NodeConfig, settings: Settings) -> None:
    """Raise ConfigError if the cluster was not made for the guarantee that this node is configured
    for."""
    if config.cancel_on and settings.guarantee != EXACTLY_ONCE:
        raise ConfigError(
            f"cancel_on needs transactions, and the cluster {settings.cluster!r} was made for "
            f"{settings.guarantee!r}",
            remedy="leave cancel_on out, and cancel by a program of your own",
        )
    if config.guarantee in ("either", settings.guarantee):
        return
    raise ConfigError(
        f"this node is configured for guarantee = {config.guarantee!r}, but the cluster "
        f"{settings.cluster!r} was made for {settings.guarantee!r}",
        remedy=f'set guarantee = "{settings.guarantee}" or leave it out; what a cluster guarantees '
        "is fixed when its topics are made, so another guarantee needs another cluster: "
        f"`delayd topics create --guarantee {config.guarantee} --cluster NAME --prefix NAME-`",
    )


def check_disk_limit(config: NodeConfig) -> None:
    """Raise DiskError if the limit of free room exceeds the whole volume of the data directory."""
    total_bytes = shutil.disk_usage(config.data_dir).total
    if config.disk_free_min_bytes > total_bytes:
        raise DiskError(
            f"the volume of {config.data_dir} has {total_bytes} bytes, fewer than "
            f"disk_free_min_bytes = {config.disk_free_min_bytes}: the node would never take "
            "anything in",
            remedy="give the node a larger volume, or a smaller disk_free_min_bytes; "
            "nothing is lost",
        )


def enter_cluster(bus: Bus, coordination: Coordination, config: NodeConfig) -> SeenFrontier:
    """Return the frontier whose settings are the cluster's, and use its keys in etcd from now on.

    Raises what `load_settings` raises, and OtherClusterError if the keys are another cluster's:
    before this node campaigns, and so before it fences anybody.
    """
    timeout_ms = int(config.connect_timeout_s * 1000)
    seen = load_settings(bus, config.cluster, config.prefix, timeout_ms)
    settings = seen.record.settings
    coordination.enter(settings.realm)
    if settings.naming == NAMED_BY_CLUSTER:
        _refuse_other_keys(settings, coordination.settings())
    return seen


def check_rates(config: NodeConfig, record: FrontierRecord) -> None:
    """Raise ConfigError if this node may not smooth in this cluster as it is configured to."""
    settings = record.settings
    own = sorted(name for name in config.rate_max if name.startswith((settings.prefix, "__")))
    if own:
        raise ConfigError(
            f"rate_max names {', '.join(own)}, to which nothing is ever delivered",
            remedy=f"leave it out: names that begin with {settings.prefix} or __ are no targets",
        )
    version = record.rules.lowest(settings.partitions)
    if config.rate_max and version < SMOOTHING_RULES:
        raise ConfigError(
            f"rate_max is set, but the cluster {settings.cluster!r} has rules version {version}, "
            f"and smoothing needs {SMOOTHING_RULES}",
            remedy="leave rate_max out, or switch the cluster with `delayd upgrade rules`",
        )


def note_slow_brokers(bus: Bus, timeout_ms: int) -> None:
    """Log if a broker that hangs may hold up all deliveries for much longer than Kafka's defaults
    let it. Says nothing where brokers do not tell their settings soon, or there is only one: a
    broker that hangs now holds up no start for longer than SETTINGS_MS."""
    with (
        contextlib.suppress(KafkaUnreachableError, TopicMismatchError),
        contextlib.closing(bus.cluster()) as cluster,
    ):
        told = cluster.broker_settings(min(timeout_ms, SETTINGS_MS))
        if len(told) < 2:
            return
        for setting, most_ms in (
            (BROKER_SESSION, BROKER_SESSION_MS_MAX),
            (QUORUM_FETCH, QUORUM_FETCH_MS_MAX),
        ):
            set_ms = max(int(each.get(setting) or 0) for each in told.values())
            if set_ms > most_ms:
                log.warning(
                    "brokers_replaced_slowly",
                    setting=setting,
                    set_ms=set_ms,
                    remedy=f"set {setting} to {most_ms} or less: see docs/operations.md, "
                    "'A broker that dies'",
                )


def check_positions(bus: Bus, replica: Replica, timeout_ms: int) -> None:
    """Raise BufferPositionError if the buffer no longer holds what this replica has to read.

    A position beyond the end means that the log lost records on which this node has already acted.
    """
    topic = replica.settings.buffer.name
    cluster = bus.cluster()
    with contextlib.closing(cluster):
        starts = cluster.start_offsets(topic, timeout_ms)
        ends = cluster.end_offsets(topic, timeout_ms, committed=False)
    for partition, position in replica.positions.items():
        if position.offset < starts[partition] <= replica.reached[partition]:
            # Only markers and aborted records were trimmed, and this node has passed them.
            replica.resume_at(partition, starts[partition])
        elif position.offset < starts[partition]:
            raise BufferPositionError(
                f"{topic}/{partition} was trimmed up to offset {starts[partition]} while this node "
                "started",
                remedy="start it again",
            )
        if position.offset > ends[partition]:
            raise BufferPositionError(
                f"this node's checkpoint is at offset {position.offset} of {topic}/{partition}, "
                f"which ends at {ends[partition]}",
                remedy="the topic lost records or was created again: see docs/operations.md",
            )


def takes_heavy_batches(bus: Bus, settings: Settings, timeout_ms: int) -> bool:
    """Return whether brokers let batches into the buffer that no node can hold: it must then be
    read carefully, for librdkafka expands them before anybody can measure them."""
    with contextlib.closing(bus.cluster()) as cluster:
        return bool(check_topics(cluster, settings, timeout_ms).advice)


def heavy_batches_end(bus: Bus, settings: Settings, timeout_ms: int) -> Mapping[int, int]:
    """Return the offset of each partition below which there may be such batches, though brokers
    take none now: in a cluster that a release before 0.2.0 made they took them once."""
    if settings.naming != NAMED_BY_CLUSTER:
        return {}
    with contextlib.closing(bus.cluster()) as cluster:
        return cluster.end_offsets(settings.buffer.name, timeout_ms, committed=False)


def check_old_keys(
    bus: Bus, replica: Replica, cluster_key: str, clock: Clock, timeout_ms: int
) -> None:
    """Raise WrongClusterKeyError if this replica has yet to read records that a cluster key may
    have signed which it was not given; LogNotEnoughError if nobody can say which."""
    read_to = {partition: position.offset for partition, position in replica.positions.items()}
    if lack := unnamed_keys_lack(bus, replica.settings, read_to, clock, timeout_ms):
        raise LogNotEnoughError(
            lack,
            remedy="unless on_damage is stop the node copies another node's wheel; it cannot "
            "rebuild its own until the buffer is trimmed beyond these records",
        )
    check_keys_before(cluster_key, replica.settings, bus, read_to, clock, timeout_ms)


def _refuse_other_keys(settings: Settings, mirrored: str | None) -> None:
    """Raise OtherClusterError if etcd's copy of the settings, under the keys of this cluster, is
    another cluster's: its nodes and these would take each other for one cluster."""
    if mirrored is None:
        return
    try:
        other = json.loads(mirrored)["frontier"]
        name, topic_id = str(other["name"]), str(other["topic_id"])
    except (ValueError, KeyError, TypeError):
        return  # It is for people, and the next master writes it again.
    if topic_id != settings.frontier.topic_id:
        raise OtherClusterError(
            f"the keys of {settings.realm} in etcd belong to another cluster of that name, whose "
            f"frontier topic is {name} ({topic_id}), not {settings.frontier.name} "
            f"({settings.frontier.topic_id})",
            remedy="see docs/operations.md, 'Two clusters of one name'; nothing was started, and "
            "nobody was fenced",
        )
