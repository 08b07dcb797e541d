"""The memory of ids in the wheel: their states, and the killed messages.

    key                                        value (msgpack)
    "i" partition:u16 name                     keep_ms live killed killed_by [settled]
                                                                            [replaced_by]
                                                                            [reserved] topics:
                                                                            state of an id, and of
                                                                            each live message the
                                                                            target, if known
    "e" partition:u16 forget_ms:u64 name       (empty)                      when to look at it again
    "k" due_ms:u64 partition:u16 offset:u64    see kills.py                 a killed message

`name` is "i" + id, or "r" + source of a redriven letter, or "c" + offset of a continued message. A
state has one line in the queue "e" for each time that its end moved, and always one for its end as
it is; lines that were too early are dropped when their time comes.

Invariant: a state is dropped as a whole, after its partition's log time has passed `forget_ms` and
the frontier has covered all messages in it (docs/design/frontier.md, "Forgetting").
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import repeat
from struct import Struct
from typing import Any, Final, NamedTuple

import msgpack

from delayd.runtime.native.packing import Firsts
from delayd.wheel.catalogue import Catalogue
from delayd.wheel.kills import KILL_KEY, KILLS, Kill, kill_key, kill_of, kill_value
from delayd.wheel.kills import rank_of as kill_rank
from delayd.wheel.layers import Changes, Layers, Lines, QueueFront
from replication.frontier import Frontier
from replication.ids import (
    NEVER_MS,
    NOTHING,
    HeldMessage,
    IdState,
    KilledMessage,
    LiveMessage,
    Reservation,
    Settlement,
)
from replication.rank import SLOT_MS, Rank

FORGET_MAX = 20_000
"""Lines looked at in one call of `forget`, of each queue: about 0.1 s."""

LIVE_FIELDS = 5
"""Of a live message, as it is stored unless it goes on, or is debounced."""

RESERVED = "r"
"""The only key of the map that has a reservation."""

_RESERVED_BYTES = msgpack.packb({RESERVED: None})[:-1]
"""A line without them has no reservation."""

STATES = b"i"
"""Lines that begin so are states."""

NO_TOPICS: Mapping[int, str] = {}

_STATE = Struct(">cH")
_QUEUE = Struct(">cHQ")
_pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True).pack
# See `delayd.request.parser`: named tuples, without what their constructors cost.
_made: Final = tuple.__new__


def id_name(id: str) -> bytes:
    """Return the name of an id's state."""
    return b"i" + id.encode()


def redrive_name(source: str) -> bytes:
    """Return the name of the state of a redriven source."""
    return b"r" + source.encode()


def continued_name(offset: int) -> bytes:
    """Return the name of the state of a continued message."""
    return b"c%d" % offset


class First(NamedTuple):
    """The first message of an id."""

    due_ms: int
    offset: int
    lane: int
    digest: bytes
    topic: str


class Remembered(NamedTuple):
    """A state and its targets."""

    state: IdState
    topics: Mapping[int, str]
    """Targets of its live messages, by offset."""
    forget_ms: int = -1
    """When it is looked at again, in log time; -1 if nothing is remembered."""


UNKNOWN: Final = Remembered(NOTHING, NO_TOPICS)
"""Nothing is remembered."""


