"""A fast reader that cannot tell batches apart, and a careful one that takes over where it must.

librdkafka expands batches before anybody sees them, hands out records without their batches, and
refuses some batches that are readable (`delayd.bus.unreadable` has the rule). So the careful
reader, which expands within limits, reads in its place
- from a batch that the fast reader could not read, up to its end;
- wherever records that may be of one batch weigh more than a batch may: all that were appended in
  one millisecond of one partition;
- up to the offsets that it is told to read carefully to.

A fast reader that does not read on is assigned anew, where it stands.

Not here: the bound of what the fast reader itself takes for a batch. Where brokers let heavy ones
in, the careful reader reads alone (`Bus.consumer`).

Invariant: what is handed out is what the careful reader alone would hand out. It rests on the fast
reader handing out what it fetched of a partition in one piece: a batch is cut only where a poll
is full, and then the next poll begins with the rest. Events, such as the end of a partition, take
the places of records: a poll that returns more than half of what it was asked for may be full.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

import structlog

from delayd.bus import Consumer, Position, Record
from delayd.bus.flat import FlatRecords
from delayd.bus.progress import StalledError
from delayd.bus.unreadable import BATCH_BYTES_MAX, RECORD_BYTES, BatchError, weight_max

log = structlog.get_logger()

BATCH_RECORDS_MAX: Final = BATCH_BYTES_MAX // RECORD_BYTES
"""Of a batch that is read."""
CAREFUL_RECORDS: Final = 20_000
"""How many records the careful reader hands over at a time: more than are in most batches."""


class GuardedConsumer:
    """One topic's partitions, read by two readers in turn; see the port `Consumer`."""

    def __init__(
        self,
        topic: str,
        fast: Consumer,
        careful: Callable[[], Consumer],
        batch_bytes_max: int = BATCH_BYTES_MAX,
        careful_to: Mapping[int, int] | None = None,
    ) -> None:
        """`careful_to`: by partition, the offset that the careful reader has to reach first."""
        self._careful_to = careful_to or {}
        self._topic = topic
        self._fast = fast
        self._make_careful = careful
        self._batch_bytes_max = batch_bytes_max
        self._careful: Consumer | None = None
        self._examined: Mapping[int, int] = {}
        """By partition, the offset that the careful reader has to reach."""
        self._places: dict[int, Position] = {}
        """Where to read on behind what was handed out, or was told to be reached."""
        self._ready: Sequence[Record] = []
        """Records to hand out, in their order."""
        self._held: Sequence[Record] = []
        """The last records that were polled, whose batch may go on."""
        self._held_weight = 0
        """Of these, at most."""

    def assign(self, positions: Mapping[int, Position]) -> None:
        """See the port."""
        self._end_careful()
        self._places = dict(positions)
        self._ready, self._held, self._held_weight = [], [], 0
        if any(self._careful_to.get(number, 0) > at.offset for number, at in positions.items()):
            self._read_carefully(self._careful_to)
        else:
            self._fast.assign(positions)

    def poll(self, records_max: int, timeout_ms: int) -> Sequence[Record]:
        """See the port."""
        if not self._ready and self._careful is None:
            self._poll_fast(records_max, timeout_ms)
        if not self._ready and self._careful is not None:
            self._poll_careful(self._careful, timeout_ms)
        if len(self._ready) <= records_max:
            records, self._ready = self._ready, []
        else:
            records, self._ready = self._ready[:records_max], self._ready[records_max:]
        self._note(records)
        return records

    def position(self, partition: int) -> int:
        """See the port."""
        waiting = chain(_firsts(self._ready), _firsts(self._held))
        reached = next((offset for number, offset in waiting if number == partition), None)
        if reached is None:
            reached = (self._careful or self._fast).position(partition)
        if reached > self._places[partition].offset:
            # Past markers, and what was aborted. Whoever is told so may have it deleted.
            self._places[partition] = Position(reached)
        return reached

    def close(self) -> None:
        """See the port."""
        self._end_careful()
        self._fast.close()

    def _poll_fast(self, records_max: int, timeout_ms: int) -> None:
        """Make records ready, or put the careful reader in charge."""
        try:
            while True:
                found = self._fast.poll(records_max, 0 if self._held else timeout_ms)
                if not self._take(found, is_cut=2 * len(found) > records_max):
                    return
        except BatchError as error:
            self._examine(error.partition, error.offset)
        except StalledError as error:
            log.warning("reader_renewed", topic=self._topic, error=str(error))
            self._fast.assign(self._places | _places_behind(self._held))

    def _take(self, found: Sequence[Record], *, is_cut: bool) -> bool:
        """Add what was polled; return whether all of it is held, because its batch may go on."""
        weight = _weight_of(found)
        self._held_weight += weight
        whole = len(self._held)
        if not is_cut:
            whole += len(found)
        elif (begin := _begin_of_last_run(found)) > 0:
            whole += begin
        elif self._held and _are_of_one_run(self._held[-1], found[0]):
            whole = 0
        self._held = _joined(self._held, found)
        if self._held_weight > self._batch_bytes_max and self._suspects(self._held):
            return False
        if is_cut and whole == 0:
            return True
        self._ready, self._held = self._held[:whole], self._held[whole:]
        self._held_weight = weight if self._held else 0
        return False

    def _suspects(self, records: Sequence[Record]) -> bool:
        """Look for a run of records that is too heavy; make ready what is before it, and have the
        rest read carefully."""
        records = list(records)
        begin = 0
        for at in range(1, len(records) + 1):
            if at < len(records) and _are_of_one_run(records[begin], records[at]):
                continue
            if weight_max(records[begin:at]) > self._batch_bytes_max:
                self._ready = records[:begin]
                self._examine(records[at - 1].partition, records[at - 1].offset)
                return True
            begin = at
        return False

    def _examine(self, partition: int, offset: int) -> None:
        log.warning("batch_examined", topic=self._topic, partition=partition, offset=offset)
        self._read_carefully({partition: offset + 1})

    def _read_carefully(self, to: Mapping[int, int]) -> None:
        """Let the careful reader read what is behind the ready records, up to these offsets."""
        self._held, self._held_weight = [], 0
        places = self._places | _places_behind(self._ready)
        self._fast.close()
        self._careful = self._make_careful()
        self._careful.assign(places)
        self._examined = to

    def _poll_careful(self, careful: Consumer, timeout_ms: int) -> None:
        self._ready = careful.poll(CAREFUL_RECORDS, timeout_ms)
        beyond = min(careful.position(number) - to for number, to in self._examined.items())
        # In the middle of the batch the fast reader would meet it again.
        if beyond >= BATCH_RECORDS_MAX or (beyond >= 0 and len(self._ready) < CAREFUL_RECORDS):
            places = self._places | _places_behind(self._ready)
            for number, place in places.items():
                reached = careful.position(number)
                if reached > place.offset:  # past markers, and what was aborted
                    places[number] = Position(reached)
            self._end_careful()
            self._fast.assign(places)

    def _note(self, records: Sequence[Record]) -> None:
        self._places |= _places_behind(records)

    def _end_careful(self) -> None:
        if self._careful is not None:
            self._careful.close()
            self._careful = None


