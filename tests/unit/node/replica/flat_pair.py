"""Two replicas that are given the same records: one as a list, one flat, as a driver in C does."""

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cluster_settings import PARTITIONS
from cluster_settings import SETTINGS as CLUSTER
from one_node import open_replica
from test_fast_ingest import APPEND_MS, BYTES_MAX

from delayd.bus import Record
from delayd.bus.flat import FlatRecords, flattened
from delayd.node.replica.piece import Piece
from delayd.node.replica.replica import Replica
from delayd.node.replica.row_ingest import RowPiece
from delayd.node.replica.told import Rejected
from delayd.runtime import native
from delayd.runtime.native.flat import Surveyor
from delayd.runtime.native.packing import PackRules, Run
from delayd.runtime.native.rows import KIND
from delayd.wheel import Entry
from replication.quotas import Quota
from replication.settings import DAY_MS, Settings

RATED: Final = Quota(0, 0, 0, 0, 0, 1_000)
SETTINGS: Final = replace(CLUSTER, record_bytes_max=BYTES_MAX, max_delay_ms=DAY_MS)


class Arrivals:
    """A listener that wants to be told of what is due by then."""

    def __init__(self, told_ms: int) -> None:
        self.told_ms = told_ms
        self.entries: list[Entry] = []

    def arrived(self, entries: Iterable[Entry]) -> None:
        self.entries += [entry for entry in entries if entry.kind or entry.due_ms <= self.told_ms]


class Pair:
    """Two replicas that are given the same records: one as they are, one flat."""

    def __init__(
        self, folder: Path, library: native.Library, settings: Settings = SETTINGS
    ) -> None:
        self.surveyor = Surveyor(library)
        self.listed, self.flat = (open_replica(folder / name, settings) for name in "ab")
        for replica in (self.listed, self.flat):
            replica.arrivals.rates.watch({"orders": RATED}, APPEND_MS)
        self.rules: list[PackRules] = []
        self.runs = 0
        """Runs that were taken natively."""
        self.firsts = 0
        """Ids that came in them."""
        taken = self.flat.take_run

        def take_run(offset: int, run: Run, rules: PackRules) -> Sequence[int] | None:
            known = taken(offset, run, rules)
            if known is not None and not known:
                self.runs += 1
                self.firsts += len(run.firsts.keys)
            return known

        self.flat.take_run = take_run  # type: ignore[method-assign]
        self.rows: Counter[int] = Counter()
        """Records that came as rows, by kind."""
        taken_piece = self.flat.take_piece

        def take_piece(piece: Piece) -> None:
            if isinstance(piece, RowPiece):
                self.rows.update(row[KIND] for row in piece._rows)
            taken_piece(piece)

        self.flat.take_piece = take_piece  # type: ignore[method-assign]

    def take(self, records: list[Record], told_ms: int = -1) -> None:
        """Give both of them the records, at the offsets that come next, and compare."""
        flat = FlatRecords(self.surveyor, flattened(self._next(records)))
        heard = []
        outcomes: list[list[Rejected]] = []
        for replica, given_records in ((self.listed, list(flat)), (self.flat, flat)):
            heard.append(Arrivals(told_ms))
            with replica.changed:
                replica.attach(heard[-1])
            outcomes.append(replica.take(given_records))
            replica.detach(heard[-1])
        assert outcomes[0] == outcomes[1]
        assert heard[0].entries == heard[1].entries
        assert all_of(self.listed) == all_of(self.flat)

    def checkpoint(self) -> None:
        """Have both write what they have into their catalogues."""
        for replica in (self.listed, self.flat):
            assert replica.checkpoint()

    def _next(self, records: list[Record]) -> list[Record]:
        offsets = list(self.listed.ingested)
        moved = []
        for each in records:
            offset = offsets[each.partition] + each.offset % 3
            moved.append(each._replace(offset=offset, leader_epoch=offset // 7))
            offsets[each.partition] = moved[-1].offset + 1
        return moved

    def close(self) -> None:
        self.listed.close()
        self.flat.close()


def all_of(replica: Replica) -> dict[str, Any]:
    """All that a replica has taken in."""
    wheel = replica.wheel
    segments = wheel._segments
    return {
        "segments": {
            segment.name: (segment.info(), bytes(segment.tail), segment.written)
            for segment in segments.all()
        },
        "order of tails": [segment.name for segment in segments.with_tail],
        "totals": (segments.totals, segments.bytes, segments.tail_bytes, wheel.filing),
        "counts": (wheel.counts.hours, wheel.counts.topics, wheel.counts._slots),
        "states": (replica._states, replica._epochs, replica.ingested_count, replica.rules),
        # A run counts in one second, though append times may go back and forth in it.
        "rates": {topic: sum(of.values()) for topic, of in replica.arrivals.rates._taken.items()},
        "replies": wheel.pending_replies([0] * PARTITIONS),
        "ids": lines_of(replica, b"i"),
        "kills": lines_of(replica, b"k"),
        "queue": ends_of(replica),
    }


def lines_of(replica: Replica, kind: bytes) -> dict[bytes, bytes]:
    """All lines of a kind, by key."""
    runs = replica.wheel.ids._layers.lines(kind, kind)
    return {key: value for run in runs for key, value in run}


def ends_of(replica: Replica) -> list[bytes]:
    """The lines of the queue that states end by. Others are left of states that were replaced: how
    many depends on how the records came in pieces."""
    lines, ends = lines_of(replica, b"e"), []
    for key in lines_of(replica, b"i"):
        _, partition = struct.unpack_from(">cH", key)
        state = replica.wheel.ids.recall(partition, key[3:])
        ends.append(struct.pack(">cHQ", b"e", partition, state.forget_ms) + key[3:])
    assert lines.keys() >= set(ends), "a state is never looked at again"
    return ends
