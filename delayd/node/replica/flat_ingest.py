"""The native path of ingest: flat records become frames by segment in C, run by run.

A run of schedules is packed as a whole (`native/pack.h`), those with an id as if nothing were known
of it. What lies between runs is read into rows (`native/rows.h`), of which Python decides
(`row_ingest.py`). The lock is held only while a run or a piece of rows goes into the wheel: if by
then other rules hold for a run (an hour has become near, say), it is packed again; and if some of
its ids are known, those become rows, and what lies between is packed again.

Invariant: wheel, log time, positions and what is remembered of ids are what `Replica.take` makes of
the same records in the same pieces (`tests/unit/node/replica/test_flat_ingest.py`).
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from delayd.bus import Record
from delayd.bus.flat import RECORD, FlatRecords, record_at
from delayd.node.replica.piece import Piece
from delayd.node.replica.row_ingest import RowPiece
from delayd.node.replica.told import Arrivals, Rejected
from delayd.request import RequestLimits
from delayd.runtime import native
from delayd.runtime.native.packing import (
    Packer,
    PackRules,
    Run,
    digest_rules_of,
    limits_of,
)
from delayd.runtime.native.rows import RowReader
from replication.rules import is_steady
from replication.settings import TRACING_HEADERS

PLAIN_RUN_MIN: Final = 8
"""Fewer plain records in a row become rows: a call takes as long as five of them do."""
OFFSET_FIELD: Final = 2
APPEND_FIELD: Final = 3
"""Of `RECORD`."""


class Taker(Protocol):
    """What ingests: a replica."""

    limits: RequestLimits
    arrivals: Arrivals

    def take(self, records: list[Record]) -> list[Rejected]:
        """Ingest records that are not packed."""

    def take_piece(self, piece: Piece) -> None:
        """Ingest a piece."""

    def pack_rules(self, partition: int, offset: int) -> PackRules:
        """Return how a run is packed that begins there."""

    def take_run(self, offset: int, run: Run, rules: PackRules) -> Sequence[int] | None:
        """Ingest a run, unless it must be packed anew: see `Replica.take_run`."""


class FlatIngest:
    """Takes flat records into a replica. Used by one thread."""

    def __init__(self, limits: RequestLimits, lanes: int, id_memory_ms: int) -> None:
        """`limits` of the cluster: those that never change are used."""
        self._packer: Packer | None = None
        if native.library is not None:
            fixed = limits_of(
                max_delay_ms=limits.max_delay_ms,
                record_bytes_max=limits.record_bytes_max,
                partitions=limits.partitions,
                prefix=limits.prefix,
            )
            digest = digest_rules_of((*TRACING_HEADERS, *limits.tracing_headers))
            self._packer = Packer(
                native.library,
                fixed,
                lanes=lanes,
                run_min=PLAIN_RUN_MIN,
                keep_ms=id_memory_ms,
                digest=digest,
            )
            self._reader = RowReader(native.library, fixed, lanes=lanes, digest=digest)

    def take(self, replica: Taker, records: FlatRecords) -> list[Rejected]:
        """Ingest records; return those that get a dead letter."""
        if self._packer is None:
            return replica.take(list(records))
        rejected: list[Rejected] = []
        data, at, end = records.place
        begin, done = at, 0
        """Where those begin that are not ingested yet, and how many records are before `at`."""
        rules_of = replica.limits.rules
        has_rows = all(
            is_steady(rules_of.version_at(each.partition, each.first_offset))
            for each in records.survey.stretches
        )
        for stretch in records.survey.stretches:
            left, takes_ids, known = stretch.count, True, deque[int]()
            # A run is not looked at: what is for a topic that is full must not be in one.
            while left >= PLAIN_RUN_MIN and stretch.partition not in replica.limits.full:
                first = RECORD.unpack_from(data, at)
                offset, append_ms = first[OFFSET_FIELD], first[APPEND_FIELD]
                rules = replica.pack_rules(stretch.partition, offset)
                stop, most = records.place_of(done + left), known[0] - done if known else left
                run: Run | int = most + 1
                if most >= PLAIN_RUN_MIN:
                    run = self._packer.pack(data, at, stop, rules, most, takes_ids=takes_ids)
                skipped = 0
                if isinstance(run, int):
                    skipped = run
                elif replica.arrivals.rates.straddles(run, append_ms, rules.trail_ms):
                    # It becomes rows.
                    skipped = run.taken
                elif begin < at:
                    # They come first, and a run is packed by what holds after them.
                    rejected += self._take_others(replica, data, begin, at, has_rows)
                    begin = at
                elif (found := replica.take_run(offset, run, rules)) is None:
                    continue
                elif found:
                    known = deque(sorted({*known, *(done + each for each in found)}))
                    if 2 * len(found) > len(run.firsts.keys):
                        # So are others that come: they are not asked for twice.
                        takes_ids, known = False, deque()
                else:
                    done, left = done + run.taken, left - run.taken
                    at = begin = at + run.taken_bytes
                if skipped:
                    done, left = done + skipped, left - skipped
                    at = records.place_of(done)
                while known and known[0] < done:
                    known.popleft()
            done += left
            at = records.place_of(done)
        return rejected + self._take_others(replica, data, begin, end, has_rows)

    def _take_others(
        self, replica: Taker, data: bytearray, begin: int, end: int, has_rows: bool
    ) -> list[Rejected]:
        """Ingest records that are in no run. `has_rows`: rules hold by which C reads rows."""
        rejected: list[Rejected] = []
        if not has_rows and begin < end:
            records = []
            while begin < end:
                record, begin = record_at(data, begin)
                records.append(record)
            return replica.take(records)
        while begin < end:
            piece = RowPiece(self._reader.read(data, begin, end), replica.limits)
            replica.take_piece(piece)
            rejected += piece.rejected
            begin = piece.end
        return rejected
