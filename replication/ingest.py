"""Ingest: what becomes of a record, as a pure function of the log.

The decision depends only on the committed records of the record's own partition, in order: never on
a clock, on the frontier, on local configuration or on which node is master. So all replicas agree.

A record is decided in parts: `Asked` is what the request parser made of it, `LogState` and the
`IdState` of its id are what the partition's log has said before, and `Decision` is what the wheel
must keep:

    request    live messages under the id       message  pending reply  of the id
    schedule   none, or all have due <= A (#)   stored   -              live beside them
               one with due > A, or a series    -        DUPLICATE (same digest) or CONFLICT
    replace    the one that it repeats stored   -        CANCEL_MARKER  unchanged
    replace    else any or none                 stored   CANCEL_MARKER  all killed; the new one live
    cancel     any or none                      -        CANCEL_MARKER  all killed
    continue   continued one was killed (+)     -        -              (the marker notes: refused)
               it was continued before (*)      -        -              unchanged
               else                             stored   -              live in place of it
    switch, or a pause (`holds.py`)             -        -              unchanged (`rules.py`)
    redrive    source redriven <= 30 days ago   -        DUPLICATE      unchanged
               32 or more with due > A          -        CONFLICT       unchanged
               else                             stored   SCHEDULED      live beside them
    reject                                      -        REJECTED       unchanged
    settle                                      -        -              the settlements are noted
    reschedule  any or none                     -        CANCEL_MARKER  all killed, and held (-)
                a series, or it is too far (/)  -        UNMOVABLE, ..  unchanged
    continue   a held one, by its reschedule,   stored   -              live in place of it
               or because that came out
               a held one, otherwise            stored   -              held in place of it
    debounce   any or none                      stored   CANCEL_MARKER  pending ones killed; the new
                                                         or - (:)       one live beside the others

A is the time as of which a record is judged: its append time, or log time L if that is later.

(+) and was due within the id memory before A: by then nodes may have forgotten the kill. By rules 2
and 3 however long ago.

(#) and none goes on (`LiveMessage.goes_on`). What is held for a reschedule is pending too.

(-) as long as the log does not say what came of it; it takes the id only while ids are remembered.
A cancel, a replace and another reschedule kill what is held, too (docs/design/rescheduling.md).

(/) A series may be fired, and a local time has no due time for `delayd-by` while it goes on. Too
far is what `delayd-by` may lead to: other times say it themselves.

(:) none if all that it kills is debounced, too (docs/design/debounce.md).

(*) where the guarantee is at-least-once: two masters may have continued the same message.

Source: docs/design/frontier.md, "Ingest" and "Ids".
"""

from enum import IntEnum
from typing import NamedTuple

from replication.asked import Asked as Asked
from replication.asked import Op as Op
from replication.debounce import run_of, supersede
from replication.ids import (
    NOTHING,
    REDRIVES_MAX,
    SERIES,
    WAITS,
    HeldMessage,
    IdState,
    KilledMessage,
    LiveMessage,
    held_counting,
    is_repeated,
    kill_all,
    killed_from,
    killed_of,
    reserve,
    with_live,
    without_held,
    without_live,
)
from replication.log_time import log_time_after
from replication.rank import Rank, due_of

# Bypasses the constructors of named tuples, which take half a microsecond for each message.
_made = tuple.__new__

REDRIVE_MEMORY_MS = 30 * 24 * 60 * 60 * 1000
"""How long a source counts as redriven, in log time: as long as dead letters are kept."""


REPEAT_MEMORY_MS = 60 * 60 * 1000
"""How long a message counts as continued, in log time: longer than a superseded master's record
can be on its way, unless its process was frozen meanwhile."""


# Python 3.11 takes 125 ns to look up a member of an enum, a global takes 2.
_SCHEDULE, _REJECT, _CANCEL, _REPLACE = Op.SCHEDULE, Op.REJECT, Op.CANCEL, Op.REPLACE
_SWITCH, _SETTLE = Op.SWITCH, Op.SETTLE


class LogState(NamedTuple):
    """The state of a partition's log so far."""

    next_offset: int
    """1 + the offset of the last record ingested."""
    log_ms: int
    """L: no record is judged as of an earlier time (`replication.log_time`). Never steps back."""
    leap_ms: int = 0
    """The first append time of a leap that L has not followed yet; 0 if there is none."""

    def as_of_ms(self, append_ms: int) -> int:
        """Return A, as of which the record is judged that this is the state after."""
        return max(append_ms, self.log_ms)


