"""A replica: what this node knows. The wheel, how far it has ingested, and the frontiers it saw.

The ingest thread puts records in, the delivery thread plans steps and reads payloads, both under
one lock: `changed`, a condition that is notified when something may have become due. Not here: what
a master plans (`delayd.node.delivery.planner`), what an export reads
(`delayd.node.export.freezing`) and what may be dropped (`forgetting.py`).

Invariants: records go in once, in offset order; what is ingested is what the wheel will hold after
the next checkpoint; nothing is forgotten that a frontier younger than `export_hold` may ask for.
Source: docs/design/frontier.md, docs/design/storage.md.
"""

from collections.abc import Callable, Iterable, Sequence

from delayd.bus import Position, Record
from delayd.bus.flat import FlatRecords
from delayd.cluster.frontier_log import SeenFrontier
from delayd.config.cluster_key import check_key
from delayd.errors import DiskFullError, FrontierError
from delayd.node.replica.fast_ingest import FastIngest
from delayd.node.replica.flat_ingest import FlatIngest
from delayd.node.replica.forgetting import forget_covered, forget_some_ids, has_passed
from delayd.node.replica.ingest_batch import IngestBatch
from delayd.node.replica.list_ingest import ListPiece
from delayd.node.replica.piece import Piece
from delayd.node.replica.retention import Forgotten, Retention
from delayd.node.replica.room import Room, RoomState
from delayd.node.replica.seen_shards import SeenShards, lost_steps
from delayd.node.replica.switching import (
    limits_at,
    limits_with,
    refuse_changed,
    refuse_other_cluster,
    refuse_passed,
    refuse_unreadable,
)
from delayd.node.replica.told import ArrivalListener, Arrivals, Pending, Rejected
from delayd.node.replica.unknown_past import past_of, stores_first
from delayd.runtime.native.packing import PackRules, Run
from delayd.runtime.threads import Condition, SystemThreads, Threads
from delayd.wheel import Progress
from delayd.wheel.id_memory import FORGET_MAX, id_name
from delayd.wheel.kills import Kill
from delayd.wheel.segments import TAILS_PER_CALL
from delayd.wheel.storage import Wheel
from replication.frontier import Frontier
from replication.ids import NOTHING, IdState
from replication.ingest import LogState
from replication.log_time import trail_ms_of
from replication.quotas import full_lines
from replication.rank import Rank, slot_of
from replication.record import decode, encode
from replication.rules import Barrier, Rules, is_steady
from replication.settings import Settings
from replication.trimmed import Beginning

CLOCK_AHEAD_MAX_MS = 2 * 3_600_000
"""An idle master writes a frontier every hour."""
QUEUE_LINES_OF_RECORD = 2
"""Lines that a record adds at most to what is looked at to forget ids: of its id, and of what it
redrives or continues."""


