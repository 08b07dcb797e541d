"""What becomes of each piece of a step that Kafka has ended in part only. Pure.

    something of the step is visible, and its frontier record is too, or can be
        what hangs                  is committed, as the rest was
        what was aborted            is written again, as it was
    something is visible, the frontier record was aborted, and a later one covers what it did
        a later step has repeated it: what was visible is doubled already, what hangs is aborted
    nothing is visible, nothing was aborted, and the step is complete and the next one
        what hangs is committed: as its master was about to do, or has done
    nothing is visible otherwise
        what hangs is aborted: for readers the step never was, and the successor repeats it
    two steps have the same `now`, or the frontier's log begins behind the step, or the number of
    shards was changed behind it
        a person must decide

A run that hangs is of several steps if transactions came behind a lost marker. If these want
different ends, it is aborted, and what was to be visible is written again.

A commit needs no more than the visible part: a step is one transaction, so its coordinator has
decided on all of it at once. The frontier may not become visible while messages of its step are
nowhere: they would be lost.

Source: docs/design/lost-markers.md.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from delayd.bus import Record
from delayd.bus.raw import Marker, Place, ProducerEpoch
from delayd.cluster.resharding import OWNER as SHARDS_OWNER
from delayd.cluster.topics import CREATOR
from delayd.commands.recover.marker.pieces import Kind, Piece, Run, State, Step, Steps
from delayd.commands.recover.marker.wholeness import Lack, apart, are_others, lack_of, lacks_some
from replication.frontier import begin_term
from replication.record import FrontierRecord


class Fate(Enum):
    """What is done with a piece."""

    LEFT = "left"
    COMMITTED = "committed"
    ABORTED = "aborted"
    AGAIN = "written-again"


class Dealt(NamedTuple):
    """A piece, and what is done with it."""

    step: Step | None
    piece: Piece
    records: Sequence[Record]
    """Those of the piece that this is about."""
    fate: Fate


class Ending(NamedTuple):
    """A marker that is missing."""

    run: Run
    marker: Marker


@dataclass(slots=True)
class Plan:
    """What is done, in this order: `endings`, then one transaction with `again`."""

    dealt: list[Dealt] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    """The frontier's is the last one."""
    again: list[Dealt] = field(default_factory=list)
    frontier: FrontierRecord | None = None
    """The frontier that is written with `again`; None: the last one stays."""
    doubled: list[Step] = field(default_factory=list)
    """Steps that a later one has repeated."""
    missing: dict[int, Lack] = field(default_factory=dict)
    """By the number of a visible step: what it has written and the log does not hold."""
    problems: list[str] = field(default_factory=list)
    """Why some of it cannot be decided."""

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to do."""
        return not (self.endings or self.again or self.frontier or self.problems)

    @property
    def is_mendable(self) -> bool:
        """Return whether there is something to do, and nothing stands in its way."""
        return not (self.is_empty or self.problems)


def plan_of(
    steps: Steps,
    hanging: Sequence[Run],
    last: FrontierRecord,
    known_epochs: Mapping[Place, int],
    *,
    is_all_seen: bool = True,
) -> Plan:
    """Return what is to be done.

    `hanging` are the runs that hang, `last` is the newest visible frontier, and `known_epochs` are
    the epochs of the coordinators that leaders know. `is_all_seen`: no partition is hidden from
    this program.
    """
    plan = Plan()
    wanted: dict[Run, list[Dealt]] = {run: [] for run in hanging}
    for step in [part for each in steps.by_name.values() for part in apart(each)]:
        record = step.record
        is_alone = record is not None and (record.owner == SHARDS_OWNER or record.moved)
        if step.name.now_ms < steps.since_ms and not is_alone:
            continue  # not all of it was read
        for dealt in _of_step(step, steps, last, plan, is_all_seen=is_all_seen):
            if dealt.piece.state is State.HANGING:
                wanted[dealt.piece.run].append(dealt)
            elif dealt.fate is Fate.AGAIN:
                plan.again.append(dealt)
            plan.dealt.append(dealt)
    for piece in steps.unclear:
        if piece.state is State.HANGING:
            dealt = _of_unclear(piece, steps, plan)
            wanted[piece.run].append(dealt)
            plan.dealt.append(dealt)
    undecided = {d.piece.run for d in plan.dealt if d.fate is Fate.LEFT}
    for run, of_run in wanted.items():
        if sum(len(dealt.records) for dealt in of_run) != len(run.records):
            plan.problems.append(_unexplained(run, steps))
        elif run not in undecided:
            _end(run, of_run, known_epochs, plan)
    plan.problems += _moved_away(plan.again, last)
    plan.endings.sort(key=lambda ending: ending.run.kind is Kind.FRONTIER)
    _choose_frontier(plan)
    if plan.frontier is not None and last.moved:
        plan.problems.append(
            f"the frontier of step {plan.frontier.frontier.step} was aborted, and the cluster was "
            f"moved since: what that step did is pending in {last.moved}"
        )
    return plan


def _of_step(
    step: Step, steps: Steps, last: FrontierRecord, plan: Plan, *, is_all_seen: bool
) -> Iterator[Dealt]:
    """Yield what is done with the pieces of a step that are not visible."""
    hidden = [piece for piece in step.pieces if piece.state is not State.VISIBLE]
    if not any(piece.records for piece in hidden):
        return
    hanging = [piece for piece in hidden if piece.state is State.HANGING]
    fate = Fate.ABORTED
    if step.name in steps.twins:
        fate = Fate.LEFT
        plan.problems.append(
            f"two steps of a master have the same millisecond, {step.name.now_ms}: its clock "
            "stepped back, and nothing says which of them wrote what is not visible"
        )
    elif hanging and step.record is not None and is_change(step.record, last):
        fate = Fate.LEFT
        plan.problems.append(
            f"a change of all shards hangs in {hanging[0].place}: it became visible in all "
            "partitions of the frontier topic, or in none"
        )
    elif any(piece.state is State.VISIBLE or piece.is_copied for piece in step.pieces):
        fate = _fate_beside_visible(step, steps, last, plan)
    elif hanging and step.record is None and not steps.would_know(step.name):
        fate = Fate.LEFT
        plan.problems.append(
            f"nothing says whether the step at {step.name.now_ms} ms was committed: the frontier's "
            "log begins behind it, or its master's clock stepped back"
        )
    elif hanging and lacks_some(step, steps) and not is_all_seen:
        fate = Fate.LEFT
        plan.problems.append(
            f"the step at {step.name.now_ms} ms may be visible in partitions that this user may "
            "not read"
        )
    elif len(hanging) == len(step.pieces) and _could_be_next(step, steps, last):
        fate = Fate.COMMITTED
    for piece in hanging if fate is not Fate.COMMITTED else hidden:
        is_hanging = piece.state is State.HANGING
        copied = {record.offset for record in piece.copied}
        records = [record for record in piece.records if record.offset not in copied]
        if records:
            yield Dealt(step, piece, records, fate if is_hanging else Fate.AGAIN)


def is_change(record: FrontierRecord, last: FrontierRecord | None) -> bool:
    """Return whether a record that follows `last` in its partition may be one of a change of
    shards, or of the end of a move, which write those of all of them in one transaction."""
    shards = record.frontier.shards
    if record.moved:
        return shards > 1
    if record.owner not in (SHARDS_OWNER, CREATOR) or record.resharding or record.rest_ms:
        return False
    if last is None:
        return shards > 1
    is_at_rest = last.rest_ms and not last.resharding
    if is_at_rest and record.frontier == begin_term(last.frontier):
        return False  # It takes the rest of this shard back.
    return shards > 1 or shards != last.frontier.shards


def _moved_away(again: Iterable[Dealt], last: FrontierRecord) -> Iterator[str]:
    """Yield why something cannot be written again: its partition of the buffer is another shard's
    by now, whose masters would not wait for it."""
    for dealt in again:
        place = dealt.piece.place
        if dealt.piece.run.kind is Kind.BUFFER and not last.frontier.owns(place.partition):
            yield (
                f"what was aborted in {place} is not written again: the number of shards was "
                "changed since, and that partition is of another one now"
            )


def _could_be_next(step: Step, steps: Steps, last: FrontierRecord) -> bool:
    """Return whether a step is complete, and takes up where the last visible one ended."""
    record = step.record
    if record is None or lacks_some(step, steps):
        return False
    return last.frontier.precedes(record.frontier)


def _fate_beside_visible(step: Step, steps: Steps, last: FrontierRecord, plan: Plan) -> Fate:
    """Return what becomes of what hangs, where other records of the step are visible."""
    record, now_ms = step.record, step.name.now_ms
    if record is None:
        plan.problems.append(
            f"records of a step ({step.name.producer.epoch}, {now_ms}) are visible, and its "
            "frontier record is lost"
        )
        return Fate.LEFT
    number = record.frontier.step
    state = next(p for p in step.pieces if p.run.kind is Kind.FRONTIER)
    is_aborted = state.state is State.ABORTED and not state.is_copied
    if is_aborted and record.frontier.is_within(last.frontier):
        plan.doubled.append(step)
        return Fate.ABORTED
    if are_others(step):
        plan.problems.append(
            f"the messages that were found of step {number} are not those that it counts: some of "
            "them are of another step"
        )
        return Fate.LEFT
    lack = lack_of(step, steps)
    is_there = state.state is State.VISIBLE or state.is_copied
    if lack.messages and not is_there:
        plan.problems.append(
            f"of step {number}, {lack.messages} messages are in no log: its frontier would lose "
            "them, and without it the others would be doubled"
        )
        return Fate.LEFT
    if any(lack):
        plan.missing[number] = lack
    if is_there:
        return Fate.COMMITTED
    follows = last.frontier.is_within if is_aborted else last.frontier.precedes
    if not follows(record.frontier):
        plan.problems.append(
            f"step {number} does not follow step {last.frontier.step}, the last visible one"
        )
        return Fate.LEFT
    return Fate.COMMITTED


def _of_unclear(piece: Piece, steps: Steps, plan: Plan) -> Dealt:
    """Decide on dead letters of which no step is known: each step of their producer has one
    transaction, and if all of them are visible, that of the letters was committed too."""
    ids = {ProducerEpoch(piece.run.producer_id, epoch) for epoch in piece.run.epochs}
    states = {
        other.state
        for step in steps.by_name.values()
        if step.name.producer in ids
        for other in step.pieces
        if other.run.kind is Kind.FRONTIER
    }
    if piece.run.kind is Kind.DEAD and states == {State.VISIBLE}:
        return Dealt(None, piece, piece.records, Fate.COMMITTED)
    if states and State.VISIBLE not in states:
        return Dealt(None, piece, piece.records, Fate.ABORTED)
    plan.problems.append(f"nothing says which step wrote what hangs in {piece.place}")
    return Dealt(None, piece, piece.records, Fate.LEFT)


def _unexplained(run: Run, steps: Steps) -> str:
    if steps.is_own(run):
        return (
            f"an earlier run of this command has written what hangs in {run.place}: abort it with "
            "kafka-transactions.sh, then run this with --since, and it is written once more"
        )
    return f"no step that is known explains all that hangs in {run.place}"


def _end(run: Run, dealt: Sequence[Dealt], known: Mapping[Place, int], plan: Plan) -> None:
    """Choose the marker of a run; note what must be written again because of it."""
    is_commit = all(each.fate is Fate.COMMITTED for each in dealt)
    if not is_commit:
        again = [each._replace(fate=Fate.AGAIN) for each in dealt if each.fate is Fate.COMMITTED]
        plan.again += again
        plan.dealt = [d for d in plan.dealt if d.piece.run is not run or d.fate is Fate.ABORTED]
        plan.dealt += again
    others = [piece.run for each in dealt if each.step for piece in each.step.pieces]
    plan.endings.append(Ending(run, marker_for(run, others, known.get(run.place, -1), is_commit)))


def marker_for(run: Run, others: Iterable[Run], known_epoch: int, is_commit: bool) -> Marker:
    """Return the marker as Kafka has written it to the other partitions of a transaction; if there
    is none, one that ends what the leader knows."""
    epoch = max(run.epochs)
    like = [
        other.marker
        for other in others
        if other.marker is not None
        and other.marker.is_commit == is_commit
        and other.marker.producer.id == run.producer_id
        and other.marker.producer.epoch >= epoch
    ]
    first = min(like, key=lambda marker: marker.producer.epoch, default=None)
    producer = ProducerEpoch(run.producer_id, epoch if first is None else first.producer.epoch)
    coordinator = max(0, known_epoch, -1 if first is None else first.coordinator_epoch)
    return Marker(producer, is_commit, coordinator, -1)


def _choose_frontier(plan: Plan) -> None:
    frontiers = [d for d in plan.again if d.piece.run.kind is Kind.FRONTIER]
    plan.again = [d for d in plan.again if d.piece.run.kind is not Kind.FRONTIER]
    records = [d.step.record for d in frontiers if d.step and d.step.record]
    if len(records) > 1:
        plan.problems.append("the frontiers of several steps would have to be written again")
    plan.frontier = records[0] if records else None
