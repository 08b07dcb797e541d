"""The run of a move, which goes on from wherever an earlier one ended.

    1. fence earlier runs of this move, and read how far they have come
    2. nothing done yet: fence the old cluster, read the cut, and look at what is pending
    3. commit the first record of progress: the cut, and the digest of what is pending
    4. write to the old cluster's frontier topic that it was moved
    5. step by step, commit messages and progress in one transaction
    6. read back what was written, and what the new cluster made of it

Killed before 4: the next run begins anew. Killed behind it: the next run takes the cut from the
first record, requires that the source still holds the same, and passes over what is done.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple

from delayd.bus import Ack, Bus, TransactionalProducer
from delayd.commands.move.accepting import Accepted, accepted, answers_end, read_back
from delayd.commands.move.mirrored import Copies, CopiesReader, pending
from delayd.commands.move.old_cluster import OldCluster
from delayd.commands.move.planning import Plan, plan_of
from delayd.commands.move.progress import SUFFIX, Begun, Progress, ProgressLog, runs_of
from delayd.commands.move.requests import Asked, asked_of, content_of
from delayd.commands.move.source import Message, Source
from delayd.errors import FencedError, MoveError, ProducerError
from delayd.request import RequestLimits
from delayd.runtime.clock import Clock
from replication.record import FrontierRecord
from replication.settings import Settings

STEP_RECORDS: Final = 2_000
STEP_BYTES: Final = 4 * 1024 * 1024
"""A step of a move ends with so many records or bytes: some ten milliseconds of the buffer's
readers, who wait for a transaction that is open."""

Tell = Callable[[str, int, int], None]
"""Takes a stage, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What is moved where to."""

    bus: Bus
    """The new cluster's."""
    record: FrontierRecord
    """The new cluster's newest frontier record."""
    old: OldCluster | None
    """None: the old cluster's Kafka is lost, and what the wheel knows counts."""
    stopped_ms: int
    """When the old cluster delivered last at the latest (Unix ms), or later; counts if `old` is
    None, unless the wheel has seen the cluster alive after that."""
    takes_doubles: bool
    """Move what may have been delivered already, too."""
    is_mirrored: bool = False
    """The new Kafka has copies of the old targets. Then `old` is None."""
    clock: Clock
    timeout_ms: int

    @property
    def settings(self) -> Settings:
        """Return the new cluster's settings."""
        return self.record.settings

    @property
    def limits(self) -> RequestLimits:
        """Return what the new cluster takes."""
        return RequestLimits.of(self.settings, b"", self.record.rules)


class Moved(NamedTuple):
    """What a run found, and what it came to."""

    plan: Plan
    cut: FrontierRecord
    written: int
    """Of the whole move, by all runs."""
    written_now: int
    """By this run."""
    not_held: int
    """Requests that the cut took into account, or that came to the old buffer, and that are not in
    the wheel."""
    accepted: Accepted | None
    """None of a plan."""


def planned(move: Move, source: Source, tell: Tell) -> Moved:
    """Return what a run would do now. Writes nothing, and fences nobody.

    Raises MoveError if the source is not what an earlier run began with, and what `Source` and the
    drivers raise.
    """
    log = _progress_log(move, source)
    progress = log.read()
    if progress is not None and progress.done:
        cut = progress.begun.cut
        if move.old is not None:
            _last_meanwhile(move, move.old, progress.begun)
    elif move.old is None:
        cut = _newest(source, progress)
    else:
        cut = _last_of(move, source, move.old, progress)
    by_wheel = _is_by_wheel(move, progress)
    copies = _copies(move, source, cut, progress)
    plan = _plan(move, source, cut, copies, tell, by_wheel=by_wheel)
    if progress is not None and progress.done:
        _require_same(source, plan, progress)
    done = 0 if progress is None else progress.done
    return Moved(plan, cut, done, 0, _not_held(move, source, cut, by_wheel=by_wheel), None)