class PendingReply(IntEnum):
    """The reply due from the step that passes a record."""

    NONE = 0
    REJECTED = 1
    DUPLICATE = 2
    CONFLICT = 3
    CANCEL_MARKER = 4
    """That step decides it: see `replication.verdict`."""
    SCHEDULED = 5
    """A redrive always gets a reply: its sender must know if it was the first."""
    UNMOVABLE = 6
    """What is pending has no due time of its own: a series, or a local time for `delayd-by`."""
    TOO_FAR = 7
    """A reschedule would put it off beyond the longest delay."""


_CANCEL_MARKER = PendingReply.CANCEL_MARKER


class Known(NamedTuple):
    """All that the log said before about what the record names."""

    id: IdState = NOTHING
    redriven: IdState = NOTHING
    """Of the source that the record redrives."""
    killed_by: int | None = None
    """Offset of the cancel marker that killed the message that the record continues."""
    continued: IdState | None = None
    """Of the message that the record continues; None where nothing is continued twice."""


class Decision(NamedTuple):
    """The decision about a record."""

    rank: Rank | None
    """The place of the message to store; None if none is stored."""
    reply: PendingReply
    state: LogState
    """The partition's state afterwards."""
    id: IdState | None = None
    """The id's state afterwards; None if it did not change."""
    redriven: IdState | None = None
    """The redriven source's state afterwards; None if it did not change."""
    killed: tuple[KilledMessage, ...] = ()
    """The messages that the cancel marker kills: all that were live."""
    continued: IdState | None = None
    """The continued message's state afterwards; None if it did not change."""
    is_refused: bool = False
    """A continuation of a message that was killed before."""
    repeats: int = -1
    """Of a replace that was sent before: the offset of that. -1 of all others."""
    dues_ms: tuple[tuple[int, int], ...] = ()
    """Of a reschedule: the old and the new due time of each message that it kills."""
    is_held: bool = False
    """A continuation of a message that a reschedule holds: stored, and held in its place."""
    is_escaped: bool = False
    """A continuation of a message that was killed so long ago that nodes may have forgotten it; or
    of an occurrence that came out before it was fired."""


def ingest_plain(
    state: LogState,
    partition: int,
    offset: int,
    append_ms: int,
    asked_due_ms: int,
    trail_ms: int = 0,
) -> tuple[Rank, LogState]:
    """Decide a schedule without an id, which is always stored; return its rank and the new state.

    All of `ingest` for the most frequent case, and how it begins for the others.
    """
    assert offset >= state.next_offset, (
        f"partition {partition}: offset {offset} came after {state.next_offset - 1}"
    )
    due_ms = due_of(asked_due_ms, append_ms)
    times = log_time_after(state.log_ms, state.leap_ms, append_ms, trail_ms)
    return _made(Rank, (due_ms, partition, offset)), _made(LogState, (offset + 1, *times))


def first_of_id(due_ms: int, offset: int, lane: int, digest: bytes) -> IdState:
    """Decide a schedule under an id of which nothing is remembered, as what `ingest_plain` says is
    its due time: it is stored, too. Return the state of the id.

    All that `ingest` does with the most frequent id, beside `ingest_plain`.
    """
    message = _made(LiveMessage, (due_ms, offset, lane, digest, -1, 0, 0))
    return _made(IdState, ((message,), (), -1, None, -1, None))


