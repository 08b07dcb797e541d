"""The election of a shard's master: what one node does about the leader key in etcd.

Pure: no clock, no I/O, no randomness. Facts go in (`Event`) and orders come out (`Effect`), to be
carried out in the order in which they stand; `election_facts.py` has the words. Facts carry the
monotonic time. Not here: the fence. etcd only decides which node tries to be master; Kafka's
transactional id decides which one delivers.

Invariants:
- StartDelivery is ordered only under a lease of this node that the leader key carries, and never
  at or past its deadline.
- Deadline = time at which the last successful keepalive (or the grant) was *ordered*, which is not
  after it was sent, + the TTL granted - 20 %. A late answer moves it no further than that.
- Without a fence no keepalive is ordered at or past the deadline, and delivery is stopped whatever
  etcd says. With one, delivery goes on: etcd's word that another leads ends it, not its silence.
  Nobody takes over meanwhile: who has no live lease and has not begun a term orders nothing there.
- RevokeLease of a lease that delivery ran under comes after the DeliveryStopped of that delivery.
- At most one call to etcd is in flight (not counting RevokeLease, whose answer is not needed). Each
  is answered by exactly one event, within the caller's time-out. An answer that was not asked for
  changes nothing.
- Between one StartDelivery and the next, DeliveryStopped is reported exactly once: after
  StopDelivery, or unasked if delivery ended by itself (then a StopDelivery that crosses it brings
  no second report).

Source: docs/design/election.md, with a diagram of `TRANSITIONS`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from replication.election_facts import (
    ANSWERS,
    LEADING,
    Call,
    CallFailed,
    Campaign,
    CampaignAnswered,
    DeliveryProgressed,
    DeliveryStopped,
    Depose,
    Effects,
    Event,
    ExtendDeadline,
    FaultFound,
    GrantLease,
    KeepAlive,
    LeaderFoundDead,
    LeaderParted,
    LeaderRead,
    LeaseFoundDead,
    LeaseGranted,
    LeaseKept,
    PollLeader,
    RenewGrant,
    ResignReason,
    RevokeLease,
    ShutdownRequested,
    StartDelivery,
    State,
    StopDelivery,
    TurnChanged,
)
from replication.election_times import RESIGNED_FOR, ElectionTimes, HeldLease
from replication.election_turn import Turn


class Election:
    """One node's part in the election of one shard. `nonce` is unique to this life of the node."""

    def __init__(
        self, nonce: str, times: ElectionTimes | None = None, *, is_fenced: bool = False
    ) -> None:
        """`is_fenced`: a successor can fence a master, which then outlives its lease."""
        self._nonce = nonce
        self.is_fenced = is_fenced
        self._times = times or ElectionTimes()
        self._state = State.FOLLOWER
        self._now_ms = 0
        self._lease: HeldLease | None = None
        self._call: Call | None = None
        self._ordered_ms = 0
        self._next_poll_ms = 0
        self._next_keep_alive_ms = 0
        self._dead_lease_id: int | None = None
        """Of a leader that is taken for dead and not deposed yet."""
        self._has_died = False
        """Is the leader taken for dead, or was the last one before the key became absent?"""
        self._progressed_ms = 0
        self._turn = Turn(self._times, lets_reclaim=is_fenced)
        self._resigned_for: ResignReason | None = None

    @property
    def state(self) -> State:
        """The role of the node now."""
        return self._state

    @property
    def wake_ms(self) -> int | None:
        """When (monotonic ms) the next Ticked can have an effect; None: after another fact only."""
        times: list[int] = []
        if self._call is None and not self._is_stuck:
            if self._state in (State.FOLLOWER, State.CAMPAIGNING, State.RECLAIMING):
                times.append(self._next_poll_ms)
            if self._state in (State.MASTER, State.ALONE):
                times.append(self._next_keep_alive_ms)
        is_held = self._state in (State.CAMPAIGNING, State.MASTER, State.RECLAIMING)
        if is_held and self._lease is not None:
            times.append(self._lease.deadline_ms)
        if self._state is State.MASTER:
            times.append(self._progressed_ms + self._times.stall_ms)
        return min(times, default=None)

    @property
    def _is_stuck(self) -> bool:
        """True if a master's delivery loop shows no sign of life."""
        silent_ms = self._now_ms - self._progressed_ms
        return self._state in LEADING and silent_ms >= self._times.stall_ms

    def handle(self, event: Event) -> Effects:
        """Take one fact; return the orders that follow, to be carried out in this order."""
        self._now_ms = max(self._now_ms, event.now_ms)
        effects = self._by_time(self._check_deadline)
        ordered = ANSWERS.get(type(event))
        if ordered is None or isinstance(self._call, ordered):
            if ordered is not None:
                self._call = None
            transition = TRANSITIONS[self._state].get(type(event))
            if transition is not None:
                act, *leads_to = transition
                effects += act(self, event)
                assert self._state in leads_to, f"{event} led to {self._state}"
        return effects + self._by_time(self._do_what_is_due)

    def _by_time(self, act: Callable[[], Effects]) -> Effects:
        before = self._state
        effects = act()
        leads_to = (before, *BY_TIME.get(before, ()))
        assert self._state in leads_to, f"time led to {self._state}"
        return effects

    def _check_deadline(self) -> Effects:
        if self._lease is None or self._now_ms < self._lease.deadline_ms:
            return ()
        if self._state is State.MASTER:
            if not self.is_fenced:
                return self._resign(ResignReason.LEASE_EXPIRED)
            self._state = State.ALONE
        elif self._state is State.CAMPAIGNING:
            return self._give_up()
        elif self._state is State.RECLAIMING:
            self._lease = None  # Not revoked: delivery may have begun under it. It runs out.
        return ()

    def _do_what_is_due(self) -> Effects:
        if self._is_stuck:
            # A stuck master must not keep its lease: without a sign of life no keepalive is sent.
            # While etcd is silent nobody could replace it, so it only keeps quiet.
            is_known = self._state is State.MASTER
            return self._resign(ResignReason.DELIVERY_STALLED) if is_known else ()
        if self._state is State.FOLLOWER and self._call is None and self._dead_lease_id is not None:
            lease_id, self._dead_lease_id = self._dead_lease_id, None
            return self._order(Depose(lease_id))
        if (
            self._state in (State.MASTER, State.ALONE)
            and self._call is None
            and self._now_ms >= self._next_keep_alive_ms
        ):
            assert self._lease is not None, "a master has a lease"
            return self._order(KeepAlive(self._lease.id))
        if (
            self._state in (State.FOLLOWER, State.CAMPAIGNING, State.RECLAIMING)
            and self._call is None
            and self._now_ms >= self._next_poll_ms
        ):
            self._next_poll_ms = self._now_ms + self._times.poll_ms
            return self._order(PollLeader())
        return ()

    def _order(self, call: Call) -> Effects:
        assert self._call is None, f"{call} while {self._call} is in flight"
        self._call = call
        self._ordered_ms = self._now_ms
        return (call,)

    # FOLLOWER

    def _follow_or_ask_for_a_lease(self, event: LeaderRead) -> Effects:
        if event.leader is not None:
            # Even with this node's nonce: then its lease is one of a former campaign and runs out.
            self._turn.forget(self._now_ms)
            if event.leader.lease_id != self._dead_lease_id:
                self._dead_lease_id = None
                self._has_died = False
            return ()
        self._dead_lease_id = None
        if not self._turn.has_come(self._now_ms, has_died=self._has_died):
            return ()
        self._state = State.CAMPAIGNING
        return self._order(GrantLease(self._times.lease_ttl_s))

    def _condemn(self, event: LeaderFoundDead) -> Effects:
        # Deposed as soon as no call is in flight, unless that one finds another leader.
        self._dead_lease_id = event.lease_id
        self._has_died = True
        return ()

    def _poll_at_once(self, _: LeaderParted) -> Effects:
        self._next_poll_ms = self._now_ms
        return ()

    def _give_back(self, event: LeaseGranted) -> Effects:
        return (RevokeLease(event.lease_id),)

    # CAMPAIGNING

    def _campaign_under(self, event: LeaseGranted) -> Effects:
        self._hold(event.lease_id, event.ttl_ms)
        late = self._check_deadline()
        return late if self._lease is None else self._order(Campaign(event.lease_id))

    def _read_again_or_give_up(self, _: CallFailed) -> Effects:
        if self._lease is None:
            return self._give_up()
        # A campaign is never repeated blindly: the key says if it was carried out.
        self._next_poll_ms = self._soonest_repetition_ms()
        return ()

    def _win_or_lose(self, event: CampaignAnswered | LeaderRead) -> Effects:
        assert self._lease is not None, "a campaign has a lease"
        assert self._now_ms < self._lease.deadline_ms, "deadlines are checked before each fact"
        leader = event.leader
        if leader is None:
            # Not carried out, or not yet. Creating the same key under the same lease is harmless.
            return self._order(Campaign(self._lease.id))
        if (leader.nonce, leader.lease_id) != (self._nonce, self._lease.id):
            return self._give_up()
        self._state = State.MASTER
        self._progressed_ms = self._now_ms
        return (StartDelivery(leader, self._lease.deadline_ms),)

    def _give_up(self) -> Effects:
        # The lease ends even if the campaign may be under way: under a dead lease etcd refuses it,
        # and a key that it made ends with the lease.
        self._state = State.FOLLOWER
        self._turn.forget(self._now_ms)
        self._next_poll_ms = self._now_ms + self._times.poll_ms
        return self._let_go()

    def _give_up_for(self, event: FaultFound) -> Effects:
        self._turn.cool_down(self._now_ms, event.reason)
        return self._give_up()

    # MASTER and ALONE

    def _extend(self, event: LeaseKept) -> Effects:
        assert self._lease is not None, "a master has a lease"
        lease = self._hold(self._lease.id, event.ttl_ms)
        if self._now_ms >= lease.deadline_ms:  # The answer came too late to be good for anything.
            return self._check_deadline()
        self._state = State.MASTER
        return (ExtendDeadline(lease.deadline_ms),)

    def _ask_again(self, _: CallFailed) -> Effects:
        # A keepalive may be repeated blindly, because it creates nothing; a campaign is read again.
        self._next_keep_alive_ms = self._next_poll_ms = self._soonest_repetition_ms()
        return ()

    def _note_progress(self, event: DeliveryProgressed) -> Effects:
        self._progressed_ms = max(self._progressed_ms, event.now_ms)
        return ()

    def _lose_lease(self, _: LeaseFoundDead) -> Effects:
        if not self.is_fenced:
            return self._resign(ResignReason.LEASE_LOST)
        self._lease = None
        return self._reclaim()

    def _resign_for(self, event: FaultFound) -> Effects:
        if event.reason is ResignReason.LEASE_LOST and self.is_fenced:
            return self._reclaim()
        return self._resign(event.reason)

    def _resign_to_stop(self, _: ShutdownRequested) -> Effects:
        return self._resign(ResignReason.SHUTDOWN)

    def _resign(self, reason: ResignReason) -> Effects:
        assert self._state in LEADING, f"a {self._state.value} has nothing to resign from"
        self._state = State.RESIGNING
        self._resigned_for = reason
        return (StopDelivery(reason),)

    def _follow_after_unasked_end(self, event: DeliveryStopped) -> Effects:
        # A grant that ended without being withdrawn has passed an old deadline.
        self._resigned_for = RESIGNED_FOR[event.ended] or ResignReason.LEASE_EXPIRED
        return self._rest()

    # RECLAIMING

    def _reclaim(self) -> Effects:
        before, self._state = self._state, State.RECLAIMING
        if before is not State.RECLAIMING:
            self._next_poll_ms = self._now_ms
        # What is left of the lease is good for nothing more, above all not for a takeover.
        return (ExtendDeadline(self._now_ms),) if before is State.MASTER else ()

    def _reclaim_or_resign(self, event: LeaderRead | CampaignAnswered) -> Effects:
        leader = event.leader
        if leader is None:
            if self._lease is None:
                return self._order(GrantLease(self._times.lease_ttl_s))
            return self._order(Campaign(self._lease.id))
        if leader.nonce != self._nonce:
            return self._resign(ResignReason.LEASE_LOST)
        if self._lease is None or leader.lease_id != self._lease.id:
            return ()  # The key of a former campaign, which runs out.
        self._state = State.MASTER
        return (RenewGrant(leader, self._lease.deadline_ms),)

    # RESIGNING

    def _follow_or_stop(self, event: DeliveryStopped) -> Effects:
        # A failure of delivery on its way to rest counts too, asked or not.
        found = RESIGNED_FOR[event.ended]
        if found is not None:
            self._turn.cool_down(self._now_ms, found)
        return self._rest()

    def _note_fault(self, event: FaultFound) -> Effects:
        self._turn.cool_down(self._now_ms, event.reason)
        return ()

    def _note_shutdown(self, _: ShutdownRequested) -> Effects:
        self._resigned_for = ResignReason.SHUTDOWN
        return ()

    # Several states

    def _stop(self, _: ShutdownRequested) -> Effects:
        self._state = State.STOPPED
        return self._let_go()

    def _note_turn(self, event: TurnChanged) -> Effects:
        self._turn.is_behind, self._turn.turns = event.behind, event.turns
        return ()

    def _rest(self) -> Effects:
        assert self._resigned_for is not None, "delivery ended for a reason"
        self._turn.cool_down(self._now_ms, self._resigned_for)
        stopping = self._resigned_for is ResignReason.SHUTDOWN
        self._state = State.STOPPED if stopping else State.FOLLOWER
        self._resigned_for = None
        self._turn.forget(self._now_ms)
        self._next_poll_ms = self._now_ms + self._times.poll_ms
        return self._let_go()

    def _hold(self, lease_id: int, ttl_ms: int) -> HeldLease:
        # Counts from the order, not from the answer: the TTL may run since then.
        self._lease = HeldLease.since(self._ordered_ms, lease_id, ttl_ms)
        self._next_keep_alive_ms = self._lease.keep_alive_ms
        return self._lease

    def _let_go(self) -> Effects:
        if self._lease is None:
            return ()
        lease_id, self._lease = self._lease.id, None
        return (RevokeLease(lease_id),)

    def _soonest_repetition_ms(self) -> int:
        # At once after a time-out, but not in a tight loop while connections are refused.
        return max(self._now_ms, self._ordered_ms + self._times.poll_ms)


