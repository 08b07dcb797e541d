"""The control loop: carries out the election's orders, mirrors the cursor, announces the node.

Everything here is about etcd. The election decides (replication/election.py, pure); this loop does
what it orders, off the event loop, and tells it what happened.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from delayd.coordination import Coordination, Leadership
from delayd.errors import CoordinationError
from delayd.node.delivery.delivery_loop import DeliveryEnded, DeliveryLoop
from delayd.node.delivery.mastership import Grant
from delayd.node.replica.replica import Replica
from delayd.runtime.clock import Clock
from replication.election import Election, State
from replication.election_facts import (
    Call,
    Campaign,
    CampaignAnswered,
    CampaignFailed,
    DeliveryProgressed,
    DeliveryStopped,
    Effect,
    Ended,
    Event,
    ExtendDeadline,
    FaultFound,
    GrantLease,
    KeepAlive,
    KeepAliveFailed,
    LagChanged,
    Leader,
    LeaderRead,
    LeaderReadFailed,
    LeaseFoundDead,
    LeaseGranted,
    LeaseGrantFailed,
    LeaseKept,
    PollLeader,
    ResignReason,
    RevokeLease,
    ShutdownRequested,
    StartDelivery,
    StopDelivery,
    Ticked,
)
from replication.election_times import RESIGNED_FOR

log = structlog.get_logger()

TICK_MAX_MS = 100
"""Longest the loop sleeps between two looks at the clock."""

MIRROR_INTERVAL_MS = 1_000
"""The cursor is mirrored in etcd at most this often."""

MEMBER_TTL_S = 10
SHARD = 0


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is in etcd: the nonce is new at every start."""

    node: str
    nonce: str
    admin: str

    @property
    def owner(self) -> str:
        """As the frontier record names it."""
        return f"{self.node}/{self.nonce}"

    def leader_value(self, lease_id: int) -> str:
        """The leader key's value while this node holds it."""
        return json.dumps(
            {"node": self.node, "nonce": self.nonce, "admin": self.admin, "lease": lease_id}
        )


