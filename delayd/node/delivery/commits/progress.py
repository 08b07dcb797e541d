"""A step without transactions: first its deliveries are acknowledged, then etcd takes its frontier.

For clusters whose guarantee is at-least-once. No master can be fenced, so a superseded one may
still deliver the step that it is in; but etcd refuses its frontier, and it ends there. The next
master delivers again what came after the last frontier that etcd took.

    deliveries, receipts, requeued records ->  Kafka, acknowledged
    the frontier                           ->  etcd, if this node still leads and it follows the
                                               one that this mastership has read or written last
    the frontier once more                 ->  its topic: followers, audits and the broker's clock

Invariants:
- etcd holds a frontier only after all that it covers was acknowledged;
- each frontier in etcd follows the one before, even if calls get lost or are carried out late;
- the frontier topic is never ahead of etcd. It may lack some frontiers, or get one too late.

Source: docs/design/frontier.md, "At least once".
"""

from collections.abc import Callable

from delayd.bus import Bus, Producer
from delayd.cluster.frontier_log import FrontierLog, unreadable
from delayd.coordination import Coordination, Leadership
from delayd.node.delivery.commits import FLUSH_TIMEOUT_MS, SupersededError, Written
from delayd.node.delivery.commits.frontier_topic import (
    READ_TIMEOUT_MS,
    frontier_read,
    write_frontier,
)
from delayd.runtime.clock import Clock
from replication.record import FrontierFormatError, FrontierRecord, decode, encode
from replication.takeover import FrontierRead, Read, ReadProgress

SHARD = 0


class ProgressCommit:
    """The port `StepCommit` over an idempotent producer and etcd.

    Raises ProducerError, CoordinationError (both: the outcome is unknown) and SupersededError.
    """

    is_fenced = False

    def __init__(
        self,
        bus: Bus,
        coordination: Coordination,
        leadership: Leadership,
        frontier_log: FrontierLog,
        clock: Clock,
    ) -> None:
        self.producer: Producer = bus.idempotent_producer()
        self._etcd = coordination
        self._leadership = leadership
        self._log = frontier_log
        self._clock = clock
        self._revision = 0
        self.last: FrontierRecord | None = None

    def obey(self, order: Read) -> FrontierRead:
        """See the port; raises KafkaUnreachableError and FrontierError too."""
        assert isinstance(order, ReadProgress), "nobody is fenced without transactions"
        stored = self._etcd.progress(SHARD, self._leadership)
        if stored is None:
            raise _superseded()
        self._revision = stored.revision
        end = max(self._log.stable_end(READ_TIMEOUT_MS), self._log.read_to)
        self._log.catch_up(end, READ_TIMEOUT_MS)
        written = None if stored.revision == 0 else _decoded(stored.value)
        seen = None if self._log.newest is None else self._log.newest.record
        # Nothing in etcd: a new cluster, or etcd lost what it had. What stands in the topic was in
        # etcd once, so to go on from there loses nothing either.
        known = [record for record in (written, seen) if record is not None]
        self.last = max(known, key=lambda record: record.frontier.step, default=None)
        return frontier_read(self.last, self._log, self._clock)

    def begin(self) -> None:
        """See the port: nothing to do."""

    def commit(self, record: FrontierRecord, check: Callable[[Written], None]) -> Written:
        """See the port; what `check` forbids is the next step."""
        self.producer.flush(FLUSH_TIMEOUT_MS)
        revision = self._etcd.put_progress(
            SHARD, self._leadership, encode(record), after=self._revision
        )
        if revision is None:
            raise _superseded()
        self._revision = revision
        written = write_frontier(self.producer, record, self._clock)
        check(written)
        return written

    def close(self) -> None:
        """See the port; what is on its way may still arrive."""
        self.producer.close()


def _superseded() -> SupersededError:
    return SupersededError(
        "etcd does not take this node's progress: another node leads, or a call of its own was "
        "carried out late",
    )


def _decoded(value: bytes) -> FrontierRecord:
    try:
        return decode(value)
    except FrontierFormatError as error:
        raise unreadable("the progress in etcd", error) from error
