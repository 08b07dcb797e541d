"""The election as a whole: what holds under any sequence of facts, and among three nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import get_args

import pytest
from elections import (
    DEADLINE_MS,
    FAULTS,
    OTHERS,
    OURS,
    POLL_MS,
    TTL_MS,
    campaigning,
    master,
    resigning,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from manual_clock import ManualClock

from delayd.coordination.memory import MemoryCoordination, MemoryEtcd, Outcome
from delayd.errors import CoordinationError
from delayd.node.election.etcd_calls import EtcdCalls, Identity
from replication.election import TRANSITIONS, Election
from replication.election_facts import (
    ANSWERS,
    Call,
    CallFailed,
    Campaign,
    CampaignAnswered,
    DeliveryProgressed,
    DeliveryStopped,
    Depose,
    Effect,
    Effects,
    Ended,
    Event,
    ExtendDeadline,
    FaultFound,
    GrantLease,
    KeepAlive,
    Leader,
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
    Ticked,
    TurnChanged,
)
from replication.election_times import ElectionTimes


@pytest.mark.parametrize("behind", [False, True])
def test_ticking_at_wake_time_is_enough(behind: bool) -> None:
    """docs/design/election.md, "Facts and orders": nothing is due before `wake_ms`."""

    def history(tick_every_ms: bool) -> list[tuple[int, Effect]]:
        election, now_ms = Election("me"), 0
        orders: list[tuple[int, Effect]] = []
        facts: list[Event] = [TurnChanged(0, behind)]
        while now_ms < 10_000:
            while facts:
                effects = election.handle(facts.pop(0))
                orders += [(now_ms, effect) for effect in effects]
                facts += [fact for effect in effects for fact in prompt(effect, now_ms)]
            wake_ms = election.wake_ms
            assert wake_ms is not None
            now_ms = now_ms + 1 if tick_every_ms else max(now_ms, wake_ms)
            facts = [Ticked(now_ms)]
        return orders

    orders = history(tick_every_ms=False)
    assert orders == history(tick_every_ms=True)
    assert {type(order) for _, order in orders} >= {KeepAlive, StopDelivery, RevokeLease}


def test_only_what_time_alone_can_change_wakes_a_node() -> None:
    """docs/design/election.md, "Facts and orders": `wake_ms`, state by state."""
    follower = Election("me")
    assert follower.wake_ms == 0
    follower.handle(Ticked(0))
    assert follower.wake_ms is None, "it waits for its reading"
    assert campaigning().wake_ms == DEADLINE_MS, "whatever becomes of the campaign"
    leading = master()
    assert leading.wake_ms == TTL_MS // 3
    leading.handle(Ticked(TTL_MS // 3))
    assert leading.wake_ms == DEADLINE_MS, "a keepalive is in flight"
    ended = resigning(ResignReason.SHUTDOWN)
    assert ended.wake_ms is None, "it waits for its delivery, however long"
    ended.handle(DeliveryStopped(501, Ended.ASKED))
    assert ended.wake_ms is None


def prompt(effect: Effect, now_ms: int) -> Sequence[Event]:
    """The answer of an etcd that takes no time, where nobody leads, and keepalives fail."""
    match effect:
        case PollLeader():
            return [LeaderRead(now_ms, None)]
        case GrantLease():
            return [LeaseGranted(now_ms, 7, TTL_MS)]
        case Campaign():
            return [CampaignAnswered(now_ms, OURS)]
        case KeepAlive():
            return [CallFailed(now_ms)]
        case StopDelivery():
            return [DeliveryStopped(now_ms, Ended.ASKED)]
        case _:
            return []


@dataclass
class Auditor:
    """Watches the orders that one election gives, and knows the contract by itself."""

    nonce: str
    election: Election
    now_ms: int = 0
    call: Call | None = None
    ordered_ms: int = 0
    live: dict[int, int] = field(default_factory=dict)
    """Leases granted and not revoked, with the latest deadline that their answers allow."""
    delivering: int | None = None
    """The lease that delivery was started under, until DeliveryStopped."""
    asked_to_stop: bool = False
    deadline_ms: int = 0
    granted: int | None = None
    """The lease granted last."""

    def tell(self, event: Event) -> Effects:
        self.now_ms = max(self.now_ms, event.now_ms)
        answered = type(event) in ANSWERS and isinstance(self.call, ANSWERS[type(event)])
        if answered:
            self.note_answer(event)
        if isinstance(event, DeliveryStopped):
            self.delivering = None
        effects = self.election.handle(event)
        for effect in effects:
            self.check(effect)
        is_past = self.delivering is not None and self.now_ms >= self.deadline_ms
        if is_past and not self.asked_to_stop:
            assert self.election.is_fenced, "delivery goes on past its deadline"
            assert self.election.state in (State.ALONE, State.RECLAIMING)
        return effects

    def note_answer(self, event: Event) -> None:
        match event:
            case LeaseGranted():
                self.live[event.lease_id] = self.ordered_ms + event.ttl_ms * 4 // 5
                self.granted = event.lease_id
            case LeaseKept() if (
                isinstance(self.call, KeepAlive) and self.call.lease_id in self.live
            ):
                self.live[self.call.lease_id] = self.ordered_ms + event.ttl_ms * 4 // 5
            case _:
                pass
        self.call = None

    def check(self, effect: Effect) -> None:
        match effect:
            case StartDelivery():
                assert effect.leader.nonce == self.nonce
                assert effect.leader.lease_id in self.live, "delivery without a live lease"
                assert self.delivering is None, "delivery started twice"
                assert self.now_ms < effect.deadline_ms <= self.live[effect.leader.lease_id]
                self.delivering, self.asked_to_stop = effect.leader.lease_id, False
                self.deadline_ms = effect.deadline_ms
            case ExtendDeadline():
                assert self.delivering is not None
                assert not self.asked_to_stop
                assert effect.deadline_ms <= self.live[self.delivering], "extended too far"
                self.deadline_ms = effect.deadline_ms
            case RenewGrant():
                assert self.delivering is not None and not self.asked_to_stop
                assert effect.leader.nonce == self.nonce, "another leads"
                assert effect.leader.lease_id in (self.granted, self.delivering)
                assert self.now_ms < effect.deadline_ms <= self.live[effect.leader.lease_id]
                self.delivering = effect.leader.lease_id
                self.deadline_ms = effect.deadline_ms
            case StopDelivery():
                assert not self.asked_to_stop, "asked to stop twice"
                self.asked_to_stop = True
            case RevokeLease():
                assert effect.lease_id != self.delivering, "revoked before delivery was at rest"
                assert self.live.pop(effect.lease_id, None) is not None, "revoked an unknown lease"
            case KeepAlive():
                assert effect.lease_id == self.delivering, "kept alive for nothing"
                assert not self.asked_to_stop
                if not self.election.is_fenced:
                    assert self.now_ms < self.deadline_ms, "kept alive past the deadline"
                self.note_call(effect)
            case _:
                self.note_call(effect)

    def note_call(self, call: Call) -> None:
        assert self.call is None, "two calls in flight"
        self.call, self.ordered_ms = call, self.now_ms


def plausible_answers(call: Call | None, now_ms: int, lease_id: int) -> list[Event]:
    leaders = [Leader("me", lease_id, 1), Leader("me", 999, 1), OTHERS]
    match call:
        case PollLeader() | Depose():
            read = [LeaderRead(now_ms, leader) for leader in [None, None, *leaders]]
            return [*read, CallFailed(now_ms)]
        case GrantLease():
            granted = LeaseGranted(now_ms, lease_id + 1, TTL_MS)
            return [granted, granted, CallFailed(now_ms)]
        case Campaign():
            return [
                *[CampaignAnswered(now_ms, leader) for leader in [leaders[0], *leaders]],
                CallFailed(now_ms),
            ]
        case KeepAlive():
            kept = LeaseKept(now_ms, TTL_MS)
            return [kept, kept, kept, LeaseFoundDead(now_ms), CallFailed(now_ms)]
        case None:
            return []


def unasked(now_ms: int, lease_id: int) -> list[Event]:
    """Every fact there is, fitting or not."""
    return [
        Ticked(now_ms),
        LeaderRead(now_ms, None),
        LeaderRead(now_ms, Leader("me", lease_id, 1)),
        CallFailed(now_ms),
        LeaseGranted(now_ms, 10_000 + now_ms, TTL_MS),
        CampaignAnswered(now_ms, Leader("me", lease_id, 1)),
        LeaseKept(now_ms, TTL_MS),
        LeaseFoundDead(now_ms),
        DeliveryProgressed(now_ms),
        *[FaultFound(now_ms, reason) for reason in (*FAULTS, *[ResignReason.LEASE_LOST] * 4)],
        TurnChanged(now_ms, behind=True),
        TurnChanged(now_ms, behind=False),
        TurnChanged(now_ms, behind=False, turns=2),
        LeaderFoundDead(now_ms, OTHERS.lease_id),
        LeaderParted(now_ms),
        ShutdownRequested(now_ms),
    ]


def test_every_fact_there_is_takes_part_in_the_property_below() -> None:
    assert {type(event) for event in unasked(0, 1)} | {DeliveryStopped} == set(get_args(Event))


@pytest.mark.long
@pytest.mark.parametrize("is_fenced", [False, True])
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_happens_the_ordering_contract_holds(is_fenced: bool, data: st.DataObject) -> None:
    """docs/design/election.md, "Facts and orders" and "Resigning".

    Rules: key-and-lease, resign-order
    """
    times = ElectionTimes(stall_ms=4_000)
    auditor = Auditor("me", Election("me", times, is_fenced=is_fenced))
    lease_id = 0
    for _ in range(data.draw(st.integers(1, 60), "length")):
        passed_ms = data.draw(st.sampled_from([0, 1, 150, 1_000, 2_399, 2_400]), "passed")
        now_ms = auditor.now_ms + passed_ms
        events = plausible_answers(auditor.call, now_ms, lease_id) * 4
        events += unasked(now_ms, lease_id)
        if auditor.delivering is not None:
            ended = data.draw(st.sampled_from(Ended), "ended")
            events += [DeliveryStopped(now_ms, ended)] * (9 if auditor.asked_to_stop else 1)
        event = data.draw(st.sampled_from(events), "event")
        if isinstance(event, LeaseGranted) and isinstance(auditor.call, GrantLease):
            lease_id = event.lease_id
        auditor.tell(event)


@pytest.mark.long
def test_every_arrow_of_the_state_diagram_is_walked() -> None:
    """What the table of the election says may follow does follow."""
    walked: set[tuple[State, type[Event], State]] = set()
    chance = Random(1)
    for number in range(3_000):
        auditor, lease_id = Auditor("me", Election("me", is_fenced=number % 2 > 0)), 0
        for _ in range(60):
            before, now_ms = auditor.election.state, auditor.now_ms + chance.choice([0, 1, 1_000])
            if isinstance(auditor.call, GrantLease | KeepAlive) and chance.random() < 0.15:
                now_ms += TTL_MS
            events = plausible_answers(auditor.call, now_ms, lease_id) * 9
            events += unasked(now_ms, lease_id)
            if auditor.delivering is not None:
                ended = chance.choice(list(Ended))
                events += [DeliveryStopped(now_ms, ended)] * (9 if auditor.asked_to_stop else 1)
            event = chance.choice(events)
            if isinstance(event, FaultFound | ShutdownRequested) and chance.random() < 0.8:
                continue
            is_answer = type(event) not in ANSWERS or isinstance(auditor.call, ANSWERS[type(event)])
            if isinstance(event, LeaseGranted) and isinstance(auditor.call, GrantLease):
                lease_id = event.lease_id
            auditor.tell(event)
            if is_answer:
                walked.add((before, type(event), auditor.election.state))
    drawn = {
        (state, event, after)
        for state, facts in TRANSITIONS.items()
        for event, (_, *leads_to) in facts.items()
        for after in leads_to
    }
    assert drawn - walked == set()


class Node:
    """One election on the twin of etcd; its network keeps answers for as long as it likes."""

    def __init__(self, name: str, etcd: MemoryEtcd, clock: ManualClock) -> None:
        self.auditor = Auditor(name, Election(name))
        self.clock = clock
        self.client = MemoryCoordination(etcd, "test")
        self.calls = EtcdCalls(self.client, clock, Identity(name, name, "host:1"))
        self.unsent: Call | None = None
        self.answer: Event | None = None
        self.deliveries = 0

    @property
    def delivers(self) -> bool:
        """What the data plane would do: deliver up to the deadline that it was told."""
        auditor = self.auditor
        return (
            auditor.delivering is not None
            and not auditor.asked_to_stop
            and self.clock.now_ms < auditor.deadline_ms
        )

    def tell(self, event: Event) -> None:
        for effect in self.auditor.tell(event):
            match effect:
                case PollLeader() | Depose() | GrantLease() | Campaign() | KeepAlive():
                    self.unsent = effect
                case RevokeLease():
                    try:
                        self.client.revoke(effect.lease_id)
                    except CoordinationError:
                        continue
                case StartDelivery():
                    self.deliveries += 1
                case _:
                    pass

    def send(self) -> None:
        """The call arrives at etcd now; its answer is under way."""
        assert self.unsent is not None
        call, self.unsent = self.unsent, None
        try:
            self.answer = self.calls.carry_out(call)
        except CoordinationError:
            self.answer = CallFailed(0)

    def hear(self) -> None:
        """The answer arrives now."""
        assert self.answer is not None
        answer, self.answer = self.answer, None
        self.tell(replace(answer, now_ms=self.clock.now_ms))


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_two_nodes_never_deliver_at_the_same_time_while_their_clocks_run_alike(
    data: st.DataObject,
) -> None:
    """docs/design/election.md, "Lease and deadline": lost, late and doubled calls included."""
    clock = ManualClock(0)
    etcd = MemoryEtcd(clock)
    nodes = [Node(name, etcd, clock) for name in ("a", "b", "c")]
    for _ in range(data.draw(st.integers(20, 120), "length")):
        node = data.draw(st.sampled_from(nodes), "node")
        if node.answer is not None:
            node.hear()
        elif node.unsent is not None:
            fault = data.draw(st.sampled_from([None, None, None, None, *Outcome]), "fault")
            if fault is not None:
                node.client.fail_next(fault)
            node.send()
        elif node.auditor.asked_to_stop and node.auditor.delivering is not None:
            node.tell(DeliveryStopped(clock.now_ms, Ended.ASKED))
        else:
            node.tell(DeliveryProgressed(clock.now_ms))
        if data.draw(st.integers(0, 9), "late") == 0:
            etcd.apply_late()
        clock.now_ms += data.draw(st.sampled_from([0, 0, 5, 150, 700, 1_200]), "passed")
        assert sum(each.delivers for each in nodes) <= 1


def test_three_nodes_on_a_healthy_etcd_have_one_master_and_a_successor_soon_after_its_death() -> (
    None
):
    """docs/design/election.md, "Campaign": TTL + expiry lag + one poll interval."""
    clock = ManualClock(0)
    etcd = MemoryEtcd(clock, expiry_lag_ms=350)
    nodes = [Node(name, etcd, clock) for name in ("a", "b", "c")]

    def run(alive: list[Node], until_ms: int) -> None:
        while clock.now_ms < until_ms and not any(node.delivers for node in alive):
            step(alive)

    def step(alive: list[Node]) -> None:
        for node in alive:
            node.tell(DeliveryProgressed(clock.now_ms))
            while node.unsent is not None:
                node.send()
                node.hear()
        clock.now_ms += 10

    run(nodes, 1_000)
    while clock.now_ms < 10_000:
        step(nodes)
    masters = [node for node in nodes if node.delivers]
    assert len(masters) == 1
    assert sum(node.deliveries for node in nodes) == 1
    survivors = [node for node in nodes if node not in masters]
    run(survivors, 20_000)
    assert 2_000 < clock.now_ms - 10_000 <= TTL_MS + 350 + POLL_MS + 10
