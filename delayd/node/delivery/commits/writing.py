"""The frontier record on its way into its topic, and by which clocks."""

from delayd.bus import Ack, Producer
from delayd.errors import ProducerError
from delayd.node.delivery.commits import FLUSH_TIMEOUT_MS, Written
from delayd.runtime.clock import Clock
from replication.record import FrontierRecord, encode, record_key


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