def ingest(
    state: LogState,
    partition: int,
    offset: int,
    append_ms: int,
    asked: Asked,
    known: Known,
    id_memory_ms: int,
    trail_ms: int = 0,
) -> Decision:
    """Decide one record; records of a partition must come in offset order, without repeats.

    `trail_ms`: see `replication.log_time`; 0 by rules 2 and 3.
    """
    rank, after = ingest_plain(state, partition, offset, append_ms, asked.due_ms, trail_ms)
    as_of_ms = after.as_of_ms(append_ms)
    op = asked.op
    if op is _REJECT:
        return Decision(None, PendingReply.REJECTED, after)
    if op is _SWITCH or op is _SETTLE:
        return Decision(None, PendingReply.NONE, after)
    if op is _SCHEDULE and not asked.has_id:
        return Decision(rank, PendingReply.NONE, after)
    _, _, lane, _, digest, _, origin, _, _, goes_on, *_ = asked
    message = _made(LiveMessage, (rank.due_ms, offset, lane, digest, origin, goes_on, 0))
    if op is _SCHEDULE:
        return _schedule(rank, after, as_of_ms, message, known.id, id_memory_ms)
    is_steady = trail_ms > 0
    if op is _CANCEL or op is _REPLACE:
        if op is _REPLACE and is_steady and asked.has_own_time:
            is_recent = asked.due_ms + id_memory_ms >= as_of_ms
            if is_repeated(known.id, message.digest, is_recent, as_of_ms, id_memory_ms):
                return _repetition(offset, after, known.id)
            decision = _mark(rank, after, as_of_ms, message, op, known.id, id_memory_ms)
            assert decision.id is not None, "a replace is remembered"
            return decision._replace(id=decision.id._replace(replaced_by=offset))
        return _mark(rank, after, as_of_ms, message, op, known.id, id_memory_ms)
    if op is Op.DEBOUNCE:
        return _debounce(partition, append_ms, after, message, asked, known.id, id_memory_ms)
    if op is Op.RESCHEDULE:
        return _reschedule(offset, append_ms, after, asked, known, id_memory_ms)
    if op is Op.CONTINUE:
        is_recent = asked.continued_due_ms + id_memory_ms >= as_of_ms or not is_steady
        message = message._replace(since_ms=WAITS) if asked.waits else message
        if known.killed_by is None:
            return _continue(rank, after, as_of_ms, message, asked, known)
        if is_recent and not (asked.follows and _is_held(known.id, asked)):
            return _continue_killed(rank, after, message, asked, known)
        return _continue(rank, after, as_of_ms, message, asked, known)._replace(is_escaped=True)
    assert op is Op.REDRIVE, f"unknown operation {op}"
    return _redrive(rank, after, as_of_ms, message, asked, known, id_memory_ms)


def _continue(
    rank: Rank, after: LogState, as_of_ms: int, message: LiveMessage, asked: Asked, known: Known
) -> Decision:
    """Decide a continuation of a message that no kill holds back."""
    if known.continued is None:
        continued = None
    elif any(m.due_ms + REPEAT_MEMORY_MS >= as_of_ms for m in known.continued.live):
        return Decision(None, PendingReply.NONE, after)
    else:
        continued = _remembered(as_of_ms, message)
    if not asked.has_id:
        return Decision(rank, PendingReply.NONE, after, continued=continued)
    freed = without_live(known.id, asked.continued_offset)
    id = with_live(_after_move(freed, asked), message)
    return Decision(rank, PendingReply.NONE, after, id=id, continued=continued)


def _continue_killed(
    rank: Rank, after: LogState, message: LiveMessage, asked: Asked, known: Known
) -> Decision:
    """Decide a continuation of a message that a cancel marker has killed: refused, unless that is a
    reschedule, for which it goes on."""
    id = known.id
    reserved, place = id.reserved, asked.continued_offset
    held = None if reserved is None else reserved.holds(place)
    if reserved is None or (held is None and reserved.is_whole):
        return Decision(None, PendingReply.NONE, after, is_refused=True)
    if asked.moved_by == reserved.marker_offset:
        stored = with_live(_after_move(id, asked), message)
        return Decision(rank, PendingReply.NONE, after, id=stored)
    if held is None:
        return Decision(None, PendingReply.NONE, after, is_refused=True)
    [instead] = killed_from((message,))
    again = held._replace(message=instead, goes_on=message.goes_on)
    changed = without_held(id, place, again)
    return Decision(rank, PendingReply.NONE, after, id=changed, is_refused=True, is_held=True)


def _is_held(id: IdState, asked: Asked) -> bool:
    return id.reserved is not None and id.reserved.holds(asked.continued_offset) is not None


def _after_move(id: IdState, asked: Asked) -> IdState:
    """Return the state without what goes on, and without a reservation that holds nothing else."""
    left = without_held(id, asked.continued_offset)
    reserved = left.reserved
    if reserved is None or reserved.held or asked.moved_by != reserved.marker_offset:
        return left
    return left._replace(reserved=None)


def _redrive(
    rank: Rank,
    after: LogState,
    as_of_ms: int,
    message: LiveMessage,
    asked: Asked,
    known: Known,
    id_memory_ms: int,
) -> Decision:
    """Decide a redrive: once in 30 days, and not too many that wait under one id."""
    if any(m.due_ms + REDRIVE_MEMORY_MS >= as_of_ms for m in known.redriven.live):
        return Decision(None, PendingReply.DUPLICATE, after)
    held = held_counting(known.id, as_of_ms, id_memory_ms)
    if len(held) + sum(m.is_pending(as_of_ms) for m in known.id.live) >= REDRIVES_MAX:
        return Decision(None, PendingReply.CONFLICT, after)
    return Decision(
        rank,
        PendingReply.SCHEDULED,
        after,
        id=with_live(known.id, message) if asked.has_id else None,
        redriven=_remembered(as_of_ms, message),
    )


