"""Copies of the old cluster's targets in the new Kafka, as MirrorMaker 2 makes them: what is among
them was delivered, as far as the readers of the new Kafka are concerned.

Copies come later than deliveries, so the last ones may be missing. A message that the cut says was
delivered lately, and of which there is no copy, is therefore pending here. Lately is since the
frontier by which the wheel has forgotten: whatever that one does not cover, the wheel holds still,
and a later step has delivered it, of whatever shard and however late. Where a topic cannot show
what it received (it holds no delivery that is older, is compacted, or is not there), the cut counts
alone.

Memory: about 300 bytes for each delivery since then.

Source: docs/design/moving.md, "Copies".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from delayd.bus import Bus, Record
from delayd.bus.reading import records_between
from delayd.commands.move.requests import content_of
from delayd.commands.move.source import Message, Source
from delayd.errors import MoveError
from delayd.request import DIED, asked_due_of, id_of, source_of
from delayd.request.arrivals import arrival_of
from delayd.request.bodies import HEADERS, KEY, TOPIC, VALUE, asked_again
from delayd.request.letters import letter_of
from delayd.runtime.clock import Clock
from replication.frontier import Frontier, first_frontier
from replication.rank import lane_of
from replication.record import FrontierRecord
from replication.recovered import FOREVER_MS, SKEW_MS

FIRST_RECORDS: Final = 200
"""Records at the start of each partition that are looked at: what is the oldest?"""
BATCH: Final = 5_000

Ends = dict[str, dict[int, int]]
"""Where topics end, by topic and partition."""


class _Copy(NamedTuple):
    """What tells a delivery from all others."""

    source: str
    topic: str
    asked_due_ms: int
    id: str | None
    content: int


class _DeadCopy(NamedTuple):
    source: str
    content: int


@dataclass(frozen=True, slots=True)
class Copies:
    """What the new Kafka has of the old cluster's deliveries."""

    cut: FrontierRecord
    floor: Frontier
    """Covers what is older than `since_ms`: the cut counts alone for it."""
    since_ms: int
    """Since when deliveries are looked for (Unix ms)."""
    ends: Ends = field(default_factory=dict)
    """Up to where they were read: what comes later is not of the old cluster."""
    delivered: set[_Copy] = field(default_factory=set)
    dead: set[_DeadCopy] = field(default_factory=set)
    blind_ms: dict[str, int] = field(default_factory=dict)
    """By target: what was due up to then (Unix ms) may have been delivered though there is no copy;
    -1 if there is a copy of all."""

    def is_done(self, message: Message) -> bool:
        """Return whether the old cluster delivered a message for sure, by the cut."""
        lane = lane_of(message.body[TOPIC], self.cut.settings.lanes)
        return self.cut.frontier.covers(lane, message.rank)

    def left(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield the messages that the new Kafka lacks."""
        for message in messages:
            is_blind = message.rank.due_ms <= self.blind_ms[message.body[TOPIC]]
            if not (self._holds(message) or (is_blind and self.is_done(message))):
                yield message

    def _holds(self, message: Message) -> bool:
        rank, body = message.rank, message.body
        source = source_of(rank.partition, rank.offset)
        content = content_of(body[KEY], body[VALUE], body[HEADERS])
        if _Copy(source, body[TOPIC], asked_due_of(body), id_of(body), content) in self.delivered:
            return True
        return _DeadCopy(source, content_of(*asked_again(body))) in self.dead


def pending(
    source: Source,
    cut: FrontierRecord,
    copies: Copies | None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Message]:
    """Yield what is to be moved, by rank. Arguments and errors as of `Source.messages`."""
    if copies is None:
        return source.messages(cut.frontier, tell)
    return copies.left(source.messages(copies.floor, tell))


class CopiesReader:
    """Reads the copies of one old cluster's deliveries."""

    def __init__(self, bus: Bus, clock: Clock, timeout_ms: int) -> None:
        """`bus` leads to the new Kafka."""
        self._bus = bus
        self._clock = clock
        self._timeout_ms = timeout_ms

    def read(
        self,
        cut: FrontierRecord,
        forgotten: FrontierRecord | None,
        targets: Iterable[str],
        ends: Ends | None,
    ) -> Copies:
        """Return the copies. `forgotten`: see `Source`. `ends`: where an earlier run has found the
        topics to end.

        Raises MoveError if a topic cannot be read, or if a transaction is open in it, and what the
        drivers raise.
        """
        dead = cut.settings.dead.name
        topics = sorted({*targets})
        found = Copies(cut, *_looked_back(cut, forgotten))
        with closing(self._bus.cluster()) as kafka:
            survey = kafka.survey([*topics, dead], self._timeout_ms)
        for topic in [*topics, dead]:
            found.blind_ms[topic] = FOREVER_MS
            if topic in survey.refused or topic in survey.silent:
                raise MoveError(
                    f"{topic} cannot be read: {survey.refused.get(topic, 'no broker answers')}",
                    remedy="let this program describe and read it, then run it again",
                )
            if topic not in survey.states or (ends is not None and topic not in ends):
                continue
            is_compacted = "compact" in survey.states[topic].config.get("cleanup.policy", "")
            self._read(found, topic, is_compacted, None if ends is None else ends[topic])
        return found

    def _read(
        self, found: Copies, topic: str, is_compacted: bool, known: Mapping[int, int] | None
    ) -> None:
        """Read one topic: what is the oldest that it shows, and what it has of late."""
        with closing(self._bus.cluster()) as kafka:
            first = kafka.start_offsets(topic, self._timeout_ms)
            stable = kafka.end_offsets(topic, self._timeout_ms, committed=True)
            latest = kafka.end_offsets(topic, self._timeout_ms, committed=False)
            since = kafka.offsets_since(topic, max(0, found.since_ms), self._timeout_ms)
        ends = {p: end if known is None else known[p] for p, end in latest.items()}
        held = [f"{topic}/{p}" for p, end in ends.items() if stable[p] < end]
        if held:
            raise MoveError(
                f"a transaction is open in {', '.join(held)}: copies may lie behind it",
                remedy="stop MirrorMaker, wait a minute until Kafka ends what it left open, and "
                "run this again",
            )
        found.ends[topic] = ends
        if topic == found.cut.settings.dead.name:
            starts = {p: max(first[p], since.get(p, end)) for p, end in ends.items()}
            for record in self._between(topic, starts, ends):
                _note_letter(found, record)
            return
        oldest: dict[int, int] = {}
        early = {p: min(end, first[p] + FIRST_RECORDS) for p, end in ends.items()}
        for record in self._between(topic, first, early):
            _note_delivery(found, topic, record, oldest)
        late = {p: min(end, max(early[p], since.get(p, end))) for p, end in ends.items()}
        for record in self._between(topic, late, ends):
            _note_delivery(found, topic, record, oldest)
        if not is_compacted:
            found.blind_ms[topic] = blind_until_ms(first, oldest, found.since_ms)

    def _between(
        self, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> Iterator[Record]:
        return records_between(
            self._bus,
            topic,
            starts,
            ends,
            self._clock,
            records_max=BATCH,
            timeout_ms=self._timeout_ms,
        )


def _looked_back(cut: FrontierRecord, forgotten: FrontierRecord | None) -> tuple[Frontier, int]:
    """Return a frontier that covers what is not looked for among the copies, and a time before all
    deliveries that are (Unix ms): each is of a later step of its shard, and some shards may be
    further than others."""
    if forgotten is None:
        lanes, partitions = cut.settings.lanes, cut.settings.partitions
        return first_frontier(0, partitions, lanes), 0
    return forgotten.frontier, min(step.now_ms for step in forgotten.steps) - SKEW_MS


def blind_until_ms(first: Mapping[int, int], oldest: Mapping[int, int], since_ms: int) -> int:
    """Return up to when a delivery may have no copy though it was copied once, or was made before
    copying began; -1 if that is not after `since_ms`.

    `first` is where partitions begin, `oldest` the time of the oldest delivery that each shows. A
    mirror copies a topic from its beginning, so nothing is missing in a partition that begins at
    offset 0, as of the oldest delivery in any of them. All times are Unix ms.
    """
    begins_ms = min(oldest.values(), default=FOREVER_MS)
    trimmed = [oldest.get(p, FOREVER_MS) for p, start in first.items() if start]
    late = [each + SKEW_MS for each in trimmed if each > since_ms]
    blind_ms = max([begins_ms, *late])
    return blind_ms if blind_ms > since_ms else -1


def _note_delivery(found: Copies, topic: str, record: Record, oldest: dict[int, int]) -> None:
    arrival = arrival_of(record)
    if arrival is None:
        return
    partition, fired_ms = record.partition, arrival.fired_ms
    oldest[partition] = min(oldest.get(partition, fired_ms), fired_ms)
    if fired_ms >= found.since_ms:
        content = content_of(arrival.key, arrival.value, arrival.headers)
        found.delivered.add(_Copy(arrival.source, topic, arrival.asked_due_ms, arrival.id, content))


def _note_letter(found: Copies, record: Record) -> None:
    letter = letter_of(record)
    if letter is not None and letter.reason in DIED:
        content = content_of(letter.key, letter.value, letter.headers)
        found.dead.add(_DeadCopy(letter.source, content))
