"""The numbers of pending messages, by the hour in which they are due and by target topic.

A message is *pending* if it is stored, not killed, and in a slot that the frontier has not passed.
Every change of that changes the counts, and both are durable with the same checkpoint: so the
counts are exact after any crash, and reading them costs nothing. A message that arrives for a
passed slot is not counted: the next step delivers it.

    key                 value (msgpack)
    "c" hour:u64        {topic: messages}       pending in this hour
    "d" slot:u64        {topic: messages}       in this slot's file; of slots that are not passed
    "f"                 floor                   the slot below which all are passed

A slot that is passed subtracts its stored messages from its hour, except those that were killed
(`kills.py`). The messages of a sparse hour are counted by slot when the hour is indexed. A message
of an unknown topic counts under "".

Requests bring any number of topics. TOPICS_MAX of them are counted by name, those that came first
and have messages; all others are OTHER. A topic that gets a name later leaves its earlier messages
there. What is counted off goes off its topic, or else off OTHER.

Invariants:
- the sum of hours[h] is the number of messages stored in h and not passed, less the kills in it;
- so it is of each topic, as long as there are no more than TOPICS_MAX.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import Any, Final, TypeAlias

import msgpack

from delayd.wheel.catalogue import Catalogue
from delayd.wheel.layers import Changes
from delayd.wheel.layout import HOUR_MS, HOUR_SLOTS, hour_of
from replication.quotas import QUOTAS_MAX
from replication.rank import SLOT_MS, slot_of

TOPICS_MAX: Final = 100
"""Topics that are counted by name: a checkpoint takes them of each hour that has changed."""

OTHER: Final = "other"
"""Stands for every further topic; one of that name is counted with them."""

Topics: TypeAlias = dict[str, int]
Killed: TypeAlias = Callable[[int, int], Iterable[tuple[int, str]]]
"""The kills of messages due from one slot up to another: due time and topic."""

_HOUR, _SLOT, _FLOOR = b"c", b"d", b"f"
_KEY = Struct(">cQ")
_pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True).pack


def pending_in(key: bytes, value: bytes) -> int:
    """Return how many messages a line of the catalogue counts as pending; 0 for any other line."""
    return sum(msgpack.unpackb(value).values()) if key[:1] == _HOUR else 0


def topics_in(catalogue: Catalogue, hour: int) -> Topics | None:
    """Return how many messages of each topic a checkpoint counts as pending in an hour; None if it
    counts none there, or has no counts."""
    value = catalogue.note(_KEY.pack(_HOUR, hour))
    topics: Topics | None = None if value is None else msgpack.unpackb(value)
    return topics


class PendingCounts:
    """Not thread safe: part of the wheel."""

    def __init__(self, catalogue: Catalogue) -> None:
        """Read the counts of the last checkpoint. Raises CorruptionError."""
        value = catalogue.note(_FLOOR)
        self.is_known = value is not None
        """A wheel of format 4 has no counts."""
        self.floor: int = 0 if value is None else msgpack.unpackb(value)
        """Slots below it are passed."""
        self.hours = _lines(catalogue, _HOUR)
        """Pending by hour and topic. To be read only."""
        self.topics: Topics = {}
        """Pending by topic. To be read only."""
        for topics in self.hours.values():
            for topic, count in topics.items():
                self.topics[topic] = self.topics.get(topic, 0) + count
        self.total = sum(self.topics.values())
        """Number of all pending messages. Any thread may read it."""
        self._slots = _lines(catalogue, _SLOT)
        if len(self.topics) > TOPICS_MAX + QUOTAS_MAX + 1:
            self._bound()
        self._in_hours: dict[int, Topics] = {}
        """By slot: messages in the files of sparse hours. In memory only: see `indexed`."""
        self.named: frozenset[str] = frozenset()
        """Topics that are counted by name however many others there are."""
        self._dirty_hours: set[int] = set()
        self._dirty_slots: set[int] = set()
        self._has_new_floor = not self.is_known

    def stored(self, slot: int, topic: str, count: int = 1, *, in_slot: bool) -> None:
        """Count so many messages that were stored, in their slot or in the file of their hour."""
        if slot < self.floor:
            return
        self._add(hour_of(slot), self._name(topic), count)
        if in_slot:
            self.moved(slot, topic, count)

    def moved(self, slot: int, topic: str, count: int = 1) -> None:
        """Count messages that a split moved to their slot, which is not passed."""
        topics = self._slots.get(slot)
        if topics is None:
            topics = self._slots[slot] = {}
        name = self._name(topic)
        topics[name] = topics.get(name, 0) + count
        self._dirty_slots.add(slot)

    def indexed(self, slot: int, topic: str) -> None:
        """Count a message of a sparse hour to its slot. Called again after every start."""
        if slot >= self.floor:
            topics = self._in_hours.setdefault(slot, {})
            name = self._name(topic)
            topics[name] = topics.get(name, 0) + 1

    def killed(self, messages: Iterable[tuple[int, str]]) -> None:
        """Count off stored messages that were killed for the first time: due times and targets."""
        floor_ms = self.floor * SLOT_MS
        of_hours = Counter(
            [(due_ms // HOUR_MS, topic) for due_ms, topic in messages if due_ms >= floor_ms]
        )
        for (hour, topic), count in of_hours.items():
            held = self.hours.get(hour, {})
            # Whose topic is not known may not have been counted.
            counted = sum(held.get(name, 0) for name in {topic, OTHER})
            self._take(hour, topic, min(count, counted))

    def due_in(self, slot: int) -> int:
        """Return how many messages in a slot's file or index are due in it: those that were killed
        count too, and what still lies in the file of its hour does not. Any thread may call it."""
        held = (self._slots.get(slot), self._in_hours.get(slot))
        return sum(sum([*topics.values()]) for topics in held if topics is not None)

    def due_of(self, slot: int, topic: str) -> int:
        """Return how many of those are of a topic, or counted with it. Any thread may call it."""
        held, name = (self._slots.get(slot), self._in_hours.get(slot)), self._name(topic)
        return sum(topics.get(name, 0) for topics in held if topics is not None)

    def pending_of(self, hour: int, topic: str) -> int:
        """Return how many messages of a topic, or counted with it, are pending in an hour. Any
        thread may call it."""
        return self.hours.get(hour, {}).get(self._name(topic), 0)

    def pending_in_hour(self, hour: int) -> int:
        """Return how many messages are pending in an hour. Any thread may call it."""
        return sum([*self.hours.get(hour, {}).values()])

    def is_named(self, topic: str) -> bool:
        """Return whether messages of this topic are counted by its name, from now on."""
        return self._name(topic) == topic != OTHER

    def pending_from(self, slots: Mapping[str, int], kills: Killed) -> dict[str, int]:
        """Return how many messages of each of these topics are pending in its slot here and in
        later ones. What still lies in the file of a passed hour counts."""
        pending = {topic: self.topics.get(topic, 0) for topic in slots}
        last = max(slots.values(), default=self.floor)
        if last <= self.floor:
            return pending
        for held in (self._slots, self._in_hours):
            passed: Iterable[int] = range(self.floor, last)
            if len(held) < last - self.floor:
                passed = [slot for slot in held if self.floor <= slot < last]
            for slot in passed:
                for topic, count in held.get(slot, {}).items():
                    if slot < slots.get(topic, 0):
                        pending[topic] -= count
        for due_ms, topic in kills(self.floor, last):
            # It was counted off when it was killed, and its slot has it still.
            if slot_of(due_ms) < slots.get(topic, 0):
                pending[topic] += 1
        return {topic: max(0, count) for topic, count in pending.items()}

    def pass_to(self, floor: int, kills: Killed) -> None:
        """Count off all slots below `floor`: the frontier has passed them, and they are whole.
        Idempotent."""
        if floor <= self.floor:
            return
        first = max(self.floor, hour_of(floor) * HOUR_SLOTS)
        for hour in [hour for hour in self.hours if hour < hour_of(floor)]:
            for topic, count in self.hours[hour].copy().items():
                self._add(hour, topic, -count)
        passed: list[tuple[int, Topics]] = []
        for slots in (self._slots, self._in_hours):
            for slot in [slot for slot in slots if slot < floor]:
                passed.append((slot, slots.pop(slot)))
                if slots is self._slots:
                    self._dirty_slots.add(slot)
        passed = [(slot, topics) for slot, topics in passed if slot >= first]
        if passed:
            # First, so that there is never less than what is taken off.
            for due_ms, topic in kills(first, floor):
                # Whose topic is not known was not taken off.
                if topic:
                    self._add(hour_of(slot_of(due_ms)), self._name(topic), 1)
        for slot, topics in passed:
            for topic, count in topics.items():
                self._take(hour_of(slot), topic, count)
        self.floor = floor
        self._has_new_floor = True

    def _name(self, topic: str) -> str:
        """Return the name under which a message of this topic is counted."""
        if topic in self.topics or len(self.topics) < TOPICS_MAX or topic in self.named:
            return topic
        return OTHER

    def _take(self, hour: int, topic: str, count: int) -> None:
        """Count off messages of an hour: of the topic, then of OTHER, then of any."""
        held = self.hours.get(hour, {})
        for names in ((topic, OTHER), held):
            for name in tuple(names) if count else ():
                if part := min(count, held.get(name, 0)):
                    self._add(hour, name, -part)
                    count -= part

    def _bound(self) -> None:
        """Keep the largest topics, and count the others as OTHER: an older version named all."""
        named = {topic for topic, _ in Counter(self.topics).most_common(TOPICS_MAX)}
        for held in (self.hours, self._slots):
            for number, topics in held.items():
                held[number] = _folded(topics, named)
        self.topics = _folded(self.topics, named)

    def _add(self, hour: int, topic: str, count: int) -> None:
        self.total += count
        topics = self.hours.setdefault(hour, {})
        left = topics.get(topic, 0) + count
        if left:
            topics[topic] = left
        else:
            topics.pop(topic, None)
            if not topics:
                del self.hours[hour]
        self._dirty_hours.add(hour)
        in_all = self.topics.get(topic, 0) + count
        if in_all:
            self.topics[topic] = in_all
        else:
            self.topics.pop(topic, None)

    def capture(self) -> Callable[[], Changes]:
        """Hand the changes to a checkpoint, which packs them without the lock."""
        captured: dict[bytes, Topics | int | None] = {}
        for kind, dirty, held in (
            (_HOUR, self._dirty_hours, self.hours),
            (_SLOT, self._dirty_slots, self._slots),
        ):
            for number in sorted(dirty):
                topics = held.get(number)
                captured[_KEY.pack(kind, number)] = topics.copy() if topics else None
            dirty.clear()
        if self._has_new_floor:
            captured[_FLOOR] = self.floor
        self._has_new_floor = False
        return lambda: {
            key: None if value is None else _pack(value) for key, value in captured.items()
        }


def _folded(topics: Mapping[str, int], named: set[str]) -> Topics:
    folded: Topics = {}
    for topic, count in topics.items():
        name = topic if topic in named else OTHER
        folded[name] = folded.get(name, 0) + count
    return folded


def _lines(catalogue: Catalogue, kind: bytes) -> dict[int, Topics]:
    return {
        _KEY.unpack(key)[1]: msgpack.unpackb(value)
        for run in catalogue.lines(kind, kind)
        for key, value in run
    }
