"""Elections that tests begin with: a node that campaigns, leads or resigns."""

from replication.election import Election
from replication.election_facts import (
    Campaign,
    CampaignAnswered,
    Effects,
    Event,
    FaultFound,
    GrantLease,
    Leader,
    LeaderRead,
    LeaseGranted,
    PollLeader,
    ResignReason,
    StartDelivery,
    StopDelivery,
    Ticked,
)

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
