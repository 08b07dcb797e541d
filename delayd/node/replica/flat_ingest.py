"""The native path of ingest: flat records become frames by segment in C, run by run.

It takes what `fast_ingest.py` takes, and leaves all else to `Replica.take`, in the order of the
records. The lock is held only while a run that is packed goes into the wheel: if by then other
rules hold (an hour has become near, say), it is packed again.

Invariant: wheel, log time and positions are what `Replica.take` makes of the same records in the
same pieces (`tests/unit/node/replica/test_flat_ingest.py`).
"""

from typing import Final, Protocol

from delayd.bus import Record
from delayd.bus.flat import RECORD, FlatRecords, record_at
from delayd.node.replica.told import Rejected
from delayd.request import RequestLimits
from delayd.runtime import native
from delayd.runtime.native.packing import Packer, PackRules, Run

PLAIN_RUN_MIN: Final = 16
"""Fewer plain records in a row are taken by Python: a call takes as long as ten of them do."""
OFFSET_FIELD: Final = 2
"""Of `RECORD`."""


class Taker(Protocol):
    """What ingests: a replica."""

    def take(self, records: list[Record]) -> list[Rejected]:
        """Ingest records that are not packed."""

    def pack_rules(self, partition: int, offset: int) -> PackRules:
        """Return how a run is packed that begins there."""

    def take_run(self, offset: int, run: Run, rules: PackRules) -> bool:
        """Ingest a run; False if it must be packed anew."""


class FlatIngest:
    """Takes flat records into a replica. Used by one thread."""

    def __init__(self, limits: RequestLimits, lanes: int) -> None:
        """`limits` of the cluster: those that never change are used."""
        self._packer: Packer | None = None
        if native.library is not None:
            self._packer = Packer(
                native.library,
                max_delay_ms=limits.max_delay_ms,
                record_bytes_max=limits.record_bytes_max,
                prefix=limits.prefix,
                lanes=lanes,
                run_min=PLAIN_RUN_MIN,
            )

    def take(self, replica: Taker, records: FlatRecords) -> list[Rejected]:
        """Ingest records; return those that get a dead letter."""
        if self._packer is None:
            return replica.take(list(records))
        rejected: list[Rejected] = []
        others: list[Record] = []
        """Not plain, or too few in a row; not ingested yet."""
        data, at, _ = records.place
        for stretch in records.survey.stretches:
            end, left = at + stretch.bytes, stretch.count
            while left >= PLAIN_RUN_MIN:
                if others:  # they come first, and a run is packed by what holds after them
                    rejected += replica.take(others)
                    others = []
                offset = RECORD.unpack_from(data, at)[OFFSET_FIELD]
                rules = replica.pack_rules(stretch.partition, offset)
                run = self._packer.pack(data, at, end, rules)
                if isinstance(run, int):
                    at, left = _move(others, data, at, run), left - run
                elif replica.take_run(offset, run, rules):
                    at, left = at + run.taken_bytes, left - run.taken
            _move(others, data, at, left)
            at = end
        if others:
            rejected += replica.take(others)
        return rejected


def _move(others: list[Record], data: bytearray, at: int, count: int) -> int:
    """Add so many records to the others; return where the next one begins."""
    for _ in range(count):
        record, at = record_at(data, at)
        others.append(record)
    return at