class Replica:
    """One node's state between its threads. Its lock is held by whoever uses `wheel` and
    `retention` from outside: the planner of a mastership and an export."""

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
        self.wheel = wheel
        self.room = Room(disk_free_min_bytes)
        self.room_makers: list[Callable[[], object]] = []
        """Called when the disk is short: exports and snapshots give their room back."""
        self.look_after_room: Callable[[], object] = lambda: None
        """Called before each checkpoint: a reserve is given back, or taken."""
        self.arrivals = Arrivals()
        self._awaiting = 0  # takeovers
        self._resumed_frontier: bytes = b""
        self._seen = SeenShards(settings.shards)
        self.ingested_count = 0
        self._forgot_at_count = 0
        self._resume_at = [0] * settings.partitions
        self._reached: tuple[int, ...] = (0,) * settings.partitions
        progress = wheel.progress
        self.limits = limits_at(settings, proof_key, progress)  # They change under the lock.
        self._fast_ingest = FastIngest(self.limits, settings.lanes)
        self._flat_ingest = FlatIngest(self.limits, settings.lanes, settings.id_memory_ms)
        self.began: tuple[Beginning, ...] = progress.began if progress else ()
        """Where a trimmed buffer began when this replica was rebuilt from it; see `Progress`."""
        self._past = past_of(settings, self.began)
        self._states = [LogState(0, 0)] * settings.partitions
        self._epochs = [-1] * settings.partitions
        forgotten = None
        if progress is not None:
            refuse_unreadable(progress.frontier, progress.forgotten)
            forgotten = Forgotten.of(progress.forgotten, progress.forgotten_ms)
            leaps_ms = progress.leap_ms or self._resume_at
            states = zip(progress.offsets, progress.log_ms, leaps_ms, strict=True)
            self._states = [LogState(*state) for state in states]
            self._epochs = list(progress.leader_epochs)
            self._reached = progress.reached or progress.offsets
            self._resumed_frontier = progress.frontier
            refuse_other_cluster(progress.frontier, settings)
        self.retention = Retention(export_hold_ms, forgotten)

    @property
    def positions(self) -> dict[int, Position]:
        """Return where ingest goes on, by partition."""
        return {
            partition: Position(self._resume_at[partition])
            if self._resume_at[partition] > state.next_offset
            else Position(state.next_offset, self._epochs[partition])
            for partition, state in enumerate(self._states)
        }

    @property
    def reached(self) -> tuple[int, ...]:
        """How far the consumer had read at the last checkpoint, markers included."""
        return tuple(
            max(state.next_offset, reached)
            for state, reached in zip(self._states, self._reached, strict=True)
        )

    @property
    def knows_steps(self) -> bool:
        """Return whether this node has acted on any step before it was started."""
        return bool(self._resumed_frontier) and decode(self._resumed_frontier).frontier.step > 0

    def lost_steps(self, found: Frontier) -> str | None:
        """Return what this node acted on before it was started that a frontier does not have."""
        return lost_steps(decode(self._resumed_frontier), found) if self._resumed_frontier else None

    def resume_at(self, partition: int, offset: int) -> None:
        """Skip to this offset: nothing is left in the log between it and what was ingested."""
        assert offset <= self.reached[partition], "records that were never read cannot be skipped"
        self._resume_at[partition] = offset

    def begin_at(self, beginnings: Sequence[Beginning], barriers: Iterable[Barrier]) -> None:
        """Begin an empty wheel where a trimmed buffer begins: all before is done. `barriers`: those
        that a frontier names, which may have been trimmed too."""
        assert self.wheel.progress is None, "a wheel that holds something goes on from there"
        self.began = tuple(beginnings)
        self._past = past_of(self.settings, self.began)
        self._states = [LogState(beginning.offset, 0) for beginning in beginnings]
        self.limits = limits_with(self.limits, barriers)

    @property
    def ingested(self) -> tuple[int, ...]:
        """Return 1 + the last ingested offset, by partition."""
        return tuple(state.next_offset for state in self._states)

    @property
    def log_ms(self) -> tuple[int, ...]:
        """Return log time L, by partition."""
        return tuple(state.log_ms for state in self._states)

    @property
    def newest_append_ms(self) -> int:
        """Return the latest append time in the log, leaps included, as far as log time tells."""
        return max(
            max(state.log_ms + trail_ms_of(self.settings, version), state.leap_ms)
            for state, version in zip(self._states, self._versions, strict=True)
        )

    @property
    def _versions(self) -> list[int]:
        """Return the version that rules the next record, by partition."""
        return [self.rules.version_at(p, state.next_offset) for p, state in enumerate(self._states)]

    @property
    def rules(self) -> Rules:
        """Return what this node knows of the versions of the rules."""
        return self.limits.rules

    @property
    def newest(self) -> SeenFrontier | None:
        """Return the newest committed frontier that this node has read, joint of all shards."""
        return self.retention.newest

    def take(self, records: Sequence[Record]) -> list[Rejected]:
        """Ingest records, all or none of a list; return those that get a dead letter."""
        if isinstance(records, FlatRecords):
            return self._flat_ingest.take(self, records)
        piece = ListPiece(records, self._fast_ingest, self.limits)
        self.take_piece(piece)
        return piece.rejected

    def take_piece(self, piece: Piece) -> None:
        """Ingest a piece, all of it or nothing."""
        with self.changed:
            self.limits = limits_with(self.limits, piece.limits.rules.barriers, piece.limits.full)
            batch = IngestBatch(
                self.wheel.ids,
                self.settings,
                self._states,
                self.retention.covered,
                self.rules,
                self._past,
            )
            piece.add_to(batch)
            until_ms = max(state.log_ms or state.leap_ms for state in batch.states)
            entries = self.wheel.append(batch.frames, until_ms)
            batch.apply()
            self._states = batch.states
            for partition, epoch in piece.epochs.items():
                self._epochs[partition] = epoch
            self.ingested_count += piece.count
            self.arrivals.tell(entries, piece)
            self.changed.notify_all()

    def pack_rules(self, partition: int, offset: int) -> PackRules:
        """Return what decides how a run is packed that begins at this offset."""
        near_slot, counts_slots = self.wheel.filing
        version = self.rules.version_at(partition, offset)
        return PackRules(
            partition,
            near_slot,
            *self._states[partition],
            trail_ms_of(self.settings, version),
            self.retention.covered_at(partition),
            counts_slots,
            is_steady(version) and stores_first(self._past, self.settings),
        )

    def take_run(self, offset: int, run: Run, rules: PackRules) -> Sequence[int] | None:
        """Ingest a run that begins at this offset and was packed by these rules.

        Return which of its records cannot be in a run, by their numbers in it: something is known
        of their ids. If there are any, nothing is changed. Return None, and change nothing, if
        other rules hold by now."""
        partition = rules.partition
        with self.changed:
            if rules != self.pack_rules(partition, offset):
                return None
            if known := self.wheel.ids.known_in(run.firsts):
                return known
            states = self._states.copy()
            states[partition] = LogState(run.next_offset, run.log_ms, run.leap_ms)
            until_ms = max(state.log_ms or state.leap_ms for state in states)
            entries = self.wheel.append_run(run, rules, until_ms, self.arrivals.told_ms)
            if entries is None:
                return None
            self.wheel.ids.remember_run(partition, run.firsts)
            self._states, self._epochs[partition] = states, run.leader_epoch
            self.ingested_count += run.taken
            self.arrivals.tell(entries, run)
            self.changed.notify_all()
        return ()

    def observe(self, seen: SeenFrontier) -> None:
        """Note a committed frontier that was read or written. FrontierError if it contradicts an
        older one or other settings, WrongClusterKeyError for a key that this node lacks."""
        refuse_changed(seen.record, self.settings)
        with self.changed:
            newer = self._seen.newer_in(seen)
            for before, part in newer:
                key = part.record.settings.key_fingerprint
                # At its start a node has looked at the first shard's key.
                is_new = self.settings.shards > 1
                if before is not None:
                    is_new = before.record.settings.key_fingerprint != key
                if is_new:
                    check_key(self.limits.proof_key.decode(), part.record.settings)
                refuse_passed(part.record.barriers, self.rules, self.ingested)
            if self.newest is None and (lost := self.lost_steps(seen.record.frontier)):
                remedy = "the topic lost records: see docs/operations.md"
                raise FrontierError(lost, remedy=remedy)
            joint = self._seen.joint_with(newer) if newer else None
            if joint is None:
                return
            self.wheel.counts.named = frozenset(joint.record.quotas)
            self.arrivals.rates.watch(joint.record.quotas, joint.record.now_ms)
            self.limits = limits_with(self.limits, joint.record.barriers)
            if self.newest is None:
                known = self._resumed_frontier
                self.retention.begin(joint, decode(known) if known else None)
            else:
                self.retention.remember(joint)
            for _, part in newer:
                self.retention.failovers.note(part)
            self.wheel.pass_to(slot_of(self._seen.lowest_ms))
            self.changed.notify_all()

    def newest_of(self, shard: int) -> SeenFrontier | None:
        """Return the newest frontier of a shard that was read."""
        return self._seen.of(shard)

    def wait_ingested(self, frontier: Frontier, timeout_ms: int) -> bool:
        """Wait until all that a frontier counts on is ingested; False if the time ran out."""
        with self.changed:
            self._awaiting += 1
            self.changed.notify_all()
            try:
                return self.changed.wait_for(
                    lambda: frontier.reached_by(self.ingested), timeout_ms / 1000
                )
            finally:
                self._awaiting -= 1

    def pause_ingest(self, pause_ms: int) -> None:
        """Wait so long, unless a takeover or a mastership needs what comes."""
        with self.changed:
            self.changed.wait_for(
                lambda: self._awaiting > 0 or self.arrivals.has_listener, pause_ms / 1000
            )

    def attach(self, listener: ArrivalListener) -> None:
        """Tell the listener of all that arrives from now on. Lock held by the caller."""
        self.arrivals.listeners += (listener,)

    def detach(self, listener: ArrivalListener) -> None:
        """Tell this listener no more. Takes the lock."""
        with self.changed:
            kept = (each for each in self.arrivals.listeners if each is not listener)
            self.arrivals.listeners = tuple(kept)

    def know(self, partition: int, id: str) -> tuple[IdState, list[Kill | None]] | None:
        """Return the state of an id, and the kill of each message that it killed last, if anything
        is remembered of it. Takes the lock."""
        with self.changed:
            state = self.wheel.ids.state(partition, id_name(id))
            if state == NOTHING:
                return None
            ranks = [Rank(m.due_ms, partition, m.offset) for m in state.killed]
            return state, [self.wheel.ids.kill(rank) for rank in ranks]

    def takes_in(self) -> bool:
        """Look at the disk; return whether more may be taken in.

        A node that is short of room still takes in what the newest frontier took into account: it
        must reach that before it can lead, and another node has found room for it.
        """
        self._look_at_room()
        if self.room.state is not RoomState.SHORT:
            return self.room.state is RoomState.ENOUGH
        newest = self.newest
        return newest is not None and not has_passed(newest.record.frontier, self.ingested)

    def _look_at_room(self) -> None:
        free_bytes = max(0, self.wheel.free_bytes() - self.wheel.tail_bytes)
        self.room.look(free_bytes, is_refused=self.wheel.is_refused)

    def checkpoint(self, reached: tuple[int, ...] | None = None) -> bool:
        """Make durable what has been ingested, read up to `reached`; appends may go on meanwhile.

        Near the disk's limit all that the newest frontier covers is forgotten, however young.
        Return False if there is no room: what was ingested stays in memory."""
        self.look_after_room()
        self._look_at_room()
        if self.room.is_low:
            for make_room in self.room_makers:
                make_room()
        if not self.room.may_checkpoint:
            return False
        self._write_out()
        with self.changed:
            if reached is not None:
                self._reached = reached
            hold_ms = 0 if self.room.is_low else self.retention.hold_ms
            forget_covered(self.wheel, self.retention, hold_ms)
        self._forget_ids()
        with self.changed:
            newest, forgotten = self.newest, self.retention.forgotten
            leap_ms = [each.leap_ms for each in self._states]
            progress = Progress(
                offsets=self.ingested,
                leader_epochs=tuple(self._epochs),
                log_ms=self.log_ms,
                frontier=encode(newest.record) if newest else self._resumed_frontier,
                reached=self.reached,
                forgotten=forgotten.value if forgotten else b"",
                forgotten_ms=forgotten.append_ms if forgotten else 0,
                leap_ms=tuple(leap_ms) if any(leap_ms) else (),
                rules=self.rules.barriers,
                began=self.began,
                full=full_lines(self.limits.full),
            )
            try:
                pending = self.wheel.begin_checkpoint(progress)
            except DiskFullError:
                self._look_at_room()
                return False
        pending.sync()
        with self.changed:
            self.wheel.finish_checkpoint(pending)
        return True

    def _write_out(self) -> None:
        # So that what is left for the lock of `begin_checkpoint` is what arrives meanwhile.
        with self.changed:
            more = self.wheel.stats().tail_segments
        while more > 0:
            with self.changed:
                self.wheel.write_out()
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
            self.wheel.advance(now_ms)
            return self.wheel.split_some(has_room=self.room.may_split)

    def close(self) -> None:
        """Close the wheel; what was not checkpointed is read again from the buffer."""
        with self.changed:
            self.wheel.close()

    def pending(self) -> Pending:
        """Return what is pending by the newest frontier that this node has read; takes the lock."""
        with self.changed:
            return Pending.of(self.wheel.counts)

    def _forget_ids(self) -> None:
        """Drop what is not needed any more of ids, as fast as records bring new ones."""
        taken = self.ingested_count - self._forgot_at_count
        self._forgot_at_count = self.ingested_count
        for _ in range(1 + QUEUE_LINES_OF_RECORD * taken // FORGET_MAX):
            with self.changed:
                cut, versions = self.retention.covered, self._versions
                if not forget_some_ids(self.wheel, cut, self._states, versions, self.settings):
                    return
