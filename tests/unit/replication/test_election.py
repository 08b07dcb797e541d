"""The election, rule by rule: following, campaigning, and the master's lease."""

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
    told,
)

from replication.election import Election
from replication.election_facts import (
    CallFailed,
    CampaignAnswered,
    DeliveryProgressed,
    Effect,
    Event,
    ExtendDeadline,
    FaultFound,
    GrantLease,
    KeepAlive,
    Leader,
    LeaderRead,
    LeaseFoundDead,
    LeaseGranted,
    LeaseKept,
    PollLeader,
    ResignReason,
    RevokeLease,
    StartDelivery,
    State,
    StopDelivery,
    Ticked,
    TurnChanged,
)
from replication.election_times import ElectionTimes

# Following: docs/design/election.md, "Campaign"


def test_a_failed_reading_is_repeated_at_the_next_interval() -> None:
    """docs/design/election.md, "Campaign"."""
    election = Election("me")
    assert told(election, Ticked(0), CallFailed(1), Ticked(149)) == (PollLeader(),)
    assert told(election, Ticked(150)) == (PollLeader(),)


def test_a_node_that_is_far_behind_lets_others_campaign_first() -> None:
    """docs/design/election.md, "Lag".

    Rules: behind-waits
    """
    election = Election("me")
    told(election, TurnChanged(0, behind=True), LeaderRead(0, None))
    orders: list[Effect] = []
    for now_ms in range(POLL_MS, 1_500 + POLL_MS, POLL_MS):
        orders += told(election, Ticked(now_ms), LeaderRead(now_ms, None))
    assert orders == [PollLeader()] * 9 + [PollLeader(), GrantLease(3)]


def test_the_wait_of_a_node_behind_starts_anew_when_somebody_led_in_between() -> None:
    """docs/design/election.md, "Lag"."""
    election = Election("me")
    told(election, TurnChanged(0, behind=True), LeaderRead(0, None))
    told(election, Ticked(1_400), LeaderRead(1_400, OTHERS))
    assert told(election, Ticked(1_550), LeaderRead(1_550, None)) == (PollLeader(),)
    assert told(election, Ticked(3_049), LeaderRead(3_049, None)) == (PollLeader(),)
    assert told(election, Ticked(3_200), LeaderRead(3_200, None)) == (PollLeader(), GrantLease(3))


def test_a_node_that_caught_up_campaigns_at_the_next_reading() -> None:
    """docs/design/election.md, "Lag"."""
    election = Election("me")
    told(election, TurnChanged(0, behind=True), LeaderRead(0, None), TurnChanged(10, behind=False))
    assert told(election, Ticked(150), LeaderRead(151, None)) == (PollLeader(), GrantLease(3))


def test_a_node_lets_those_campaign_first_that_should_lead_rather_than_it() -> None:
    """docs/design/election.md, "Lag".

    Rules: shard-placed
    """
    election = Election("me")
    told(election, TurnChanged(0, behind=False, turns=2), LeaderRead(0, None))
    orders: list[Effect] = []
    for now_ms in range(POLL_MS, 600 + POLL_MS, POLL_MS):
        orders += told(election, Ticked(now_ms), LeaderRead(now_ms, None))
    assert orders == [PollLeader()] * 3 + [PollLeader(), GrantLease(3)]


# Campaigning


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


@pytest.mark.parametrize("fact", [Ticked(DEADLINE_MS), CampaignAnswered(DEADLINE_MS, OURS)])
def test_a_campaign_ends_at_the_deadline_of_its_lease_even_with_a_win(fact: Event) -> None:
    """docs/design/election.md, "Lease and deadline"."""
    election = campaigning()
    assert told(election, fact) == (RevokeLease(7),)
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


def test_a_slow_answer_extends_from_when_the_keepalive_was_ordered() -> None:
    """docs/design/election.md, "Lease and deadline".

    Rules: deadline
    """
    election = master()
    told(election, Ticked(1_000))
    assert ExtendDeadline(3_400) in told(election, LeaseKept(2_399, TTL_MS))


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
        TurnChanged(DEADLINE_MS, behind=False),
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
