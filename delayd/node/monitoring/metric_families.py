"""The metrics of a node: each one's name, meaning and where it comes from.

FAMILIES is the one list of them; docs/reference/metrics.md is generated from it. Nothing is counted
here, and nothing is remembered between two scrapes: each figure is read from a `NodeView` when its
line is made, and two of them may be of different moments. Not here: how they are rendered
(`metrics.py`), and the metrics of `delayd audit --follow` (`delayd.audit.following.metrics`).

Invariants:
- labels have closed sets of values, but for topics (`delayd.node.delivery.counters.TOPICS_MAX`),
  partitions of the buffer (as many as it was made with) and names of nodes;
- a counter's closed set is shown in full, with zeros: what has not happened yet can be alerted on.
"""

import platform
from collections.abc import Iterable, Mapping
from typing import Final

from delayd import __version__
from delayd.node.delivery.counters import OTHER, TOPICS_MAX, Histogram
from delayd.node.delivery.fates import KILLED, Fate
from delayd.node.monitoring.metric_family import Family, Kind, Samples, counter, counters, gauge
from delayd.node.monitoring.node_view import NodeView
from delayd.node.monitoring.quota_families import QUOTA_FAMILIES
from delayd.node.monitoring.shard_families import SHARD_FAMILIES
from delayd.node.replica.room import RoomState
from delayd.request import Reason, Verdict
from delayd.request.recurrence.zones import TZDATA_VERSION
from replication.election_facts import ResignReason, State


def _one_of(value: str, known: Iterable[str]) -> Samples:
    return [((each,), float(each == value)) for each in known]


def _by_topic(histograms: Mapping[str, Histogram]) -> Samples:
    # Another thread may add one meanwhile; a list is made at once.
    return [((topic,), histogram) for topic, histogram in list(histograms.items())]


def _seconds(value_ms: int | None) -> float | None:
    return None if value_ms is None else value_ms / 1000


def _events(what: str, kind: Kind, figure: str, meaning: str) -> Family:
    """Return a figure of each topic of events; it has no sample while the figure is None."""

    def samples(of: NodeView) -> Samples:
        figures = of.cancel_bridge.figures.items()
        found = ((topic, getattr(each, figure)) for topic, each in figures)
        return [((topic,), value) for topic, value in found if value is not None]

    return Family(f"delayd_cancel_on_{what}", kind, ("topic",), meaning, samples)


