"""The state of one id in a partition's log: its live messages, and those killed last.

Pure data of the ingest rules; the wheel keeps it, `ingest` computes it. A message is *live* from
when it is stored until it is killed or continued; that it was delivered is not in the log, so it
stays live here too, and the frontier tells the two apart.

Invariant: a state depends on the partition's log alone. It is kept or dropped as a whole, never in
parts, so that nodes which drop sooner and later go on to decide alike.
Source: docs/design/frontier.md, "Ids".
"""

from collections.abc import Iterable
from typing import NamedTuple

LIVE_MAX = 64
"""Live messages kept per id; beyond it the one due first is forgotten: it has fired long ago, and
can no longer be cancelled while it is being retried."""

REDRIVES_MAX = LIVE_MAX // 2
"""With so many messages pending under an id no redrive is added to them, so that none of those
forgotten is pending."""

NEVER_MS = 1 << 62
"""Later than any due time."""

SERIES = 1
"""What goes on is a series: another occurrence follows."""
LOCAL_TIME = 2
"""What goes on has a local time that may be resolved otherwise: the message itself follows."""

WAITS = -1
"""In place of the beginning of a run: its time has come, and it waits for its turn to go out."""


# Bypasses the constructors of named tuples, which take half a microsecond each.
_made = tuple.__new__


class LiveMessage(NamedTuple):
    """A message that its id can still reach. Sorts by due time, then by offset."""

    due_ms: int
    offset: int
    lane: int
    digest: bytes
    """Of the request as sent; a continuation inherits it."""
    origin: int = -1
    """Of a continuation: offset of the user's own request."""
    goes_on: int = 0
    """SERIES or LOCAL_TIME: it is pending whatever its due time is, until a continuation takes its
    place."""
    since_ms: int = 0
    """Of a debounced message as it was stored: the append time of the first request of its run.
    WAITS of a message that a step has only deferred. 0 of all others."""

    @property
    def asked_at(self) -> int:
        """Offset of the user's own request."""
        return self.offset if self.origin < 0 else self.origin

    def is_pending(self, as_of_ms: int) -> bool:
        """Return whether a schedule under its id, judged as of this time, finds it there."""
        return self.due_ms > as_of_ms or self.goes_on > 0

    def gives_way(self, as_of_ms: int) -> bool:
        """Return whether a debounce that is judged as of this time replaces it: what is due goes
        out, however long that takes."""
        return self.is_pending(as_of_ms) and self.since_ms != WAITS


class KilledMessage(NamedTuple):
    """A message that a cancel marker killed, unless it had been done before."""

    due_ms: int
    offset: int
    lane: int
    origin: int = -1
    """As of the live message."""

    @property
    def asked_at(self) -> int:
        """Offset of the user's own request."""
        return self.offset if self.origin < 0 else self.origin


def killed_from(live: Iterable[LiveMessage]) -> tuple[KilledMessage, ...]:
    """Return what remains of live messages that a cancel marker has killed."""
    return tuple(
        [
            _made(KilledMessage, (due_ms, offset, lane, origin))
            for due_ms, offset, lane, _, origin, *_ in live
        ]
    )


class Settlement(NamedTuple):
    """What a cancel marker came to, as the master that judged it wrote it into the log
    (`replication.verdict`)."""

    marker_offset: int
    killed: tuple[KilledMessage, ...]
    """Those that are never delivered."""
    done: tuple[KilledMessage, ...]
    """Those that were delivered, expired or dead before."""
    is_replace: bool
    at_ms: int
    """`now` of the step that judged the marker."""

    @property
    def names_nothing(self) -> bool:
        """All that it could name was due so long ago that it does not count."""
        return not self.killed and not self.done

    @property
    def last_due_ms(self) -> int:
        """The latest due time of what it is about: it counts for the id memory from then on."""
        return max((m.due_ms for m in (*self.killed, *self.done)), default=0)


class HeldMessage(NamedTuple):
    """A message that a reschedule killed, until the log says what came of that."""

    message: KilledMessage
    digest: bytes
    """As of the live message."""
    goes_on: int
    """As of the live message."""
    old_due_ms: int
    """When it was due by all that came before the reschedule."""
    new_due_ms: int
    """When it is to be due. A message that was done before stays done."""


class Reservation(NamedTuple):
    """The id is taken, though nothing is live: its last marker is a reschedule, and its master has
    not said yet what came of it (docs/design/rescheduling.md)."""

    marker_offset: int
    held: tuple[HeldMessage, ...]
    """All that the marker kills."""
    is_whole: bool = True
    """False where a trimmed record may have brought more."""

    def holds(self, offset: int) -> HeldMessage | None:
        """Return the message that is stored at this offset, None if it is not held."""
        return next((each for each in self.held if each.message.offset == offset), None)


class IdState(NamedTuple):
    """One id, or one redriven source, in one partition."""

    live: tuple[LiveMessage, ...] = ()
    killed: tuple[KilledMessage, ...] = ()
    """The last killed set."""
    killed_by: int = -1
    """Offset of the last cancel marker, if it found anything remembered; -1 for none."""
    settled: Settlement | None = None
    """Of the last cancel marker that came to something. None by rules older than 4."""
    replaced_by: int = -1
    """Offset of the last replace with a due time of its own, if no marker came after it: sent
    again, it is the same request. -1 for none, and by rules older than 4."""
    reserved: Reservation | None = None
    """By a reschedule. None by rules older than 7."""

    @property
    def held(self) -> tuple[HeldMessage, ...]:
        """What a reschedule holds."""
        return () if self.reserved is None else self.reserved.held

    @property
    def last_due_ms(self) -> int:
        """The latest due time of anything remembered; the id is forgotten some time after it. While
        a message goes on, it is not."""
        last_ms = 0 if self.settled is None else self.settled.last_due_ms
        for live in self.live:
            if live.goes_on:
                return NEVER_MS
            if live.due_ms > last_ms:
                last_ms = live.due_ms
        for killed in self.killed:
            if killed.due_ms > last_ms:
                last_ms = killed.due_ms
        for held in self.held:
            last_ms = max(last_ms, held.message.due_ms)
        return last_ms


