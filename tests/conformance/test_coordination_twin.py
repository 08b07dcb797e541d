"""The faults of etcd's twin: partitions, pauses, calls that fail as ordered."""

import pytest
from test_coordination import EXPIRY_MS_MAX, TTL_S, MemorySite

from delayd.coordination.memory import Outcome
from delayd.errors import CoordinationError


def test_a_partitioned_client_fails_while_the_others_go_on() -> None:
    site = MemorySite()
    cut_off, other = site.client(), site.client()
    cut_off.partition()
    with pytest.raises(CoordinationError):
        cut_off.leader(0)
    assert other.leader(0) is None
    cut_off.heal()
    assert cut_off.leader(0) is None


def test_a_paused_server_fails_every_call_while_leases_run_out() -> None:
    site = MemorySite()
    client = site.client()
    lease = client.grant_lease(TTL_S)
    site.etcd.pause()
    with pytest.raises(CoordinationError):
        client.keep_alive(lease.id)
    site.clock.now_ms += EXPIRY_MS_MAX
    site.etcd.resume()
    assert client.keep_alive(lease.id) is None


@pytest.mark.parametrize(
    ("outcome", "at_once", "in_the_end"),
    [
        (Outcome.NOT_APPLIED, False, False),
        (Outcome.APPLIED, True, True),
        (Outcome.LATE, False, True),
    ],
)
def test_a_call_made_to_fail_is_applied_as_ordered(
    outcome: Outcome, at_once: bool, in_the_end: bool
) -> None:
    site = MemorySite()
    client = site.client()
    lease = client.grant_lease(TTL_S)
    client.fail_next(outcome)
    with pytest.raises(CoordinationError):
        client.campaign(0, "mine", lease.id)
    assert (client.leader(0) is not None) is at_once
    site.etcd.apply_late()
    assert (client.leader(0) is not None) is in_the_end


def test_another_leader_lets_leases_that_still_run_begin_anew() -> None:
    site = MemorySite()
    client = site.client()
    lasting, ended = client.grant_lease(60), client.grant_lease(TTL_S)
    site.clock.now_ms += 59_000
    site.etcd.change_leader()
    site.clock.now_ms += 59_000
    assert client.keep_alive(lasting.id) == 60_000
    assert client.keep_alive(ended.id) is None, "it had ended before"


def test_leases_may_end_before_their_time() -> None:
    site = MemorySite()
    client = site.client()
    lease = client.grant_lease(60)
    client.campaign(0, "mine", lease.id)
    site.etcd.end_leases()
    assert client.leader(0) is None
    assert client.keep_alive(lease.id) is None
