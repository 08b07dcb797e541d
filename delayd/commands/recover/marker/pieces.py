"""The log of one partition, cut into what single steps wrote there. Pure.

A *run* is what one producer wrote in transactions between two of its markers: Kafka makes all of it
visible or none. Mostly it is of one step. Behind a lost marker the next transaction of the producer
goes on with the run, so a run may be of several.

A *piece* is the part of a run that one step wrote. Which step that is, the records say:

    frontier   `now_ms` of the record
    target     the header delayd-fired
    receipts   `at_ms` of the receipt
    buffer     the frontier record whose own writes (R) reach over it
    dead       the frontier record whose offsets (O) reach over the source, if its request was
               refused; else what the rest of the batch says

Source: docs/design/lost-markers.md.
"""

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple
from zlib import crc32

from delayd.bus import Headers, Record
from delayd.bus.raw import Batch, Marker, Place, ProducerEpoch
from delayd.cluster.frontier_log import unreadable
from delayd.request import DIED, Verdict
from delayd.request.grammar import number_of
from replication.record import FrontierFormatError, FrontierRecord, decode, record_key
from replication.settings import Settings

OWNER: Final = "delayd-recover"
"""The owner of frontier records that this program writes."""
UNFINISHED_MS: Final = 1 << 62
"""Stands for the `now` of a step that wrote to the buffer, and then no frontier record."""

_OF_MESSAGES: Final = frozenset(
    each.slug for each in (Verdict.DELIVERED, Verdict.DEAD, Verdict.EXPIRED, Verdict.ENDED)
)


class Kind(Enum):
    """What a topic is to the cluster."""

    FRONTIER = "frontier"
    BUFFER = "buffer"
    DEAD = "dead"
    RECEIPTS = "receipts"
    TARGET = "target"


class State(Enum):
    """What readers see of a run."""

    VISIBLE = "visible"
    HANGING = "hanging"
    ABORTED = "aborted"


class StepName(NamedTuple):
    """Names the step of a master by its producer and its `now` (Unix ms)."""

    producer: ProducerEpoch
    now_ms: int


@dataclass(eq=False, slots=True)
class Run:
    """What a producer wrote to a partition between two of its markers."""

    place: Place
    kind: Kind
    producer_id: int
    epochs: set[int] = field(default_factory=set)
    records: list[tuple[int, Record]] = field(default_factory=list)
    """With the epoch of the producer that wrote each."""
    batches: list[int] = field(default_factory=list)
    """How many records each batch has. A batch is of one step."""
    marker: Marker | None = None
    """What ended it; None while it hangs."""

    @property
    def state(self) -> State:
        """Return what readers see of it."""
        if self.marker is None:
            return State.HANGING
        return State.VISIBLE if self.marker.is_commit else State.ABORTED


@dataclass(frozen=True, slots=True)
class Tally:
    """What the frontier record of a step counts, of records in one partition."""

    count: int
    digest: int
    """As a step adds up its deliveries."""
    requeued: int
    """Continuations."""
    dead: int
    """Dead letters of messages that failed on every attempt."""
    answered: frozenset[str]
    """Sources of the requests that receipts and other dead letters are about."""
    end: int
    """The last offset."""


@dataclass(eq=False, slots=True)
class Piece:
    """What one step wrote to a partition."""

    run: Run
    records: list[Record]
    """Empty if they are visible: there may be many."""
    tally: Tally
    """Of all of them."""
    copied: list[Record] = field(default_factory=list)
    """Those that an earlier run of this program has written again."""

    @property
    def place(self) -> Place:
        """Return where it lies."""
        return self.run.place

    @property
    def state(self) -> State:
        """Return what readers see of it."""
        return self.run.state

    @property
    def is_copied(self) -> bool:
        """Return whether all of it was written again."""
        return bool(self.records) and len(self.copied) == len(self.records)


@dataclass(slots=True)
class Step:
    """All that was found of one step."""

    name: StepName
    pieces: list[Piece] = field(default_factory=list)
    record: FrontierRecord | None = None
    """Its frontier record, whether visible or not; None if there is none in the log."""
    writes_before: tuple[int, ...] | None = None
    """R of the frontiers before it; None if none before it was read."""


def kind_of(topic: str, settings: Settings) -> Kind:
    """Return what a topic is to the cluster."""
    own = {
        settings.frontier.name: Kind.FRONTIER,
        settings.buffer.name: Kind.BUFFER,
        settings.dead.name: Kind.DEAD,
        settings.receipts.name: Kind.RECEIPTS,
    }
    return own.get(topic, Kind.TARGET)


def runs_of(place: Place, kind: Kind, log: Iterable[Batch | Marker]) -> Iterator[Run]:
    """Yield the runs of one partition, each as its marker is met; those that hang come last."""
    open_runs: dict[int, Run] = {}
    for each in log:
        number = each.producer.id
        if isinstance(each, Marker):
            if (run := open_runs.pop(number, None)) is not None:
                run.marker = each
                yield run
        elif each.is_transactional:
            run = open_runs.setdefault(number, Run(place, kind, number))
            run.epochs.add(each.producer.epoch)
            run.records += [(each.producer.epoch, record) for record in each.records]
            run.batches.append(len(each.records))
    yield from open_runs.values()


