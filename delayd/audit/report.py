"""The outcome of an audit as one value: small, whatever was judged. Times are Unix ms.

`Report.to_json` is what `delayd audit --json` prints (docs/reference/audit.md).
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

EXAMPLES_MAX: Final = 20
"""Findings that a report keeps of each fault; all are counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; fields as in tables.FINDINGS."""

    job: str
    fault: str
    source: str | None
    id: str | None
    topic: str | None
    partition: int | None
    offset: int | None
    node: str | None
    due_ms: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Fates:
    """The number of user requests by fate: each has exactly one. Cancels are not counted."""

    delivered: int = 0
    cancelled: int = 0
    replaced: int = 0
    rejected: int = 0
    duplicate: int = 0
    """Refused because the same message was pending under the id, or had been redriven."""
    conflict: int = 0
    expired: int = 0
    dead: int = 0
    recurring: int = 0
    """Requests for series: each occurrence has a fate of its own."""
    pending: int = 0
    lost: int = 0
    unproven: int = 0
    """Over, but Kafka may have deleted what would prove it (retention)."""

    @property
    def accepted(self) -> int:
        """Return how many there are."""
        return sum(asdict(self).values())


@dataclass(frozen=True, slots=True)
class Lateness:
    """Percentiles of delivery minus due, ms."""

    count: int
    p50: int
    p99: int
    p999: int
    max: int


@dataclass(frozen=True, slots=True)
class TopicHour:
    """Lateness of one target topic in one hour of due times."""

    topic: str
    hour_ms: int
    lateness: Lateness


@dataclass(frozen=True, slots=True)
class Reign:
    """One term: its owner, from its first step to its last."""

    term: int
    owner: str
    from_ms: int
    to_ms: int
    steps: int
    delivered: int
    shard: int = 0


@dataclass(frozen=True, slots=True)
class Failover:
    """A change of master, by the frontier's history. `gap_ms`: for how long messages that were due
    waited for the new master, at most; 0 if none was due, null if it delivered nothing."""

    at_ms: int
    term: int
    old_owner: str
    new_owner: str
    gap_ms: int | None
    lateness: Lateness | None
    """Of what was due from 5 s before to 15 s after."""
    shard: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """Deliveries in one interval of the timeline, by the time of delivery."""

    at_ms: int
    delivered: int
    late_p50: int
    late_p99: int
    late_max: int


@dataclass(frozen=True, slots=True)
class Bin:
    """One bar of the lateness histogram: [from_ms, to_ms)."""

    from_ms: int
    to_ms: int
    count: int


@dataclass(frozen=True, slots=True)
class HeatCell:
    """Pending messages at the cut by due time and node; node "" is what the log says."""

    at_ms: int
    node: str
    pending: int
    differ: int
    """Messages missing, too many or changed on that node."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as the audit met it. `problem` None: its export was compared."""

    node: str
    admin: str
    pending: int | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class Travel:
    """`--at T`: what was pending then, and what was promised."""

    at_ms: int
    pending: int
    by_topic: tuple[tuple[str, int], ...]
    by_hour: tuple[tuple[int, int], ...]
    """(hour of the due time, pending)"""
    next_due: tuple[tuple[str, str, int], ...]
    """(source, topic, due_ms) of those due first, at most EXAMPLES_MAX"""


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """The newest frontier record of a shard."""

    shard: int
    step: int
    term: int
    offset: int
    append_ms: int


@dataclass(frozen=True, slots=True)
class CutInfo:
    """The moment that was judged; of a cluster with shards `step` and `term` are the sums of
    theirs."""

    step: int
    term: int
    offset: int
    """Of the frontier record; with shards of the last one."""
    append_ms: int
    read_ms: int
    """When the ends of the topics were read."""
    records: tuple[tuple[str, int], ...]
    """(topic, committed records read)"""
    shards: tuple[ShardInfo, ...] = ()
    """None if there is only one."""


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report."""

    cluster: str
    made_ms: int
    wall_ms: int
    version: str
    cut: CutInfo
    fates: Fates
    marks: tuple[tuple[str, int], ...]
    """(verdict, count) of cancels and replaces"""
    found: tuple[tuple[str, int], ...]
    """(fault slug, count), only those that were found"""
    examples: tuple[Finding, ...]
    nodes: tuple[NodeState, ...]
    lateness: Lateness | None
    by_topic: tuple[tuple[str, Lateness], ...]
    by_hour: tuple[TopicHour, ...]
    histogram: tuple[Bin, ...]
    timeline: tuple[Moment, ...]
    reigns: tuple[Reign, ...]
    failovers: tuple[Failover, ...]
    heat: tuple[HeatCell, ...]
    notes: tuple[str, ...]
    """What could not be judged, and why: one sentence each."""
    travel: Travel | None = None

    @property
    def ok(self) -> bool:
        """Return whether nothing is wrong."""
        return not self.found

    def count(self, *faults: str) -> int:
        """Return how many findings there are of these faults."""
        return sum(count for slug, count in self.found if slug in faults)

    def to_json(self) -> dict[str, Any]:
        """Return what `--json` prints: first what scripts ask for, then everything."""
        plain = asdict(self)
        if not self.cut.shards:
            del plain["cut"]["shards"]
            for each in (*plain["reigns"], *plain["failovers"]):
                del each["shard"]
        fates = plain["fates"]
        fates.pop("duplicate")  # below, it is what was delivered more than once

        def fields(*names: str) -> dict[str, Any]:
            return {name: plain[name] for name in names}

        return {
            "verdict": "ok" if self.ok else "failed",
            "accepted": self.fates.accepted,
            **fates,
            "refused_as_duplicate": self.fates.duplicate,
            "lost": self.count("lost"),
            "duplicate": self.count("duplicate"),
            "early": self.count("early"),
            "altered": self.count("altered"),
            "unknown": self.count("unknown"),
            "replicas_differ": self.count("replica-missing", "replica-extra", "replica-changed"),
            "lateness_ms": plain["lateness"],
            "found": dict(self.found),
            "marks": dict(self.marks),
            **fields("failovers", "reigns", "nodes"),
            "by_topic": [{"topic": topic, **asdict(late)} for topic, late in self.by_topic],
            "by_hour": [
                {"topic": each.topic, "hour_ms": each.hour_ms, **asdict(each.lateness)}
                for each in self.by_hour
            ],
            **fields("histogram", "timeline", "heat", "examples", "notes"),
            "cut": {**plain["cut"], "records": dict(self.cut.records)},
            **fields("travel", "cluster", "version", "made_ms", "wall_ms"),
        }