FAMILIES: Final[tuple[Family, ...]] = (
    # Is it well?
    gauge(
        "delayd_ready",
        "1 if the node could take over now, as GET /readyz reports.",
        lambda of: of.unready() is None,
    ),
    Family(
        "delayd_role",
        Kind.GAUGE,
        ("role",),
        "1 for the node's role: master (it delivers) or follower.",
        lambda of: _one_of(of.role, ("master", "follower")),
    ),
    Family(
        "delayd_leader_info",
        Kind.GAUGE,
        ("master",),
        "1, with the node that held the leader key when this node last read it; empty for none.",
        lambda of: [((of.control.master_name or "",), 1)],
    ),
    Family(
        "delayd_build_info",
        Kind.GAUGE,
        ("version", "python", "driver", "cluster", "node"),
        "1, with the versions and names of this node.",
        lambda of: [
            (
                (
                    __version__,
                    platform.python_version(),
                    of.config.driver,
                    of.config.cluster,
                    of.config.node,
                ),
                1,
            ),
        ],
    ),
    Family(
        "delayd_tzdata_info",
        Kind.GAUGE,
        ("version",),
        "1, with the version of the time zones by which this node resolves series and local times"
        " as master.",
        lambda _: [((TZDATA_VERSION,), 1)],
    ),
    gauge(
        "delayd_kafka_up",
        "0 while Kafka does not answer this node, or refuses it. Asked for the end of the buffer"
        " every second, and for the topics every 30 s.",
        lambda of: of.kafka_problem is None,
    ),
    gauge(
        "delayd_ingest_deaf",
        "1 while brokers have records of the buffer for this node, and it has read nothing of"
        " them for 5 s, else 0.",
        lambda of: of.ingest_watch.problem is not None,
    ),
    gauge(
        "delayd_topic_warnings",
        "Settings of the buffer by which records will be lost, and partitions of which records are"
        " about to be; GET /status names them. Asked every 30 s.",
        lambda of: len(of.kafka_health.warnings),
    ),
    gauge(
        "delayd_etcd_up",
        "0 while etcd has not answered this node for 3 s: it cannot be elected.",
        lambda of: of.control.etcd_problem is None,
    ),
    counter(
        "delayd_etcd_failures_total",
        "Calls to etcd that failed.",
        lambda of: of.control.etcd_failures,
    ),
    counter(
        "delayd_frontier_strays_total",
        "Records in the frontier topic that no master wrote, by their key: skipped.",
        lambda of: of.delivery.frontier_strays,
    ),
    Family(
        "delayd_loop_age_seconds",
        Kind.GAUGE,
        ("loop",),
        "Time since the last sign of life of the ingest and the delivery loop; GET /livez fails"
        " above 30.",
        lambda of: [((name,), age / 1000) for name, age in of.loop_ages_ms().items()],
    ),
    # Is it in time?
    Family(
        "delayd_lateness_seconds",
        Kind.HISTOGRAM,
        ("topic",),
        "Time from when a message was due (or accepted, if later) until its step was committed,"
        f" by the broker's clock, by target; above {TOPICS_MAX} targets the others are {OTHER}."
        " Requeued messages are left out. Master only.",
        lambda of: _by_topic(of.delivery.counters.lateness),
    ),
    Family(
        "delayd_smoothing_lateness_seconds",
        Kind.HISTOGRAM,
        ("topic",),
        "The same for messages that rate_max deferred, from their first due time: how late"
        " smoothing made them. Master only.",
        lambda of: _by_topic(of.delivery.counters.smoothing_lateness),
    ),
    Family(
        "delayd_smoothing_delay_seconds",
        Kind.GAUGE,
        ("topic",),
        "How late the most recently deferred message will be, by target with a rate_max; 0 if"
        " none waits for its turn. Master only.",
        lambda of: [((topic,), ms / 1000) for topic, ms in of.delivery.smoothing_ms.items()],
    ),
    Family(
        "delayd_paused_seconds",
        Kind.GAUGE,
        ("topic",),
        "How long ago the pause of a target began, by the newest frontier, until what has waited is"
        " out.",
        lambda of: [((topic,), s) for topic, s in of.paused_s().items()],
    ),
    *QUOTA_FAMILIES,
    Family(
        "delayd_delivery_lag_seconds",
        Kind.GAUGE,
        ("role",),
        "How far the cursor of the newest frontier that this node has read is behind its clock."
        " An idle master moves the cursor only every idle_step_interval_ms.",
        lambda of: [((of.role,), of.delivery_lag_ms() / 1000)],
    ),
    Family(
        "delayd_ingest_lag_offsets",
        Kind.GAUGE,
        ("partition",),
        "Offsets of the buffer that this node has not read, commit markers and records behind an"
        " open transaction too. Asked every second; absent while Kafka does not tell, and then"
        " delayd_kafka_up is 0.",
        lambda of: [((str(n),), e) for n, e in enumerate(of.ingest_watch.unread) if e is not None],
    ),
    Family(
        "delayd_buffer_held_seconds",
        Kind.GAUGE,
        ("partition",),
        "For how long a transaction that is open in the buffer has held up all readers of the"
        " partition: nothing behind it is taken in. 0 where none does; absent while Kafka does not"
        " tell.",
        lambda of: [
            ((str(n),), of.ingest_watch.held_ms().get(n, 0) / 1000)
            for n, unread in enumerate(of.ingest_watch.unread)
            if unread is not None
        ],
    ),
    gauge(
        "delayd_ingest_delay_seconds",
        "Age of the first record of the last batch when this node had ingested it.",
        lambda of: _seconds(of.ingestion.delay_ms),
    ),
    # What was done?
    counter(
        "delayd_ingested_records_total",
        "Records of the buffer that this node has ingested. Every node ingests all of them.",
        lambda of: of.replica.ingested_count,
    ),
    counters(
        "delayd_rejects_total",
        "reason",
        "Requests that this node refused at ingest. Every node refuses the same ones.",
        (reason.slug for reason in Reason),
        lambda of: of.ingestion.rejects,
    ),
    counters(
        "delayd_steps_total",
        "outcome",
        "Steps of this node: committed, or failed. After a failed step it takes over again.",
        ("committed", "failed"),
        lambda of: {
            "committed": of.delivery.counters.committed_count,
            "failed": of.delivery.counters.failed,
        },
    ),
    counter(
        "delayd_stale_reads_total",
        "Takeovers that began again because the broker they had asked for the last frontier led no"
        " more.",
        lambda of: of.delivery.counters.stale_reads,
    ),
    Family(
        "delayd_step_seconds",
        Kind.HISTOGRAM,
        (),
        "Duration of committed steps, empty ones too.",
        lambda of: [((), of.delivery.counters.took)],
    ),
    counters(
        "delayd_step_messages_total",
        "fate",
        "Messages in committed steps: delivered, retried (requeued after an attempt), deferred"
        " (requeued without one), smoothed (requeued to its turn, because of rate_max), held (the"
        " same, because its target is paused), resolved (requeued as the next occurrence of a"
        " series), dead, expired (`delayd-late`), or killed (by a cancel or a replace).",
        (*(fate.value for fate in Fate), KILLED),
        lambda of: of.delivery.counters.messages,
    ),
    counters(
        "delayd_verdicts_total",
        "verdict",
        "Receipts in committed steps.",
        (verdict.slug for verdict in Verdict),
        lambda of: of.delivery.counters.verdicts,
    ),
    counters(
        "delayd_dead_letters_total",
        "reason",
        "Dead letters in committed steps.",
        (reason.slug for reason in Reason),
        lambda of: of.delivery.counters.letters,
    ),
    gauge(
        "delayd_failing_targets",
        "Targets that fail; GET /status names them. Master only.",
        lambda of: len(of.delivery.failing_targets),
    ),
    gauge(
        "delayd_spared_partitions",
        "Partitions of targets whose leaders do not answer, so that their messages wait."
        " GET /status names them. Master only.",
        lambda of: len(of.delivery.spared_partitions),
    ),
    # Who leads?
    counter(
        "delayd_leaderships_won_total",
        "Elections that this node won.",
        lambda of: of.control.won_count,
    ),
    gauge(
        "delayd_shards_led",
        "Shards that this node delivers; a cluster has one unless it was given more.",
        lambda of: len(of.delivery.led),
    ),
    *SHARD_FAMILIES,
    counter(
        "delayd_shards_handed_over_total",
        "Shards that this node has handed over to a node that should lead them.",
        lambda of: of.control.handed_over_count,
    ),
    counter(
        "delayd_masters_found_dead_total",
        "Masters that this node judged to be dead, missed by most nodes, or cut off from Kafka.",
        lambda of: of.control.found_dead_count,
    ),
    counters(
        "delayd_leaderships_ended_total",
        "reason",
        "Leaderships of this node that ended, by reason.",
        (reason.value for reason in ResignReason),
        lambda of: of.control.ended,
    ),
    Family(
        "delayd_election_state",
        Kind.GAUGE,
        ("state",),
        "1 for the node's state in the election.",
        lambda of: _one_of(of.control.state.value, (state.value for state in State)),
    ),
    gauge(
        "delayd_term",
        "Term of the newest frontier that this node has read.",
        lambda of: of.frontier.term if of.frontier else 0,
    ),
    gauge(
        "delayd_frontier_step",
        "Step of the newest frontier that this node has read.",
        lambda of: of.frontier.step if of.frontier else 0,
    ),
    gauge(
        "delayd_lease_margin_seconds",
        "How long the master's lease is good for without another keepalive; negative while etcd is"
        " away, and it goes on without one. Master only.",
        lambda of: _seconds(of.control.lease_margin_ms),
    ),
    gauge(
        "delayd_clock_drift_seconds",
        "The broker's clock minus this node's at its last step, less what transit time explains."
        " Only on nodes that have been master.",
        lambda of: _seconds(of.delivery.counters.drift_ms),
    ),
    gauge(
        "delayd_log_time_ahead_seconds",
        "How far the newest append time in the buffer is ahead of this node's clock; 0 if it is"
        " not ahead.",
        lambda of: of.log_ahead_ms() / 1000,
    ),
    _events(
        "lag_events", Kind.GAUGE, "lag", "Events of a cancel_on topic to be read. Master only."
    ),
    _events("cancels_total", Kind.COUNTER, "cancels", "Cancels written for events of a topic."),
    _events(
        "unusable_total", Kind.COUNTER, "unusable", "Events without an id that a message can have."
    ),
    # What does it hold?
    gauge(
        "delayd_pending_messages",
        "Messages due from the cursor's second on. A cancelled message counts until then.",
        lambda of: of.replica.wheel.counts.total,
    ),
    gauge(
        "delayd_wheel_slots",
        "Slots in the wheel; a delivered one stays for export_hold_s.",
        lambda of: of.replica.wheel.stats().slots,
    ),
    gauge(
        "delayd_wheel_frames",
        "Frames in the wheel: messages and pending replies, delivered ones too.",
        lambda of: of.replica.wheel.stats().frames,
    ),
    gauge(
        "delayd_wheel_bytes",
        "Bytes of these frames.",
        lambda of: of.replica.wheel.stats().bytes,
    ),
    gauge(
        "delayd_checkpoint_age_seconds",
        "Time since the last checkpoint was durable.",
        lambda of: of.checkpoint_age_ms() / 1000,
    ),
    gauge(
        "delayd_disk_free_bytes",
        "Free bytes on the disk of the wheel, less what waits in memory to be written there.",
        lambda of: of.replica.room.free_bytes,
    ),
    gauge(
        "delayd_disk_free_min_bytes",
        "Below this the node takes in no new messages, and goes on delivering.",
        lambda of: of.replica.room.limit_bytes,
    ),
    gauge(
        "delayd_disk_short",
        "1 while the node takes in no new messages for want of room on its disk, else 0.",
        lambda of: int(of.replica.room.state is not RoomState.ENOUGH),
    ),
    gauge(
        "delayd_wheel_differs",
        "Messages that not all nodes hold alike, as this one last saw; GET /status names them.",
        lambda of: of.comparisons.comparer.view.differs,
    ),
    counters(
        "delayd_wheel_differences_total",
        "seen",
        "Messages in which wheels differed; passed: delivered before the second look at them.",
        ("confirmed", "passed", "transient"),
        lambda of: of.comparisons.comparer.view.counts,
    ),
    gauge(
        "delayd_wheel_repairing",
        "1 while the node builds another wheel, because its own differs, and compares it.",
        lambda of: int(of.comparisons.repairer.is_under_way),
    ),
    gauge(
        "delayd_wheel_repair_failed",
        "1 while the node repairs nothing more, because a repair failed.",
        lambda of: int(of.comparisons.repairer.has_failed),
    ),
    counters(
        "delayd_wheel_repairs_total",
        "outcome",
        "Repairs of a wheel that differed, by what came of them.",
        ("repaired", "failed"),
        lambda of: of.comparisons.repairer.counts,
    ),
)
"""In the order in which a person looks."""