def run(move: Move, source: Source, tell: Tell, wait_ms: int) -> Moved:
    """Move what is left to move; return what all runs together came to.

    Waits up to `wait_ms` for the new cluster to take in what was written. Raises MoveError if
    nothing may be moved, another run has taken over, or a transaction failed.
    """
    log = _progress_log(move, source)
    log.create()
    name = f"delayd-{move.settings.realm}-move-{source.known.settings.realm}"
    with closing(move.bus.transactional_producer(name)) as producer:
        try:
            producer.init_transactions(move.timeout_ms)
            plan, progress, copies = _begun(move, source, log, producer, tell)
            before = progress.done
            messages = pending(source, progress.begun.cut, copies)
            _write(move, messages, log, producer, progress, tell)
        except FencedError as error:
            raise MoveError(
                "another run of this move has taken over, or this one stood still for too long",
                remedy="let the other one end, or run this again; what this run had committed "
                "counts, and nothing is written twice",
            ) from error
        except ProducerError as error:
            raise MoveError(
                f"a transaction failed, and its outcome is unknown: {error}",
                remedy="see that the brokers are well, then run this again: it goes on where this "
                "run ended, and writes nothing twice",
            ) from error
    tell("reading back", 0, 1)
    back = read_back(move.bus, move.settings, progress, move.clock, move.timeout_ms)
    if back != (progress.done, progress.content):
        raise MoveError(
            f"{move.settings.buffer.name} does not hold what was written: {back[0]} of "
            f"{progress.done} records were read back, or their content differs",
            remedy="was the new buffer trimmed already, or made again? What was moved is not known",
        )
    outcome = accepted(move.bus, move.settings, progress, move.clock, move.timeout_ms, wait_ms)
    by_wheel = _is_by_wheel(move, progress)
    not_held = _not_held(move, source, progress.begun.cut, by_wheel=by_wheel)
    written_now = progress.done - before
    return Moved(plan, progress.begun.cut, progress.done, written_now, not_held, outcome)


def _progress_log(move: Move, source: Source) -> ProgressLog:
    old = source.known.settings
    if (old.realm, old.buffer) == (move.settings.realm, move.settings.buffer):
        raise MoveError(
            f"the wheel belongs to the cluster {old.realm} itself",
            remedy="name the new cluster by --bootstrap, --cluster and --prefix",
        )
    return ProgressLog(move.bus, move.settings, old.realm, move.clock, move.timeout_ms)


def _last_of(
    move: Move, source: Source, old: OldCluster, progress: Progress | None
) -> FrontierRecord:
    """Return the old cluster's last frontier. Raise MoveError if it was moved elsewhere, if the
    progress of this move is lost, or if the wheel does not hold all that its buffer has."""
    last = _last_here(move, old)
    if last.moved:
        if progress is None:
            raise MoveError(
                f"the old cluster was moved here already, and {move.settings.prefix}{SUFFIX}, "
                "which says how far, is lost",
                remedy="nothing was written; what was moved is in the new buffer. To begin anew, "
                "make a new cluster with empty topics and leave --frontier-from out",
            )
        return last
    old.require_settled(move.clock)
    behind = old.left_behind(source.reached, move.clock)
    if behind:
        raise MoveError(
            f"{source.root} has not taken in all of the old buffer: {behind} requests are missing",
            remedy="stop the producers, start the node until it has caught up, stop it and run "
            "this again; or take another node's wheel",
        )
    return last


def _last_here(move: Move, old: OldCluster) -> FrontierRecord:
    """Return the old cluster's last frontier. Raise MoveError if it was moved elsewhere."""
    last = old.last().record
    if last.moved not in ("", move.settings.realm):
        raise MoveError(
            f"the old cluster was moved already, to {last.moved}",
            remedy="move on from there; or leave --frontier-from out, and see what is in doubt",
        )
    return last


def _last_meanwhile(move: Move, old: OldCluster, begun: Begun) -> FrontierRecord:
    """Return the old cluster's last frontier, of a move that has written messages already: it may
    have begun without the old cluster's Kafka. Raise MoveError if the cluster has gone on since the
    cut, and so may have delivered what was moved."""
    last = _last_here(move, old)
    now, then = last.frontier, begun.cut.frontier
    # Closing and opening shards takes steps, too, and so does taking over: they deliver nothing.
    if not last.moved and not now.is_within(then) and not move.takes_doubles:
        raise MoveError(
            f"the old cluster has gone on since this move began: from step {then.step} to "
            f"{now.step}. It may have delivered what was moved",
            remedy="stop all its nodes, and never start them again. --prefer=at-least-once ends "
            "the old cluster and goes on; what it has delivered meanwhile is doubled",
        )
    return last


def _newest(source: Source, progress: Progress | None) -> FrontierRecord:
    """Return the newest frontier that can be known without the old cluster's Kafka."""
    known = [source.known] if progress is None else [source.known, progress.begun.cut]
    return max(known, key=lambda record: record.frontier.step)


