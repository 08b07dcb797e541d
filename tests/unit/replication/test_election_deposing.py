"""The election and the pulse: a follower deposes who is found dead, and polls at a farewell."""

import pytest
from elections import OTHERS, POLL_MS, TTL_MS, campaigning, master, resigning, told
from manual_clock import ManualClock

from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.node.election.etcd_calls import EtcdCalls, Identity
from replication.election import Election
from replication.election_facts import (
    CallFailed,
    Depose,
    FaultFound,
    GrantLease,
    Leader,
    LeaderFoundDead,
    LeaderParted,
    LeaderRead,
    PollLeader,
    ResignReason,
    ShutdownRequested,
    State,
    Ticked,
    TurnChanged,
)
from replication.election_times import ElectionTimes

LATER = Leader("later", 9, 120)


def follower(**times: int) -> Election:
    """It has read at 0 that another node leads, and no call is in flight."""
    election = Election("me", ElectionTimes(**times))
    assert told(election, Ticked(0), LeaderRead(0, OTHERS)) == (PollLeader(),)
    return election


def test_a_follower_deposes_who_is_found_dead_and_campaigns_at_once() -> None:
    """docs/design/election.md, "Pulse"."""
    election = follower()
    assert told(election, LeaderFoundDead(10, OTHERS.lease_id)) == (Depose(OTHERS.lease_id),)
    assert told(election, LeaderRead(12, None)) == (GrantLease(3),)


def test_a_node_that_yields_in_rolling_updates_does_not_when_a_master_died() -> None:
    election = follower(yield_polls=2)
    told(election, LeaderFoundDead(10, OTHERS.lease_id))
    assert told(election, LeaderRead(12, None)) == (GrantLease(3),)
    parted = follower(yield_polls=2)
    assert told(parted, LeaderParted(10), LeaderRead(12, None)) == (PollLeader(),)


def test_a_node_that_is_far_behind_deposes_too_and_lets_others_campaign() -> None:
    """Rules: behind-waits"""
    election = follower()
    told(election, TurnChanged(1, behind=True))
    assert told(election, LeaderFoundDead(10, OTHERS.lease_id)) == (Depose(OTHERS.lease_id),)
    assert told(election, LeaderRead(12, None)) == ()


def test_who_is_found_dead_while_a_call_is_in_flight_is_deposed_after_it() -> None:
    election = follower()
    told(election, Ticked(POLL_MS))
    assert told(election, LeaderFoundDead(160, OTHERS.lease_id)) == ()
    assert told(election, LeaderRead(170, OTHERS)) == (Depose(OTHERS.lease_id),)


@pytest.mark.parametrize("leader", [None, LATER])
def test_who_leads_no_more_by_then_is_not_deposed(leader: Leader | None) -> None:
    election = follower()
    told(election, Ticked(POLL_MS), LeaderFoundDead(160, OTHERS.lease_id))
    orders = told(election, LeaderRead(170, leader), CallFailed(171), Ticked(2_000))
    assert Depose(OTHERS.lease_id) not in orders


def test_a_failed_deposition_is_repeated_when_the_death_is_told_again() -> None:
    election = follower()
    told(election, LeaderFoundDead(10, OTHERS.lease_id), CallFailed(1_010))
    told(election, LeaderRead(1_011, OTHERS))
    assert told(election, LeaderFoundDead(1_020, OTHERS.lease_id)) == (Depose(OTHERS.lease_id),)


def test_another_leader_found_instead_is_followed() -> None:
    election = follower()
    told(election, LeaderFoundDead(10, OTHERS.lease_id))
    assert told(election, LeaderRead(12, LATER)) == ()
    assert election.state is State.FOLLOWER


def test_nobody_is_deposed_but_by_a_follower() -> None:
    stopped = follower()
    told(stopped, Ticked(POLL_MS), LeaderFoundDead(160, 8), ShutdownRequested(161))
    assert told(stopped, LeaderRead(170, OTHERS)) == ()
    for election in (campaigning(), master(), resigning(ResignReason.HIGHER_TERM)):
        assert told(election, LeaderFoundDead(600, OTHERS.lease_id)) == ()


def test_a_farewell_is_followed_by_a_reading_at_once_also_behind_one_that_came_too_early() -> None:
    election = follower()
    assert told(election, LeaderParted(10)) == (PollLeader(),)
    assert told(election, LeaderRead(11, None)) == (GrantLease(3),)
    early = follower()
    told(early, Ticked(POLL_MS), LeaderParted(151))
    assert told(early, LeaderRead(152, OTHERS)) == (PollLeader(),)


def test_a_node_that_may_not_be_master_now_deposes_for_the_others() -> None:
    election = follower()
    told(election, FaultFound(1, ResignReason.DISK_FAILED))
    assert told(election, LeaderFoundDead(10, OTHERS.lease_id)) == (Depose(OTHERS.lease_id),)
    assert told(election, LeaderRead(12, None)) == ()


def test_only_the_leadership_that_was_found_dead_is_deposed() -> None:
    """Though another one of the same life began meanwhile.

    Rules: depose-lease
    """
    clock = ManualClock(0)
    client = MemoryCoordination(MemoryEtcd(clock), "test")
    held = Identity("master", "m-1", "host:1")
    calls = EtcdCalls(client, clock, Identity("me", "f-1", "host:2"))
    first, second = client.grant_lease(TTL_MS), client.grant_lease(TTL_MS)
    client.campaign(0, held.leader_value(second.id), second.id)
    answer = calls.carry_out(Depose(first.id))
    assert isinstance(answer, LeaderRead) and answer.leader is not None
    assert answer.leader.lease_id == second.id
    assert calls.carry_out(Depose(second.id)) == LeaderRead(0, None)
