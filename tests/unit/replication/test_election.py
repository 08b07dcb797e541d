"""The election, rule by rule; then two properties under any sequence of facts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manual_clock import ManualClock

from delayd.coordination.memory import MemoryCoordination, MemoryEtcd, Outcome
from delayd.errors import CoordinationError
from delayd.node.election.etcd_calls import EtcdCalls
from delayd.node.election.identity import Identity
from replication.election import TRANSITIONS, Election, State
from replication.election_facts import (
    ANSWERS,
    Call,
    CallFailed,
    Campaign,
    CampaignAnswered,
    DeliveryProgressed,
    DeliveryStopped,
    Effect,
    Effects,
    Ended,
    Event,
    ExtendDeadline,
    FaultFound,
    GrantLease,
    KeepAlive,
    LagChanged,
    Leader,
    LeaderRead,
    LeaseFoundDead,
    LeaseGranted,
    LeaseKept,
    PollLeader,
    ResignReason,
    RevokeLease,
    ShutdownRequested,
    StartDelivery,
    StopDelivery,
    Ticked,
)
from replication.election_times import COOL_DOWN_POLLS, RESIGNED_FOR, ElectionTimes

OURS = Leader("me", 7, 100)
OTHERS = Leader("other", 8, 99)
TTL_MS = 3_000
DEADLINE_MS = 2_400
"""Of a lease of 3 s that was asked for at 0."""
POLL_MS = 150
FAULTS = [
    ResignReason.HIGHER_TERM,
    ResignReason.CLOCK_DRIFT,
    ResignReason.DELIVERY_FAILED,
    ResignReason.DISK_FAILED,
]


def told(election: Election, *events: Event) -> Effects:
    """All orders that follow from the events."""
    return tuple(effect for event in events for effect in election.handle(event))


def campaigning() -> Election:
    """A node whose campaign, under lease 7 asked for at 0, is in flight."""
    election = Election("me")
    assert told(election, Ticked(0), LeaderRead(0, None), LeaseGranted(0, 7, TTL_MS)) == (
        PollLeader(),
        GrantLease(3),
        Campaign(7),
    )
    return election


def master() -> Election:
    """A node that won at 0, with no call in flight."""
    election = campaigning()
    assert told(election, CampaignAnswered(0, OURS)) == (StartDelivery(OURS, DEADLINE_MS),)
    return election


def resigning(reason: ResignReason) -> Election:
    """A former master, whose delivery is asked to stop at 500."""
    election = master()
    assert told(election, FaultFound(500, reason)) == (StopDelivery(reason),)
    return election


# Following: docs/design/election.md, "Campaign"


def test_a_follower_reads_the_leader_key_every_poll_interval() -> None:
    """docs/design/election.md, "Campaign": failover time counts, a read is cheap."""
    election = Election("me")
    assert told(election, Ticked(1_000)) == (PollLeader(),)
    assert told(election, LeaderRead(1_002, OTHERS), Ticked(1_149)) == ()
    assert told(election, Ticked(1_150)) == (PollLeader(),)


def test_a_follower_has_one_reading_in_flight_at_most() -> None:
    """docs/design/election.md, "Facts and orders": one call at a time."""
    election = Election("me")
    told(election, Ticked(0))
    assert told(election, Ticked(10_000)) == ()


def test_a_failed_reading_is_repeated_at_the_next_interval() -> None:
    """docs/design/election.md, "Campaign"."""
    election = Election("me")
    assert told(election, Ticked(0), CallFailed(1), Ticked(149)) == (PollLeader(),)
    assert told(election, Ticked(150)) == (PollLeader(),)


def test_no_lease_is_asked_for_while_another_leads() -> None:
    """docs/design/election.md, "Campaign": only when the key is seen absent."""
    election = Election("me")
    for now_ms in range(0, 60_000, POLL_MS):
        assert told(election, Ticked(now_ms), LeaderRead(now_ms, OTHERS)) == (PollLeader(),)


def test_our_own_key_under_a_lease_that_we_do_not_know_is_waited_out() -> None:
    """docs/design/election.md, "Campaign": a former life of this leadership is not resumed.

    Rules: key-and-lease
    """
    election = Election("me")
    assert told(election, Ticked(0), LeaderRead(1, OURS)) == (PollLeader(),)
    assert election.state is State.FOLLOWER


def test_an_absent_key_makes_a_follower_ask_for_a_lease_and_then_campaign() -> None:
    """docs/design/election.md, "Campaign"."""
    assert campaigning().state is State.CAMPAIGNING


def test_a_node_that_is_far_behind_lets_others_campaign_first() -> None:
    """docs/design/election.md, "Lag".

    Rules: behind-waits
    """
    election = Election("me")
    told(election, LagChanged(0, behind=True), LeaderRead(0, None))
    orders: list[Effect] = []
    for now_ms in range(POLL_MS, 1_500 + POLL_MS, POLL_MS):
        orders += told(election, Ticked(now_ms), LeaderRead(now_ms, None))
    assert orders == [PollLeader()] * 9 + [PollLeader(), GrantLease(3)]


def test_the_wait_of_a_node_behind_starts_anew_when_somebody_led_in_between() -> None:
    """docs/design/election.md, "Lag"."""
    election = Election("me")
    told(election, LagChanged(0, behind=True), LeaderRead(0, None))
    told(election, Ticked(1_400), LeaderRead(1_400, OTHERS))
    assert told(election, Ticked(1_550), LeaderRead(1_550, None)) == (PollLeader(),)
    assert told(election, Ticked(3_049), LeaderRead(3_049, None)) == (PollLeader(),)
    assert told(election, Ticked(3_200), LeaderRead(3_200, None)) == (PollLeader(), GrantLease(3))


def test_a_node_that_caught_up_campaigns_at_the_next_reading() -> None:
    """docs/design/election.md, "Lag"."""
    election = Election("me")
    told(election, LagChanged(0, behind=True), LeaderRead(0, None), LagChanged(10, behind=False))
    assert told(election, Ticked(150), LeaderRead(151, None)) == (PollLeader(), GrantLease(3))


# Campaigning


def test_a_campaign_that_another_won_gives_its_lease_back() -> None:
    """docs/design/election.md, "Campaign"."""
    election = campaigning()
    assert told(election, CampaignAnswered(5, OTHERS)) == (RevokeLease(7),)
    assert election.state is State.FOLLOWER


def test_a_win_starts_delivery_until_80_percent_of_the_granted_ttl_after_it_was_asked_for() -> None:
    """docs/design/election.md, "Lease and deadline": granted, not asked; ordered, not answered.

    Rules: deadline
    """
    election = Election("me", ElectionTimes(lease_ttl_s=1))
    told(election, Ticked(0), LeaderRead(1_000, None), LeaseGranted(1_300, 7, 2_000))
    won = told(election, CampaignAnswered(1_400, OURS))
    assert won == (StartDelivery(OURS, 1_000 + 1_600),)


def test_a_lease_that_was_granted_too_slowly_is_given_back_unused() -> None:
    """docs/design/election.md, "Lease and deadline"."""
    election = Election("me")
    told(election, Ticked(0), LeaderRead(0, None))
    assert told(election, LeaseGranted(DEADLINE_MS, 7, TTL_MS)) == (RevokeLease(7),)
    assert election.state is State.FOLLOWER


def test_a_win_that_is_heard_of_at_the_deadline_is_no_win() -> None:
    """docs/design/election.md, "Lease and deadline"."""
    election = campaigning()
    assert told(election, CampaignAnswered(DEADLINE_MS, OURS)) == (RevokeLease(7),)
    assert election.state is State.FOLLOWER


def test_a_lost_answer_is_read_again_and_our_own_key_is_a_win() -> None:
    """docs/design/election.md, "Campaign": never blind, re-read and compare.

    Rules: re-read
    """
    election = campaigning()
    assert told(election, CallFailed(1_000)) == (PollLeader(),)
    won = told(election, LeaderRead(1_001, OURS))
    assert won == (StartDelivery(OURS, DEADLINE_MS), KeepAlive(7))


def test_a_refused_campaign_is_not_read_again_in_a_tight_loop() -> None:
    """docs/design/election.md, "Campaign"."""
    election = campaigning()
    assert told(election, CallFailed(1), Ticked(149)) == ()
    assert told(election, Ticked(150)) == (PollLeader(),)


def test_a_lost_campaign_that_was_not_carried_out_is_repeated_under_the_same_lease() -> None:
    """docs/design/election.md, "Campaign": the same creation twice is one creation."""
    election = campaigning()
    told(election, CallFailed(1_000))
    assert told(election, LeaderRead(1_001, None)) == (Campaign(7),)


@pytest.mark.parametrize("polls", [0, 1, 2])
def test_a_node_that_is_restarted_last_lets_others_campaign_first(polls: int) -> None:
    """docs/design/election.md, Campaign."""
    election = Election("me", ElectionTimes(yield_polls=polls))
    orders: list[Effect] = []
    for number in range(polls + 1):
        now_ms = number * POLL_MS
        orders += told(election, Ticked(now_ms), LeaderRead(now_ms, None))
    assert orders == [*[PollLeader()] * (polls + 1), GrantLease(3)]


def test_it_yields_again_for_the_next_master() -> None:
    """What it waited for one absence does not count for another."""
    election = Election("me", ElectionTimes(yield_polls=1))
    seen = (LeaderRead(0, None), Ticked(POLL_MS), LeaderRead(POLL_MS, OTHERS))
    assert GrantLease(3) not in told(election, Ticked(0), *seen)
    later_ms = 2 * POLL_MS
    assert told(election, Ticked(later_ms), LeaderRead(later_ms, None)) == (PollLeader(),)


@pytest.mark.parametrize("found", [OTHERS, Leader("me", 6, 98), Leader("other", 7, 98)])
def test_a_lost_answer_and_any_other_key_is_a_defeat(found: Leader) -> None:
    """docs/design/election.md, "Campaign": nonce and lease must both be ours.

    Rules: key-and-lease
    """
    election = campaigning()
    told(election, CallFailed(1_000))
    assert told(election, LeaderRead(1_001, found)) == (RevokeLease(7),)
    assert election.state is State.FOLLOWER


def test_a_campaign_without_an_end_ends_at_the_deadline_of_its_lease() -> None:
    """docs/design/election.md, "Lease and deadline"."""
    election = campaigning()
    told(election, CallFailed(1_000), CallFailed(2_000))
    assert told(election, Ticked(DEADLINE_MS)) == (RevokeLease(7),)
    assert election.state is State.FOLLOWER


def test_a_lease_that_was_refused_is_asked_for_again_after_the_next_reading() -> None:
    """docs/design/election.md, "Campaign"."""
    election = Election("me")
    told(election, Ticked(0), LeaderRead(0, None))
    assert told(election, CallFailed(10), Ticked(159)) == ()
    assert told(election, Ticked(160), LeaderRead(161, None)) == (PollLeader(), GrantLease(3))


@pytest.mark.parametrize("reason", FAULTS)
def test_a_fault_ends_a_campaign_and_its_lease(reason: ResignReason) -> None:
    """docs/design/election.md, "Resigning"."""
    election = campaigning()
    assert told(election, FaultFound(1, reason)) == (RevokeLease(7),)
    assert told(election, CampaignAnswered(2, OURS)) == ()
    assert election.state is State.FOLLOWER


def test_a_lease_that_arrives_after_a_fault_is_given_back() -> None:
    """docs/design/election.md, "Resigning"."""
    election = Election("me")
    told(election, Ticked(0), LeaderRead(0, None), FaultFound(1, ResignReason.DISK_FAILED))
    assert told(election, LeaseGranted(2, 7, TTL_MS)) == (RevokeLease(7),)


# The master's lease


def test_a_master_keeps_its_lease_alive_every_third_of_the_ttl() -> None:
    """docs/design/election.md, "Keepalive"."""
    election = master()
    assert told(election, Ticked(999)) == ()
    assert told(election, Ticked(1_000)) == (KeepAlive(7),)
    assert told(election, LeaseKept(1_002, TTL_MS), Ticked(1_999)) == (ExtendDeadline(3_400),)
    assert told(election, Ticked(2_000)) == (KeepAlive(7),)


def test_a_slow_answer_extends_from_when_the_keepalive_was_ordered() -> None:
    """docs/design/election.md, "Lease and deadline".

    Rules: deadline
    """
    election = master()
    told(election, Ticked(1_000))
    assert ExtendDeadline(3_400) in told(election, LeaseKept(2_399, TTL_MS))


def test_a_second_keepalive_waits_for_the_answer_to_the_first() -> None:
    """docs/design/election.md, "Keepalive": at most one call in flight."""
    election = master()
    told(election, Ticked(1_000))
    assert told(election, Ticked(2_399)) == ()


def test_a_keepalive_that_timed_out_is_repeated_at_once() -> None:
    """docs/design/election.md, "Keepalive"."""
    election = master()
    told(election, Ticked(1_000))
    assert told(election, CallFailed(2_000)) == (KeepAlive(7),)


def test_a_keepalive_that_was_refused_at_once_is_repeated_after_a_poll_interval() -> None:
    """docs/design/election.md, "Keepalive"."""
    election = master()
    told(election, Ticked(1_000))
    assert told(election, CallFailed(1_001), Ticked(1_149)) == ()
    assert told(election, Ticked(1_150)) == (KeepAlive(7),)


def test_a_master_stops_by_itself_at_its_deadline() -> None:
    """docs/design/election.md, "Lease and deadline".

    Rules: deadline
    """
    election = master()
    told(election, Ticked(1_000))
    assert told(election, Ticked(DEADLINE_MS - 1)) == ()
    assert told(election, Ticked(DEADLINE_MS)) == (StopDelivery(ResignReason.LEASE_EXPIRED),)
    assert election.state is State.RESIGNING


@pytest.mark.parametrize(
    "fact",
    [
        Ticked(DEADLINE_MS),
        LeaseKept(DEADLINE_MS, TTL_MS),
        CallFailed(DEADLINE_MS),
        DeliveryProgressed(DEADLINE_MS),
        LagChanged(DEADLINE_MS, behind=False),
    ],
)
def test_whatever_is_heard_at_the_deadline_comes_too_late(fact: Event) -> None:
    """docs/design/election.md, "Lease and deadline": even a keepalive that succeeded.

    Rules: deadline
    """
    election = master()
    told(election, Ticked(1_000))
    assert told(election, fact) == (StopDelivery(ResignReason.LEASE_EXPIRED),)


def test_a_dead_lease_ends_the_mastership() -> None:
    """docs/design/election.md, "Resigning".

    Rules: resign-reasons
    """
    election = master()
    told(election, Ticked(1_000))
    assert told(election, LeaseFoundDead(1_001)) == (StopDelivery(ResignReason.LEASE_LOST),)


def test_a_stuck_delivery_loop_ends_the_mastership_instead_of_a_keepalive() -> None:
    """docs/design/election.md, "Keepalive": a dead master must not keep its lease.

    Rules: stuck-no-keepalive
    """
    election = Election("me", ElectionTimes(stall_ms=1_000))
    told(election, Ticked(0), LeaderRead(0, None), LeaseGranted(0, 7, TTL_MS))
    told(election, CampaignAnswered(0, OURS))
    assert told(election, DeliveryProgressed(500), Ticked(1_000)) == (KeepAlive(7),)
    assert told(election, LeaseKept(1_001, TTL_MS)) == (ExtendDeadline(3_400),)
    assert told(election, Ticked(1_500)) == (StopDelivery(ResignReason.DELIVERY_STALLED),)


def test_a_late_heartbeat_does_not_take_back_a_later_one() -> None:
    """docs/design/election.md, "Keepalive": facts of other threads may overtake each other."""
    election = Election("me", ElectionTimes(stall_ms=1_000))
    told(election, Ticked(0), LeaderRead(0, None), LeaseGranted(0, 7, TTL_MS))
    told(election, CampaignAnswered(0, OURS), DeliveryProgressed(900), DeliveryProgressed(100))
    assert told(election, Ticked(1_200)) == (KeepAlive(7),)


# Resigning


@pytest.mark.parametrize("reason", FAULTS)
def test_a_fault_stops_delivery_first_and_ends_the_lease_only_when_delivery_is_at_rest(
    reason: ResignReason,
) -> None:
    """docs/design/election.md, "Resigning": the ordering contract.

    Rules: resign-order
    """
    election = resigning(reason)
    assert told(election, Ticked(600), FaultFound(700, reason), Ticked(60_000)) == ()
    assert told(election, DeliveryStopped(60_001, Ended.ASKED)) == (RevokeLease(7),)
    assert election.state is State.FOLLOWER


def test_a_delivery_that_never_stops_keeps_the_node_out_of_the_election() -> None:
    """docs/design/election.md, "Resigning": its lease is not kept alive, another takes over."""
    election = resigning(ResignReason.DELIVERY_FAILED)
    assert told(election, *[Ticked(now_ms) for now_ms in range(500, 600_000, POLL_MS)]) == ()


def test_a_keepalive_that_is_answered_while_resigning_changes_nothing() -> None:
    """docs/design/election.md, "Resigning"."""
    election = master()
    told(election, Ticked(1_000), FaultFound(1_001, ResignReason.HIGHER_TERM))
    assert told(election, LeaseKept(1_002, TTL_MS)) == ()
    assert told(election, DeliveryStopped(1_003, Ended.ASKED)) == (RevokeLease(7),)


def test_a_keepalive_of_a_former_mastership_is_waited_for_before_the_next_call() -> None:
    """docs/design/election.md, "Facts and orders": one call at a time."""
    election = master()
    told(election, Ticked(1_000), FaultFound(1_001, ResignReason.HIGHER_TERM))
    told(election, DeliveryStopped(1_002, Ended.ASKED))
    assert told(election, Ticked(1_500)) == ()
    assert told(election, LeaseKept(1_600, TTL_MS)) == (PollLeader(),)


def test_delivery_that_ended_by_itself_ends_the_lease_and_the_node_follows() -> None:
    """docs/design/election.md, "Resigning"."""
    election = master()
    assert told(election, DeliveryStopped(100, Ended.FAILED)) == (RevokeLease(7),)
    assert election.state is State.FOLLOWER


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (Ended.FENCED, ResignReason.HIGHER_TERM),
        (Ended.LEADERSHIP_LOST, ResignReason.LEASE_LOST),
        (Ended.HIGHER_TERM, ResignReason.HIGHER_TERM),
        (Ended.CLOCK_DRIFT, ResignReason.CLOCK_DRIFT),
        (Ended.FAILED, ResignReason.DELIVERY_FAILED),
        (Ended.ASKED, ResignReason.LEASE_EXPIRED),
    ],
)
@pytest.mark.parametrize("is_asked", [False, True])
def test_how_delivery_ended_says_for_how_long_others_go_first(
    ended: Ended, reason: ResignReason, is_asked: bool
) -> None:
    """docs/design/election.md, "Resigning": also if it was asked to stop for less meanwhile.

    Rules: resign-reasons
    """
    assert set(RESIGNED_FOR) == set(Ended)
    election = resigning(ResignReason.LEASE_LOST) if is_asked else master()
    assert told(election, DeliveryStopped(1_000, ended)) == (RevokeLease(7),)
    cool_ms = 1_000 + COOL_DOWN_POLLS[reason] * POLL_MS
    assert told(election, Ticked(cool_ms - 1), LeaderRead(cool_ms - 1, None)) == (PollLeader(),)
    later_ms = cool_ms + POLL_MS
    assert told(election, Ticked(later_ms), LeaderRead(later_ms, None))[-1] == GrantLease(3)


@pytest.mark.parametrize("reason", FAULTS)
def test_a_former_master_lets_others_campaign_first(reason: ResignReason) -> None:
    """docs/design/election.md, "Cool-down": counted from when its delivery was at rest.

    Rules: resign-reasons
    """
    election = resigning(reason)
    told(election, DeliveryStopped(1_000, Ended.ASKED))
    cool_ms = 1_000 + COOL_DOWN_POLLS[reason] * POLL_MS
    assert told(election, Ticked(cool_ms - 1), LeaderRead(cool_ms - 1, None)) == (PollLeader(),)
    later_ms = cool_ms + POLL_MS
    assert told(election, Ticked(later_ms), LeaderRead(later_ms, None))[-1] == GrantLease(3)


def test_a_broken_disk_or_clock_keeps_a_node_out_for_longer_than_a_lost_lease() -> None:
    """docs/design/election.md, "Cool-down"."""
    assert set(COOL_DOWN_POLLS) == set(ResignReason)
    assert COOL_DOWN_POLLS[ResignReason.LEASE_LOST] * POLL_MS == 300
    assert COOL_DOWN_POLLS[ResignReason.CLOCK_DRIFT] * POLL_MS == 9_000
    assert COOL_DOWN_POLLS[ResignReason.DISK_FAILED] * POLL_MS == 30_000


def test_a_follower_with_a_fault_does_not_campaign_either() -> None:
    """docs/design/election.md, "Cool-down"."""
    election = Election("me")
    told(election, FaultFound(0, ResignReason.DISK_FAILED))
    assert told(election, LeaderRead(1, None)) == ()
    assert told(election, Ticked(29_999), LeaderRead(29_999, None)) == (PollLeader(),)


# Shutdown


def test_a_follower_stops_at_once() -> None:
    """docs/design/election.md, "Resigning"."""
    election = Election("me")
    told(election, Ticked(0), LeaderRead(1, OTHERS))
    assert told(election, ShutdownRequested(2), Ticked(10_000)) == ()
    assert election.state is State.STOPPED


def test_a_campaigner_ends_its_lease_and_stops() -> None:
    """docs/design/election.md, "Resigning"."""
    election = campaigning()
    assert told(election, ShutdownRequested(1)) == (RevokeLease(7),)
    assert told(election, CampaignAnswered(2, OURS)) == ()
    assert election.state is State.STOPPED


def test_a_lease_that_arrives_after_the_shutdown_is_given_back() -> None:
    """docs/design/election.md, "Resigning"."""
    election = Election("me")
    told(election, Ticked(0), LeaderRead(0, None), ShutdownRequested(1))
    assert told(election, LeaseGranted(2, 7, TTL_MS)) == (RevokeLease(7),)


def test_a_master_stops_delivery_then_ends_its_lease_then_stops() -> None:
    """docs/design/election.md, "Resigning".

    Rules: shutdown
    """
    election = master()
    assert told(election, ShutdownRequested(1)) == (StopDelivery(ResignReason.SHUTDOWN),)
    assert told(election, ShutdownRequested(2)) == ()
    assert told(election, DeliveryStopped(3, Ended.ASKED), Ticked(60_000)) == (RevokeLease(7),)
    assert election.state is State.STOPPED


def test_a_shutdown_while_resigning_ends_in_stopped() -> None:
    """docs/design/election.md, "Resigning"."""
    election = resigning(ResignReason.CLOCK_DRIFT)
    assert told(election, ShutdownRequested(501), DeliveryStopped(502, Ended.ASKED)) == (
        RevokeLease(7),
    )
    assert election.state is State.STOPPED


# The whole


@pytest.mark.parametrize("behind", [False, True])
def test_ticking_at_wake_time_is_enough(behind: bool) -> None:
    """docs/design/election.md, "Facts and orders": nothing is due before `wake_ms`."""

    def history(tick_every_ms: bool) -> list[tuple[int, Effect]]:
        election, now_ms = Election("me"), 0
        orders: list[tuple[int, Effect]] = []
        facts: list[Event] = [LagChanged(0, behind)]
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
        if self.delivering is not None and self.now_ms >= self.deadline_ms:
            assert self.asked_to_stop, "delivery goes on past its deadline"
        return effects

    def note_answer(self, event: Event) -> None:
        match event:
            case LeaseGranted():
                self.live[event.lease_id] = self.ordered_ms + event.ttl_ms * 4 // 5
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
            case StopDelivery():
                assert not self.asked_to_stop, "asked to stop twice"
                self.asked_to_stop = True
            case RevokeLease():
                assert effect.lease_id != self.delivering, "revoked before delivery was at rest"
                assert self.live.pop(effect.lease_id, None) is not None, "revoked an unknown lease"
            case KeepAlive():
                assert effect.lease_id == self.delivering, "kept alive for nothing"
                assert not self.asked_to_stop
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
        case PollLeader():
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
        *[FaultFound(now_ms, reason) for reason in FAULTS],
        LagChanged(now_ms, behind=True),
        LagChanged(now_ms, behind=False),
        ShutdownRequested(now_ms),
    ]


def test_every_fact_there_is_takes_part_in_the_property_below() -> None:
    assert {type(event) for event in unasked(0, 1)} | {DeliveryStopped} == set(get_args(Event))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_happens_the_ordering_contract_holds(data: st.DataObject) -> None:
    """docs/design/election.md, "Facts and orders" and "Resigning".

    Rules: key-and-lease, resign-order
    """
    auditor = Auditor("me", Election("me", ElectionTimes(stall_ms=4_000)))
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


def test_every_arrow_of_the_state_diagram_is_walked() -> None:
    """What the table of the election says may follow does follow."""
    walked: set[tuple[State, type[Event], State]] = set()
    chance = Random(1)
    for _ in range(1_200):
        auditor, lease_id = Auditor("me", Election("me")), 0
        for _ in range(60):
            before, now_ms = auditor.election.state, auditor.now_ms + chance.choice([0, 1, 1_000])
            if isinstance(auditor.call, GrantLease | KeepAlive) and chance.random() < 0.05:
                now_ms += TTL_MS
            events = plausible_answers(auditor.call, now_ms, lease_id) * 9
            events += unasked(now_ms, lease_id)
            if auditor.delivering is not None:
                ended = chance.choice(list(Ended))
                events += [DeliveryStopped(now_ms, ended)] * (9 if auditor.asked_to_stop else 1)
            event = chance.choice(events)
            if isinstance(event, FaultFound | ShutdownRequested) and chance.random() < 0.9:
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
                case PollLeader() | GrantLease() | Campaign() | KeepAlive():
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
