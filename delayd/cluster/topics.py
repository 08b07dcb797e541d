"""delayd's own topics: how they are made, and how a cluster's settings are read from them.

`create` also writes the first frontier record, which fixes the cluster's settings for ever. Not
here: what the contract needs of the topics later (`topic_checks.py`).
Source: docs/reference/topics.md.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import NamedTuple

from delayd.bus import Bus, Cluster, TopicState
from delayd.cluster.frontier_log import (
    FrontierLog,
    SeenFrontier,
    joint_seen,
    no_record,
    send_frontiers,
)
from delayd.cluster.time_kind import refuse_other_time
from delayd.cluster.topic_checks import (
    CREATE_COMMAND,
    RECORD_MARGIN_BYTES,
    UNCOMPRESSED,
    check_topics,
    topic_findings,
)
from delayd.config.cluster_key import fingerprint, refuse_weak_key
from delayd.errors import (
    ConfigError,
    FrontierError,
    NotInitialisedError,
    OtherClusterError,
    TopicMismatchError,
)
from delayd.runtime.clock import SystemClock
from replication.record import FrontierRecord, StepCounts
from replication.settings import (
    AT_LEAST_ONCE,
    DAY_MS,
    EXACTLY_ONCE,
    LANES,
    NAMED_BY_TOPIC,
    RECEIPTS_VERDICTS,
    RETRY_DELAYS_MS,
    RULES_KNOWN,
    RULES_VERSION,
    Settings,
    Topic,
    settings_problem,
    shards_problem,
)
from replication.shards import first_of_shard

CREATOR = "topics-create"
"""The owner of a cluster's first frontier records."""
MAX_DELAY_MS_DEFAULT = 40 * DAY_MS
ID_MEMORY_MS = DAY_MS
RECEIPTS_RETENTION_MS = 7 * DAY_MS
DEAD_RETENTION_MS = 30 * DAY_MS
COMPACTION_LAG_MS = DAY_MS
SETTLE_MS = 5_000
"""How long brokers may take to agree on topics that were just made."""
SETTLE_POLL_MS = 50
TIMEOUT_MS = 30_000

FindFrontier = Callable[[Bus, str, int], SeenFrontier | None]
"""Reads a frontier topic within so many ms."""


class TopicNames(NamedTuple):
    """The names of delayd's topics under a prefix."""

    buffer: str
    frontier: str
    receipts: str
    dead: str


def topic_names(prefix: str) -> TopicNames:
    """Return the names of delayd's topics under a prefix."""
    return TopicNames(*(f"{prefix}{kind}" for kind in TopicNames._fields))


def transactional_id(realm: str, shard: int) -> str:
    """Return the static id that fences a shard's masters: one per cluster (`Settings.realm`) and
    shard."""
    return f"delayd-{realm}-shard-{shard}"


def create_topics(
    bus: Bus,
    *,
    cluster: str,
    cluster_key: str,
    prefix: str = "delayd-",
    partitions: int = 4,
    replication_factor: int | None = None,
    max_delay_ms: int = MAX_DELAY_MS_DEFAULT,
    retry_delays_ms: tuple[int, ...] = RETRY_DELAYS_MS,
    receipts_written: str = RECEIPTS_VERDICTS,
    guarantee: str = EXACTLY_ONCE,
    id_memory_ms: int = ID_MEMORY_MS,
    naming: int = NAMED_BY_TOPIC,
    tracing_headers: tuple[str, ...] = (),
    rules_version: int = RULES_VERSION,
    shards: int = 1,
    virtual: bool = False,
    adopt_buffer: bool = False,
    timeout_ms: int = TIMEOUT_MS,
) -> Settings:
    """Create the topics that are missing and initialise the cluster. Idempotent.

    A cluster that exists keeps its settings, its key too: compare with `cluster_key.check_key`.
    `naming` and `virtual` are of a new one; `rules_version` is older in tests only. With
    `adopt_buffer` a buffer may hold records: all are delivered. FrontierError if topics were used
    and no record says how far; ConfigError, TopicMismatchError, ProducerError, and others of Kafka.
    """
    names = topic_names(prefix)
    refuse_weak_key(cluster_key)
    chosen = (max_delay_ms, retry_delays_ms, receipts_written, guarantee, tracing_headers)
    problem = settings_problem(*chosen, id_memory_ms)
    if problem := problem or shards_problem(shards, partitions, guarantee):
        raise ConfigError(problem, remedy=f"see `{CREATE_COMMAND} --help`")
    proposed = partial(
        Settings,
        cluster=cluster,
        partitions=partitions,
        max_delay_ms=max_delay_ms,
        id_memory_ms=id_memory_ms,
        prefix=prefix,
        retry_delays_ms=retry_delays_ms,
        receipts_written=receipts_written,
        guarantee=guarantee,
        naming=naming,
        tracing_headers=tracing_headers,
        rules_version=rules_version,
        shards=shards,
        virtual=virtual,
        key_fingerprint=fingerprint(cluster_key, cluster),
    )
    with closing(bus.cluster()) as kafka:
        factor = replication_factor or min(3, kafka.broker_count(timeout_ms))
        _create_missing(kafka, names, (partitions, shards), factor, max_delay_ms, timeout_ms)
        seen = last_frontier(bus, names.frontier, timeout_ms)
        if seen is None:
            fresh = _with_topics(proposed, names, _all_visible(kafka, names, timeout_ms))
            return _write_first_frontier(bus, kafka, fresh, adopt_buffer, timeout_ms)
        _refuse_other_cluster(seen.record.settings, cluster)
        return _checked(seen.record.settings, _visible(kafka, names, timeout_ms))


