"""What one step makes of operators' orders about target topics, and of quotas.

Not here: what orders say (`replication.holds`, `replication.quotas`), how messages wait
(`replication.smoothing`).
Source: docs/design/pauses.md, docs/design/quotas.md.
"""

from collections.abc import Iterator, Sequence

from delayd.request import BufferRecord, RequestLimits, order_of, quota_of
from delayd.request.quotas import gate_record
from delayd.wheel import Frame
from replication.quotas import Gate, QuotaOrder, Quotas
from replication.smoothing import Smoothing


class OrderStep:
    """Of one step: made for it, and thrown away with it."""

    def __init__(
        self,
        smoothing: Smoothing,
        quotas: Quotas,
        gates: Sequence[Gate],
        limits: RequestLimits,
        now_ms: int,
        shard: int = 0,
    ) -> None:
        """`gates`: what the step says of topics that are full, or not any more. `shard`: whose
        step it is."""
        self._shard = shard
        self.smoothing = smoothing
        self._quotas = quotas
        self._gates = [*gates]
        self._limits = limits
        self._now_ms = now_ms
        self.count = 0
        """Orders that the step has passed."""

    def obey(self, replies: Sequence[Frame]) -> None:
        """Obey the orders among the replies that the step passes."""
        for frame in replies:
            if (order := order_of(frame.body)) is not None:
                self.smoothing.obey(order, frame.offset, self._now_ms)
            elif (quota := quota_of(frame.body)) is not None:
                self._obey_quota(quota, frame.offset)
            else:
                continue
            self.count += 1

    def _obey_quota(self, quota: QuotaOrder, offset: int) -> None:
        opened = self._quotas.obey(quota, offset, self._now_ms)
        if opened:  # what the step has counted before is over
            others = [gate for gate in self._gates if gate.topic != quota.topic]
            self._gates = [*others, *opened]

    def gate_records(self) -> Iterator[BufferRecord]:
        """Yield what says in every partition of the shard which topics are full, or open, from
        there on."""
        for gate in self._gates:
            for partition in range(self._shard, self._limits.partitions, self._limits.shards):
                yield gate_record(partition, gate, self._limits)
