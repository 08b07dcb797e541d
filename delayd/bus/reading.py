"""A read of a topic from given offsets up to given offsets, and no further.

For commands that read what is there when they begin. Nodes read on for ever:
`delayd.node.replica.ingest_loop`.
"""

from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Final

from delayd.bus import Bus, Position, Record
from delayd.errors import BufferPositionError, ConsumerError, KafkaUnreachableError
from delayd.runtime.clock import Clock

POLL_MS: Final = 100


def read_between(
    bus: Bus,
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    clock: Clock,
    *,
    records_max: int,
    timeout_ms: int,
    careful: bool = False,
) -> Generator[list[Record], None, None]:
    """Yield the committed records of each partition from its start up to its end, in runs.

    A run may be empty. `careful` is as of `Bus.consumer`.

    Raises KafkaUnreachableError if nothing moves for `timeout_ms`, ConsumerError if the topic is
    trimmed meanwhile, or cannot be read.
    """
    left = {partition for partition, end in ends.items() if starts[partition] < end}
    if not left:
        return
    with closing(bus.consumer(topic, careful=careful)) as consumer:
        consumer.assign({partition: Position(starts[partition]) for partition in left})
        moved_ms = clock.monotonic_ms()
        while left:
            try:
                records = consumer.poll(records_max, POLL_MS)
            except BufferPositionError as error:
                raise ConsumerError(
                    f"{topic} was trimmed by its retention while it was read",
                    remedy="run the command again",
                ) from error
            yield [record for record in records if record.offset < ends[record.partition]]
            still = {p for p in left if consumer.position(p) < ends[p]}
            if records or still != left:
                moved_ms = clock.monotonic_ms()
            elif clock.monotonic_ms() - moved_ms > timeout_ms:
                raise KafkaUnreachableError(
                    f"{topic} could not be read to its end within {timeout_ms} ms",
                    remedy="is a broker down?",
                )
            left = still


def records_between(
    bus: Bus,
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    clock: Clock,
    *,
    records_max: int,
    timeout_ms: int,
    careful: bool = False,
) -> Generator[Record, None, None]:
    """Yield the records of `read_between` one by one; it raises what that raises."""
    runs = read_between(
        bus,
        topic,
        starts,
        ends,
        clock,
        records_max=records_max,
        timeout_ms=timeout_ms,
        careful=careful,
    )
    with closing(runs):
        for records in runs:
            yield from records