def _create_missing(
    kafka: Cluster,
    names: TopicNames,
    counts: tuple[int, int],
    factor: int,
    max_delay_ms: int,
    timeout_ms: int,
) -> None:
    """`counts`: partitions of the buffer, and shards."""
    partitions, shards = counts
    for name, config in _wanted_config(names, max_delay_ms, factor).items():
        kafka.create_topic(
            name,
            partitions=shards if name == names.frontier else partitions,
            replication_factor=factor,
            config=config,
            timeout_ms=timeout_ms,
        )


def create_frontier_topic(kafka: Cluster, settings: Settings, timeout_ms: int) -> str:
    """Create the frontier topic of a cluster that has lost it, with the buffer's replicas, unless
    it is there; return its id. Raises TopicMismatchError if it does not become visible."""
    name, buffer = settings.frontier.name, settings.buffer.name
    names = topic_names(settings.prefix)
    factor = kafka.describe([buffer], timeout_ms)[buffer].partitions[0].replicas
    kafka.create_topic(
        name,
        partitions=settings.shards,
        replication_factor=factor,
        config=_wanted_config(names, settings.max_delay_ms, factor)[name],
        timeout_ms=timeout_ms,
    )
    states = _visible(kafka, names, timeout_ms)
    if name not in states:
        raise TopicMismatchError(f"{name} is not visible after its creation")
    return states[name].topic_id


def _with_topics(
    proposed: Callable[..., Settings], names: TopicNames, states: Mapping[str, TopicState]
) -> Settings:
    """Return the settings of a new cluster: as proposed, with its topics and their limit.

    Raises TopicMismatchError if a topic breaks the contract: once the first record is written,
    nothing but its answer can fail.
    """
    largest = min(int(state.config["max.message.bytes"]) for state in states.values())
    settings = proposed(
        lanes=LANES,
        record_bytes_max=largest - RECORD_MARGIN_BYTES,
        **{kind: Topic(name, states[name].topic_id) for kind, name in names._asdict().items()},
    )
    return _checked(settings, states)


def _checked(settings: Settings, states: Mapping[str, TopicState]) -> Settings:
    """Return the settings. Raises TopicMismatchError if a topic breaks the contract."""
    _refuse_problems(topic_findings(states, settings).all)
    return settings


def last_frontier(bus: Bus, topic: str, timeout_ms: int = TIMEOUT_MS) -> SeenFrontier | None:
    """Return the last committed frontier record, joint if there are several shards; None if the
    topic is absent or empty. FrontierError if it lacks that of a shard."""
    clock, pause = SystemClock(), threading.Event()
    deadline_ms = clock.monotonic_ms() + SETTLE_MS
    while True:
        first, _ = read_frontier(bus, topic, timeout_ms)
        if first is None:
            return None
        shards = first.record.settings.shards
        parts = [first, *(read_frontier(bus, topic, timeout_ms, n)[0] for n in range(1, shards))]
        found = [part for part in parts if part is not None]
        is_whole = len(found) == shards and all(
            part.record.settings.shards == shards for part in found
        )
        # The markers of a transaction that writes to several partitions do not come at one moment.
        if is_whole or clock.monotonic_ms() >= deadline_ms:
            break
        pause.wait(SETTLE_POLL_MS / 1000)
    if len(found) < shards:
        raise no_record(bus, topic, parts.index(None), timeout_ms)
    return joint_seen(found)


