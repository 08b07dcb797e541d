"""What steps have left behind in Kafka since a frontier that is known: the clues.

    targets        deliveries, by `delayd-source`
    dead letters   likewise
    receipts       which requests with an id were judged, and what was killed
    buffer         continuations and settlements, which masters wrote; and the requests that the
                   wheel has not read

Committed records only. A clue counts for a message if its content is the message's too
(`matching.py`): other clusters may deliver to the same targets, and a former cluster of this name
may have left dead letters.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from delayd.bus import Bus, Record
from delayd.bus.reading import records_between
from delayd.commands.move.requests import content_of
from delayd.commands.move.source import Stored
from delayd.errors import RecoverError
from delayd.node.replica.switching import behind
from delayd.request import (
    Op,
    Reject,
    Request,
    RequestLimits,
    id_of,
    message_body,
    parse,
    source_of,
)
from delayd.request.arrivals import arrival_of
from delayd.request.bodies import ASKED_DUE_MS
from delayd.request.headers import INTERNAL_HEADERS
from delayd.request.letters import letter_of
from delayd.request.request import MARKING
from delayd.request.settlements import is_settlement
from delayd.runtime.clock import Clock
from delayd.wheel import FrameKind, Progress
from replication.holds import Order
from replication.quotas import Gate, QuotaOrder, full_of
from replication.rank import Rank, due_of, lane_of
from replication.record import FrontierRecord
from replication.recovered import FOREVER_MS, SKEW_MS, Kept, Trace, blind_until_ms
from replication.rules import Barrier, Rules
from replication.settings import Settings

BATCH: Final = 5_000
FIRST_RECORDS: Final = 200
"""Records at the start of each partition of a target that are looked at: what is the oldest?"""
SETTLED_MS: Final = 10_000
POLL_S: Final = 0.1
HELD_NAMED_MAX: Final = 20

Tell = Callable[[str, int, int], None]
"""Takes a stage, how much of it is done, and how much there is."""


class Delivered(NamedTuple):
    """A delivery, or a dead letter."""

    topic: str
    asked_due_ms: int
    """-1 of a dead letter."""
    id: str | None
    content: int
    at_ms: int
    """`now` of its step; of a dead letter its append time."""


class Told(NamedTuple):
    """A receipt."""

    id: str
    op: str
    verdict: str


class Debounce(NamedTuple):
    """A debounce that the wheel has not read."""

    offset: int
    append_ms: int


@dataclass(slots=True)
class Clues:
    """All that was found."""

    since_ms: int
    arrivals: defaultdict[str, list[Delivered]] = field(default_factory=lambda: defaultdict(list))
    """By source."""
    letters: defaultdict[str, list[Delivered]] = field(default_factory=lambda: defaultdict(list))
    receipts: defaultdict[str, list[Told]] = field(default_factory=lambda: defaultdict(list))
    killed: dict[str, int] = field(default_factory=dict)
    """By source, of the message itself or its origin: the offset of the marker that killed it."""
    traces: list[Trace] = field(default_factory=list)
    """Of continued messages and of settled markers: under the cluster's own proof."""
    over: set[str] = field(default_factory=set)
    """Sources of messages of which `traces` says that they are over."""
    own_writes: list[Trace] = field(default_factory=list)
    orders: list[tuple[int, int, Order]] = field(default_factory=list)
    quotas: list[tuple[int, int, QuotaOrder | Gate]] = field(default_factory=list)
    """To pause topics and to resume them, by partition and offset."""
    tail: list[Stored] = field(default_factory=list)
    """The requests behind what the wheel has read."""
    rules: Rules = field(default_factory=lambda: Rules(0))
    buffer_from: Mapping[int, int] = field(default_factory=dict)
    """Where the buffer was read from, by partition."""
    blind_ms: dict[str, int] = field(default_factory=dict)
    """By target: see `replication.recovered.Facts`."""
    why_blind: dict[str, str] = field(default_factory=dict)
    open_transactions: list[str] = field(default_factory=list)
    debounces: defaultdict[str, list[Debounce]] = field(default_factory=lambda: defaultdict(list))
    """By id: those of the tail, in the order of the log."""

    def superseded_by(self, stored: Stored) -> int:
        """Return the offset of the debounce of the tail that kills a message; -1 if none does."""
        due_ms, _, offset = stored.rank
        id = id_of(stored.body)
        later = [each for each in self.debounces.get(id or "", ()) if each.offset > offset]
        return next((each.offset for each in later if each.append_ms < due_ms), -1)

    def place_debounces(self) -> None:
        """Give each debounce of the tail that came out the due time that it came out by: the log
        alone would need what the wheel knows of its id."""
        of_tail = {(id, each.offset) for id, them in self.debounces.items() for each in them}
        for number, stored in enumerate(self.tail):
            _, partition, offset = stored.rank
            arrivals = self.arrivals.get(source_of(partition, offset))
            if not (_is_message(stored) and arrivals):
                continue
            if (id_of(stored.body), offset) not in of_tail:
                continue
            due_ms = arrivals[0].asked_due_ms
            body = (*stored.body[:ASKED_DUE_MS], due_ms, *stored.body[ASKED_DUE_MS + 1 :])
            rank = Rank(due_ms, partition, offset)
            self.tail[number] = stored._replace(rank=rank, body=body)