NOTHING = IdState()
"""An id that was never used, or was forgotten."""


def with_live(state: IdState, message: LiveMessage) -> IdState:
    """Return the state with one more live message, at most LIVE_MAX of them."""
    live = sorted((*state.live, message))
    if len(live) > LIVE_MAX:
        # A series that goes on is pending, although it may be the one due first.
        del live[next((n for n, each in enumerate(live) if not each.goes_on), 0)]
    return state._replace(live=tuple(live))


def without_live(state: IdState, offset: int) -> IdState:
    """Return the state after the message at `offset` was continued."""
    return state._replace(live=tuple(m for m in state.live if m.offset != offset))


def kill_all(
    state: IdState, marker_offset: int, as_of_ms: int, id_memory_ms: int
) -> tuple[IdState, tuple[KilledMessage, ...]]:
    """Return the state after a cancel marker, where nothing is live, and what the marker kills: all
    that was. It is all that `ingest` does with a cancel, beside `ingest_plain`.

    What this marker kills replaces the last killed set. Messages that were due longer ago than
    ids are remembered are added to it, but do not displace it: other nodes may have dropped them.
    """
    live, before, _, settled, _, reserved = state
    if not live and state == NOTHING:
        return state, ()
    killed = killed_from(live) if reserved is None else killed_of(state)
    kept = last_killed(before, killed, as_of_ms, id_memory_ms)
    return _made(IdState, ((), kept, marker_offset, settled, -1, None)), killed


def last_killed(
    before: tuple[KilledMessage, ...],
    killed: tuple[KilledMessage, ...],
    as_of_ms: int,
    id_memory_ms: int,
) -> tuple[KilledMessage, ...]:
    """Return the last killed set after a marker that kills these; `before`: the one before it."""
    for message in killed:
        if message.due_ms + id_memory_ms >= as_of_ms:
            return killed
    return (*before, *killed)[-LIVE_MAX:]


def killed_of(state: IdState) -> tuple[KilledMessage, ...]:
    """Return what a cancel marker kills: what is held for a reschedule, which it takes over, and
    all that is live."""
    return (*(each.message for each in state.held), *killed_from(state.live))


def reserve(
    state: IdState,
    marker_offset: int,
    dues_ms: tuple[tuple[int, int], ...],
) -> IdState:
    """Return the state after a reschedule, which kills what `killed_of` says: `dues_ms` has the old
    and the new due time of each.

    It is no part of the last killed set: it goes on. However long ago it was due, it is held: by
    its own append time a continuation may come before the marker, and it is refused unless it is
    held or due longer ago than ids are remembered.
    """
    known = [(each.digest, each.goes_on) for each in state.held]
    known += [(each.digest, each.goes_on) for each in state.live]
    found = tuple(
        HeldMessage(message, *of_message, *dues)
        for message, of_message, dues in zip(killed_of(state), known, dues_ms, strict=True)
    )
    reserved = Reservation(marker_offset, found) if found else None
    if state == NOTHING and reserved is None:
        return state
    return state._replace(live=(), killed_by=marker_offset, replaced_by=-1, reserved=reserved)


def held_counting(state: IdState, as_of_ms: int, id_memory_ms: int) -> tuple[HeldMessage, ...]:
    """Return what is held and takes the id for a request that is judged as of this time. What was
    due longer ago than ids are remembered does not: other nodes may have dropped it."""
    return tuple([m for m in state.held if m.message.due_ms + id_memory_ms >= as_of_ms])


def without_held(state: IdState, offset: int, instead: HeldMessage | None = None) -> IdState:
    """Return the state without the message at `offset` that a reschedule holds, or with another
    `instead` of it. The reservation ends with the last of them."""
    reserved = state.reserved
    if reserved is None or reserved.holds(offset) is None:
        return state
    held = [instead if each.message.offset == offset else each for each in reserved.held]
    left = tuple(each for each in held if each is not None)
    is_over = not left and reserved.is_whole
    return state._replace(reserved=None if is_over else reserved._replace(held=left))


def is_repeated(
    state: IdState, digest: bytes, is_recent: bool, as_of_ms: int, id_memory_ms: int
) -> bool:
    """Return whether a replace with this digest and a due time of its own is the last one, sent
    again: what that stored is live, and not so old that other nodes may have dropped it. Where a
    continuation is live, they may have dropped it before that came, unless its due time
    `is_recent`."""
    return state.replaced_by >= 0 and any(
        m.asked_at == state.replaced_by
        and m.digest == digest
        and (is_recent or m.offset == m.asked_at)
        and m.due_ms + id_memory_ms >= as_of_ms
        for m in state.live
    )


def settle(state: IdState, settlement: Settlement) -> IdState:
    """Return the state after the log said what a cancel marker came to. Markers are judged in the
    order of the log; where two masters may judge one, the first settlement of it stays. One that
    names nothing frees what the marker holds, and is not remembered."""
    last, reserved = state.settled, state.reserved
    if reserved is not None and reserved.marker_offset == settlement.marker_offset:
        state = state._replace(reserved=None)
    if last is not None and last.marker_offset >= settlement.marker_offset:
        return state
    if settlement.names_nothing:
        return state
    return state._replace(settled=settlement)