def read_frontier(
    bus: Bus, topic: str, timeout_ms: int, shard: int = 0, *, takes_moved: bool = False
) -> tuple[SeenFrontier | None, int]:
    """Return the last committed frontier record, and up to where its partition was read."""
    with closing(bus.cluster()) as kafka:
        if topic not in kafka.describe([topic], timeout_ms):
            return None, 0
    with closing(FrontierLog(bus, topic, shard, takes_moved=takes_moved)) as log:
        return log.open(timeout_ms), log.read_to


def load_settings(
    bus: Bus, cluster: str, prefix: str, timeout_ms: int, find: FindFrontier = last_frontier
) -> SeenFrontier:
    """Return the cluster's settings, checked against the topics as they are now.

    Raises what `read_settings` raises, and TopicMismatchError where a topic or a broker setting
    breaks the contract. Warnings (`Findings`) are nobody's reason to stop.
    """
    seen = read_settings(bus, cluster, prefix, timeout_ms, find)
    with closing(bus.cluster()) as kafka:
        _refuse_problems(check_topics(kafka, seen.record.settings, timeout_ms).broken)
    return seen


def read_settings(
    bus: Bus, cluster: str, prefix: str, timeout_ms: int, find: FindFrontier = last_frontier
) -> SeenFrontier:
    """Return the cluster's settings, whatever its topics are like now. `find` reads them.

    Raises NotInitialisedError where there is no frontier record, OtherClusterError if it is another
    cluster's, VirtualClusterError if its time is of the other kind than this program's,
    TopicMismatchError if this program does not know its rules.
    """
    names = topic_names(prefix)
    seen = find(bus, names.frontier, timeout_ms)
    if seen is None:
        raise NotInitialisedError(
            f"{names.frontier} holds no frontier record: this cluster was never initialised, "
            "or the topic was lost",
            remedy=f"run `{CREATE_COMMAND}` if it is new; otherwise see docs/operations.md, "
            "because starting at 'now' would lose messages",
        )
    settings = seen.record.settings
    _refuse_other_cluster(settings, cluster)
    refuse_other_time(settings)
    if settings.rules_version not in RULES_KNOWN:
        raise TopicMismatchError(
            f"the cluster uses ingest rules version {settings.rules_version}, this program knows "
            f"{', '.join(map(str, RULES_KNOWN))}",
            remedy="run the version of delayd that the other nodes run",
        )
    return seen


def _wanted_config(
    names: TopicNames, max_delay_ms: int, replication_factor: int
) -> Mapping[str, Mapping[str, str]]:
    """Return the topic settings as created, by topic name."""
    shared = {
        "min.insync.replicas": "2" if replication_factor >= 3 else "1",
        "unclean.leader.election.enable": "false",
        "cleanup.policy": "delete",
    }
    return {
        names.buffer: {
            **shared,
            "message.timestamp.type": "LogAppendTime",
            "compression.type": UNCOMPRESSED,
            "retention.ms": str(max_delay_ms + DAY_MS),
            "retention.bytes": "-1",
        },
        names.frontier: {
            **shared,
            "cleanup.policy": "compact",
            "message.timestamp.type": "LogAppendTime",
            "min.compaction.lag.ms": str(COMPACTION_LAG_MS),
            # A record is much like the one before it, and each is a batch of its own.
            "compression.type": "gzip",
        },
        names.receipts: {**shared, "retention.ms": str(RECEIPTS_RETENTION_MS)},
        names.dead: {**shared, "retention.ms": str(DEAD_RETENTION_MS)},
    }


def _all_visible(kafka: Cluster, names: TopicNames, timeout_ms: int) -> dict[str, TopicState]:
    """Return the topics of a new cluster, as they were made."""
    states = _visible(kafka, names, timeout_ms)
    missing = [name for name in names if name not in states]
    if missing:
        raise TopicMismatchError(
            f"topics {', '.join(missing)} are not visible after their creation",
            remedy=f"run `{CREATE_COMMAND}` again",
        )
    return states


