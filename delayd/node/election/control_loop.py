"""The control loop: gives the election its facts, and carries out its orders.

The election decides (`replication/election.py`, pure). Calls to etcd run in worker threads
(`etcd_calls.py`); the delivery thread gets and loses its grant here. Beside that the loop mirrors
the master's cursor (`cursor_mirror.py`). Not here: what all shards of the node share
(`elections.py`).
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine

import structlog

from delayd.node.delivery.delivery_loop import DeliveryLoop
from delayd.node.delivery.grant import Grant
from delayd.node.election.cursor_mirror import CursorMirror
from delayd.node.election.election_context import ElectionContext
from delayd.node.election.etcd_calls import EtcdCalls
from delayd.node.election.pulse_watch import PulseWatch
from delayd.node.replica.room import RoomState
from replication import election_facts as facts
from replication.election import Election
from replication.election_facts import Effect, Ended, Event, ResignReason, State
from replication.election_times import RESIGNED_FOR

log = structlog.get_logger()

ROOM_INTERVAL_MS = 10_000
"""How often a master without room looks for a node that has some. By the first look, nodes whose
disks are filled at the same time have said so."""
AWAY = (State.ALONE, State.RECLAIMING)
TICK_MAX_MS = 100
"""Longest the loop sleeps between two looks at the clock."""


class ControlLoop:
    """The control loop of one node and one shard. Lives on the event loop."""

    def __init__(
        self, context: ElectionContext, election: Election, delivery: DeliveryLoop, shard: int = 0
    ) -> None:
        self._calls = EtcdCalls(context.coordination, context.clock, context.identity, shard)
        self._leaders = context.leaders
        self._health = context.health
        self._membership = context.membership
        self._mirror = CursorMirror(
            context.coordination, context.replica, context.clock, context.health, shard
        )
        self._election = election
        self._delivery = delivery
        self._replica = context.replica
        self._clock = context.clock
        self._identity = context.identity
        self._heartbeat = context.heartbeat
        self.shard = shard
        self._watch = None
        if context.exchange is not None:
            self._watch = PulseWatch(context, shard, lambda: self._calls.holder, self.handle)
        self._loop = asyncio.get_running_loop()
        self._grant: Grant | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._behind = False
        self._turns = 0
        self._last_master: str | None = None
        self._seeks_room_ms = 0
        self._resigned_for: ResignReason | None = None
        self.won_count = 0
        """Leaderships of this process."""
        self.ended: Counter[str] = Counter()
        """Leaderships that have ended, by reason."""

    @property
    def state(self) -> State:
        """The state of this node in the election."""
        return self._election.state

    @property
    def master_name(self) -> str | None:
        """The node that held the shard's leader key when it was last read."""
        holder = self._calls.holder
        return None if holder is None else holder.node

    @property
    def gone(self) -> tuple[str, ...]:
        """The node that leads the shard, or led it last: once it is gone nobody waits for it."""
        self._last_master = self.master_name or self._last_master
        return () if self._last_master is None else (self._last_master,)

    def yield_turns(self, turns: int) -> None:
        """Let others campaign first for so many turns."""
        if turns != self._turns:
            self._turns = turns
            self._note_turn()

    @property
    def is_granted(self) -> bool:
        """Return whether this node leads, by its lease."""
        return self._grant is not None

    @property
    def found_dead_count(self) -> int:
        """Masters that this node took for dead, by their pulse."""
        return 0 if self._watch is None else self._watch.found_dead_count

    @property
    def lease_margin_ms(self) -> int | None:
        """How long the master's lease is good for without another keepalive, negative if it may
        have run out; None on a follower."""
        grant = self._grant
        return None if grant is None else grant.deadline_ms - self._clock.monotonic_ms()

    async def run(self) -> None:
        """Run until the election has stopped (after `shut_down`)."""
        if self._replica.settings.shards > 1:
            structlog.contextvars.bind_contextvars(shard=self.shard)
        watch = None if self._watch is None else asyncio.create_task(self._watch.run())
        try:
            while self._election.state is not State.STOPPED:
                self._note_lag()
                if self._grant is not None:
                    self.handle(facts.DeliveryProgressed(self._delivery.progressed_ms))
                self.handle(facts.Ticked(self._clock.monotonic_ms()))
                self._mirror_cursor()
                self._look_for_room()
                await asyncio.sleep(self._sleep_s())
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=2)
        finally:
            if watch is not None:
                watch.cancel()

    def shut_down(self) -> None:
        """Resign if master, then stop."""
        self.handle(facts.ShutdownRequested(self._clock.monotonic_ms()))

    def fault(self, reason: ResignReason) -> None:
        """Tell the election that this node must not be master now."""
        self.handle(facts.FaultFound(self._clock.monotonic_ms(), reason))

    def delivery_ended(self, grant: Grant, ended: Ended) -> None:
        """Note that the delivery thread is at rest: it writes no more under that grant."""
        if grant is self._grant:
            self._grant = None
        self._note_end(ended)
        log.info("mastership_ended", reason=ended.value)
        self.handle(facts.DeliveryStopped(self._clock.monotonic_ms(), ended))

    def delivery_died(self) -> None:
        """Note that the delivery thread is gone for good: resigning need not wait for it."""
        if self._grant is not None:
            self._note_end(Ended.FAILED)
        self._grant = None
        self.handle(facts.DeliveryStopped(self._clock.monotonic_ms(), Ended.FAILED))

    def _note_end(self, ended: Ended) -> None:
        # A delivery that ended unasked, and without a failure, met its deadline.
        reason = self._resigned_for or RESIGNED_FOR[ended] or ResignReason.LEASE_EXPIRED
        self.ended[reason.value] += 1

    def handle(self, event: Event) -> None:
        """Tell the election a fact, and carry out what it orders."""
        before = self._election.state
        effects = self._election.handle(event)
        if (state := self._election.state) is not before and state in AWAY:
            log.warning("leadership_unconfirmed", state=state.value)
        for effect in effects:
            self._carry_out(effect)

    def _note_lag(self) -> None:
        """Tell the election when the wheel falls behind the frontier, or has reached it."""
        newest = self._replica.newest
        behind = newest is None or not newest.record.frontier.reached_by(self._replica.ingested)
        if behind is not self._behind:
            self._behind = behind
            self._note_turn()

    def _note_turn(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self.handle(facts.TurnChanged(now_ms, self._behind, self._turns))

    def _sleep_s(self) -> float:
        wake_ms = self._election.wake_ms
        now_ms = self._clock.monotonic_ms()
        due_ms = TICK_MAX_MS if wake_ms is None else min(TICK_MAX_MS, wake_ms - now_ms)
        return max(5, due_ms) / 1000

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, facts.StartDelivery):
            self._grant = Grant(
                self._identity.owner,
                effect.deadline_ms,
                outlives_lease=self._election.is_fenced,
            )
            self._grant.leadership = self._calls.leadership(effect.leader)
            self.won_count += 1
            self._resigned_for = None
            log.info("leadership_won", deadline_in_ms=self.lease_margin_ms)
            self._delivery.give(self._grant)
        elif isinstance(effect, facts.ExtendDeadline):
            if self._grant is not None:
                self._grant.deadline_ms = effect.deadline_ms
        elif isinstance(effect, facts.RenewGrant):
            if self._grant is not None:
                self._grant.leadership = self._calls.leadership(effect.leader)
                self._grant.deadline_ms = effect.deadline_ms
                log.info("leadership_reclaimed", deadline_in_ms=self.lease_margin_ms)
        elif isinstance(effect, facts.StopDelivery):
            self._resigned_for = effect.reason
            log.info("leadership_resigned", reason=effect.reason.value)
            if self._grant is not None:
                self._grant.withdrawn = True
                # In a thread: a holder of the replica's lock must not hold up this loop.
                self._loop.run_in_executor(None, self._delivery.wake)
        else:
            self._spawn(self._call(effect))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        """Do the work beside the loop, which waits for it a little when it ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, call: facts.Call | facts.RevokeLease) -> None:
        """Make one call to etcd, in a worker thread, and tell the election its answer."""
        answer: Event | None
        try:
            if isinstance(call, facts.PollLeader) and self._leaders is not None:
                answer = self._calls.leader_read(*await self._leaders.read(self.shard))
            else:
                answer = await asyncio.to_thread(self._calls.carry_out, call)
            if isinstance(call, facts.RevokeLease):
                self._heartbeat.say_farewell(call.lease_id)
            self._health.note_answer()
        except Exception as error:
            # The election must learn that the call has ended, whatever went wrong.
            self._health.note_failure(type(call).__name__, error)
            is_awaited = not isinstance(call, facts.RevokeLease)
            answer = facts.CallFailed(self._clock.monotonic_ms()) if is_awaited else None
        if answer is not None:
            self.handle(answer)

    def _mirror_cursor(self) -> None:
        """Write the cursor to etcd, when it is time to."""
        grant = self._grant
        if grant is not None and self._delivery.is_delivering:
            cursor = self._mirror.take()
            if cursor is not None:
                self._spawn(self._write_cursor(grant, cursor))

    def _look_for_room(self) -> None:
        """Look for a node to hand over to, now and then while this master takes in nothing."""
        now_ms, room = self._clock.monotonic_ms(), self._replica.room
        is_short = self._delivery.is_delivering and room.state is not RoomState.ENOUGH
        if self._grant is None or not is_short:
            self._seeks_room_ms = now_ms + ROOM_INTERVAL_MS
        elif now_ms >= self._seeks_room_ms:
            self._seeks_room_ms = now_ms + ROOM_INTERVAL_MS
            self._spawn(self._hand_over(self._grant))

    async def _hand_over(self, grant: Grant) -> None:
        """Resign if another node has the room that this one lacks."""
        if await self._membership.is_room_elsewhere() and grant is self._grant:
            self.fault(ResignReason.DISK_SHORT)

    async def _write_cursor(self, grant: Grant, cursor: str) -> None:
        leadership = grant.leadership
        assert leadership is not None, "a grant comes with a leader key"
        is_held = await self._mirror.write(leadership, cursor)
        if not is_held and grant is self._grant and leadership is grant.leadership:
            self.fault(ResignReason.LEASE_LOST)
