"""The gates of the log, each with its places: what a step has written into every partition of its
shard. Source: docs/design/audit.md, "Quotas".
"""

from collections import defaultdict
from typing import NamedTuple

from delayd.audit.bounds import Bounds
from replication.shards import shard_of


class SaidGate(NamedTuple):
    """What one step of a shard says of a target."""

    shard: int
    topic: str
    kind: str
    """full, fast or open."""
    at_ms: int
    """`now` of the step."""
    pending: int
    max_pending: int
    taken: int
    rate: int

    @property
    def is_end(self) -> bool:
        """Return whether the target has no quota any more."""
        return self.max_pending == self.rate == 0


def gates_of(bounds: Bounds) -> dict[SaidGate, dict[int, int]]:
    """Return the gates of the log, with the first offset of each by partition."""
    written: defaultdict[SaidGate, dict[int, int]] = defaultdict(dict)
    for q in bounds.quotas:
        if q.kind != "limit":
            numbers = q.at_ms, q.pending, q.max_pending, q.taken, q.rate
            gate = SaidGate(shard_of(q.partition, bounds.shards), q.topic, q.kind, *numbers)
            written[gate].setdefault(q.partition, q.offset)
    return dict(written)


def whole_gates(bounds: Bounds) -> list[tuple[SaidGate, list[int | None]]]:
    """Return the gates that are in every partition of their shard, in the order of their times,
    with their offsets by partition; None in those of other shards."""
    partitions = bounds.settings.partitions
    return [
        (gate, [places.get(partition) for partition in range(partitions)])
        for gate, places in sorted(gates_of(bounds).items(), key=lambda item: item[0].at_ms)
        if len(places) * bounds.shards == partitions
    ]