class Reader:
    """Reads the clues of one cluster."""

    def __init__(
        self, bus: Bus, known: FrontierRecord, progress: Progress, proof_key: bytes, clock: Clock,
        timeout_ms: int,
    ) -> None:  # fmt: skip
        """`known` and `progress` are what the wheel's checkpoint says."""
        self._bus = bus
        self._settings: Settings = known.settings
        self._progress = progress
        self._clock = clock
        self._timeout_ms = timeout_ms
        rules = Rules(self._settings.rules_version, progress.rules).with_barriers(known.barriers)
        limits = RequestLimits.of(self._settings, proof_key, rules)
        self._limits = replace(limits, full=full_of(progress.full))
        # Of several shards, the one of which the wheel has heard least.
        self._since_ms = min(each.now_ms for each in known.steps) - SKEW_MS

    def read(self, targets: Iterable[str], tell: Tell, *, is_fenced: bool) -> Clues:
        """Return the clues. `targets` are those of what is stored; those of the tail are added.
        Before the fence the last master's transaction may be open: then it is only noted.

        Raises RecoverError if the buffer has lost what the wheel lacks, or if a transaction stays
        open, and what the drivers raise.
        """
        clues = Clues(self._since_ms)
        settings = self._settings
        own = [settings.buffer.name, settings.dead.name, settings.receipts.name]
        self._settle(clues, own, is_fenced=is_fenced)
        tell("reading the buffer", 0, 1)
        self._read_buffer(clues)
        tell("reading dead letters and receipts", 0, 1)
        for record in self._since(settings.dead.name):
            self._letter(clues, record)
        dead_blind_ms = self._letters_blind_ms()
        for record in self._since(settings.receipts.name):
            self._receipt(clues, record)
        topics = {*targets, *(each.body[0] for each in clues.tail if _is_message(each))}
        self._settle(clues, sorted(topics), is_fenced=is_fenced)
        for number, topic in enumerate(sorted(topics)):
            tell(f"reading {topic}", number, len(topics))
            self._target(clues, topic)
            if dead_blind_ms > clues.blind_ms[topic]:
                clues.blind_ms[topic] = dead_blind_ms
                clues.why_blind[topic] = f"{settings.dead.name} has deleted dead letters"
        clues.place_debounces()
        return clues

    def _letters_blind_ms(self) -> int:
        """Return up to when it is unknown which messages died; -1 if all dead letters are there."""
        name = self._settings.dead.name
        first, _, ends = self._ranges(name)
        early = {p: min(ends[p], first[p] + FIRST_RECORDS) for p in ends if first[p]}
        oldest: dict[int, int] = {}
        for record in self._between(name, first, early):
            oldest.setdefault(record.partition, record.append_ms)
        # Its id is checked, so what begins at offset 0 has lost nothing.
        kept = [Kept(first[p], oldest.get(p)) for p in early]
        return blind_until_ms(kept, self._since_ms) if kept else -1

    def _settle(self, clues: Clues, topics: Iterable[str], *, is_fenced: bool) -> None:
        """Wait until no transaction is open in these topics: what lies behind its first record
        cannot be read. Raise RecoverError if one stays open."""
        left = list(topics)
        until_ms = self._clock.monotonic_ms() + min(SETTLED_MS, self._timeout_ms)
        while True:
            with closing(self._bus.cluster()) as kafka:
                there = kafka.survey(left, self._timeout_ms).states
                held = [place for topic in sorted(there) for place in self._held(kafka, topic)]
            if not held:
                return
            if not is_fenced:
                clues.open_transactions += held
                return
            if self._clock.monotonic_ms() >= until_ms:
                named = ", ".join(held[:HELD_NAMED_MAX])
                raise RecoverError(
                    f"a transaction is open in {named}: nobody can read what lies behind it",
                    remedy="end it, or wait until Kafka does after its time-out; "
                    "kafka-transactions.sh find-hanging names one that never ends: see "
                    "docs/operations.md, 'A lost commit marker'",
                )
            threading.Event().wait(POLL_S)

    def _held(self, kafka: Any, topic: str) -> Iterator[str]:
        ends = kafka.end_offsets(topic, self._timeout_ms, committed=False)
        stable = kafka.end_offsets(topic, self._timeout_ms, committed=True)
        yield from (f"{topic}/{p}" for p, end in sorted(ends.items()) if stable[p] < end)

    def _between(self, topic: str, starts: Mapping[int, int], ends: Mapping[int, int],
                 *, careful: bool = False) -> Iterator[Record]:  # fmt: skip
        return records_between(
            self._bus,
            topic,
            starts,
            ends,
            self._clock,
            records_max=BATCH,
            timeout_ms=self._timeout_ms,
            careful=careful,
        )

    def _ranges(self, topic: str) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
        """Return where a topic begins, where that may be which is as young as the clues, and where
        it ends."""
        with closing(self._bus.cluster()) as kafka:
            ends = kafka.end_offsets(topic, self._timeout_ms, committed=True)
            first = kafka.start_offsets(topic, self._timeout_ms)
            since = kafka.offsets_since(topic, self._since_ms - SKEW_MS, self._timeout_ms)
        return first, {p: max(first[p], since.get(p, end)) for p, end in ends.items()}, ends

    def _since(self, topic: str) -> Iterator[Record]:
        _, starts, ends = self._ranges(topic)
        yield from self._between(topic, starts, ends)

    def _read_buffer(self, clues: Clues) -> None:
        name, reached = self._settings.buffer.name, self._progress.offsets
        first, since, ends = self._ranges(name)
        passed = self._progress.reached or reached
        for partition, start in first.items():
            if start > passed[partition]:
                raise RecoverError(
                    f"{name}/{partition} begins at offset {start}, and the wheel has read it up to "
                    f"{passed[partition]}: what came in between is gone",
                    remedy="take the data_dir of a node that has read more, or a newer backup",
                )
        starts = {p: max(first[p], min(since[p], reached[p])) for p in ends}
        clues.buffer_from = starts
        limits = self._limits
        for record in self._between(name, starts, ends, careful=True):
            is_new = record.offset >= reached[record.partition]
            names = {header for header, _ in record.headers}
            is_own = is_settlement(record.headers) or not names.isdisjoint(INTERNAL_HEADERS)
            if not (is_new or is_own or "delayd-rules" in names):
                continue
            asked = parse(record, limits)
            if isinstance(asked, Request):
                if asked.order is not None:
                    clues.orders.append((record.partition, record.offset, asked.order))
                self._own_write(clues, record, asked)
                if (quota := asked.quota or asked.gate) is not None:
                    clues.quotas.append((record.partition, record.offset, quota))
                if asked.gate is not None and is_new:
                    limits = behind(limits, record, asked)
                if asked.op is Op.SWITCH and asked.switch is not None:
                    barrier = Barrier(record.partition, record.offset, asked.switch.version)
                    limits = replace(limits, rules=limits.rules.with_barriers([barrier]))
            if isinstance(asked, Request) and asked.op is Op.DEBOUNCE:
                debounce = Debounce(record.offset, record.append_ms)
                clues.debounces[asked.id or ""].append(debounce)
            if is_new:
                clues.tail.extend(self._stored(record, asked))
        clues.rules = limits.rules

    def _own_write(self, clues: Clues, record: Record, asked: Request) -> None:
        """Note what a record of a master's says of others."""
        partition = record.partition
        if asked.op is Op.CONTINUE and asked.continues is not None and asked.moved_by >= 0:
            # The step has passed the reschedule; what that moves was killed, and not yet due.
            clues.traces.append(Trace(partition, asked.moved_by))
            clues.over.add(source_of(partition, asked.continues[1]))
        elif asked.op is Op.CONTINUE and asked.continues is not None:
            due_ms, offset = asked.continues
            assert asked.topic is not None, "what is continued has a target"
            lane = lane_of(asked.topic, self._settings.lanes)
            clues.traces.append(Trace(partition, offset, Rank(due_ms, partition, offset), lane))
            clues.over.add(source_of(partition, offset))
        elif asked.op is Op.SETTLE:
            for _, settlement in asked.settled:
                clues.traces.append(Trace(partition, settlement.marker_offset))
                for message in settlement.killed:
                    source = source_of(partition, message.offset)
                    clues.killed.setdefault(source, settlement.marker_offset)
                for message in settlement.done:
                    rank = Rank(message.due_ms, partition, message.offset)
                    clues.traces.append(Trace(partition, message.offset, rank, message.lane))
                    clues.over.add(source_of(partition, message.offset))
        elif asked.op is not Op.GATE:
            return
        clues.own_writes.append(Trace(partition, record.offset))

    def _stored(self, record: Record, asked: Request | Reject) -> Iterator[Stored]:
        """Yield what a node will store of a request at most: what its id decides is left out."""
        partition, offset = record.partition, record.offset
        reply = Rank(record.append_ms, partition, offset)
        if isinstance(asked, Reject):
            body = (record.key, record.value, record.headers, asked.reason.slug)
            yield Stored(int(FrameKind.PENDING_REPLY), 0, reply, (body, None))
            return
        is_quiet = asked.op is Op.DEBOUNCE and not asked.is_told
        if asked.op in MARKING and not is_quiet:
            yield Stored(int(FrameKind.CANCEL_MARKER), 0, reply, (None, asked.id))
        if asked.topic is not None:
            rank = Rank(due_of(asked.due_ms, record.append_ms), partition, offset)
            lane = lane_of(asked.topic, self._settings.lanes)
            yield Stored(int(FrameKind.MESSAGE), lane, rank, message_body(asked))
        if asked.op is Op.REDRIVE:
            told = (asked.redrive if asked.id is None else asked.id,)
            yield Stored(int(FrameKind.PENDING_REPLY), 0, reply, (None, told))

    def _letter(self, clues: Clues, record: Record) -> None:
        letter = letter_of(record)
        if letter is not None and letter.dead_ms >= self._since_ms - SKEW_MS:
            content = content_of(letter.key, letter.value, letter.headers)
            found = Delivered(letter.reason, -1, letter.id, content, letter.dead_ms)
            clues.letters[letter.source].append(found)

    def _receipt(self, clues: Clues, record: Record) -> None:
        try:
            fields = json.loads(record.value or b"")
            at_ms, source = int(fields["at_ms"]), str(fields["source"])
            told = Told(str(fields["id"]), str(fields["op"]), str(fields["verdict"]))
            killed = [str(each) for each in fields["killed"]]
        except (ValueError, KeyError, TypeError):
            return  # Nobody of delayd wrote it.
        if at_ms < self._since_ms:
            return
        clues.receipts[source].append(told)
        if told.verdict in ("cancelled", "replaced"):
            for each in killed:
                clues.killed.setdefault(each, int(source.partition("/")[2] or -1))

    def _target(self, clues: Clues, topic: str) -> None:
        with closing(self._bus.cluster()) as kafka:
            survey = kafka.survey([topic], self._timeout_ms)
        if topic in survey.refused or topic in survey.silent:
            why = survey.refused.get(topic, "no broker answers")
            raise RecoverError(
                f"the target {topic} cannot be read: {why}",
                remedy="let this program describe and read it, then run it again",
            )
        if topic not in survey.states:
            clues.blind_ms[topic] = FOREVER_MS
            clues.why_blind[topic] = "it is not there"
            return
        config = survey.states[topic].config
        first, since, ends = self._ranges(topic)
        has_broker_times = config.get("message.timestamp.type") == "LogAppendTime"
        oldest: dict[int, int] = {}
        early = {p: min(ends[p], first[p] + FIRST_RECORDS) for p in ends}
        for record in self._between(topic, first, early):
            is_early = record.offset < since[record.partition]
            self._arrival(clues, topic, record, oldest, has_broker_times, is_early)
        for record in self._between(topic, {p: max(since[p], early[p]) for p in ends}, ends):
            self._arrival(clues, topic, record, oldest, has_broker_times, False)
        kept = [Kept(first[p], oldest.get(p)) for p in ends]
        if "compact" in config.get("cleanup.policy", ""):
            clues.blind_ms[topic] = FOREVER_MS
            clues.why_blind[topic] = "it is compacted"
            return
        clues.blind_ms[topic] = blind_ms = blind_until_ms(kept, self._since_ms)
        if blind_ms >= 0:
            clues.why_blind[topic] = (
                "its retention has deleted records"
                if any(start for start, _ in kept)
                else "it shows nothing from before: it may have been made again"
            )

    def _arrival(self, clues: Clues, topic: str, record: Record, oldest: dict[int, int],
                 has_broker_times: bool, is_early: bool) -> None:  # fmt: skip
        """Note a record of a target: how old it is, and what it says."""
        partition, arrival = record.partition, arrival_of(record)
        if has_broker_times:
            oldest.setdefault(partition, record.append_ms)
        if arrival is None:
            return
        oldest[partition] = min(oldest.get(partition, arrival.fired_ms), arrival.fired_ms)
        if is_early or arrival.fired_ms < self._since_ms:
            return
        content = content_of(arrival.key, arrival.value, arrival.headers)
        found = Delivered(topic, arrival.asked_due_ms, arrival.id, content, arrival.fired_ms)
        clues.arrivals[arrival.source].append(found)


def _is_message(stored: Stored) -> bool:
    return stored.kind == FrameKind.MESSAGE
