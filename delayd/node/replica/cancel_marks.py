"""Cancel markers: how a cancel or replace waits in the wheel, and its receipt once it is judged.

    body = (is_replace, id, as_of_ms, [[due_ms, offset, lane, origin]...] killed,
            the same of the id's last killed set before, asked due ms of a replace or nil
            [, offset of the replace that it repeats
            [, [is_fire, [[old due ms, new due ms]...]] of a reschedule: for each of killed
            [, true of a debounce]]])

Source: docs/design/frontier.md, "Verdicts".
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from delayd.request import Op, Verdict, receipt, source_of
from delayd.wheel import Frame, FrameKind
from delayd.wheel.frame import FORM_OF, PackedFrame, encode_fields
from replication.ids import KilledMessage, Settlement
from replication.verdict import CancelMarker, Judgement, Move, Outcome

MOVE: Final = 7
"""Where a body says that it is of a reschedule or a debounce; others are shorter."""
SOURCES_NAMED_MAX = 3
"""Sources that a detail names; `killed` has all that were killed."""
_FORM: Final = FORM_OF[FrameKind.CANCEL_MARKER]
# See `delayd.request.parser`: named tuples, without what their constructors cost.
_made: Final = tuple.__new__


class Moved(NamedTuple):
    """A message that a reschedule gives another due time."""

    frame: Frame
    due_ms: int


class Judged(NamedTuple):
    """A cancel marker that a step passes, and its verdict."""

    marker: CancelMarker
    id: str
    due_ms: int | None
    """Of what a replace schedules."""
    judgement: Judgement
    settlement: Settlement | None = None
    """What the step writes into the log of it; None if there is nothing to write."""
    moved: tuple[Moved, ...] = ()
    """Of a reschedule: what the step writes anew."""


def cancel_marker_body(marker: CancelMarker, id: str, due_ms: int | None) -> tuple[Any, ...]:
    """Return what the marker's frame keeps."""
    repeats: tuple[Any, ...] = () if marker.repeats < 0 else (marker.repeats,)
    if marker.move is not None:
        repeats = (marker.repeats, marker.move)
    if marker.is_debounce:
        repeats = (marker.repeats, None, True)
    return (
        marker.is_replace,
        id,
        marker.as_of_ms,
        marker.killed,
        marker.killed_before,
        due_ms,
        *repeats,
    )


def packed_cancel(
    partition: int,
    offset: int,
    append_ms: int,
    id: str,
    as_of_ms: int,
    killed: tuple[KilledMessage, ...],
    killed_before: tuple[KilledMessage, ...],
) -> PackedFrame:
    """Return the encoded frame of a cancel's marker, with what `cancel_marker_body` returns."""
    body = (False, id, as_of_ms, killed, killed_before, None)
    data, crc = encode_fields(_FORM, 0, partition, offset, append_ms, append_ms, body)
    frame = (append_ms, partition, offset, 0, FrameKind.CANCEL_MARKER, append_ms, "", data, crc)
    return _made(PackedFrame, frame)


def cancel_marker_of(frame: Frame) -> tuple[CancelMarker, str, int | None]:
    """Return the marker that a frame keeps, its id, and the asked due time of a replace."""
    is_replace, id, as_of_ms, killed, killed_before, due_ms, *more = frame.body
    repeats, move, is_debounce = (*more, None, None, None)[:3]
    marker = CancelMarker(
        is_replace,
        frame.partition,
        frame.offset,
        as_of_ms,
        tuple(KilledMessage(*m) for m in killed),
        tuple(KilledMessage(*m) for m in killed_before),
        -1 if repeats is None else repeats,
        None if move is None else Move(*move),
        bool(is_debounce),
    )
    return marker, id, due_ms


def last_markers(frames: Iterable[Frame]) -> dict[tuple[int, str], int]:
    """Return the offset of the last of these markers of each partition and id, but for debounces
    that leave what a reschedule among them holds."""
    last: dict[tuple[int, str], int] = {}
    held: dict[tuple[int, str], set[int]] = {}
    for frame in frames:
        place = frame.partition, frame.body[1]
        if len(frame.body) > MOVE:
            marker, *_ = cancel_marker_of(frame)
            asked_at = {message.asked_at for message in marker.killed}
            if marker.is_debounce and place in held and asked_at.isdisjoint(held[place]):
                continue
            if marker.move is not None:
                held[place] = asked_at
        last[place] = frame.offset
    return last


def receipt_of(judged: Judged) -> tuple[Any, ...]:
    """Return the receipt with the marker's verdict."""
    marker, id, due_ms, (outcome, killed, done), *_ = judged
    if outcome is Outcome.RESCHEDULED:
        return _of_reschedule(judged)
    if due_ms is None and (killed or done):
        due_ms = max(m.due_ms for m in killed or done)
    return receipt(
        id=id,
        verdict=Verdict(outcome.value),
        op=_op_of(marker),
        source=source_of(marker.partition, marker.offset),
        killed=tuple(source_of(marker.partition, m.asked_at) for m in killed),
        due_ms=due_ms,
        detail=_detail(judged),
    )


def _op_of(marker: CancelMarker) -> Op:
    if marker.move is not None:
        return Op.FIRE if marker.move.is_fire else Op.RESCHEDULE
    if marker.is_debounce:
        return Op.DEBOUNCE
    return Op.REPLACE if marker.is_replace else Op.CANCEL


def _of_reschedule(judged: Judged) -> tuple[Any, ...]:
    """Return the receipt of a reschedule that moves something: the due times of the latest."""
    marker, id, _, (_, killed, _), *_ = judged
    assert marker.move is not None, "it is a reschedule"
    dues_ms = [
        each for m, each in zip(marker.killed, marker.move.dues_ms, strict=True) if m in killed
    ]
    old_due_ms, due_ms = max(dues_ms)
    return receipt(
        id=id,
        verdict=Verdict.RESCHEDULED,
        op=_op_of(marker),
        source=source_of(marker.partition, marker.offset),
        due_ms=due_ms,
        detail=_detail(judged),
        old_due_ms=old_due_ms,
    )


def _detail(judged: Judged) -> str:
    marker, _, _, (outcome, killed, done), *_ = judged
    named = f"{_named(marker.partition, done)} had been delivered or dead-lettered" if done else ""
    if outcome is Outcome.RESCHEDULED:
        moved = f"{_named(marker.partition, killed)} has another due time"
        return f"{moved}; {named}".removesuffix("; ")
    if outcome is Outcome.NOT_FOUND:
        if not done:
            return "nothing is scheduled under the id, and nothing is remembered of it"
        return (
            "nothing is scheduled under the id; the last that was, "
            f"{_named(marker.partition, done)}, has been dealt with"
        )
    if marker.repeats >= 0:
        first = source_of(marker.partition, marker.repeats)
        return f"the same request is scheduled as {first}, and was answered so; {named}".strip("; ")
    if killed and killed[0] not in marker.killed:
        return "an earlier request cancelled it"
    return named


def _named(partition: int, messages: tuple[KilledMessage, ...]) -> str:
    named = [
        f"{source_of(partition, m.asked_at)} (due at {m.due_ms})"
        for m in messages[:SOURCES_NAMED_MAX]
    ]
    more = len(messages) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