def _is_by_wheel(move: Move, progress: Progress | None) -> bool:
    """Return whether the cut is only what the wheel knows: the old cluster may have gone on."""
    is_known = progress is not None and progress.done and not progress.begun.by_wheel
    return move.old is None and not is_known


def _not_held(move: Move, source: Source, cut: FrontierRecord, *, by_wheel: bool) -> int:
    if move.old is not None:
        return move.old.left_behind(source.reached, move.clock)
    if not by_wheel:
        return 0  # It held all of them when the old cluster was ended.
    pairs = zip(cut.frontier.offsets, source.progress.offsets, strict=True)
    return sum(max(0, needed - own) for needed, own in pairs)


def _copies(
    move: Move, source: Source, cut: FrontierRecord, progress: Progress | None
) -> Copies | None:
    """Return what the new Kafka has of the old cluster's deliveries; None if that does not count.
    A move that has written messages goes on with what it began with."""
    has_begun = progress is not None and progress.done > 0
    ends = progress.begun.copies if progress is not None and has_begun else None
    if ends is None and (has_begun or not move.is_mirrored):
        return None
    reader = CopiesReader(move.bus, move.clock, move.timeout_ms)
    return reader.read(cut, source.forgotten, source.topics(), ends)


def _plan(
    move: Move,
    source: Source,
    cut: FrontierRecord,
    copies: Copies | None,
    tell: Tell,
    *,
    by_wheel: bool,
) -> Plan:
    messages = pending(
        source,
        cut,
        copies,
        lambda done, total: tell("looking at what is pending", done, total),
    )
    known_ms = max(source.seen_ms, cut.frontier.highest_cursor.due_ms)
    doubt_ms = max(move.stopped_ms, known_ms) if by_wheel else None
    now_ms = move.clock.wall_ms()
    plan = plan_of(messages, move.limits, doubt_ms=doubt_ms, now_ms=now_ms, copies=copies)
    plan.replies_open, plan.letters = source.replies_open, source.letters
    return plan


def _refuse_paused(cut: FrontierRecord, now_ms: int) -> None:
    """Raise MoveError while a target is paused: the new cluster would deliver what waits."""
    paused = sorted(topic for topic, hold in cut.holds.items() if hold.is_closed(now_ms))
    if paused:
        raise MoveError(
            f"paused in the old cluster: {', '.join(paused)}",
            remedy="delayd resume them there, or wait until their pauses end, then run this again",
        )


def _begun(
    move: Move, source: Source, log: ProgressLog, producer: TransactionalProducer, tell: Tell
) -> tuple[Plan, Progress, Copies | None]:
    """Return what is to be moved, how far that is, and the copies that count, once that is fixed
    for good."""
    progress = log.read()
    if progress is not None and progress.done:
        last = None
        if move.old is not None:
            move.old.fence()
            last = _last_meanwhile(move, move.old, progress.begun)
        by_wheel = _is_by_wheel(move, progress)
        copies = _copies(move, source, progress.begun.cut, progress)
        plan = _plan(move, source, progress.begun.cut, copies, tell, by_wheel=by_wheel)
        _require_same(source, plan, progress)
        if move.old is not None and last is not None and not last.moved:
            move.old.end(move.settings.realm)
        return plan, progress, copies
    cut, is_ended = _newest(source, progress), True
    if move.old is not None:
        move.old.fence()
        cut = _last_of(move, source, move.old, progress)
        _refuse_paused(cut, move.clock.wall_ms())
        is_ended = bool(cut.moved)
    by_wheel = move.old is None
    copies = _copies(move, source, cut, progress)
    plan = _plan(move, source, cut, copies, tell, by_wheel=by_wheel)
    if progress is not None and cut.moved:
        _require_same(source, plan, progress)
    _refuse(move, plan)
    if by_wheel:
        _refuse_not_held(move, source, cut)
    begun = Begun(
        replace(cut, moved="", resharding=0),
        plan.digest,
        plan.pending,
        by_wheel,
        *answers_end(move.bus, move.settings, move.timeout_ms),
        copies=None if copies is None else copies.ends,
    )
    producer.begin()
    log.begin(producer, begun)
    producer.commit(move.timeout_ms)
    if move.old is not None and not is_ended:
        move.old.end(move.settings.realm)
    return plan, Progress(begun), copies


