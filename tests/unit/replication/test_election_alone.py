"""The election, rule by rule: a master that can be fenced, and whose etcd is away."""

import pytest
from elections import DEADLINE_MS, OTHERS, OURS, POLL_MS, TTL_MS, told

from replication.election import Election
from replication.election_facts import (
    CallFailed,
    Campaign,
    CampaignAnswered,
    DeliveryProgressed,
    DeliveryStopped,
    Ended,
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
    RenewGrant,
    ResignReason,
    RevokeLease,
    ShutdownRequested,
    StartDelivery,
    State,
    StopDelivery,
    Ticked,
)

AGAIN = Leader("me", 9, 3)
"""The key that it makes anew, in an etcd that counts from the start again."""


def fenced() -> Election:
    """A master since 0, that can be fenced, with no call in flight."""
    election = Election("me", is_fenced=True)
    told(election, Ticked(0), LeaderRead(0, None), LeaseGranted(0, 7, TTL_MS))
    assert told(election, CampaignAnswered(0, OURS)) == (StartDelivery(OURS, DEADLINE_MS),)
    return election


def alone(now_ms: int = 5_000) -> Election:
    """Such a master, whose keepalives fail; one is in flight."""
    election = fenced()
    for at_ms in range(1_000, now_ms + 1, 1_000):
        told(election, DeliveryProgressed(at_ms), Ticked(at_ms), CallFailed(at_ms))
        told(election, Ticked(at_ms + POLL_MS))
    assert election.state is State.ALONE
    return election


def reclaiming() -> Election:
    """Such a master, which has heard that its lease is gone and reads the key."""
    election = alone()
    assert told(election, LeaseFoundDead(5_200)) == (PollLeader(),)
    assert election.state is State.RECLAIMING
    return election


def test_a_master_that_can_be_fenced_goes_on_past_its_deadline() -> None:
    """docs/design/election.md, While etcd is away: it orders keepalives, and nothing else.

    Rules: outlives-lease
    """
    election = fenced()
    orders = told(election, Ticked(1_000))
    for now_ms in range(1_000, 120_000, POLL_MS):
        orders += told(election, DeliveryProgressed(now_ms), CallFailed(now_ms), Ticked(now_ms))
    assert set(orders) == {KeepAlive(7)} and election.state is State.ALONE


def test_a_keepalive_that_succeeds_ends_the_absence() -> None:
    """Rules: outlives-lease"""
    election = alone()
    assert told(election, LeaseKept(5_200, TTL_MS)) == (ExtendDeadline(5_000 + 2_400),)
    assert election.state is State.MASTER


def test_an_answer_that_comes_too_late_to_be_of_use_is_no_lease() -> None:
    """docs/design/election.md, Lease and deadline."""
    election = alone()
    assert told(election, LeaseKept(5_000 + 2_400, TTL_MS)) == (KeepAlive(7),)
    assert election.state is State.ALONE


def test_a_lease_that_is_gone_is_replaced_where_nobody_leads() -> None:
    """docs/design/election.md, While etcd is away.

    Rules: reclaims
    """
    election = reclaiming()
    assert told(election, LeaderRead(5_210, None)) == (GrantLease(3),)
    assert told(election, LeaseGranted(5_220, 9, TTL_MS)) == (Campaign(9),)
    assert told(election, CampaignAnswered(5_230, AGAIN)) == (RenewGrant(AGAIN, 5_210 + 2_400),)
    assert election.state is State.MASTER


def test_a_lease_that_died_early_is_good_for_no_takeover() -> None:
    """Rules: reclaims, deadline-commit"""
    election = fenced()
    told(election, Ticked(1_000))
    assert told(election, LeaseFoundDead(1_001)) == (ExtendDeadline(1_001), PollLeader())


@pytest.mark.parametrize("fact", [LeaderRead(5_210, OTHERS), "campaign"])
def test_etcd_saying_that_another_leads_ends_a_master(fact: Event | str) -> None:
    """docs/design/election.md, While etcd is away.

    Rules: outlives-lease, resign-reasons
    """
    election = reclaiming()
    if isinstance(fact, str):
        told(election, LeaderRead(5_210, None), LeaseGranted(5_220, 9, TTL_MS))
        fact = CampaignAnswered(5_230, OTHERS)
    assert told(election, fact) == (StopDelivery(ResignReason.LEASE_LOST),)
    granted = fact.now_ms == 5_230
    stopped = told(election, DeliveryStopped(6_000, Ended.ASKED))
    assert stopped == ((RevokeLease(9),) if granted else ())


def test_a_lost_answer_to_its_campaign_is_read_again() -> None:
    """Rules: re-read, reclaims"""
    election = reclaiming()
    told(election, LeaderRead(5_210, None), LeaseGranted(5_220, 9, TTL_MS))
    assert told(election, CallFailed(6_220)) == (PollLeader(),)
    renewed = told(election, LeaderRead(6_230, AGAIN))
    assert renewed == (RenewGrant(AGAIN, 5_210 + 2_400), KeepAlive(9)), "a third of it has passed"


