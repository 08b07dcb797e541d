"""Packing schedules into frames in C; `native/pack.h` says what is plain, and what is a run.

Not here: what a replica makes of it (`delayd.node.replica.flat_ingest`).
"""

import ctypes
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from delayd.runtime.native import Call, Library

PACKED_MAX: Final = 1_024
ROOM_KEPT_BYTES: Final = 4 * 1024 * 1024
"""A room for frames that is larger goes with what is in it: one batch may take 128 MiB, and a node
keeps nothing of it. Usual batches take less."""
TOPICS_MAX: Final = 64

_GROUP = Struct("<qIIQQQq")
"""`struct group` of native/pack.h."""
_PACKED = Struct("<qqQIIII")
"""`struct packed`."""
_TALLY = Struct("<qII")
"""`struct tally`."""
_FIRST = Struct("<IIIII")
"""`struct first` of native/firsts.h."""
LINES_BYTES: Final = 1 << 20
"""Room for what is to be remembered of the ids of one run."""
_TOPIC = Struct("<II")
"""`struct topic_place` of native/topics.h."""
TOPIC_BYTES: Final = _TOPIC.size


class Limits(ctypes.Structure):
    """`struct request_limits` of native/request.h."""

    _fields_ = (
        ("max_delay_ms", ctypes.c_int64),
        ("record_bytes_max", ctypes.c_uint64),
        ("partitions", ctypes.c_uint32),
        ("prefix", ctypes.c_char_p),
        ("prefix_bytes", ctypes.c_size_t),
    )


def limits_of(*, max_delay_ms: int, record_bytes_max: int, partitions: int, prefix: str) -> Limits:
    """Return a cluster's limits; `partitions` of the buffer, `prefix` of delayd's own topics."""
    name = prefix.encode()
    return Limits(max_delay_ms, record_bytes_max, partitions, name, len(name))


class Uncounted(ctypes.Structure):
    """`struct uncounted` of native/digest.h."""

    _fields_ = (
        ("text", ctypes.c_char_p),
        ("bytes", ctypes.c_uint32),
        ("is_stem", ctypes.c_uint32),
    )


class DigestRules(ctypes.Structure):
    """`struct digest_rules` of native/digest.h. The library keeps addresses of what it holds."""

    _fields_ = (
        ("uncounted", ctypes.POINTER(Uncounted)),
        ("uncounted_count", ctypes.c_uint32),
    )


def digest_rules_of(uncounted: Sequence[str]) -> DigestRules:
    """Return the rules by which requests are told apart. `uncounted`: names of headers that are no
    part of what a request asks for, in lower case, perhaps with a `*` at the end."""
    names = [(name.removesuffix("*").encode(), name.endswith("*")) for name in uncounted]
    assert not any(b"*" in name for name, _ in names), "a * is at the end of a name"
    each = (Uncounted * len(names))(
        *(Uncounted(name, len(name), is_stem) for name, is_stem in names)
    )
    return DigestRules(each, len(names))


class _Cursor(ctypes.Structure):
    """`struct cursor` of native/pack.h."""

    _fields_ = (
        ("due_ms", ctypes.c_int64),
        ("partition", ctypes.c_int64),
        ("offset", ctypes.c_int64),
    )


class _Rules(ctypes.Structure):
    """`struct pack_rules`."""

    _fields_ = (
        ("limits", Limits),
        ("lanes", ctypes.c_uint32),
        ("partition", ctypes.c_int32),
        ("near_slot", ctypes.c_int64),
        ("next_offset", ctypes.c_int64),
        ("log_ms", ctypes.c_int64),
        ("leap_ms", ctypes.c_int64),
        ("trail_ms", ctypes.c_int64),
        ("covered_below", ctypes.c_int64),
        ("cursors", ctypes.POINTER(_Cursor)),
        ("counts_slots", ctypes.c_uint32),
        ("run_min", ctypes.c_uint32),
        ("takes_ids", ctypes.c_uint32),
        ("taken_max", ctypes.c_uint32),
        ("keep_ms", ctypes.c_int64),
        ("digest", DigestRules),
    )


