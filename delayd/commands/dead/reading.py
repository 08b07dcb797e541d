"""Reading dead letters from their topic, up to its end at the beginning of the read.

So a letter that is written meanwhile, for instance by a redrive that fails, is not read.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Final

from delayd.bus import Bus
from delayd.bus.reading import read_between
from delayd.commands.dead.wanted import Wanted
from delayd.request.letters import Letter, letter_of
from delayd.runtime.clock import Clock

RECORDS_MAX: Final = 500


def letters(
    bus: Bus, topic: str, wanted: Wanted, clock: Clock, timeout_ms: int
) -> Iterator[Letter]:
    """Yield the committed letters that are wanted, of each partition in its order.

    Other records are skipped. Raises TopicMismatchError if there is no such topic,
    KafkaUnreachableError if there is no progress for `timeout_ms`, ConsumerError.
    """
    with closing(bus.cluster()) as kafka:
        ends = kafka.end_offsets(topic, timeout_ms, committed=True)
        starts = kafka.start_offsets(topic, timeout_ms)
        if wanted.since_ms is not None:
            since = kafka.offsets_since(topic, wanted.since_ms, timeout_ms)
            starts = {p: max(start, since.get(p, ends[p])) for p, start in starts.items()}
    sources = set(wanted.sources)
    for records in read_between(
        bus, topic, starts, ends, clock, records_max=RECORDS_MAX, timeout_ms=timeout_ms
    ):
        for record in records:
            letter = letter_of(record)
            if letter is not None and wanted.has(letter):
                yield letter
                # A source has one letter: when all that were asked for are found, it is over.
                sources.discard(letter.source)
                if wanted.sources and not sources:
                    return