def _remembered(as_of_ms: int, message: LiveMessage) -> IdState:
    """Return what is known of a continued or redriven message: its memory is counted from the time
    that it is judged as of."""
    return IdState((LiveMessage(as_of_ms, message.offset, message.lane, b""),))


def _schedule(
    rank: Rank,
    after: LogState,
    as_of_ms: int,
    message: LiveMessage,
    id: IdState,
    id_memory_ms: int,
) -> Decision:
    """Decide a schedule under an id that may be taken. Never a silent replace."""
    taken: list[LiveMessage | HeldMessage] = [
        m for m in id.live if m.due_ms > as_of_ms or m.goes_on
    ]
    taken += held_counting(id, as_of_ms, id_memory_ms)
    if not taken:
        return Decision(rank, PendingReply.NONE, after, id=with_live(id, message))
    if any(m.digest == message.digest for m in taken):
        return Decision(None, PendingReply.DUPLICATE, after)
    return Decision(None, PendingReply.CONFLICT, after)


def _mark(
    rank: Rank,
    after: LogState,
    as_of_ms: int,
    message: LiveMessage,
    op: Op,
    id: IdState,
    id_memory_ms: int,
) -> Decision:
    """Decide a cancel, or a replace that repeats no other."""
    offset = message.offset
    changed, killed = kill_all(id, offset, as_of_ms, id_memory_ms)
    if op is _CANCEL:
        return Decision(None, _CANCEL_MARKER, after, changed, killed=killed)
    stored = with_live(changed, message)
    return Decision(rank, PendingReply.CANCEL_MARKER, after, id=stored, killed=killed)


def _debounce(
    partition: int,
    append_ms: int,
    after: LogState,
    message: LiveMessage,
    asked: Asked,
    id: IdState,
    id_memory_ms: int,
) -> Decision:
    """Decide a debounce: it is due as late as it asks for, unless its run must end before."""
    as_of_ms = after.as_of_ms(append_ms)
    run_ms = run_of(id.live, as_of_ms, append_ms)
    due_ms = due_of(min(asked.due_ms, run_ms + asked.max_wait_ms), append_ms)
    changed, killed = supersede(id, message.offset, as_of_ms, id_memory_ms)
    debounced = {m.offset for m in id.live if m.since_ms > 0}
    is_quiet = all(m.offset in debounced for m in killed)
    return Decision(
        Rank(due_ms, partition, message.offset),
        PendingReply.NONE if is_quiet else _CANCEL_MARKER,
        after,
        id=with_live(changed, message._replace(due_ms=due_ms, since_ms=run_ms)),
        killed=killed,
    )


def _reschedule(
    offset: int, append_ms: int, after: LogState, asked: Asked, known: Known, id_memory_ms: int
) -> Decision:
    """Decide a reschedule: a marker that kills what is live, and keeps the id for it."""
    id, as_of_ms = known.id, after.as_of_ms(append_ms)
    counting = held_counting(id, as_of_ms, id_memory_ms)
    of_series = SERIES in [*(m.goes_on for m in counting), *(m.goes_on for m in id.live)]
    is_open = asked.by_ms is not None and any(m.goes_on for m in id.live)
    if not asked.is_fire and (of_series or is_open):
        return Decision(None, PendingReply.UNMOVABLE, after)
    pending = [each.new_due_ms for each in counting]
    pending += [m.due_ms for m in id.live if m.is_pending(as_of_ms)]
    if asked.by_ms is not None and any(d + asked.by_ms > asked.latest_ms for d in pending):
        return Decision(None, PendingReply.TOO_FAR, after)
    old_ms = (*(each.new_due_ms for each in id.held), *(m.due_ms for m in id.live))
    by_ms, new_ms, latest_ms = asked.by_ms, asked.due_ms, asked.latest_ms
    # Earlier than now is now: what is due before it is asked for is late, and forgotten, at once.
    dues_ms = tuple(
        (due_ms, new_ms if by_ms is None else max(append_ms, min(due_ms + by_ms, latest_ms)))
        for due_ms in old_ms
    )
    killed = killed_of(id)
    changed = reserve(id, offset, dues_ms)
    return Decision(None, _CANCEL_MARKER, after, changed, killed=killed, dues_ms=dues_ms)


def _repetition(offset: int, after: LogState, id: IdState) -> Decision:
    """Decide a replace that was sent before: it kills and stores nothing."""
    # As any marker it holds what is remembered until it is passed.
    held = id._replace(killed_by=offset)
    return Decision(None, PendingReply.CANCEL_MARKER, after, id=held, repeats=id.replaced_by)
