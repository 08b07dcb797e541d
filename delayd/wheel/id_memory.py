"""What the wheel remembers of ids: their states, and who killed what.

    key                                        value (msgpack)
    "i" partition:u16 name                     live killed killed_by        state of an id
    "e" partition:u16 forget_ms:u64 name       (empty)                      when to look at it again
    "k" due_ms:u64 partition:u16 offset:u64    see kills.py                 a killed message

`name` is "i" + id, or "r" + source for what was redriven, or "c" + offset for what was continued.
A state has one line in the queue "e" for each time that its end moved; the lines that came too
early are dropped when their time comes.

Invariant: a state is dropped as a whole, after its partition's log time has passed `forget_ms` and
the frontier has covered all that it tells of (docs/design/frontier.md, "Forgetting").
"""

from collections.abc import Callable, Generator, Iterable
from struct import Struct
from typing import Any

import msgpack

from delayd.wheel.catalogue import Catalogue
from delayd.wheel.kills import KILL_KEY, KILLS, Kill, kill_key, kill_of, kill_value
from delayd.wheel.layers import Changes, Layers, Lines
from replication.frontier import Frontier
from replication.ids import NOTHING, IdState, KilledMessage, LiveMessage
from replication.rank import Rank

FORGET_MAX = 20_000
"""Lines looked at per checkpoint, of each queue: about 0.1 s."""

_STATE = Struct(">cH")
_QUEUE = Struct(">cHQ")
_pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True).pack


def id_name(id: str) -> bytes:
    """The name of an id's state."""
    return b"i" + id.encode()


def redrive_name(source: str) -> bytes:
    """The name of a redriven source's state."""
    return b"r" + source.encode()


def continued_name(offset: int) -> bytes:
    """The name of the state of a message that was continued."""
    return b"c%d" % offset


class IdMemory:
    """Not thread safe; a checkpoint's write may run beside it."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._layers = Layers(catalogue)

    def state(self, partition: int, name: bytes) -> IdState:
        """What is remembered under a name; NOTHING if nothing is."""
        value = self._layers.get(_STATE.pack(b"i", partition) + name)
        if value is None:
            return NOTHING
        return _unpack_state(value)

    def remember(self, partition: int, name: bytes, state: IdState, keep_ms: int) -> None:
        """Replace a state; it is kept until log time passes its last due time by `keep_ms`."""
        self._layers.put(_STATE.pack(b"i", partition) + name, _pack((keep_ms, *state)))
        forget_ms = state.last_due_ms + keep_ms
        self._layers.put(_QUEUE.pack(b"e", partition, forget_ms) + name, b"")

    def kill(self, rank: Rank) -> Kill | None:
        """Who killed the message of this rank; None if nobody did."""
        value = self._layers.get(kill_key(rank))
        return None if value is None else kill_of(value)

    def kill_lines(self, from_ms: int) -> Generator[Lines, None, None]:
        """Who killed what is due from this time on, as of now, by rank, in runs.

        The lines are read while the caller takes them, which needs no lock and may go on beside
        everything but `close`. Raises CorruptionError.
        """
        return self._layers.lines(KILLS, kill_key(Rank(max(0, from_ms), 0, 0)))

    def note_kill(self, rank: Rank, kill: Kill) -> None:
        """The message of this rank was killed, or a continuation of it refused."""
        self._layers.put(kill_key(rank), kill_value(kill))

    def forget(self, cut: Frontier, log_ms: tuple[int, ...], floor_ms: int) -> None:
        """Drop what nobody can ask for any more; the caller has ingested beyond the cut's O and R.

        `floor_ms`: all lanes of the cut have passed what was due before it.
        """
        self._forget_states(cut, log_ms)
        stop = kill_key(Rank(max(0, floor_ms), 0, 0))
        for key, value in self._layers.stored(KILLS, stop, FORGET_MAX):
            _, _, partition, offset = KILL_KEY.unpack(key)
            if max(offset, kill_of(value).mark_offset) < cut.offsets[partition]:
                self._layers.put(key, None)

    def _forget_states(self, cut: Frontier, log_ms: tuple[int, ...]) -> None:
        # Each partition by its own log time: one that gets no records must not hold up the others.
        for partition, now_ms in enumerate(log_ms):
            start = _QUEUE.pack(b"e", partition, 0)
            stop = _QUEUE.pack(b"e", partition, now_ms)
            for key, _ in self._layers.stored(start, stop, FORGET_MAX // len(log_ms) + 1):
                name = key[_QUEUE.size :]
                value = self._layers.get(_STATE.pack(b"i", partition) + name)
                if value is not None:
                    keep_ms, *_ = msgpack.unpackb(value)
                    state = _unpack_state(value)
                    if state.last_due_ms + keep_ms < now_ms:
                        if not _is_covered(state, partition, cut):
                            continue
                        self._layers.put(_STATE.pack(b"i", partition) + name, None)
                self._layers.put(key, None)

    def capture(self) -> Changes:
        """Hand the changes to a checkpoint."""
        return self._layers.capture()

    def settle(self) -> None:
        """The captured changes are in the catalogue."""
        self._layers.settle()


def _is_covered(state: IdState, partition: int, cut: Frontier) -> bool:
    messages: Iterable[LiveMessage | KilledMessage] = (*state.live, *state.killed)
    return state.killed_by < cut.offsets[partition] and all(
        cut.covers(m.lane, Rank(m.due_ms, partition, m.offset)) for m in messages
    )


def _unpack_state(value: bytes) -> IdState:
    _, live, killed, killed_by = msgpack.unpackb(value, use_list=False)
    return IdState(
        tuple(LiveMessage(*m) for m in live), tuple(KilledMessage(*m) for m in killed), killed_by
    )
