"""The buffer's log once more: the frames that ingest made of it, though they are stored already.

What ingest decides depends on the log alone, so it decides the same again. It needs to remember ids
while it does: in a scratch wheel, which is thrown away.
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
"""What is remembered of ids waits in memory for so many records."""


class Log(NamedTuple):
    """The buffer of a cluster, and what its nodes know of it."""

    bus: Bus
    settings: Settings
    proof_key: bytes
    clock: Clock
    timeout_ms: int
    """How long nothing may move."""


def replay(
    log: Log, below: tuple[int, ...], scratch: Path, tell: Callable[[int, int], None]
) -> Iterator[Frame]:
    """All frames of the records below these offsets that are still in the log, in log order.

    `scratch` does not exist yet, and stays; `tell` hears of records read, and about how many there
    are. Raises KafkaUnreachableError if nothing moves, ConsumerError if the log is trimmed
    meanwhile, DiskError.
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