def _places_behind(records: Sequence[Record]) -> dict[int, Position]:
    """Return where to read on behind these records, by partition."""
    if isinstance(records, FlatRecords):
        return {
            stretch.partition: Position(stretch.last_offset + 1, stretch.leader_epoch)
            for stretch in records.survey.stretches
        }
    last = {record.partition: record for record in records}
    return {number: Position(at.offset + 1, at.leader_epoch) for number, at in last.items()}


def _firsts(records: Sequence[Record]) -> Iterator[tuple[int, int]]:
    """Yield partition and offset, of the first record of each partition and perhaps of others."""
    if isinstance(records, FlatRecords):
        return ((at.partition, at.first_offset) for at in records.survey.stretches)
    return ((record.partition, record.offset) for record in records)


def _weight_of(records: Sequence[Record]) -> int:
    """Return what these records weigh at most, if they are in one batch."""
    return records.survey.weight if isinstance(records, FlatRecords) else weight_max(records)


def _joined(records: Sequence[Record], more: Sequence[Record]) -> Sequence[Record]:
    if not records or not more:
        return records or more
    if isinstance(records, FlatRecords) and isinstance(more, FlatRecords):
        return records + more
    return [*records, *more]


def _are_of_one_run(one: Record, other: Record) -> bool:
    """Return whether two records of one poll may be of one batch: its append time is theirs."""
    return one.append_ms == other.append_ms and one.partition == other.partition


def _begin_of_last_run(records: Sequence[Record]) -> int:
    if isinstance(records, FlatRecords):
        return records.survey.run_begin
    last = records[-1]
    begin = len(records) - 1
    while begin > 0 and _are_of_one_run(records[begin - 1], last):
        begin -= 1
    return begin