def test_a_campaign_whose_lease_has_run_out_begins_again_under_another() -> None:
    """docs/design/election.md, Campaign: a key of a former campaign runs out first."""
    election = reclaiming()
    told(election, LeaderRead(5_210, None), LeaseGranted(5_220, 9, TTL_MS))
    told(election, DeliveryProgressed(7_000), CallFailed(8_000))
    assert told(election, LeaderRead(8_010, AGAIN)) == ()
    assert told(election, Ticked(8_200), LeaderRead(8_210, None)) == (PollLeader(), GrantLease(3))


def test_a_cursor_that_etcd_refuses_lets_a_master_look_who_leads() -> None:
    """docs/design/election.md, Keys: perhaps its own key is gone and its lease is not."""
    election = fenced()
    lost = told(election, FaultFound(500, ResignReason.LEASE_LOST))
    assert lost == (ExtendDeadline(500), PollLeader())
    assert told(election, LeaderRead(510, None)) == (Campaign(7),)
    found = Leader("me", 7, 120)
    assert told(election, CampaignAnswered(520, found)) == (RenewGrant(found, DEADLINE_MS),)


def test_a_stuck_master_keeps_quiet_while_etcd_is_away() -> None:
    """docs/design/election.md, Keepalive: it keeps no lease, and nobody could replace it.

    Rules: stuck-no-keepalive
    """
    election = alone()
    assert told(election, Ticked(60_000), CallFailed(60_001), Ticked(70_000)) == ()
    assert election.wake_ms is None
    assert told(election, DeliveryProgressed(70_001)) == (KeepAlive(7),)


def test_what_ends_any_master_ends_this_one() -> None:
    """Rules: shutdown, resign-order"""
    election = alone()
    stop = told(election, ShutdownRequested(5_300))
    assert stop == (StopDelivery(ResignReason.SHUTDOWN),)
    assert told(election, DeliveryStopped(5_400, Ended.ASKED)) == (RevokeLease(7),)


def test_a_follower_that_etcd_did_not_answer_lets_the_master_go_first() -> None:
    """docs/design/election.md, While etcd is away.

    Rules: reclaims
    """
    election = Election("other", is_fenced=True)
    told(election, Ticked(0), LeaderRead(0, OURS), Ticked(POLL_MS), CallFailed(3_000))
    assert told(election, LeaderRead(3_010, None)) == (), "it waits for ten polls"
    orders: tuple[object, ...] = ()
    for now_ms in range(3_150, 3_010 + 1_500, POLL_MS):
        orders += told(election, Ticked(now_ms), LeaderRead(now_ms, None))
    assert GrantLease(3) not in orders
    assert told(election, Ticked(4_650), LeaderRead(4_650, None))[-1] == GrantLease(3)


def test_a_follower_lets_a_master_go_first_whose_lease_ends_just_after_etcd_is_back() -> None:
    """An etcd that was frozen answers before it looks which leases have run out meanwhile.

    Rules: reclaims
    """
    election = Election("other", is_fenced=True)
    told(election, Ticked(0), LeaderRead(0, OURS), Ticked(POLL_MS), CallFailed(3_000))
    told(election, LeaderRead(3_010, OURS))
    assert told(election, Ticked(3_160), LeaderRead(3_160, None)) == (PollLeader(),)
    assert GrantLease(3) not in told(election, Ticked(4_650), LeaderRead(4_650, None))
    assert GrantLease(3) in told(election, Ticked(4_810), LeaderRead(4_810, None))


def test_a_follower_campaigns_at_once_when_etcd_was_back_for_as_long_as_a_lease_lasts() -> None:
    """The master's keepalives would have reached it since then."""
    election = Election("other", is_fenced=True)
    told(election, Ticked(0), LeaderRead(0, OURS), Ticked(POLL_MS), CallFailed(3_000))
    told(election, LeaderRead(3_010, OURS), Ticked(4_510), LeaderRead(4_520, OURS))
    assert GrantLease(3) in told(election, Ticked(6_010), LeaderRead(6_010, None))


def test_what_a_follower_waited_before_another_absence_does_not_count() -> None:
    """The master made its key anew in between, which this node could not read.

    Rules: reclaims
    """
    election = Election("other", is_fenced=True)
    told(election, Ticked(0), LeaderRead(0, OURS), Ticked(POLL_MS), CallFailed(3_000))
    told(election, LeaderRead(3_010, None), Ticked(3_160), CallFailed(7_000))
    assert told(election, Ticked(7_300), LeaderRead(7_310, None)) == (PollLeader(),)
    assert told(election, LeaderRead(8_830, None)) == (GrantLease(3),)
