"""Replaying the buffer's log: it gives the frames that ingest once made of it.

The decisions of ingest depend on the log alone, so they are the same again. A scratch wheel, which
is thrown away, remembers ids meanwhile.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from delayd.bus import Bus
from delayd.bus.reading import read_between
from delayd.node.replica.ingest_batch import IngestBatch
from delayd.request import RequestLimits, parse
from delayd.runtime.clock import Clock
from delayd.wheel import Frame, Progress
from delayd.wheel.storage import Wheel
from replication.ingest import LogState
from replication.settings import Settings

RECORDS_MAX: Final = 2_000
CHECKPOINT_RECORDS: Final = 50_000
"""Records between checkpoints of the scratch wheel, whose memory of ids grows meanwhile."""


class Log(NamedTuple):
    """The buffer of a cluster, with the settings and the key to read it."""

    bus: Bus
    settings: Settings
    proof_key: bytes
    clock: Clock
    timeout_ms: int
    """Longest time without progress."""


def replay(
    log: Log, below: tuple[int, ...], scratch: Path, tell: Callable[[int, int], None]
) -> Iterator[Frame]:
    """Yield the frames of all records below these offsets that are still in the log, in log order.

    `scratch` is created, and stays. `tell` gets the records read, and the approximate total. Raises
    KafkaUnreachableError if there is no progress, ConsumerError if the log is trimmed meanwhile,
    DiskError.
    """
    settings = log.settings
    with closing(log.bus.cluster()) as kafka:
        starts = kafka.start_offsets(settings.buffer.name, log.timeout_ms)
    starts = {partition: starts.get(partition, 0) for partition in range(settings.partitions)}
    ends = dict(enumerate(below))
    total = sum(max(0, ends[p] - start) for p, start in starts.items())
    limits = RequestLimits.of(settings, log.proof_key)
    states = [LogState(starts[p], 0) for p in range(settings.partitions)]
    read = 0
    with closing(Wheel.open(scratch, partitions=settings.partitions)) as memory:
        for records in read_between(
            log.bus,
            settings.buffer.name,
            starts,
            ends,
            log.clock,
            records_max=RECORDS_MAX,
            timeout_ms=log.timeout_ms,
        ):
            batch = IngestBatch(memory.ids, settings, states, covered=None)
            for record in records:
                batch.add(record, parse(record, limits))
            batch.apply()
            states = batch.states
            for frame in batch.frames:
                assert isinstance(frame, Frame), "nothing was packed"
                yield frame
            if read // CHECKPOINT_RECORDS != (read + len(records)) // CHECKPOINT_RECORDS:
                _checkpoint(memory, states)
            read += len(records)
            tell(read, total)


def _checkpoint(memory: Wheel, states: list[LogState]) -> None:
    offsets = tuple(state.next_offset for state in states)
    log_ms = tuple(state.log_ms for state in states)
    pending = memory.begin_checkpoint(Progress(offsets, (-1,) * len(states), log_ms, b""))
    pending.sync()
    memory.finish_checkpoint(pending)