def frontier_of(place: Place, record: Record, shard: int) -> FrontierRecord | None:
    """Return the frontier that a record holds; None for one under another key. Raises
    FrontierError."""
    if record.key != record_key(shard):
        return None
    try:
        return decode(record.value or b"", takes_moved=True)
    except FrontierFormatError as error:
        raise unreadable(f"{place} offset {record.offset}", error) from error


def is_of_step(kind: Kind, record: Record) -> bool:
    """Return whether a step of a master may have written this record."""
    if kind is Kind.TARGET:
        names = {name for name, _ in record.headers}
        return {"delayd-fired", "delayd-source", "delayd-due"} <= names
    return True


def header(headers: Headers, name: str) -> str | None:
    """Return the last header of this name as text: those of delayd stand behind the user's."""
    for other, content in reversed(headers):
        if other == name:
            return (content or b"").decode(errors="replace")
    return None


class Steps:
    """The steps whose frontier records are in a part of the log, and what they wrote elsewhere."""

    def __init__(
        self, frontiers: Sequence[Run], shard: int, since_ms: int, ours: Container[int]
    ) -> None:
        """`frontiers` are the runs of the shard's partition of the frontier topic, `ours` the
        producers of its masters; of their steps whose `now` is `since_ms` or later, all other
        records are going to be added."""
        self.since_ms = since_ms
        self.by_name: dict[StepName, Step] = {}
        self.unclear: list[Piece] = []
        """Of which no step is known."""
        self.twins: set[StepName] = set()
        """Names that two steps have: their master's clock stepped back."""
        self._of_producer: dict[int, list[Step]] = {}
        """By its id, in the order in which they were taken."""
        self._own: set[ProducerEpoch] = set()
        """Producers of earlier runs of this program."""
        self._copies: dict[Place, set[object]] = {}
        """What these have written."""
        read: list[FrontierRecord] = []
        for run in frontiers:
            for epoch, record in run.records:
                found = frontier_of(run.place, record, shard)
                if found is None:
                    continue
                read.append(found)
                if run.producer_id not in ours:
                    continue  # A change of all shards, under the id of the first one's masters.
                producer = ProducerEpoch(run.producer_id, epoch)
                if found.owner == OWNER:
                    self._own.add(producer)
                    if run.state is State.VISIBLE:
                        self._copies.setdefault(run.place, set()).add(_same_frontier(found))
                    continue
                step = self._step(StepName(producer, found.now_ms))
                if step.record is not None:
                    self.twins.add(step.name)
                step.record = found
                step.pieces.append(_piece(run, [record], keeps=True))
        for step in self.by_name.values():
            self._of_producer.setdefault(step.name.producer.id, []).append(step)
        for steps in self._of_producer.values():
            steps.sort(key=_order)
        self._note_writes_before(read)

    def add(self, run: Run) -> None:
        """Give each record of a run to its step. The run keeps none of them if they are visible."""
        keeps = run.state is not State.VISIBLE
        if self.is_own(run):
            if not keeps:
                same = {_same(record) for _, record in run.records}
                self._copies.setdefault(run.place, set()).update(same)
            return
        pieces: dict[StepName, list[Record]] = {}
        unnamed: list[Record] = []
        named = self._names_of(run)
        for name, (_, record) in zip(named, run.records, strict=True):
            (unnamed if name is None else pieces.setdefault(name, [])).append(record)
        if unnamed:
            self.unclear.append(_piece(run, unnamed, keeps=keeps))
        for name, records in pieces.items():
            if name.now_ms >= self.since_ms or name in self.by_name:
                self._step(name).pieces.append(_piece(run, records, keeps=keeps))
        if not keeps:
            run.records.clear()

    def compare_copies(self) -> None:
        """Note which records were written again, once all runs are added."""
        for step in self.by_name.values():
            for piece in step.pieces:
                copies = self._copies.get(piece.place)
                if piece.state is not State.ABORTED or not copies:
                    continue
                if piece.run.kind is Kind.FRONTIER:
                    is_same = step.record is not None and _same_frontier(step.record) in copies
                    piece.copied = piece.records if is_same else []
                else:
                    piece.copied = [each for each in piece.records if _same(each) in copies]

    def is_own(self, run: Run) -> bool:
        """Return whether an earlier run of this program has written it."""
        return any(ProducerEpoch(run.producer_id, epoch) in self._own for epoch in run.epochs)

    def would_know(self, name: StepName) -> bool:
        """Return whether the frontier record of this step would have been read, if there was one.
        The topic is compacted, so it may begin behind that."""
        known = self._of_producer.get(name.producer.id, ())
        of_epoch = [step.name.now_ms for step in known if step.name.producer == name.producer]
        if of_epoch:  # A step that did not come to its record is the last one of its producer.
            return name.now_ms > max(of_epoch)
        return any(step.name.producer.epoch < name.producer.epoch for step in known)

    def _note_writes_before(self, read: Iterable[FrontierRecord]) -> None:
        before: dict[tuple[int, int], tuple[int, ...]] = {}
        highest: tuple[int, ...] | None = None
        for number, own_writes in sorted(
            (_number(each), each.frontier.own_writes) for each in read
        ):
            if highest is not None:
                before.setdefault(number, highest)
                own_writes = tuple(map(max, highest, own_writes))
            highest = own_writes
        for step in self.by_name.values():
            if step.record is not None:
                step.writes_before = before.get(_number(step.record))

    def _step(self, name: StepName) -> Step:
        return self.by_name.setdefault(name, Step(name))

    def _names_of(self, run: Run) -> list[StepName | None]:
        """Return the step of each record of a run, which others of its batch may tell."""
        names: list[StepName | None] = []
        for count in run.batches:
            batch = run.records[len(names) : len(names) + count]
            said = [
                self._name_of(run, ProducerEpoch(run.producer_id, epoch), record)
                for epoch, record in batch
            ]
            of_batch = next((name for name in said if name is not None), None)
            names += [of_batch if name is None else name for name in said]
        return names

    def _name_of(self, run: Run, producer: ProducerEpoch, record: Record) -> StepName | None:
        said: int | None = None
        if run.kind is Kind.TARGET:
            said = number_of(header(record.headers, "delayd-fired") or "")
        elif run.kind is Kind.RECEIPTS:
            said = _at_ms(record)
        if said is not None:
            return StepName(producer, said)
        if run.kind is Kind.BUFFER:
            return self._reaching(producer, _own_writes, record.partition, record.offset)
        if run.kind is Kind.DEAD and header(record.headers, "delayd-reason") not in DIED:
            partition, _, offset = (header(record.headers, "delayd-source") or "").partition("/")
            if partition.isdigit() and offset.isdigit():
                return self._reaching(producer, _offsets, int(partition), int(offset))
        return None

    def _reaching(
        self,
        producer: ProducerEpoch,
        reach: Callable[[FrontierRecord, int], int],
        partition: int,
        offset: int,
    ) -> StepName | None:
        """Return the first step of this producer that reaches an offset of the buffer, if the step
        before it, of whatever epoch, is known not to. If none reaches it, the step that wrote there
        never came to its frontier record."""
        before: int | None = None
        is_known = False
        for step in self._of_producer.get(producer.id, ()):
            if step.record is None or partition >= step.record.settings.partitions:
                return None
            reached = reach(step.record, partition)
            if step.name.producer == producer:
                is_known = True
                if reached >= offset:
                    return step.name if before is not None and before < offset else None
            before = reached
        return StepName(producer, UNFINISHED_MS) if is_known else None


