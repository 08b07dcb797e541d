"""The verdict of a cancel marker, judged by the step that passes it.

    t in T, the killed set                             cancelled / replaced if any t
      not in Done(K, O)                                was not delivered: the marker is below O'
      in Done(K, O), the marker refused to continue t  was to be retried, and never will be
      in Done(K, O), due longer ago than ids are kept  does not count: others have dropped it
      else in Done(K, O)                               delivered, expired or dead: too late

(K, O) is the frontier before the step. A cancel marker counts for all that it kills if its offset
is below O', so neither this step nor a later one delivers what is called cancelled here.

Only the step that passes a marker sees (K, O). So its master writes what came of the marker into
the log, as a `Settlement`, in the same step: whoever judges a repetition reads it there.
Source: docs/design/frontier.md, "Verdicts".
"""

from collections.abc import Container
from enum import Enum
from typing import NamedTuple

from replication.frontier import Frontier
from replication.ids import KilledMessage, Settlement
from replication.rank import Rank


class Move(NamedTuple):
    """What makes a cancel marker a reschedule."""

    is_fire: bool
    """It asks for a delivery at once."""
    dues_ms: tuple[tuple[int, int], ...]
    """The old and the new due time of each message of T."""


class CancelMarker(NamedTuple):
    """A cancel, a replace or a reschedule, as ingest keeps it."""

    is_replace: bool
    partition: int
    offset: int
    as_of_ms: int
    """A: the time as of which its record is judged (`ingest.py`)."""
    killed: tuple[KilledMessage, ...]
    """T: all that was live."""
    killed_before: tuple[KilledMessage, ...]
    """The id's last killed set before this marker."""
    repeats: int = -1
    """Of a replace that was sent before: the offset of that. -1 of all others."""
    move: Move | None = None
    """Of a reschedule."""
    is_debounce: bool = False
    """Then it is a replace as well, and is never repeated."""


class Outcome(Enum):
    """The outcomes of a cancel marker."""

    CANCELLED = "cancelled"
    REPLACED = "replaced"
    TOO_LATE = "too-late"
    NOT_FOUND = "not-found"
    SCHEDULED = "scheduled"
    RESCHEDULED = "rescheduled"


class Judgement(NamedTuple):
    """An outcome and what proves it."""

    outcome: Outcome
    killed: tuple[KilledMessage, ...]
    """Those that are never delivered, because of this marker or, if repeated, of an earlier one; of
    a reschedule those that go on."""
    done: tuple[KilledMessage, ...]
    """Those that were delivered, expired or dead before."""

    def settlement(self, marker: CancelMarker, now_ms: int) -> Settlement | None:
        """Return what the step at `now_ms` writes into the log; None if the marker came to nothing,
        or only to what an earlier one had come to."""
        if marker.move is not None:
            # What goes on has a record that says so; it is no longer the marker's. All else that
            # it holds is free, though what does not count is not named.
            if all(m in self.killed for m in marker.killed):
                return None
            done = tuple(m for m in self.done if m in marker.killed)
            return Settlement(marker.offset, (), done, False, now_ms)
        if marker.is_debounce:
            return None
        if not any(m in marker.killed for m in (*self.killed, *self.done)):
            return None
        return Settlement(marker.offset, self.killed, self.done, marker.is_replace, now_ms)


def judge(
    marker: CancelMarker,
    before: Frontier,
    refused_offsets: Container[int],
    id_memory_ms: int,
    settled: Settlement | None = None,
    escaped_offsets: Container[int] = (),
) -> Judgement:
    """Return the verdict, under the frontier before the step that passes the marker.

    `settled` is the last settlement of the id in the log, or in this step, before the marker.

    `refused_offsets` are those of T whose continuation was refused because of this marker, and
    those killed before whose continuation an earlier marker refused. The caller has ingested
    everything of T that the shard's steps up to `before` have requeued, so it knows all of them.
    `escaped_offsets` are those whose continuation was accepted all the same, because it came too
    late to be refused.
    """

    def is_done(message: KilledMessage) -> bool:
        rank = Rank(message.due_ms, marker.partition, message.offset)
        return before.covers(message.lane, rank)

    def is_killed(message: KilledMessage) -> bool:
        if message.offset in refused_offsets:
            return True
        return not (is_done(message) or message.offset in escaped_offsets)

    killed = tuple(m for m in marker.killed if is_killed(m))
    done = tuple(
        m for m in marker.killed if m not in killed and m.due_ms + id_memory_ms >= marker.as_of_ms
    )
    if marker.repeats >= 0:
        if settled is None or settled.marker_offset != marker.repeats:
            return Judgement(Outcome.SCHEDULED, (), ())
        outcome = Outcome.REPLACED if settled.killed else Outcome.TOO_LATE
        return Judgement(outcome, settled.killed, settled.done)
    if marker.move is not None:
        return _of_reschedule(marker, killed, done, settled, id_memory_ms)
    if killed:
        return Judgement(Outcome.REPLACED if marker.is_replace else Outcome.CANCELLED, killed, done)
    if done:
        return Judgement(Outcome.TOO_LATE, (), done)
    if marker.is_replace:
        return Judgement(Outcome.SCHEDULED, (), ())
    if settled is not None and settled.last_due_ms + id_memory_ms >= marker.as_of_ms:
        outcome = Outcome.CANCELLED if settled.killed else Outcome.TOO_LATE
        return Judgement(outcome, settled.killed, settled.done)
    proved = tuple(m for m in marker.killed_before if is_killed(m))
    if proved:
        return Judgement(Outcome.CANCELLED, proved, ())
    return Judgement(Outcome.NOT_FOUND, (), marker.killed_before)


def _of_reschedule(
    marker: CancelMarker,
    killed: tuple[KilledMessage, ...],
    done: tuple[KilledMessage, ...],
    settled: Settlement | None,
    id_memory_ms: int,
) -> Judgement:
    if killed:
        return Judgement(Outcome.RESCHEDULED, killed, done)
    if done:
        return Judgement(Outcome.TOO_LATE, (), done)
    is_counted = settled is not None and settled.last_due_ms + id_memory_ms >= marker.as_of_ms
    if settled is not None and is_counted and not settled.killed:
        return Judgement(Outcome.TOO_LATE, (), settled.done)
    return Judgement(Outcome.NOT_FOUND, (), marker.killed_before)
