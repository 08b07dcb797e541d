"""A replica: what this node knows. The wheel, how far it has ingested, and the frontiers it saw.

The ingest thread puts records in, the delivery thread plans steps and reads payloads, both under
one lock (`changed`, a condition that is notified when something may have become due). While the
node is master there is also what it plans (`delayd.node.delivery.planner`), made from the wheel at
takeover.

Invariants: records go in once, in offset order; what is ingested is what the wheel will hold after
the next checkpoint; nothing is forgotten that a frontier younger than `export_hold` may ask for.
Source: docs/design/frontier.md, docs/design/storage.md.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

from delayd.bus import Position, Record
from delayd.cluster.frontier_log import SeenFrontier
from delayd.errors import DiskError, FrontierError
from delayd.node.delivery.planner import Planner, StepContent
from delayd.node.delivery.slot_opener import is_passed
from delayd.node.replica.fast_ingest import FastIngest
from delayd.node.replica.ingest_batch import IngestBatch
from delayd.node.replica.retention import Forgotten, Retention
from delayd.request import Reject, RequestLimits, parse
from delayd.runtime.threads import Condition, SystemThreads, Threads
from delayd.wheel import Frame, FrozenSegment, Progress
from delayd.wheel.id_memory import id_name
from delayd.wheel.kills import Kill
from delayd.wheel.layers import Lines
from delayd.wheel.layout import HOUR_SLOTS, hour_of
from delayd.wheel.storage import TAILS_PER_CALL, Wheel, WheelStats
from replication.delivery_queue import Plan, StepLimits
from replication.frontier import Frontier
from replication.ids import NOTHING, IdState
from replication.ingest import LogState
from replication.rank import SLOT_MS, Rank, slot_of
from replication.record import decode, encode
from replication.settings import Settings

CLOCK_AHEAD_MAX_MS = 2 * 3_600_000
"""An idle master writes a frontier every hour."""
SPLIT_RETRY_MS = 20
"""How soon a takeover that needs a split looks again whether it may."""


class Rejected(NamedTuple):
    """A record that will be dead-lettered: for the log."""

    partition: int
    offset: int
    reject: Reject


class Pending(NamedTuple):
    """Messages that are stored, not killed, and not in a slot that the frontier has passed."""

    total: int
    hours: dict[int, int]
    """By hour (hours since 1970) of their due time."""
    topics: dict[str, int]
    """By target."""


class KnownId(NamedTuple):
    """What a node can tell of an id."""

    state: IdState
    kills: list[Kill | None]
    """By killed message of the state."""


class Replica:
    """One node's state between its threads."""

    def __init__(
        self,
        wheel: Wheel,
        settings: Settings,
        *,
        proof_key: bytes,
        export_hold_ms: int,
        disk_free_min_bytes: int,
        threads: Threads | None = None,
    ) -> None:
        self.changed: Condition = (threads or SystemThreads()).condition()
        self.settings = settings
        self._wheel = wheel
        self.limits = RequestLimits(
            max_delay_ms=settings.max_delay_ms,
            record_bytes_max=settings.record_bytes_max,
            partitions=settings.partitions,
            cluster=settings.cluster,
            proof_key=proof_key,
            prefix=settings.prefix,
        )
        self._plain = FastIngest(self.limits, settings.lanes)
        self.disk_free_min_bytes = disk_free_min_bytes
        self.seen_free_bytes: int | None = None
        """What was free on the disk at the last checkpoint; None before the first one."""
        self.make_room: Callable[[], bool] = lambda: False
        """Called when the disk is short: True if somebody gives room back, so that the node may
        look again with its next checkpoint."""
        self._planning: Planner | None = None
        self._resumed_frontier: bytes = b""
        self.ingested_count = 0
        self._resume_at = [0] * settings.partitions
        self._reached: tuple[int, ...] = (0,) * settings.partitions
        progress = wheel.progress
        forgotten = Forgotten.of(progress.forgotten, progress.forgotten_ms) if progress else None
        self._retention = Retention(export_hold_ms, forgotten)
        if progress is None:
            self._states = [LogState(0, 0)] * settings.partitions
            self._epochs = [-1] * settings.partitions
        else:
            self._states = [
                LogState(offset, log_ms)
                for offset, log_ms in zip(progress.offsets, progress.log_ms, strict=True)
            ]
            self._epochs = list(progress.leader_epochs)
            self._reached = progress.reached or progress.offsets
            self._resumed_frontier = progress.frontier
            self._refuse_other_cluster()

    @property
    def positions(self) -> dict[int, Position]:
        """Where ingest goes on, by partition."""
        return {
            partition: Position(self._resume_at[partition])
            if self._resume_at[partition] > state.next_offset
            else Position(state.next_offset, self._epochs[partition])
            for partition, state in enumerate(self._states)
        }

    @property
    def reached(self) -> tuple[int, ...]:
        """How far the consumer had read at the last checkpoint: past markers and aborted records
        too, which `ingested` does not count."""
        return tuple(
            max(state.next_offset, reached)
            for state, reached in zip(self._states, self._reached, strict=True)
        )

    @property
    def known_step(self) -> int:
        """The newest step that this node acted on before it was started; 0 if none."""
        return decode(self._resumed_frontier).frontier.step if self._resumed_frontier else 0

    def resume_at(self, partition: int, offset: int) -> None:
        """Nothing is left in the log between what was ingested and this offset."""
        assert offset <= self.reached[partition], "records that were never read cannot be skipped"
        self._resume_at[partition] = offset

    @property
    def ingested(self) -> tuple[int, ...]:
        """1 + the last ingested offset, by partition."""
        return tuple(state.next_offset for state in self._states)

    @property
    def log_ms(self) -> tuple[int, ...]:
        """Log time L, by partition."""
        return tuple(state.log_ms for state in self._states)

    @property
    def newest(self) -> SeenFrontier | None:
        """The newest committed frontier that this node has read."""
        return self._retention.newest

    def take(self, records: Sequence[Record]) -> list[Rejected]:
        """Ingest records; returns those that are answered with a dead letter."""
        frames = self._plain.pack(records)
        others = {
            place: parse(records[place], self.limits)
            for place, frame in enumerate(frames)
            if frame is None
        }
        with self.changed:
            # What is counted as ingested must be in the wheel: both change together, or neither.
            batch = IngestBatch(
                self._wheel.ids, self.settings, self._states, self._retention.covered
            )
            batch.add_all(records, frames, others)
            entries = self._wheel.append(batch.frames)
            batch.apply()
            self._states = batch.states
            for partition, epoch in {record[0]: record[2] for record in records}.items():
                self._epochs[partition] = epoch
            self.ingested_count += len(records)
            if self._planning is not None:
                self._planning.arrived(entries)
            self.changed.notify_all()
        return [
            Rejected(records[place].partition, records[place].offset, outcome)
            for place, outcome in others.items()
            if isinstance(outcome, Reject)
        ]

    def observe(self, seen: SeenFrontier) -> None:
        """A committed frontier was read (or written). FrontierError if it contradicts an older."""
        with self.changed:
            newest = self.newest
            if newest is not None:
                if seen.offset <= newest.offset:
                    return
                if not newest.record.frontier.precedes(seen.record.frontier):
                    raise FrontierError(
                        f"frontier record at offset {seen.offset} steps back behind the one at "
                        f"{newest.offset}",
                        remedy="two clusters share the topic, or it was tampered with; "
                        "nothing more is delivered by this node",
                    )
            elif seen.record.frontier.step < self.known_step:
                raise FrontierError(
                    f"the frontier topic ends at step {seen.record.frontier.step}, this node "
                    f"has already acted on step {self.known_step}",
                    remedy="the topic lost records: see docs/operations.md",
                )
            self._retention.remember(seen)
            self._wheel.pass_to(slot_of(seen.record.frontier.lowest_cursor.due_ms))
            self.changed.notify_all()

    def wait_ingested(self, frontier: Frontier, timeout_ms: int) -> bool:
        """Has (or within the time) this node ingested all that a frontier took into account?"""
        with self.changed:
            return self.changed.wait_for(
                lambda: frontier.reached_by(self.ingested), timeout_ms / 1000
            )

    # For the master: what it plans is thrown away with its mastership.

    def open_delivery_queue(self, frontier: Frontier) -> None:
        """Become able to plan steps beyond a committed frontier that has been reached."""
        while not self.split_before(frontier):
            pass
        with self.changed:
            self._planning = Planner(self._wheel, self.settings, frontier)

    def split_before(self, frontier: Frontier) -> bool:
        """Split a piece of the hours that a frontier stands in or has passed; True when all are.

        Hours of many messages take minutes: whoever waits for them must show signs of life.
        """
        reached_ms = frontier.highest_cursor.due_ms
        if self._is_whole_to(slot_of(reached_ms)):
            return True
        # An export holds splits until it is done.
        if not self.split_some(reached_ms):
            with self.changed:
                self.changed.wait(SPLIT_RETRY_MS / 1000)
        return False

    def close_delivery_queue(self) -> None:
        """Stop planning."""
        with self.changed:
            self._planning = None

    def _is_whole_to(self, slot: int) -> bool:
        with self.changed:
            self._wheel.advance(slot * SLOT_MS)
            whole_below = self._wheel.whole_below
            return whole_below is None or slot < whole_below

    @property
    def planned_frontier(self) -> Frontier:
        """The frontier of the step last begun."""
        return self._plans.frontier

    def plan(self, now_ms: int, limits: StepLimits) -> Plan:
        """The next step at `now_ms`; nothing changes until it is begun. Lock held by the caller."""
        return self._plans.plan(now_ms, self.ingested, limits)

    def begin(self, plan: Plan) -> StepContent:
        """Put the step under way: what it has to produce, read back. Lock held by the caller, but
        not when it asks for the pieces."""
        content = self._plans.begin(plan)
        content.pieces = self._under_lock(content.pieces)
        return content

    def _under_lock(self, pieces: Iterator[list[Frame]]) -> Iterator[list[Frame]]:
        while True:
            with self.changed:
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def wrote(self, own_writes: tuple[int, ...]) -> None:
        """The step under way has re-buffered messages: R. Takes the lock."""
        with self.changed:
            self._plans.wrote(own_writes)

    def next_due_ms(self, now_ms: int) -> int | None:
        """When something may be due next. Lock held by the caller."""
        return self._plans.next_due_ms(now_ms)

    @property
    def _plans(self) -> Planner:
        assert self._planning is not None, "only a master plans"
        return self._planning

    def know(self, partition: int, id: str) -> KnownId | None:
        """What is remembered of an id; None if nothing is. Takes the lock."""
        with self.changed:
            state = self._wheel.ids.state(partition, id_name(id))
            if state == NOTHING:
                return None
            ranks = [Rank(m.due_ms, partition, m.offset) for m in state.killed]
            return KnownId(state, [self._wheel.ids.kill(rank) for rank in ranks])

    def checkpoint(self, reached: tuple[int, ...] | None = None) -> None:
        """Make durable what has been ingested; appends may go on meanwhile.

        `reached` is how far the consumer has read, by partition. Below the disk's watermark all
        that the newest frontier covers is forgotten, however young; DiskError if that is not
        enough.
        """
        self.seen_free_bytes = self.free_bytes()
        is_short = self.seen_free_bytes < self.disk_free_min_bytes
        makes_room = is_short and self.make_room()
        self._write_out()
        with self.changed:
            if reached is not None:
                self._reached = reached
            newest = self.newest
            if newest is not None:
                # Once more: when it was read, the hour that it stands in may not have been whole.
                self._wheel.pass_to(slot_of(newest.record.frontier.lowest_cursor.due_ms))
            self._forget_covered(0 if is_short else self._retention.hold_ms)
            forgotten = self._retention.forgotten
            pending = self._wheel.begin_checkpoint(
                Progress(
                    offsets=self.ingested,
                    leader_epochs=tuple(self._epochs),
                    log_ms=self.log_ms,
                    frontier=encode(newest.record) if newest else self._resumed_frontier,
                    reached=self.reached,
                    forgotten=forgotten.value if forgotten else b"",
                    forgotten_ms=forgotten.append_ms if forgotten else 0,
                )
            )
        pending.sync()
        with self.changed:
            self._wheel.finish_checkpoint(pending)
        if is_short and not makes_room and not self._wheel.stats().files_to_unlink:
            self._require_room()

    def _write_out(self) -> None:
        # So that what is left for the lock of `begin_checkpoint` is what arrives meanwhile.
        with self.changed:
            more = self._wheel.stats().tail_segments
        while more > 0:
            with self.changed:
                self._wheel.write_out()
            more -= TAILS_PER_CALL

    def split_some(self, now_ms: int) -> bool:
        """Tell the wheel the time, and split a piece of a near hour; True if there is more.

        A clock that is far ahead of the newest frontier's append time is not believed: it would
        have all hours split, a file for every second of weeks.
        """
        with self.changed:
            newest = self.newest
            if newest is not None:
                now_ms = min(now_ms, newest.append_ms + CLOCK_AHEAD_MAX_MS)
            self._wheel.advance(now_ms)
            return self._wheel.split_some()

    def _require_room(self) -> None:
        free = self.free_bytes()
        if free < self.disk_free_min_bytes:
            raise DiskError(
                f"{free} bytes are free on the disk of the wheel, fewer than disk_free_min_bytes "
                f"= {self.disk_free_min_bytes}, and nothing more may be forgotten",
                remedy="make room or give the node a larger disk, then start it again; "
                "nothing is lost",
            )

    # For exports (delayd/node/export): each call takes the lock, and holds it for a bounded time.

    @property
    def data_dir(self) -> str:
        """Where the wheel is."""
        return self._wheel.root

    def free_bytes(self) -> int:
        """Bytes free on the disk of the wheel."""
        return self._wheel.free_bytes()

    @property
    def oldest_cut(self) -> Forgotten | None:
        """The oldest cut at which this node still has all that was pending; None if at any."""
        return self._retention.forgotten

    def pin(self, cut: Frontier) -> bool:
        """Forget nothing that was pending at this cut; False if some of it may be gone."""
        with self.changed:
            return self._retention.pin(cut)

    def unpin(self) -> None:
        """Forget and split on."""
        with self.changed:
            self._retention.unpin()
            self._wheel.release_splits()

    def hold_splits(self) -> bool:
        """Until `unpin` no frame moves from an hour's file to its slot; False while a split that
        has begun must be finished first."""
        with self.changed:
            return self._wheel.hold_splits()

    def segments_from(self, slot: int) -> list[tuple[bool, int]]:
        """The slots from this one on that hold anything now, and the hours that lie in files of
        their own: is it an hour, and its number. By time; an hour comes before its slots."""
        with self.changed:
            slots = [(number, 1) for number in self._wheel.slots(slot)]
            hours = [(hour * HOUR_SLOTS, 0) for hour in self._wheel.hours()]
        return [
            (False, number) if is_slot else (True, hour_of(number))
            for number, is_slot in sorted(slots + hours)
        ]

    def freeze(self, names: Sequence[tuple[bool, int]]) -> list[FrozenSegment]:
        """Write out the tails of these; what their files hold now does not change."""
        with self.changed:
            return self._wheel.freeze(names)

    def kill_lines(self, from_ms: int) -> Generator[Lines, None, None]:
        """See `IdMemory.kill_lines`: only this call takes the lock, not the reading."""
        with self.changed:
            return self._wheel.ids.kill_lines(from_ms)

    def close(self) -> None:
        """Close the wheel; what was not checkpointed is read again from the buffer."""
        with self.changed:
            self._wheel.close()

    def stats(self) -> WheelStats:
        """Counts of the wheel; delivered messages within `export_hold` are among them."""
        return self._wheel.stats()

    def pending_count(self) -> int:
        """How much is pending. Takes no lock: a figure of about now."""
        return self._wheel.counts.total

    def pending(self) -> Pending:
        """What is pending by the newest frontier that this node has read; takes the lock."""
        with self.changed:
            counts = self._wheel.counts
            hours = {hour: sum(topics.values()) for hour, topics in counts.hours.items()}
            return Pending(counts.total, hours, dict(counts.topics))

    def _refuse_other_cluster(self) -> None:
        """A data directory belongs to one buffer topic: another one's offsets mean nothing here."""
        if not self._resumed_frontier:
            return
        known = decode(self._resumed_frontier).settings
        if (known.cluster, known.buffer) != (self.settings.cluster, self.settings.buffer):
            raise DiskError(
                f"the data directory belongs to the cluster {known.cluster!r} with buffer "
                f"{known.buffer.name} ({known.buffer.topic_id}), not to this one",
                remedy="give the node its own data_dir, or empty this one",
            )

    def _forget_covered(self, hold_ms: int) -> None:
        """Drop slots and answers that a frontier at least `hold_ms` old covers."""
        cut = self._retention.advance(hold_ms)
        if cut is None:
            return
        passed_own_writes = all(
            own > written for own, written in zip(self.ingested, cut.own_writes, strict=True)
        )
        if not cut.reached_by(self.ingested) or not passed_own_writes:
            return
        floor_ms = slot_of(cut.lowest_cursor.due_ms) * SLOT_MS
        self._wheel.ids.forget(cut, self.log_ms, floor_ms)
        slots = self._wheel.slots(0, slot_of(floor_ms) - 1)
        self._wheel.forget_pending_replies(cut.offsets)
        hours = [
            hour for hour in self._wheel.hours() if (hour + 1) * HOUR_SLOTS <= slot_of(floor_ms)
        ]
        self._wheel.forget(
            [slot for slot in slots if is_passed(self._wheel.info(slot), cut)],
            [hour for hour in hours if is_passed(self._wheel.hour_info(hour), cut)],
        )