class _Result(ctypes.Structure):
    """`struct pack_result`."""

    _fields_ = (
        ("others", ctypes.c_uint32),
        ("taken", ctypes.c_uint32),
        ("taken_bytes", ctypes.c_uint64),
        ("stored", ctypes.c_uint32),
        ("groups", ctypes.c_uint32),
        ("tallies", ctypes.c_uint32),
        ("topics", ctypes.c_uint32),
        ("firsts", ctypes.c_uint32),
        ("lines_bytes", ctypes.c_uint32),
        ("frames_bytes", ctypes.c_uint64),
        ("next_offset", ctypes.c_int64),
        ("log_ms", ctypes.c_int64),
        ("leap_ms", ctypes.c_int64),
        ("append_ms", ctypes.c_int64),
        ("first_due_ms", ctypes.c_int64),
        ("epoch", ctypes.c_int32),
    )


class _Room(ctypes.Structure):
    """`struct pack_room`."""

    _fields_ = (
        ("packed", ctypes.c_void_p),
        ("groups", ctypes.c_void_p),
        ("tallies", ctypes.c_void_p),
        ("topics", ctypes.c_void_p),
        ("firsts", ctypes.c_void_p),
        ("lines", ctypes.c_void_p),
        ("frames", ctypes.c_void_p),
        ("frames_max", ctypes.c_uint64),
    )


class Group(NamedTuple):
    """Frames of one slot or hour, in the order of their records."""

    number: int
    is_hour: bool
    count: int  # type: ignore[assignment]  # hides tuple.count, which nothing needs
    crcs: int
    last_offset: int
    frames: memoryview
    """Valid until the packer is called again."""


class Placed(NamedTuple):
    """Where one frame is."""

    due_ms: int
    offset: int
    lane: int
    length: int
    group: int
    position: int
    """Within its group."""


class Firsts(NamedTuple):
    """What is to be remembered of the ids of a run, if nothing is known of any of them: see
    `delayd.wheel.id_memory`."""

    keys: Sequence[bytes] = ()
    """Of the states."""
    values: Sequence[bytes] = ()
    ends: Sequence[bytes] = ()
    """Lines of the queue."""
    records: Sequence[int] = ()
    """How many records of the run are before each of their own."""


NO_FIRSTS: Final = Firsts()


class Run(NamedTuple):
    """Records that were packed. Nothing of it is valid when the packer is called again."""

    taken: int
    """Records."""
    taken_bytes: int
    stored: int
    """Frames; what is covered is taken and not stored."""
    groups: Sequence[Group]
    """In the order of their first frames."""
    tallies: Sequence[tuple[int, str, int]]
    """Slot, or first slot of an hour; target; how many messages. In the order of the first ones."""
    next_offset: int
    log_ms: int
    leap_ms: int
    append_ms: int
    """Of the last record that was stored."""
    first_due_ms: int
    """Of those that were stored."""
    leader_epoch: int
    """Of the last record."""
    placed: Iterator[Placed]
    """The frames, in the order of the records."""
    firsts: Firsts = NO_FIRSTS


class PackRules(NamedTuple):
    """What decides besides the records; see `struct pack_rules`."""

    partition: int
    near_slot: int
    next_offset: int
    log_ms: int
    leap_ms: int
    trail_ms: int
    covered: tuple[int, tuple[tuple[int, int, int], ...]] | None
    """The offset below which messages may be covered, and the cursors by lane."""
    counts_slots: bool
    """Are messages of far hours counted by their slot?"""
    takes_ids: bool = False
    """Is a schedule under an id of which nothing is known stored, without a word to anybody?"""