class IdMemory:
    """Not thread safe; a checkpoint's write may run beside it."""

    def __init__(
        self, catalogue: Catalogue, on_kills: Callable[[Sequence[tuple[int, str]]], None]
    ) -> None:
        """`on_kills` is called with due times and targets of messages that are killed for the first
        time."""
        self._layers = Layers(catalogue)
        self._on_kills = on_kills
        self._queues: dict[bytes, QueueFront] = {}
        """By the first byte of their lines."""

    def state(self, partition: int, name: bytes) -> IdState:
        """Return the state under a name; NOTHING if there is none."""
        return self.recall(partition, name).state

    def recall(self, partition: int, name: bytes) -> Remembered:
        """Return the state with the targets of its live messages, as far as they are known."""
        value = self._layers.get(_STATE.pack(b"i", partition) + name)
        return UNKNOWN if value is None else _unpack(value)

    def recall_each(self, keys: Sequence[tuple[int, bytes]]) -> list[Remembered]:
        """Return what `recall` returns of each partition and name, in their order."""
        wanted = [_STATE.pack(b"i", partition) + name for partition, name in keys]
        values = self._layers.get_each(wanted)
        return [UNKNOWN if value is None else _unpack(value) for value in values]

    def remember(
        self,
        partition: int,
        name: bytes,
        state: IdState,
        keep_ms: int,
        topics: Mapping[int, str] = NO_TOPICS,
        before_ms: int = -1,
    ) -> None:
        """Replace a state; it is kept until log time passes its last due time by `keep_ms`.

        `topics`: targets of its live messages, by offset. `before_ms`: `forget_ms` of the state
        that is replaced, which has a line in the queue.
        """
        live, killed, killed_by, settled, replaced_by, reserved = state
        # Fields more of what goes on, or is debounced: all else is stored as by older releases.
        stored = [_stored(m) if m.goes_on or m.since_ms else m[:LIVE_FIELDS] for m in live]
        fields: list[Any] = [keep_ms, stored, killed, killed_by]
        if settled is not None:
            fields.append(settled)
        if replaced_by >= 0:
            fields.append(replaced_by)
        if reserved is not None:
            fields.append({RESERVED: reserved})
        if topics:
            fields += [topics.get(message.offset, "") for message in live]
        self._layers.put(_STATE.pack(b"i", partition) + name, _pack(fields))
        forget_ms = state.last_due_ms + keep_ms
        if forget_ms != before_ms:
            key = _QUEUE.pack(b"e", partition, forget_ms) + name
            self._front(_STATE.pack(b"e", partition)).put(key)
            self._layers.put(key, b"")
            if before_ms >= NEVER_MS:  # of a series that goes on: nobody would come to it
                self._layers.put(_QUEUE.pack(b"e", partition, before_ms) + name, None)

    def remember_firsts(self, firsts: Mapping[tuple[int, bytes], First], keep_ms: int) -> None:
        """Remember ids, by partition and name, of which nothing was: each has its first message.

        As `remember` does of each, with fewer objects: new ids are the common case."""
        put, lowest = self._layers.put, dict[int, bytes]()
        for (partition, name), (due_ms, offset, lane, digest, topic) in firsts.items():
            fields = (keep_ms, ((due_ms, offset, lane, digest, -1),), (), -1, topic)
            put(_STATE.pack(b"i", partition) + name, _pack(fields))
            key = _QUEUE.pack(b"e", partition, due_ms + keep_ms) + name
            put(key, b"")
            if partition not in lowest or key < lowest[partition]:
                lowest[partition] = key
        for partition, key in lowest.items():
            self._front(_STATE.pack(b"e", partition)).put(key)

    def known_in(self, firsts: Firsts) -> list[int]:
        """Return which records of a run are under an id of which something is known, by now or by
        the records before them in it: their numbers in it."""
        return [firsts.records[place] for place in self._layers.known_in(firsts.keys)]

    def remember_run(self, partition: int, firsts: Firsts) -> None:
        """Remember ids of a partition, of which nothing was known: what `remember_firsts` makes of
        them."""
        if firsts.keys:
            self._layers.put_all(zip(firsts.keys, firsts.values, strict=True))
            self._layers.put_all(zip(firsts.ends, repeat(b"")))
            self._front(_STATE.pack(b"e", partition)).put(min(firsts.ends))

    def kill(self, rank: Rank) -> Kill | None:
        """Return the kill of the message of this rank; None if it was not killed."""
        value = self._layers.get(kill_key(rank))
        return None if value is None else kill_of(value)

    def kill_lines(self, from_ms: int) -> Generator[Lines, None, None]:
        """Yield the kills of messages due from this time on, as of now, by rank, in runs.

        The lines are read while the caller takes the runs. That needs no lock and may go on
        beside everything but `close`. Raises CorruptionError.
        """
        return self._layers.lines(KILLS, kill_key(Rank(max(0, from_ms), 0, 0)))

    def kills_between(self, first: int, stop: int) -> Iterator[tuple[int, str]]:
        """Yield due time and target of the messages killed in the slots from `first` up to
        `stop`."""
        with closing(self.kill_lines(first * SLOT_MS)) as runs:
            for run in runs:
                for key, value in run:
                    due_ms = kill_rank(key).due_ms
                    if due_ms >= stop * SLOT_MS:
                        return
                    yield due_ms, kill_of(value).topic

    def note_kill(self, rank: Rank, kill: Kill) -> None:
        """Note that the message of this rank was killed, or a continuation of it refused."""
        self.note_kills({rank: kill})

    def note_kills(self, kills: Mapping[Rank, Kill]) -> None:
        """Note some kills, by the ranks of the messages."""
        keys = [kill_key(rank) for rank in kills]
        found = self._layers.get_each(keys)
        first = [
            (rank.due_ms, kill.topic)
            for before, (rank, kill) in zip(found, kills.items(), strict=True)
            if kill.topic and before is None
        ]
        self._on_kills(first)
        self._front(KILLS).put(min(keys))
        put = self._layers.put
        for key, kill in zip(keys, kills.values(), strict=True):
            put(key, kill_value(kill))

    def _front(self, prefix: bytes) -> QueueFront:
        front = self._queues.get(prefix)
        if front is None:
            front = self._queues[prefix] = QueueFront(prefix)
        return front

    def forget(
        self,
        cut: Frontier,
        log_ms: tuple[int, ...],
        floor_ms: int,
        keep_kills_ms: int | None = None,
    ) -> bool:
        """Drop states and kills that are not needed any more, a bounded number of them; return
        whether there may be more.

        `floor_ms`: all lanes of the cut have passed all messages due before it. `keep_kills_ms`:
        keep a kill until log time has passed the due time by so much. None if the caller has
        ingested beyond the cut's O and R, so that nothing asks for it.
        """
        has_more = self._forget_states(cut, log_ms)
        stop = kill_key(Rank(max(0, floor_ms), 0, 0))
        front = self._front(KILLS)
        lines, until = self._layers.stored(front.first, stop, FORGET_MAX)
        kept = None
        for key, value in lines:
            _, due_ms, partition, offset = KILL_KEY.unpack(key)
            is_over = keep_kills_ms is None or due_ms + keep_kills_ms < log_ms[partition]
            kill = kill_of(value)
            last_offset = max(offset, kill.marker_offset, kill.asked_by)
            if is_over and last_offset < cut.offsets[partition]:
                self._layers.put(key, None)
            else:
                kept = kept or key
        front.move_to(kept or until)
        return has_more or (kept is None and until != stop)

    def _forget_states(self, cut: Frontier, log_ms: tuple[int, ...]) -> bool:
        # Each partition by its own log time: one that gets no records must not hold up the others.
        # What one leaves of its share the others get: a busy one may have all there is to forget.
        left, waiting = FORGET_MAX, list(range(len(log_ms)))
        while waiting and left > 0:
            # The first line of a share may be the last of the one before, deleted and not gone.
            share = left // len(waiting) + 2
            counts = {p: self._forget_share(p, log_ms[p], cut, share) for p in waiting}
            left -= sum(counts.values())
            waiting = [partition for partition, count in counts.items() if count == share]
        return bool(waiting)

    def _forget_share(self, partition: int, now_ms: int, cut: Frontier, share: int) -> int:
        """Drop what may be dropped of the first `share` lines of a partition. Return how many were
        looked at; fewer than `share` if it is of no use to look at more."""
        front = self._front(_STATE.pack(b"e", partition))
        stop = _QUEUE.pack(b"e", partition, now_ms)
        lines, until = self._layers.stored(front.first, stop, share)
        kept = None
        for key, _ in lines:
            name = key[_QUEUE.size :]
            value = self._layers.get(_STATE.pack(b"i", partition) + name)
            if value is not None:
                keep_ms, *_ = msgpack.unpackb(value, strict_map_key=False)
                state = _unpack(value).state
                if state.last_due_ms + keep_ms < now_ms:
                    if not _is_covered(state, partition, cut):
                        kept = kept or key
                        continue
                    self._layers.put(_STATE.pack(b"i", partition) + name, None)
            self._layers.put(key, None)
        front.move_to(kept or until)
        return share if kept is None and until != stop else min(len(lines), share - 1)

    def capture(self) -> Changes:
        """Hand the changes to a checkpoint."""
        for front in self._queues.values():
            front.capture()
        return self._layers.capture()

    def settle(self) -> None:
        """Note that the captured changes are in the catalogue."""
        for front in self._queues.values():
            front.settle()
        self._layers.settle()


