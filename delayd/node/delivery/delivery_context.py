"""What the masterships of a process share, as one value each: the options and the parts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from delayd.cluster.frontier_log import FrontierLog
from delayd.node.delivery.counters import StepCounters
from delayd.node.delivery.flat_step import FlatStep
from delayd.node.delivery.spans import DeliverySpans
from delayd.node.delivery.standby import Standby
from delayd.node.delivery.step_sizing import StepSizing
from delayd.node.replica.replica import Replica
from delayd.node.targets.checks import Targets
from delayd.node.targets.quarantine import Quarantine
from delayd.node.targets.sparing import Sparing
from delayd.runtime.clock import Clock
from replication.delivery_queue import StepLimits


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """What a node is configured to do as master."""

    idle_interval_ms: int
    clock_drift_max_ms: int
    step_limits: StepLimits = field(default_factory=StepLimits)
    """Of the largest steps."""
    unreplicated_targets: bool = False
    rates: Mapping[str, int] = field(default_factory=dict)
    """Records a second at most, by target."""
    key_fingerprint: str | None = None
    """Of the cluster key that signs; None for the one that the last frontier names."""
    spans: DeliverySpans | None = None
    """Makes spans of what was delivered; None: nobody traces."""


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """What outlives a mastership. Used by the delivery thread; `counters` are read by any."""

    standby: Standby
    replica: Replica
    frontier_log: FrontierLog
    clock: Clock
    options: DeliveryOptions
    targets: Targets
    step_sizing: StepSizing
    note_progress: Callable[[], None]
    """Called at every turn of the loop."""
    renew: Callable[[], object] | None = None
    """Lets brokers be asked over new connections, which learn who leads now."""
    quarantine: Quarantine = field(default_factory=Quarantine)
    sparing: Sparing = field(default_factory=Sparing)
    flat_step: FlatStep = field(default_factory=FlatStep)
    counters: StepCounters = field(default_factory=StepCounters)
    """Of all steps of this process."""
    shard: int = 0