Transition = tuple[Callable[[Election, Any], Effects], *tuple[State, ...]]
"""The action of a fact in a state, and the states that may follow."""

_RECLAIMED = (State.RECLAIMING, State.MASTER, State.RESIGNING)

TRANSITIONS: Mapping[State, Mapping[type[Event], Transition]] = MappingProxyType(
    {
        State.FOLLOWER: {
            LeaderRead: (Election._follow_or_ask_for_a_lease, State.FOLLOWER, State.CAMPAIGNING),
            LeaseGranted: (Election._give_back, State.FOLLOWER),
            FaultFound: (Election._note_fault, State.FOLLOWER),
            TurnChanged: (Election._note_turn, State.FOLLOWER),
            LeaderFoundDead: (Election._condemn, State.FOLLOWER),
            LeaderParted: (Election._poll_at_once, State.FOLLOWER),
            ShutdownRequested: (Election._stop, State.STOPPED),
        },
        State.CAMPAIGNING: {
            LeaseGranted: (Election._campaign_under, State.CAMPAIGNING, State.FOLLOWER),
            CampaignAnswered: (Election._win_or_lose, State.MASTER, State.FOLLOWER),
            CallFailed: (Election._read_again_or_give_up, State.CAMPAIGNING, State.FOLLOWER),
            LeaderRead: (Election._win_or_lose, State.CAMPAIGNING, State.MASTER, State.FOLLOWER),
            FaultFound: (Election._give_up_for, State.FOLLOWER),
            TurnChanged: (Election._note_turn, State.CAMPAIGNING),
            ShutdownRequested: (Election._stop, State.STOPPED),
        },
        State.MASTER: {
            LeaseKept: (Election._extend, State.MASTER, State.RESIGNING),
            LeaseFoundDead: (Election._lose_lease, State.RESIGNING, State.RECLAIMING),
            CallFailed: (Election._ask_again, State.MASTER),
            DeliveryProgressed: (Election._note_progress, State.MASTER),
            DeliveryStopped: (Election._follow_after_unasked_end, State.FOLLOWER),
            FaultFound: (Election._resign_for, State.RESIGNING, State.RECLAIMING),
            TurnChanged: (Election._note_turn, State.MASTER),
            ShutdownRequested: (Election._resign_to_stop, State.RESIGNING),
        },
        State.ALONE: {
            LeaseKept: (Election._extend, State.MASTER, State.ALONE),
            LeaseFoundDead: (Election._lose_lease, State.RECLAIMING),
            CallFailed: (Election._ask_again, State.ALONE),
            DeliveryProgressed: (Election._note_progress, State.ALONE),
            DeliveryStopped: (Election._follow_after_unasked_end, State.FOLLOWER),
            FaultFound: (Election._resign_for, State.RESIGNING, State.RECLAIMING),
            TurnChanged: (Election._note_turn, State.ALONE),
            ShutdownRequested: (Election._resign_to_stop, State.RESIGNING),
        },
        State.RECLAIMING: {
            LeaderRead: (Election._reclaim_or_resign, *_RECLAIMED),
            LeaseGranted: (Election._campaign_under, State.RECLAIMING),
            CampaignAnswered: (Election._reclaim_or_resign, *_RECLAIMED),
            LeaseFoundDead: (Election._lose_lease, State.RECLAIMING),
            CallFailed: (Election._ask_again, State.RECLAIMING),
            DeliveryProgressed: (Election._note_progress, State.RECLAIMING),
            DeliveryStopped: (Election._follow_after_unasked_end, State.FOLLOWER),
            FaultFound: (Election._resign_for, State.RESIGNING, State.RECLAIMING),
            TurnChanged: (Election._note_turn, State.RECLAIMING),
            ShutdownRequested: (Election._resign_to_stop, State.RESIGNING),
        },
        State.RESIGNING: {
            DeliveryStopped: (Election._follow_or_stop, State.FOLLOWER, State.STOPPED),
            FaultFound: (Election._note_fault, State.RESIGNING),
            TurnChanged: (Election._note_turn, State.RESIGNING),
            ShutdownRequested: (Election._note_shutdown, State.RESIGNING),
        },
        State.STOPPED: {
            LeaseGranted: (Election._give_back, State.STOPPED),
        },
    }
)
"""All transitions. A fact that a state does not list changes only the time."""

BY_TIME: Mapping[State, tuple[State, ...]] = MappingProxyType(
    {
        State.CAMPAIGNING: (State.FOLLOWER,),
        State.MASTER: (State.RESIGNING, State.ALONE),
    }
)
"""Where the time of any fact may lead first: a deadline passed, or delivery is stuck."""