def _piece(run: Run, records: list[Record], *, keeps: bool) -> Piece:
    return Piece(run, records if keeps else [], _tally(run.kind, records))


def _tally(kind: Kind, records: list[Record]) -> Tally:
    digest = requeued = dead = 0
    answered: set[str] = set()
    for record in records:
        source = header(record.headers, "delayd-source") or ""
        if kind is Kind.TARGET:
            digest += crc32(source.encode())
        elif kind is Kind.BUFFER:
            # Not counted in the frontier: what follows a delivered occurrence of a series, and what
            # a reschedule moves.
            names = {name for name, _ in record.headers}
            is_beside = not names.isdisjoint(("delayd-follows", "delayd-moved-by"))
            requeued += "delayd-continues" in names and not is_beside
        elif kind is Kind.DEAD and header(record.headers, "delayd-reason") in DIED:
            dead += 1
        elif kind is Kind.DEAD or (kind is Kind.RECEIPTS and _is_answer(record)):
            answered.add(source)
    end = max(record.offset for record in records)
    return Tally(len(records), digest, requeued, dead, frozenset(answered), end)


def _is_answer(record: Record) -> bool:
    """Return whether a receipt is about a request: others are about what became of a message."""
    return _said(record).get("verdict") not in _OF_MESSAGES


def _same(record: Record) -> object:
    """Return what is the same of a record and one that is written again."""
    return record.key, record.value, tuple(record.headers)


def _same_frontier(record: FrontierRecord) -> object:
    return record.now_ms, record.counts, record.digest


def _order(step: Step) -> tuple[int, int]:
    assert step.record is not None, "these have frontier records"
    return step.name.producer.epoch, step.record.frontier.step


def _number(record: FrontierRecord) -> tuple[int, int]:
    return record.frontier.term, record.frontier.step


def _own_writes(record: FrontierRecord, partition: int) -> int:
    return record.frontier.own_writes[partition]


def _offsets(record: FrontierRecord, partition: int) -> int:
    return record.frontier.offsets[partition] - 1


def _at_ms(record: Record) -> int | None:
    at_ms = _said(record).get("at_ms")
    return at_ms if isinstance(at_ms, int) else None


def _said(record: Record) -> Mapping[str, object]:
    """Return the fields of a receipt; none if it is no receipt."""
    try:
        said = json.loads(record.value or b"")
    except ValueError:
        return {}
    return said if isinstance(said, Mapping) else {}