def _write_first_frontier(
    bus: Bus, kafka: Cluster, settings: Settings, adopt_buffer: bool, timeout_ms: int
) -> Settings:
    """Write the first frontier record, which initialises the cluster.

    Only a frontier topic that never held a committed record may be initialised: one that lost its
    records belongs to a cluster whose progress is unknown. Aborted attempts do no harm.
    """
    name = settings.frontier.name
    with _first_step(bus, settings, timeout_ms) as write:
        reads = [read_frontier(bus, name, timeout_ms, n) for n in range(settings.shards)]
        ends = [end for _, end in reads]
        for seen, _ in reads:
            if seen is not None:
                _refuse_other_cluster(seen.record.settings, settings.cluster)
                return seen.record.settings
        trimmed = any(kafka.start_offsets(name, timeout_ms).values())
        filled = any(kafka.end_offsets(settings.buffer.name, timeout_ms, committed=False).values())
        if trimmed or (filled and not adopt_buffer):
            lost = f"{name} was trimmed" if trimmed else f"{settings.buffer.name} has been used"
            raise FrontierError(
                f"{lost}, but there is no frontier record to say what was delivered from it",
                remedy="if nothing was ever delivered from this buffer, run "
                f"`{CREATE_COMMAND} --adopt-buffer`; otherwise see docs/operations.md",
            )
        write([_first_record(settings, shard) for shard in range(settings.shards)], ends)
        if settings.guarantee == AT_LEAST_ONCE:
            # Nobody was fenced: the record that another creator wrote first counts.
            seen = last_frontier(bus, name, timeout_ms)
            # A broker that does not know the topic yet returns none.
            return settings if seen is None else seen.record.settings
        return settings


def _first_record(settings: Settings, shard: int) -> FrontierRecord:
    return FrontierRecord(
        frontier=first_of_shard(shard, settings.shards, settings.partitions, settings.lanes),
        owner=CREATOR,
        now_ms=0,
        counts=StepCounts(),
        digest=0,
        settings=settings,
    )


@contextmanager
def _first_step(
    bus: Bus, settings: Settings, timeout_ms: int
) -> Iterator[Callable[[Sequence[FrontierRecord], Sequence[int]], object]]:
    """Yield the function that writes the records that initialise a cluster, one of each shard,
    given up to where each partition of their topic was read. It raises ProducerError, and
    FrontierError if such a read was stale. All are written in one transaction, under the
    transactional id of the first shard's masters: two creators fence each other. Without
    transactions there is one shard, and the first record counts (`FrontierLog`)."""
    topic = settings.frontier.name

    def commit(records: Sequence[FrontierRecord], ends: Sequence[int]) -> None:
        transaction.begin()
        landed = send_frontiers(transaction, topic, records, timeout_ms)
        if landed != (wanted := dict(enumerate(ends))):
            raise FrontierError(
                f"{topic} was read up to offsets {wanted}, and the first records are at "
                f"{landed}: a broker that was asked leads no more",
                remedy=f"run `{CREATE_COMMAND}` again; nothing was written",
            )
        transaction.commit(timeout_ms)

    if settings.guarantee == AT_LEAST_ONCE:
        with closing(bus.idempotent_producer()) as producer:
            yield lambda records, _: send_frontiers(producer, topic, records, timeout_ms)
        return
    name = transactional_id(settings.realm, 0)
    with closing(bus.transactional_producer(name)) as transaction:
        transaction.init_transactions(timeout_ms)
        yield commit


def _visible(kafka: Cluster, names: TopicNames, timeout_ms: int) -> dict[str, TopicState]:
    """Return delayd's topics once all are visible, or those visible after SETTLE_MS: brokers do not
    learn of a new topic at the same moment."""
    clock, pause = SystemClock(), threading.Event()
    deadline_ms = clock.monotonic_ms() + SETTLE_MS
    while True:
        states = kafka.describe(names, timeout_ms)
        if len(states) == len(names) or clock.monotonic_ms() > deadline_ms:
            return states
        pause.wait(SETTLE_POLL_MS / 1000)


def _refuse_problems(problems: Sequence[str]) -> None:
    if problems:
        raise TopicMismatchError("; ".join(problems))


def _refuse_other_cluster(settings: Settings, cluster: str) -> None:
    if settings.cluster != cluster:
        raise OtherClusterError(
            f"these topics belong to the cluster {settings.cluster!r}, not {cluster!r}",
            remedy="set --cluster to that name, or use another --prefix",
        )
