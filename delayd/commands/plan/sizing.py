"""What a cluster takes for a demand: nodes, shards, partitions, disk, memory, topics, network.

Pure: arithmetic over `figures.py`, and nothing else. Not here: options and words (`command.py`,
`showing.py`).

The model of a node's processor, in processors, with *rate* in messages a second:

    rate x INGEST + led x rate / shards x DELIVER     by message
    + led x STEPS x LED_STEP                          by step that the node commits
    + shards x STEPS x FOLLOWED_STEP                  by frontier record that it reads
    + NODE                                            at any rate

Invariants:
- `load_of` gives what the measured runs gave, at their sizes (`test_plan_sizing.py`).
- A plan that breaks a limit says so in `limits`; nothing is clamped to hide it.

Source: docs/design/scale.md.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from delayd.commands.plan import figures as known
from delayd.commands.plan.figures import DAY_S

NODES_MAX: Final = 128
"""No plan is looked for beyond it: every node takes in everything, so more of them hardly help."""
CLUSTERS_MAX: Final = 64
PROCESSORS_PLANNED: Final = known.PROCESSORS_MAX.value * known.LOAD.value
MASTER_PER_S_PLANNED: Final = known.DELIVER_PER_S.value * known.LOAD.value


@dataclass(frozen=True, slots=True)
class Demand:
    """What a cluster is to carry."""

    rate_per_s: float
    pending: float
    longest_delay_s: float
    message_bytes: int
    """Key, value and the user's headers."""
    id_share: float = 0.0
    """Of the messages, from 0 to 1."""
    is_native: bool = True


@dataclass(frozen=True, slots=True)
class Size:
    """A cluster of a certain size."""

    nodes: int
    shards: int
    copies: int | None = None
    """How many nodes store a message; None: all of them, as delayd does."""

    @property
    def share(self) -> float:
        """The part of everything that one node stores."""
        return 1.0 if self.copies is None else min(1.0, self.copies / self.nodes)

    @property
    def leads_max(self) -> int:
        """How many shards a node leads while another one is away."""
        return ceil(self.shards / max(1, self.nodes - 1))


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes of a node's volume, by what they are for."""

    pending: float
    held: float
    """Delivered, and kept for audits."""
    hour: float
    """The largest hour once more, while it is split."""
    ids: float
    export: float
    reserve: float

    @property
    def volume(self) -> float:
        """What the volume should have."""
        used = self.pending + self.held + self.hour + self.ids + self.export + self.reserve
        return used / known.DISK_FILL.value


@dataclass(frozen=True, slots=True)
class Network:
    """Bytes a second, and requests a second."""

    node_reads: float
    leaders_write: float
    """All of them together."""
    brokers_send: float
    """To nodes and to each other; without the consumers of the targets."""
    etcd_reads_per_s: float
    etcd_writes_per_s: float


@dataclass(frozen=True, slots=True)
class Topics:
    """Bytes on the brokers, all replicas together. The targets are their owners'."""

    buffer: float
    frontier: float


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds that work on all that is pending takes."""

    copy: float
    replay: float
    compare: float
    audit: float


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that does not fit."""

    name: str
    needed: float
    available: float
    unit: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Load:
    """What a cluster of a certain size pays for a demand."""

    size: Size
    partitions: int
    follower_processors: float
    leader_processors: float
    memory_bytes: float
    """Of a node in a second in which very much is due."""
    disk: Disk
    disk_write_bytes_per_s: float
    topics: Topics
    network: Network
    durations: Durations
    limits: tuple[Limit, ...]


def plan(demand: Demand, nodes: int | None = None, shards: int | None = None) -> Load:
    """Return the smallest cluster that carries the demand, with as many nodes and shards as given.

    If none does, the `limits` of the returned one say what does not fit.
    """
    size = smallest(demand, nodes, shards)
    if size is None:
        size = Size(nodes or int(known.NODES_MIN.value), shards or shards_for(demand))
    return load_of(demand, size)


