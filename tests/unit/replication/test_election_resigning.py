"""The election, rule by rule: resigning, cooling down, and shutting down."""

import pytest
from elections import (
    FAULTS,
    OURS,
    POLL_MS,
    TTL_MS,
    campaigning,
    master,
    resigning,
    told,
)

from replication.election import Election
from replication.election_facts import (
    CampaignAnswered,
    DeliveryStopped,
    Ended,
    FaultFound,
    GrantLease,
    LeaderRead,
    LeaseGranted,
    LeaseKept,
    PollLeader,
    ResignReason,
    RevokeLease,
    ShutdownRequested,
    State,
    Ticked,
)
from replication.election_times import COOL_DOWN_POLLS, RESIGNED_FOR


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


def test_a_keepalive_that_is_answered_while_resigning_changes_nothing() -> None:
    """docs/design/election.md, "Resigning"."""
    election = master()
    told(election, Ticked(1_000), FaultFound(1_001, ResignReason.HIGHER_TERM))
    assert told(election, LeaseKept(1_002, TTL_MS)) == ()
    assert told(election, DeliveryStopped(1_003, Ended.ASKED)) == (RevokeLease(7),)


def assert_cools_down(election: Election, reason: ResignReason) -> None:
    """Its delivery came to rest at 1,000."""
    cool_ms = 1_000 + COOL_DOWN_POLLS[reason] * POLL_MS
    assert told(election, Ticked(cool_ms - 1), LeaderRead(cool_ms - 1, None)) == (PollLeader(),)
    later_ms = cool_ms + POLL_MS
    assert told(election, Ticked(later_ms), LeaderRead(later_ms, None))[-1] == GrantLease(3)


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
    assert_cools_down(election, reason)


@pytest.mark.parametrize("reason", FAULTS)
def test_a_former_master_lets_others_campaign_first(reason: ResignReason) -> None:
    """docs/design/election.md, "Cool-down": counted from when its delivery was at rest.

    Rules: resign-reasons
    """
    election = resigning(reason)
    told(election, DeliveryStopped(1_000, Ended.ASKED))
    assert_cools_down(election, reason)


def test_a_broken_disk_or_clock_keeps_a_node_out_for_longer_than_a_lost_lease() -> None:
    """docs/design/election.md, "Cool-down"."""
    assert set(COOL_DOWN_POLLS) == set(ResignReason)
    assert COOL_DOWN_POLLS[ResignReason.LEASE_LOST] * POLL_MS == 300
    assert COOL_DOWN_POLLS[ResignReason.CLOCK_DRIFT] * POLL_MS == 9_000
    assert COOL_DOWN_POLLS[ResignReason.DISK_FAILED] * POLL_MS == 30_000


# Shutdown


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


def test_a_shutdown_while_resigning_ends_in_stopped() -> None:
    """docs/design/election.md, "Resigning"."""
    election = resigning(ResignReason.CLOCK_DRIFT)
    assert told(election, ShutdownRequested(501), DeliveryStopped(502, Ended.ASKED)) == (
        RevokeLease(7),
    )
    assert election.state is State.STOPPED
