"""Whether all that a step wrote is in the log, in whatever state. Pure.

Its frontier record counts messages that were delivered (with a digest), requeued and dead-lettered,
and requests that were answered; R is the last offset that it wrote in each partition of the buffer.

Not seen: that a request has lost its receipt, if its dead letter is there, or the other way round;
any settlement but the last one of a partition; and the record of the occurrence that follows one,
which no count in the frontier covers.

Source: docs/design/lost-markers.md, "What is known".
"""

from collections.abc import Iterator
from typing import NamedTuple

from delayd.bus.raw import ProducerEpoch
from delayd.commands.recover.marker.pieces import Kind, Piece, State, Step, Steps
from replication.record import FrontierRecord


class Lack(NamedTuple):
    """What a step wrote and no log holds, at least."""

    messages: int = 0
    """Delivered, requeued and dead-lettered ones."""
    answers: int = 0
    """Requests without receipt and dead letter; partitions of the buffer without settlements."""


def lacks_some(step: Step, steps: Steps) -> bool:
    """Return whether not all that a step has written was found."""
    return step.record is None or any(lack_of(step, steps))


def lack_of(step: Step, steps: Steps) -> Lack:
    """Return what a step with a frontier record lacks. Of one with nothing before it in the log,
    deliveries only: the others cannot be told from those of the step before."""
    record, counts = _record(step), _record(step).counts
    messages = max(0, counts.delivered - _delivered(step.pieces)[0], are_others(step))
    if step.writes_before is None:
        return Lack(messages)
    tallies = [piece.tally for piece in step.pieces]
    messages += max(0, counts.retried - sum(tally.requeued for tally in tallies))
    dead = sum(tally.dead for tally in tallies) + _dead_of_nobody(step, steps)
    messages += max(0, counts.dead - dead)
    answered = {source for tally in tallies for source in tally.answered}
    answers = max(0, counts.answers - len(answered))
    reached = zip(step.writes_before, record.frontier.own_writes, strict=True)
    ends = {
        piece.place.partition: piece.tally.end
        for piece in step.pieces
        if piece.run.kind is Kind.BUFFER
    }
    cut = sum(
        before < last and ends.get(partition) != last
        for partition, (before, last) in enumerate(reached)
    )
    return Lack(messages, answers + (0 if messages else cut))


def are_others(step: Step) -> bool:
    """Return whether messages were found that are not those that the step counts."""
    record = _record(step)
    count, digest = _delivered(step.pieces)
    if count == record.counts.delivered:
        return digest != record.digest
    return count > record.counts.delivered


def apart(step: Step) -> Iterator[Step]:
    """Yield the step; without what is not visible in targets, if it is whole without that. Then
    that is of another step of the same `now`, which has no frontier record, and comes as a step of
    its own."""
    hidden = [
        piece
        for piece in step.pieces
        if piece.run.kind is Kind.TARGET and piece.state is not State.VISIBLE
    ]
    rest = [piece for piece in step.pieces if piece not in hidden]
    record = step.record
    is_whole = record is not None and _delivered(rest) == (record.counts.delivered, record.digest)
    if not hidden or not is_whole:
        yield step
        return
    yield Step(step.name, rest, record, step.writes_before)
    yield Step(step.name, hidden)


def _record(step: Step) -> FrontierRecord:
    assert step.record is not None, "what a step wrote is counted by its frontier record"
    return step.record


def _delivered(pieces: list[Piece]) -> tuple[int, int]:
    """Return the number and the digest of the messages that were found."""
    found = [piece.tally for piece in pieces if piece.run.kind is Kind.TARGET]
    return sum(tally.count for tally in found), sum(tally.digest for tally in found)


def _dead_of_nobody(step: Step, steps: Steps) -> int:
    """Return how many dead letters of the step's producer name no step, and may be of this one."""
    return sum(
        piece.tally.dead
        for piece in steps.unclear
        if step.name.producer in {ProducerEpoch(piece.run.producer_id, e) for e in piece.run.epochs}
    )