def smallest(demand: Demand, nodes: int | None = None, shards: int | None = None) -> Size | None:
    """Return the cluster with the fewest nodes, then shards, whose masters keep up; None if no
    cluster does."""
    first = int(known.NODES_MIN.value)
    for count in range(first, NODES_MAX + 1) if nodes is None else (nodes,):
        fewest = shards_for(demand)
        # A shard more costs its leader steps: the best is the fewest that all but one node share.
        at_best = -(-fewest // max(1, count - 1)) * max(1, count - 1)
        if shards is not None:
            tried = range(shards, shards + 1) if shards >= fewest else range(0)
        else:
            tried = range(fewest, min(at_best, int(known.SHARDS_MAX.value)) + 1)
            if not tried or not _keeps_up(demand, Size(count, tried[-1])):
                continue
        for number in tried:
            if _keeps_up(demand, Size(count, number)):
                return Size(count, number)
    return None


def _keeps_up(demand: Demand, size: Size) -> bool:
    return _busiest(demand, size) <= PROCESSORS_PLANNED


def shards_for(demand: Demand) -> int:
    """Return the fewest shards of which none delivers more than is planned for one master."""
    return max(1, ceil(demand.rate_per_s / MASTER_PER_S_PLANNED))


def _busiest(demand: Demand, size: Size) -> float:
    return processors_of(demand, size, leads=size.leads_max)


def load_of(demand: Demand, size: Size) -> Load:
    """Return what a cluster of this size pays for the demand."""
    share, rate = size.share, demand.rate_per_s
    record = demand.message_bytes + known.BUFFER_BYTES.value
    partitions = partitions_for(demand, size.shards)
    disk = _disk_of(demand, share)
    frame = demand.message_bytes + known.FRAME_BYTES.value
    hour_bytes = _hour_messages(demand) * frame
    is_dense = hour_bytes > known.DENSE_HOUR_BYTES.value
    written = known.WRITTEN.value + (known.WRITTEN_DENSE.value if is_dense else 0)
    load = Load(
        size=size,
        partitions=partitions,
        follower_processors=processors_of(demand, size, leads=0),
        leader_processors=_busiest(demand, size),
        memory_bytes=(
            known.REST_BYTES.value
            + demand.pending * share * known.PENDING_MEMORY_BYTES.value
            + size.leads_max * known.LED_BYTES.value
        ),
        disk=disk,
        disk_write_bytes_per_s=rate * share * frame * written,
        topics=_topics_of(demand, size.shards, partitions, record),
        network=_network_of(demand, size, record),
        durations=_durations_of(demand, share, disk),
        limits=(),
    )
    return replace(load, limits=_limits_of(demand, load))


def processors_of(demand: Demand, size: Size, leads: int) -> float:
    """Return the processors that a node uses that leads so many shards."""
    steps = steps_per_s(demand, size.shards)
    deliver = known.DELIVER_NATIVE_US if demand.is_native else known.DELIVER_US
    return known.NODE_PROCESSORS.value + 1e-6 * (
        demand.rate_per_s * size.share * _ingest_us(demand)
        + leads / size.shards * demand.rate_per_s * deliver.value
        + leads * steps * known.LED_STEP_US.value
        + size.shards * size.share * steps * known.FOLLOWED_STEP_US.value
    )


def steps_per_s(demand: Demand, shards: int) -> float:
    """Return how many steps the master of a shard takes: no more than it has messages."""
    messages_per_s = demand.rate_per_s / shards
    return max(known.IDLE_STEPS_PER_S.value, min(known.STEPS_PER_S.value, messages_per_s))


def _ingest_us(demand: Demand) -> float:
    """Return the processor time to take one message in, by the share of those with an id."""
    plain, with_id = (
        (known.INGEST_NATIVE_US, known.ID_NATIVE_US)
        if demand.is_native
        else (known.INGEST_US, known.ID_US)
    )
    return plain.value * (1 - demand.id_share) + with_id.value * demand.id_share


def partitions_for(demand: Demand, shards: int) -> int:
    """Return the partitions of the buffer: a multiple of the shards, so that these are alike."""
    record = demand.message_bytes + known.BUFFER_BYTES.value
    wanted = max(
        known.PARTITIONS_MIN.value,
        demand.rate_per_s * record * _retention_s(demand) / known.PARTITION_BYTES_MAX.value,
        demand.rate_per_s * record / known.PARTITION_BYTES_PER_S_MAX.value,
    )
    return ceil(wanted / shards) * shards


def longest_delay_days(demand: Demand) -> int:
    """Return the longest delay in whole days, as `topics create` takes it."""
    return max(1, ceil(demand.longest_delay_s / DAY_S))


def _retention_s(demand: Demand) -> float:
    """Return how long the buffer keeps a request: the longest delay and a day."""
    return (longest_delay_days(demand) + 1) * DAY_S


def _hour_messages(demand: Demand) -> float:
    """Return how many messages are due in an hour: no more than are pending."""
    return min(demand.pending, demand.rate_per_s * 3_600)


def _disk_of(demand: Demand, share: float) -> Disk:
    frame = (demand.message_bytes + known.FRAME_BYTES.value) * share
    remembered = demand.pending + demand.rate_per_s * known.ID_MEMORY_S.value
    return Disk(
        pending=demand.pending * frame,
        held=demand.rate_per_s * known.HELD_S.value * frame,
        hour=_hour_messages(demand) * frame,
        ids=remembered * demand.id_share * share * known.ID_BYTES.value,
        export=demand.pending * share * known.EXPORT_BYTES.value,
        reserve=known.FREE_MIN_BYTES.value * known.FREE_TIMES.value,
    )


def _topics_of(demand: Demand, shards: int, partitions: int, record: float) -> Topics:
    frontier = (
        known.FRONTIER_RECORD_BYTES.value
        + partitions / shards * known.FRONTIER_PARTITION_BYTES.value
    )
    copies = known.BUFFER_COPIES.value
    return Topics(
        buffer=demand.rate_per_s * record * _retention_s(demand) * copies,
        frontier=shards * steps_per_s(demand, shards) * DAY_S * frontier * copies,
    )


def _network_of(demand: Demand, size: Size, record: float) -> Network:
    taken = demand.rate_per_s * record
    delivered = demand.rate_per_s * (demand.message_bytes + known.DELIVERED_BYTES.value)
    between = known.BUFFER_COPIES.value - 1
    polls_per_s = size.shards * size.share * known.POLLS_PER_S.value
    return Network(
        node_reads=taken * size.share,
        leaders_write=delivered,
        brokers_send=taken * size.share * size.nodes + (taken + delivered) * between,
        etcd_reads_per_s=size.nodes * min(polls_per_s, known.READS_PER_S_MAX.value),
        etcd_writes_per_s=size.shards * known.LEADER_WRITES_PER_S.value,
    )


def _durations_of(demand: Demand, share: float, disk: Disk) -> Durations:
    pending = demand.pending * share
    buffered = demand.rate_per_s * _retention_s(demand) * share
    return Durations(
        copy=disk.pending / known.COPY_BYTES_PER_S.value,
        replay=buffered / known.REPLAY_PER_S.value,
        compare=pending / known.COMPARED_PER_S.value,
        audit=demand.rate_per_s * _retention_s(demand) / known.AUDITED.value * known.AUDIT_S.value,
    )


def _limits_of(demand: Demand, load: Load) -> tuple[Limit, ...]:
    """Return the limits that a load breaks, the one that is reached first first."""
    if load.leader_processors > PROCESSORS_PLANNED and smallest(demand) is None:
        processor = "every node takes in everything, so more do not help: use several clusters"
    else:
        processor = "more nodes, and more shards than nodes"
    per_master = demand.rate_per_s / load.size.shards
    limits = (
        Limit(
            *("shards", load.size.shards, known.SHARDS_MAX.value, "shards"),
            "use several clusters",
        ),
        Limit("processor", load.leader_processors, PROCESSORS_PLANNED, "processors", processor),
        Limit("master", per_master, MASTER_PER_S_PLANNED, "messages/s", "more shards"),
        Limit(
            *("disk", load.disk.volume, known.VOLUME_BYTES_MAX.value, "bytes"),
            "every node stores everything: use several clusters, or shorter delays",
        ),
        Limit(
            *("partitions", load.partitions, known.PARTITIONS_MAX.value, "partitions"),
            "use several clusters, or shorter delays",
        ),
        Limit(
            *("request", demand.message_bytes, known.REQUEST_BYTES_MAX.value, "bytes"),
            "raise message.max.bytes of the brokers before the topics are created",
        ),
    )
    broken = (each for each in limits if each.needed > each.available)
    return tuple(sorted(broken, key=lambda each: each.available / each.needed))


def clusters_for(demand: Demand) -> int | None:
    """Return the fewest clusters, each with its part of the demand, that break no limit; None if
    not even `CLUSTERS_MAX` would do."""
    for count in range(1, CLUSTERS_MAX + 1):
        part = replace(demand, rate_per_s=demand.rate_per_s / count, pending=demand.pending / count)
        if not plan(part).limits:
            return count
    return None