def _require_same(source: Source, plan: Plan, progress: Progress) -> None:
    begun = progress.begun
    if (plan.pending, plan.digest) != (begun.pending, begun.digest):
        raise MoveError(
            f"{source.root} is not what this move began with: {plan.pending} messages are pending "
            f"in it at step {begun.cut.frontier.step}, and {begun.pending} were, or others",
            remedy="go on with the data_dir with which you began, or another one that was stopped "
            "at the same time; nothing was written",
        )


def _refuse(move: Move, plan: Plan) -> None:
    """Raise MoveError if messages are in doubt or would be rejected."""
    if plan.refused.count:
        first = plan.refused.names[0]
        raise MoveError(
            f"the new cluster would reject {plan.refused.count} messages, first "
            f"{first.id or first.source}: {first.problem}",
            remedy="`delayd move --dry-run` lists them; make a cluster that takes them, with a "
            "longer --max-delay-days or larger records",
        )
    if plan.doubtful.count and not move.takes_doubles:
        raise MoveError(
            f"{plan.doubtful.count} messages may have been delivered after the last frontier that "
            "the wheel knows",
            remedy="`delayd move --dry-run` lists them. If the old cluster's Kafka can be read, "
            "name it by --frontier-from. If you know when it stopped, say so by --stopped-at. "
            "--prefer=at-least-once moves them, and some may be doubled",
        )
    if plan.unmirrored.count and not move.takes_doubles:
        raise MoveError(
            f"{plan.unmirrored.count} messages were delivered by the old cluster, and were not "
            "mirrored: only who read the old targets may have them",
            remedy="`delayd move --mirrored --dry-run` lists them. --prefer=at-least-once delivers "
            "them here",
        )
    if plan.revocable.count and not move.takes_doubles:
        raise MoveError(
            f"{plan.revocable.count} messages have an id, and may have been cancelled or replaced "
            "after the last frontier that the wheel knows",
            remedy="`delayd move --dry-run` lists them. If the old cluster's Kafka can be read, "
            "name it by --frontier-from. --prefer=at-least-once moves them",
        )


def _refuse_not_held(move: Move, source: Source, cut: FrontierRecord) -> None:
    """Raise MoveError if the wheel proves by itself that requests are missing in it."""
    count = _not_held(move, source, cut, by_wheel=True)
    if count and not move.takes_doubles:
        raise MoveError(
            f"{source.root} knows of up to {count} requests that are not in it: messages that were "
            "never moved, or cancels of what is pending in it",
            remedy="take the data_dir of a node that has ingested more, or name the old cluster's "
            "Kafka by --frontier-from. --prefer=at-least-once goes on without them",
        )


def _write(
    move: Move,
    messages: Iterator[Message],
    log: ProgressLog,
    producer: TransactionalProducer,
    progress: Progress,
    tell: Tell,
) -> None:
    """Commit what is left, step by step. Raises ProducerError, MoveError."""
    begun = progress.begun
    passed = deque(islice(messages, progress.done), maxlen=1)
    if (passed[0].rank if passed else None) != progress.last:
        raise MoveError(
            f"the wheel has another message at place {progress.done} than was moved",
            remedy="go on with the data_dir with which you began; nothing was written",
        )
    tell("moving", progress.done, begun.pending)
    for step in steps_of(messages, move.settings.partitions):
        acks: list[Ack] = []
        producer.begin()
        for _, asked in step:
            producer.send(
                move.settings.buffer.name,
                key=asked.key,
                value=asked.value,
                headers=asked.headers,
                partition=asked.partition,
                on_ack=acks.append,
            )
            progress.content += content_of(asked.key, asked.value, asked.headers)
        producer.flush(move.timeout_ms)
        assert len(acks) == len(step), "a flush acknowledges all, or raises"
        progress.done += len(step)
        progress.last = step[-1][0].rank
        places = runs_of(acks)
        progress.places += places
        log.step(producer, progress, places)
        producer.commit(move.timeout_ms)
        tell("moving", progress.done, begun.pending)


def steps_of(
    messages: Iterator[Message], partitions: int
) -> Iterator[Sequence[tuple[Message, Asked]]]:
    """Yield the messages with their requests, in transactions."""
    step: list[tuple[Message, Asked]] = []
    size = 0
    for message in messages:
        asked = asked_of(message, partitions)
        step.append((message, asked))
        size += asked.bytes
        if len(step) >= STEP_RECORDS or size >= STEP_BYTES:
            yield step
            step, size = [], 0
    if step:
        yield step