class ControlLoop:
    """The control loop of one node and one shard. Lives on the event loop."""

    def __init__(
        self,
        coordination: Coordination,
        election: Election,
        delivery: DeliveryLoop,
        replica: Replica,
        clock: Clock,
        identity: Identity,
    ) -> None:
        self._coordination = coordination
        self._election = election
        self._delivery = delivery
        self._replica = replica
        self._clock = clock
        self._identity = identity
        self._loop = asyncio.get_running_loop()
        self._grant: Grant | None = None
        self._leadership: Leadership | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._mirrored_ms = 0
        self._mirroring = False
        self._behind = False
        self._settings_written_under: Leadership | None = None
        self._resigned_for: ResignReason | None = None
        self.won_count = 0
        """Leaderships of this process."""
        self.ended: Counter[str] = Counter()
        """Those that have ended, by reason."""
        self.etcd_failures = 0
        """Calls to etcd that failed, whatever for."""
        self.master_name: str | None = None
        """The node that held the leader key when it was last read."""

    @property
    def state(self) -> State:
        """Where this node stands in the election."""
        return self._election.state

    @property
    def lease_margin_ms(self) -> int | None:
        """How long the master may still go on without another keepalive; None on a follower."""
        grant = self._grant
        return None if grant is None else grant.deadline_ms - self._clock.monotonic_ms()

    async def run(self) -> None:
        """Turn until the election has stopped (after `shut_down`)."""
        member = asyncio.create_task(self._announce())
        try:
            while self._election.state is not State.STOPPED:
                self._note_lag()
                if self._grant is not None:
                    self.handle(DeliveryProgressed(self._delivery.progressed_ms))
                self.handle(Ticked(self._clock.monotonic_ms()))
                self._mirror()
                await asyncio.sleep(self._sleep_s())
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=2)
        finally:
            member.cancel()

    def shut_down(self) -> None:
        """Resign if master, then stop."""
        self.handle(ShutdownRequested(self._clock.monotonic_ms()))

    def fault(self, reason: ResignReason) -> None:
        """This node must not be master now."""
        self.handle(FaultFound(self._clock.monotonic_ms(), reason))

    def delivery_ended(self, fact: DeliveryEnded) -> None:
        """The delivery thread is at rest."""
        if fact.grant is self._grant:
            self._grant = None
            self._leadership = None
        self._note_end(fact.ended)
        log.info("mastership_ended", reason=fact.ended.value)
        self.handle(DeliveryStopped(self._clock.monotonic_ms(), fact.ended))

    def delivery_died(self) -> None:
        """The delivery thread is gone for good: nothing is left to wait for before resigning."""
        if self._grant is not None:
            self._note_end(Ended.FAILED)
        self._grant = None
        self._leadership = None
        self.handle(DeliveryStopped(self._clock.monotonic_ms(), Ended.FAILED))

    def _note_end(self, ended: Ended) -> None:
        # DeliveryLoop that was asked by nobody to end met its deadline.
        reason = self._resigned_for or RESIGNED_FOR[ended] or ResignReason.LEASE_EXPIRED
        self.ended[reason.value] += 1

    def handle(self, event: Event) -> None:
        """Tell the election a fact, and carry out what it orders."""
        for effect in self._election.handle(event):
            self._carry_out(effect)

    def _note_lag(self) -> None:
        """A node whose wheel has not reached the frontier lets others campaign first."""
        newest = self._replica.newest
        behind = newest is None or not newest.record.frontier.reached_by(self._replica.ingested)
        if behind is not self._behind:
            self._behind = behind
            self.handle(LagChanged(self._clock.monotonic_ms(), behind))

    def _sleep_s(self) -> float:
        wake_ms = self._election.wake_ms
        now_ms = self._clock.monotonic_ms()
        due_ms = TICK_MAX_MS if wake_ms is None else min(TICK_MAX_MS, wake_ms - now_ms)
        return max(5, due_ms) / 1000

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, StartDelivery):
            self._grant = Grant(self._identity.owner, effect.deadline_ms)
            self._leadership = Leadership(
                self._identity.leader_value(effect.leader.lease_id), effect.leader.create_revision
            )
            self._grant.leadership = self._leadership
            self.master_name = self._identity.node
            self.won_count += 1
            self._resigned_for = None
            log.info("leadership_won", deadline_in_ms=self.lease_margin_ms)
            self._delivery.give(self._grant)
        elif isinstance(effect, ExtendDeadline):
            if self._grant is not None:
                self._grant.deadline_ms = effect.deadline_ms
        elif isinstance(effect, StopDelivery):
            self._resigned_for = effect.reason
            log.info("leadership_resigned", reason=effect.reason.value)
            if self._grant is not None:
                self._grant.withdrawn = True
                # Not from here: whoever holds the replica's lock must not hold up this loop.
                self._loop.run_in_executor(None, self._delivery.wake)
        else:
            self._spawn(self._call(effect))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        """Do it beside the loop; whoever ends the loop waits for it a little."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, call: Call | RevokeLease) -> None:
        """One call to etcd, in a worker thread; its answer goes to the election."""
        answer, failure = self._calls(call)
        try:
            event = await asyncio.to_thread(answer)
        except Exception as error:
            # Whatever went wrong, the election must hear that the call has ended.
            self.etcd_failures += 1
            log.warning("etcd_call_failed", call=type(call).__name__, error=str(error))
            event = failure(self._clock.monotonic_ms()) if failure else None
        if event is not None:
            self.handle(event)

    def _calls(
        self, call: Call | RevokeLease
    ) -> tuple[Callable[[], Event | None], Callable[[int], Event] | None]:
        """How to carry out a call, and what its failure means."""
        etcd, now_ms = self._coordination, self._clock.monotonic_ms

        def poll() -> Event:
            return LeaderRead(now_ms(), self._note_leader(etcd.leader(SHARD)))

        def grant(ttl_s: int) -> Event:
            lease = etcd.grant_lease(ttl_s)
            return LeaseGranted(now_ms(), lease.id, lease.ttl_ms)

        def campaign(lease_id: int) -> Event:
            held = etcd.campaign(SHARD, self._identity.leader_value(lease_id), lease_id)
            leader = self._note_leader(held)
            assert leader is not None, "somebody holds the key after a campaign"
            return CampaignAnswered(now_ms(), leader)

        def keep(lease_id: int) -> Event:
            ttl_ms = etcd.keep_alive(lease_id)
            return LeaseFoundDead(now_ms()) if ttl_ms is None else LeaseKept(now_ms(), ttl_ms)

        def revoke(lease_id: int) -> None:
            etcd.revoke(lease_id)

        if isinstance(call, PollLeader):
            return poll, LeaderReadFailed
        if isinstance(call, GrantLease):
            return lambda: grant(call.ttl_s), LeaseGrantFailed
        if isinstance(call, Campaign):
            return lambda: campaign(call.lease_id), CampaignFailed
        if isinstance(call, KeepAlive):
            return lambda: keep(call.lease_id), KeepAliveFailed
        return lambda: revoke(call.lease_id), None

    def _note_leader(self, held: Leadership | None) -> Leader | None:
        """The leader key's value as the election knows it."""
        if held is None:
            self.master_name = None
            return None
        try:
            owner: dict[str, Any] = json.loads(held.owner)
            self.master_name = owner["node"]
            return Leader(owner["nonce"], int(owner["lease"]), held.create_revision)
        except (ValueError, KeyError, TypeError):
            # Somebody else's value under our key: whoever it is, it is not this node.
            return Leader("?", 0, held.create_revision)

    def _mirror(self) -> None:
        """Write the cursor for people, guarded by the leader key, when it is time to."""
        now_ms = self._clock.monotonic_ms()
        newest, leadership = self._replica.newest, self._leadership
        if (
            leadership is None
            or newest is None
            or self._mirroring
            or not self._delivery.is_delivering
            or now_ms - self._mirrored_ms < MIRROR_INTERVAL_MS
        ):
            return
        self._mirrored_ms = now_ms
        self._mirroring = True
        frontier = newest.record.frontier
        cursor = json.dumps(
            {
                "cursor_ms": frontier.lowest_cursor.due_ms,
                "term": frontier.term,
                "step": frontier.step,
                "owner": newest.record.owner,
                "written_ms": newest.append_ms,
            }
        )
        self._spawn(self._write_mirror(leadership, cursor))

    async def _write_mirror(self, leadership: Leadership, cursor: str) -> None:
        try:
            if leadership is not self._settings_written_under:
                settings = json.dumps(self._replica.settings.to_json())
                await asyncio.to_thread(self._coordination.put_settings, settings)
                self._settings_written_under = leadership
            held = await asyncio.to_thread(self._coordination.put_cursor, SHARD, leadership, cursor)
            if not held and leadership is self._leadership:
                self.fault(ResignReason.LEASE_LOST)
        except CoordinationError as error:
            self.etcd_failures += 1
            log.warning("cursor_not_mirrored", reason=str(error))
        finally:
            self._mirroring = False

    async def _announce(self) -> None:
        """Keep this node's member key alive, under a lease of its own."""
        value = json.dumps({"admin": self._identity.admin, "nonce": self._identity.nonce})
        lease_id: int | None = None
        while True:
            try:
                if lease_id is None:
                    lease = await asyncio.to_thread(self._coordination.grant_lease, MEMBER_TTL_S)
                    lease_id = lease.id
                    await asyncio.to_thread(
                        self._coordination.put_member, self._identity.node, value, lease_id
                    )
                elif await asyncio.to_thread(self._coordination.keep_alive, lease_id) is None:
                    lease_id = None
                    continue
            except CoordinationError:
                self.etcd_failures += 1
                lease_id = None
            await asyncio.sleep(MEMBER_TTL_S / 3)
