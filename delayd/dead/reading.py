"""Dead letters from their topic: what is there when one begins to read, and nothing later.

So a letter that comes into being meanwhile, by a redrive that fails for instance, is not read.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Final

from delayd.bus import Bus, Position
from delayd.clock import Clock
from delayd.dead.wanted import Wanted
from delayd.errors import BufferPositionError, ConsumerError, KafkaUnreachableError
from delayd.request.letters import Letter, letter_of

RECORDS_MAX: Final = 500
POLL_MS: Final = 100


def letters(
    bus: Bus, topic: str, wanted: Wanted, clock: Clock, timeout_ms: int
) -> Iterator[Letter]:
    """The committed letters that are wanted, of each partition in its order.

    Records that are no dead letters are passed over. Raises TopicMismatchError if there is no such
    topic, KafkaUnreachableError if nothing moves for `timeout_ms`, ConsumerError.
    """
    with closing(bus.cluster()) as kafka:
        ends = kafka.end_offsets(topic, timeout_ms, committed=True)
        starts = kafka.start_offsets(topic, timeout_ms)
        if wanted.since_ms is not None:
            since = kafka.offsets_since(topic, wanted.since_ms, timeout_ms)
            starts = {p: max(start, since.get(p, ends[p])) for p, start in starts.items()}
    left = {partition for partition, end in ends.items() if starts[partition] < end}
    sources = set(wanted.sources)
    if not left:
        return
    with closing(bus.consumer(topic)) as consumer:
        consumer.assign({partition: Position(starts[partition]) for partition in left})
        moved_ms = clock.monotonic_ms()
        while left:
            try:
                records = consumer.poll(RECORDS_MAX, POLL_MS)
            except BufferPositionError as error:
                raise ConsumerError(
                    f"{topic} was trimmed by its retention while it was read",
                    remedy="run the command again",
                ) from error
            for record in records:
                if record.offset >= ends[record.partition]:
                    continue
                letter = letter_of(record)
                if letter is not None and wanted.has(letter):
                    yield letter
                    # A source has one letter: when all that were asked for are found, it is over.
                    sources.discard(letter.source)
                    if wanted.sources and not sources:
                        return
            still = {p for p in left if consumer.position(p) < ends[p]}
            if records or still != left:
                moved_ms = clock.monotonic_ms()
            elif clock.monotonic_ms() - moved_ms > timeout_ms:
                raise KafkaUnreachableError(
                    f"{topic} could not be read to its end within {timeout_ms} ms",
                    remedy="is a broker down?",
                )
            left = still
