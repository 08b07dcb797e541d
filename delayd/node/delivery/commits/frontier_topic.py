"""The frontier record on its way into its topic, by which clocks, and as a takeover finds it."""

from delayd.bus import Ack, Producer
from delayd.cluster.frontier_log import FrontierLog
from delayd.errors import ProducerError
from delayd.node.delivery.commits import FLUSH_TIMEOUT_MS, Written
from delayd.runtime.clock import Clock
from replication.record import FrontierRecord, encode, record_key
from replication.takeover import FrontierRead

READ_TIMEOUT_MS = 5_000


def frontier_read(last: FrontierRecord | None, log: FrontierLog, clock: Clock) -> FrontierRead:
    """Return what a takeover has read, and if it is still of the topic that is there now."""
    if last is None:
        return FrontierRead(clock.monotonic_ms(), None, log.read_to)
    is_of_topic = log.is_of_topic(last, READ_TIMEOUT_MS)
    return FrontierRead(clock.monotonic_ms(), last.frontier, log.read_to, is_of_topic)


def write_frontier(producer: Producer, record: FrontierRecord, clock: Clock) -> Written:
    """Send the record after everything else, and wait until all of it is acknowledged.

    Raises ProducerError.
    """
    acks: list[tuple[Ack, int]] = []
    shard = record.frontier.shard
    sent_wall_ms = clock.wall_ms()
    producer.send(
        record.settings.frontier.name,
        key=record_key(shard),
        value=encode(record),
        headers=[],
        partition=shard,
        on_ack=lambda ack: acks.append((ack, clock.monotonic_ns())),
    )
    producer.flush(FLUSH_TIMEOUT_MS)
    if not acks:
        raise ProducerError("the frontier record was flushed without a delivery report")
    [(ack, arrived_ns)] = acks
    return Written(ack, sent_wall_ms, arrived_ns)