def _stored(message: LiveMessage) -> tuple[Any, ...]:
    return message if message.since_ms else message[:-1]


def _is_covered(state: IdState, partition: int, cut: Frontier) -> bool:
    messages: Iterable[LiveMessage | KilledMessage]
    messages = (*state.live, *state.killed, *(each.message for each in state.held))
    return state.killed_by < cut.offsets[partition] and all(
        cut.covers(m.lane, Rank(m.due_ms, partition, m.offset)) for m in messages
    )


def _unpack(value: bytes) -> Remembered:
    keep_ms, live, killed, killed_by, *topics = msgpack.unpackb(value, use_list=False)
    settled = None
    if topics and isinstance(topics[0], tuple):
        (marker_offset, by_it, done, is_replace, at_ms), *topics = topics
        settled = Settlement(marker_offset, _killed(by_it), _killed(done), is_replace, at_ms)
    replaced_by = -1
    if topics and isinstance(topics[0], int):
        replaced_by, *topics = topics
    reserved = None
    if topics and isinstance(topics[0], dict):
        found, *topics = topics
        by, each_held, is_whole = found[RESERVED]
        reserved = Reservation(by, tuple([_held(*fields) for fields in each_held]), is_whole)
    known = tuple([LiveMessage(*fields) for fields in live])
    state = _made(IdState, (known, _killed(killed), killed_by, settled, replaced_by, reserved))
    told = {fields[1]: topic for fields, topic in zip(live, topics, strict=False)}
    return _made(Remembered, (state, told, state.last_due_ms + keep_ms))


def held_of(key: bytes, value: bytes) -> Iterator[Rank]:
    """Yield the ranks of what a reschedule holds, of a line that begins with STATES."""
    if _RESERVED_BYTES in value and (reserved := _unpack(value).state.reserved) is not None:
        _, partition = _STATE.unpack_from(key)
        for each in reserved.held:
            yield Rank(each.message.due_ms, partition, each.message.offset)


def _held(message: tuple[int, int, int, int], *fields: Any) -> HeldMessage:
    return HeldMessage(KilledMessage(*message), *fields)


def _killed(messages: Iterable[tuple[int, int, int, int]]) -> tuple[KilledMessage, ...]:
    return tuple([_made(KilledMessage, fields) for fields in messages])
