"""The delivery threads of a node, one for each shard, as one: what people and dashboards see of
them, and what is done to all.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from delayd.node.delivery.counters import StepCounters
from delayd.node.delivery.delivery_loop import DeliveryLoop
from delayd.node.targets.failures import FailingTarget
from delayd.node.targets.sparing import SparedPartition


class Deliveries:
    """Of one node. Any thread reads its properties."""

    def __init__(self, loops: Sequence[DeliveryLoop], counters: StepCounters) -> None:
        """`loops`: one for each shard, in order, which share `counters`."""
        self.loops = tuple(loops)
        self.counters = counters

    @property
    def is_delivering(self) -> bool:
        """True if this node delivers a shard."""
        return any(loop.is_delivering for loop in self.loops)

    @property
    def led(self) -> list[int]:
        """Shards that this node delivers."""
        return [shard for shard, loop in enumerate(self.loops) if loop.is_delivering]

    @property
    def led_since_ms(self) -> dict[int, int]:
        """Wall time, Unix ms, since when this node delivers each shard that it does."""
        times_ms = {shard: loop.leads_since_ms for shard, loop in enumerate(self.loops)}
        return {shard: since_ms for shard, since_ms in times_ms.items() if since_ms is not None}

    @property
    def leads_since_ms(self) -> int | None:
        """Wall time, Unix ms, since when this node delivers something; None if it does not."""
        return min(self.led_since_ms.values(), default=None)

    @property
    def stepped_ms(self) -> int:
        """Monotonic time of the last step of a present mastership; 0 without one."""
        return max(loop.stepped_ms for loop in self.loops)

    @property
    def progressed_ms(self) -> int:
        """Monotonic time since when each thread has given a sign of life."""
        return min(loop.progressed_ms for loop in self.loops)

    @property
    def delivered_count(self) -> int:
        """Messages delivered by this process."""
        return sum(loop.delivered_count for loop in self.loops)

    @property
    def failing_targets(self) -> list[FailingTarget]:
        """Targets that refused messages and are not known to be well again; of each, what the
        shard says that has met it first."""
        found: dict[str, FailingTarget] = {}
        for each in chain.from_iterable(loop.failing_targets for loop in self.loops):
            known = found.get(each.topic)
            if known is None or each.since_ms < known.since_ms:
                found[each.topic] = each
        return list(found.values())

    @property
    def spared_partitions(self) -> tuple[SparedPartition, ...]:
        """Partitions of targets whose leaders do not answer, so that a master spares them."""
        found = chain.from_iterable(loop.spared_partitions for loop in self.loops)
        return tuple(dict.fromkeys(found))

    def probe_answered(self, spared: SparedPartition) -> None:
        """Note that the leader of a partition that is spared answers."""
        for loop in self.loops:
            loop.probe_answered(spared)

    @property
    def frontier_strays(self) -> int:
        """Records in the frontier topic that no master wrote, and that were skipped."""
        return sum(loop.frontier_strays for loop in self.loops)

    @property
    def smoothing_ms(self) -> Mapping[str, int]:
        """By target with a rate, how far its last deferral is ahead; nothing on a follower."""
        found: dict[str, int] = {}
        for loop in self.loops:
            for topic, ms in loop.smoothing_ms.items():
                found[topic] = max(ms, found.get(topic, 0))
        return found

    def start(self) -> None:
        """Begin to follow."""
        for loop in self.loops:
            loop.start()

    def stop(self, timeout_s: float) -> None:
        """End the threads; each finishes or abandons its step."""
        for loop in self.loops:
            loop.ask_to_stop()
        for loop in self.loops:
            loop.stop(timeout_s)