class Packer:
    """Packs runs of schedules, and keeps the room for one of them. Used by one thread."""

    def __init__(
        self,
        library: Library,
        limits: Limits,
        *,
        lanes: int,
        run_min: int,
        keep_ms: int,
        digest: DigestRules,
    ) -> None:
        """`limits` of the cluster; `run_min`: fewer plain records in a row are left to Python;
        `keep_ms`: how long an id is remembered after its message is due."""
        structures = map(ctypes.POINTER, (_Rules, _Room, _Result))
        wanted = (ctypes.c_void_p, ctypes.c_size_t, *structures)
        self._pack = Call(library, "delayd_pack", ctypes.c_int, wanted)
        self._kept = limits, digest  # of what is in them the library keeps the addresses
        self._rules = _Rules(
            limits=limits, lanes=lanes, run_min=run_min, keep_ms=keep_ms, digest=digest
        )
        self._cursors = (_Cursor * lanes)()
        self._set_cursors: object = None
        """What they were set to."""
        self._packed = bytearray(PACKED_MAX * _PACKED.size)
        self._groups = bytearray(PACKED_MAX * _GROUP.size)
        self._tallies = bytearray(PACKED_MAX * _TALLY.size)
        self._topics = bytearray(TOPICS_MAX * TOPIC_BYTES)
        self._firsts = bytearray(PACKED_MAX * _FIRST.size)
        self._lines = bytearray(LINES_BYTES)
        self._frames = bytearray()
        places = self._packed, self._groups, self._tallies, self._topics, self._firsts, self._lines
        self._room = _Room(*map(address_of, places))

    def pack(
        self,
        data: bytearray,
        begin: int,
        end: int,
        rules: PackRules,
        taken_max: int = PACKED_MAX,
        *,
        takes_ids: bool = True,
    ) -> Run | int:
        """Pack the run with which the records of `data[begin:end]`, of one partition, begin: up to
        `taken_max` of them, and none with an id unless `takes_ids`.

        Return how many records Python has to take, if there are any before it. ValueError if
        these are no records."""
        assert begin < end, "there is no record"
        self._make_room(2 * (end - begin))
        self._set(rules)
        self._rules.taken_max = taken_max
        self._rules.takes_ids = takes_ids and rules.takes_ids
        result, first = _Result(), ctypes.c_char.from_buffer(data, begin)
        pack = self._pack.over(end - begin)
        is_done = pack(ctypes.addressof(first), end - begin, self._rules, self._room, result)
        if not is_done:
            raise ValueError("these bytes are no flat records")
        found = int(result.others) or self._run(data, begin, result)
        if len(self._frames) > ROOM_KEPT_BYTES:
            self._frames = bytearray()
        return found

    def _make_room(self, size_bytes: int) -> None:
        if size_bytes > len(self._frames):
            self._frames = bytearray(size_bytes)
            self._room.frames, self._room.frames_max = address_of(self._frames), size_bytes

    def _set(self, rules: PackRules) -> None:
        to = self._rules
        to.partition, to.near_slot, to.next_offset = rules[:3]
        to.log_ms, to.leap_ms, to.trail_ms = rules.log_ms, rules.leap_ms, rules.trail_ms
        to.counts_slots = rules.counts_slots
        to.covered_below, to.cursors = 0, None
        if rules.covered is not None:
            to.covered_below, cursors = rules.covered
            if cursors is not self._set_cursors:
                self._set_cursors = cursors
                for lane, (due_ms, partition, offset) in enumerate(cursors):
                    at = self._cursors[lane]
                    at.due_ms, at.partition, at.offset = due_ms, partition, offset
            to.cursors = self._cursors

    def _run(self, data: bytearray, begin: int, result: _Result) -> Run:
        frames = memoryview(self._frames)
        topics = topics_at(self._topics, result.topics, data, begin)
        groups = [
            Group(number, bool(is_hour), count, crcs, last_offset, frames[at : at + size])
            for number, is_hour, count, at, size, crcs, last_offset in some_of(
                _GROUP, self._groups, result.groups
            )
        ]
        tallies = [
            (slot, topics[topic], count)
            for slot, topic, count in some_of(_TALLY, self._tallies, result.tallies)
        ]
        placed = (
            Placed(due_ms, offset, lane, length, group, position)
            for due_ms, offset, position, length, lane, group, _ in some_of(
                _PACKED, self._packed, result.stored
            )
        )
        return Run(
            result.taken,
            result.taken_bytes,
            result.stored,
            groups,
            tallies,
            result.next_offset,
            result.log_ms,
            result.leap_ms,
            result.append_ms,
            result.first_due_ms,
            result.epoch,
            placed,
            self._firsts_of(result) if result.firsts else NO_FIRSTS,
        )

    def _firsts_of(self, result: _Result) -> Firsts:
        lines = bytes(memoryview(self._lines)[: result.lines_bytes])
        keys, values, ends, records = [], [], [], []
        for key, value, end_key, end, record in some_of(_FIRST, self._firsts, result.firsts):
            keys.append(lines[key:value])
            values.append(lines[value:end_key])
            ends.append(lines[end_key:end])
            records.append(record)
        return Firsts(keys, values, ends, records)


def address_of(data: bytearray) -> int:
    """Return where its bytes are, for as long as it lives and is not resized."""
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


def topics_at(places: bytearray, count: int, data: bytearray, begin: int) -> list[str]:
    """Return the targets whose places in `data[begin:]` these are."""
    return [
        data[begin + at : begin + at + size].decode() for at, size in some_of(_TOPIC, places, count)
    ]


def some_of(form: Struct, data: bytearray, count: int) -> Iterator[tuple[Any, ...]]:
    """Return the first structures of an array, as the library left them."""
    return form.iter_unpack(memoryview(data)[: count * form.size])
