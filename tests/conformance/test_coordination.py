"""One suite for every coordination: the twin in memory and the real etcd.

Not here: the twin's own faults (`test_coordination_twin.py`), and endpoints that are silent, frozen
or gone (`test_coordination_etcd.py`).
"""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol
from uuid import uuid4

import pytest
from manual_clock import ManualClock

from delayd.coordination import Coordination, Leadership, StoredProgress
from delayd.coordination.etcd import EtcdCoordination
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd, Outcome
from delayd.dev.cluster import LocalCluster
from delayd.errors import CoordinationError
from delayd.runtime.clock import SystemClock

TTL_S = 2
EXPIRY_MS_MAX = TTL_S * 1_000 + 2_500
"""The TTL and what a loaded machine may take on top."""


class Site(Protocol):
    """A cluster name in some etcd, any number of clients, and a way to wait for something."""

    cluster: str

    def client(self) -> Coordination: ...

    def eventually(self, condition: Callable[[], bool], within_ms: int) -> None: ...

    def after_lost_response(self, call: Callable[[Coordination], object]) -> Coordination:
        """A client whose call was applied and whose answer never arrived."""


class MemorySite:
    cluster = "test"

    def __init__(self) -> None:
        self.clock = ManualClock(5_000)
        self.etcd = MemoryEtcd(self.clock, expiry_lag_ms=300)

    def client(self) -> MemoryCoordination:
        return MemoryCoordination(self.etcd, "test")

    def eventually(self, condition: Callable[[], bool], within_ms: int) -> None:
        for _ in range(within_ms // 10):
            if condition():
                return
            self.clock.now_ms += 10
        pytest.fail(f"did not happen within {within_ms} ms")

    def after_lost_response(self, call: Callable[[Coordination], object]) -> Coordination:
        client = self.client()
        client.fail_next(Outcome.APPLIED)
        with pytest.raises(CoordinationError):
            call(client)
        return client


class EtcdSite:
    def __init__(self, url: str) -> None:
        self.url = url
        self.cluster = f"test-{uuid4().hex}"
        self.opened: list[EtcdCoordination] = []

    def client(self) -> EtcdCoordination:
        self.opened.append(EtcdCoordination([self.url], self.cluster, timeout_ms=5_000))
        return self.opened[-1]

    def eventually(self, condition: Callable[[], bool], within_ms: int) -> None:
        wait_until(condition, within_ms)

    def after_lost_response(self, call: Callable[[Coordination], object]) -> Coordination:
        with proxy_that_swallows_answers(self.url) as url:
            deaf = EtcdCoordination([url, self.url], self.cluster, timeout_ms=3_000)
            self.opened.append(deaf)
            with pytest.raises(CoordinationError):
                call(deaf)
        return deaf


def wait_until(condition: Callable[[], bool], within_ms: int) -> None:
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + within_ms
    while not condition():
        assert clock.monotonic_ms() < deadline_ms, f"did not happen within {within_ms} ms"


@contextmanager
def proxy_that_swallows_answers(url: str) -> Iterator[str]:
    """Passes one request on to `url`, waits for its answer, and hangs up instead of passing it."""
    host, port = url.removeprefix("http://").split(":")

    def serve_once(listener: socket.socket) -> None:
        caller, _ = listener.accept()
        with caller, socket.create_connection((host, int(port)), timeout=5) as upstream:
            while True:
                upstream.sendall(caller.recv(65_536))
                upstream.settimeout(0.5)
                try:
                    if upstream.recv(65_536):
                        return
                except TimeoutError:
                    caller.settimeout(5)

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor(max_workers=1) as threads,
    ):
        served = threads.submit(serve_once, listener)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        served.result(timeout=10)


@pytest.fixture
def etcd_url(kafka_and_etcd: LocalCluster) -> str:
    """The session's etcd: shared, so nothing here may freeze or kill it."""
    return kafka_and_etcd.etcd_url


@pytest.fixture(params=["memory", pytest.param("etcd", marks=pytest.mark.real)])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    if request.param == "memory":
        yield MemorySite()
        return
    real = EtcdSite(request.getfixturevalue("etcd_url"))
    yield real
    for client in real.opened:
        client.close()


def test_the_leader_key_is_created_if_absent_and_then_stays_the_first_owners(site: Site) -> None:
    first, second = site.client(), site.client()
    assert first.leader(0) is None
    won = first.campaign(0, "first", first.grant_lease(TTL_S).id)
    lost = second.campaign(0, "second", second.grant_lease(TTL_S).id)
    assert won.owner == "first"
    assert won.create_revision > 0
    assert lost == won
    assert second.leader(0) == won


def test_the_holders_of_all_leader_keys_are_read_at_once(site: Site) -> None:
    client = site.client()
    assert client.leaders() == {}
    lease_id = client.grant_lease(TTL_S).id
    held = {shard: client.campaign(shard, f"owner-{shard}", lease_id) for shard in (0, 3, 12)}
    assert client.put_cursor(3, held[3], "{}")
    assert site.client().leaders() == held
    client.revoke(lease_id)
    assert site.client().leaders() == {}


def test_an_owner_may_hold_any_text(site: Site) -> None:
    client = site.client()
    owner = '{"node": "Zürich-1", "nonce": "✓"}'
    assert client.campaign(0, owner, client.grant_lease(TTL_S).id).owner == owner
    assert site.client().leader(0) == client.leader(0)


def test_only_one_of_many_concurrent_campaigners_wins(site: Site) -> None:
    owners = [f"owner-{number}" for number in range(12)]

    def campaign(owner: str) -> Leadership:
        client = site.client()
        return client.campaign(0, owner, client.grant_lease(TTL_S).id)

    with ThreadPoolExecutor(max_workers=len(owners)) as threads:
        answers = list(threads.map(campaign, owners))
    winners = [
        owner for owner, answer in zip(owners, answers, strict=True) if answer.owner == owner
    ]
    assert len(winners) == 1
    assert set(answers) == {site.client().leader(0)}


def test_progress_is_written_by_who_leads_and_after_what_it_has_read(site: Site) -> None:
    """docs/design/frontier.md, At least once."""
    client = site.client()
    leading = client.campaign(0, "first", client.grant_lease(TTL_S).id)
    assert client.progress(0, leading) == StoredProgress(b"", 0)
    first = client.put_progress(0, leading, b'{"step": "\xc3\xa9"}', after=0)
    assert first is not None and first > leading.create_revision
    assert site.client().progress(0, leading) == StoredProgress(b'{"step": "\xc3\xa9"}', first)
    second = client.put_progress(0, leading, b"2", after=first)
    assert second is not None and second > first
    for after in (0, first):
        assert client.put_progress(0, leading, b"late", after=after) is None
    assert client.progress(0, leading) == StoredProgress(b"2", second)


def test_who_does_not_lead_any_more_neither_reads_nor_writes_progress(site: Site) -> None:
    """docs/design/frontier.md, At least once: nor does who leads again, under its old creation.

    Rules: progress-guarded
    """
    client = site.client()
    lease = client.grant_lease(TTL_S)
    before = client.campaign(0, "first", lease.id)
    written = client.put_progress(0, before, b"1", after=0)
    client.revoke(lease.id)
    assert client.progress(0, before) is None
    now = client.campaign(0, "first", client.grant_lease(TTL_S).id)
    assert written is not None
    assert client.put_progress(0, before, b"2", after=written) is None
    assert client.progress(0, before) is None
    assert client.progress(0, now) == StoredProgress(b"1", written), "it outlives the lease"


def test_a_progress_whose_answer_was_lost_is_read_again(site: Site) -> None:
    """docs/design/election.md: a call whose answer is lost is read again, never repeated."""
    first = site.client()
    leading = first.campaign(0, "first", first.grant_lease(60).id)
    deaf = site.after_lost_response(lambda c: c.put_progress(0, leading, b"1", after=0))
    found = deaf.progress(0, leading)
    assert found is not None and found.value == b"1"
    assert deaf.put_progress(0, leading, b"1", after=0) is None


def test_one_client_may_be_used_by_many_threads(site: Site) -> None:
    client = site.client()
    lease = client.grant_lease(TTL_S)
    nodes = [f"node-{number}" for number in range(24)]
    with ThreadPoolExecutor(max_workers=len(nodes)) as threads:
        list(threads.map(lambda node: client.put_member(node, f"<{node}>", lease.id), nodes))
    assert client.members() == {node: f"<{node}>" for node in nodes}


def test_shards_are_led_independently(site: Site) -> None:
    client = site.client()
    client.campaign(0, "zero", client.grant_lease(TTL_S).id)
    assert client.leader(1) is None
    assert client.campaign(1, "one", client.grant_lease(TTL_S).id).owner == "one"


def test_a_lease_is_granted_for_two_seconds_at_least(site: Site) -> None:
    client = site.client()
    assert client.grant_lease(1).ttl_ms == 2_000
    assert client.grant_lease(5).ttl_ms == 5_000


def test_keeping_a_lease_alive_answers_the_ttl_that_runs_now(site: Site) -> None:
    client = site.client()
    assert client.keep_alive(client.grant_lease(3).id) == 3_000


def test_a_dead_lease_cannot_be_kept_alive_and_can_be_revoked_again(site: Site) -> None:
    client = site.client()
    lease = client.grant_lease(TTL_S)
    client.revoke(lease.id)
    client.revoke(lease.id)
    assert client.keep_alive(lease.id) is None
    assert client.keep_alive(987_654_321) is None


def test_a_lease_that_nobody_keeps_alive_frees_the_leader_key(site: Site) -> None:
    holder, other = site.client(), site.client()
    lease = holder.grant_lease(TTL_S)
    won = holder.campaign(0, "holder", lease.id)
    site.eventually(lambda: other.leader(0) is None, EXPIRY_MS_MAX)
    assert holder.keep_alive(lease.id) is None
    successor = other.campaign(0, "successor", other.grant_lease(TTL_S).id)
    assert successor.owner == "successor"
    assert successor.create_revision > won.create_revision


def test_a_lease_that_is_kept_alive_holds_the_leader_key_beyond_its_ttl(site: Site) -> None:
    holder, other = site.client(), site.client()
    kept, dying = holder.grant_lease(TTL_S), holder.grant_lease(TTL_S)
    holder.campaign(0, "kept", kept.id)
    holder.campaign(1, "dying", dying.id)

    def dead_while_the_other_is_kept_alive() -> bool:
        assert holder.keep_alive(kept.id) == TTL_S * 1_000
        return other.leader(1) is None

    site.eventually(dead_while_the_other_is_kept_alive, EXPIRY_MS_MAX)
    assert other.leader(0) is not None


def test_revoking_a_lease_frees_the_leader_key_at_once(site: Site) -> None:
    client = site.client()
    lease = client.grant_lease(TTL_S)
    client.campaign(0, "first", lease.id)
    client.revoke(lease.id)
    assert client.leader(0) is None
    assert client.campaign(0, "second", client.grant_lease(TTL_S).id).owner == "second"


def test_a_node_that_ends_anothers_lease_ends_that_campaigns_key_alone(site: Site) -> None:
    """How a master is deposed.

    Rules: depose-lease
    """
    master, other = site.client(), site.client()
    lease = master.grant_lease(TTL_S)
    master.campaign(0, "master", lease.id)
    master.put_member("n", "member", master.grant_lease(10).id)
    other.revoke(lease.id)
    assert other.leader(0) is None
    assert master.keep_alive(lease.id) is None, "it learns of it"
    assert other.members() == {"n": "member"}
    again = master.campaign(0, "master", master.grant_lease(TTL_S).id)
    other.revoke(lease.id)
    assert other.leader(0) == again, "a later leadership of the same owner stays"


def test_a_campaign_whose_answer_was_lost_is_recognised_by_its_own_owner(site: Site) -> None:
    lease = site.client().grant_lease(10)
    client = site.after_lost_response(lambda each: each.campaign(0, "mine", lease.id))
    found = client.leader(0)
    assert found is not None
    assert found.owner == "mine"
    assert client.campaign(0, "mine", lease.id) == found


def test_a_campaign_under_a_dead_lease_is_refused_and_creates_nothing(site: Site) -> None:
    client = site.client()
    lease = client.grant_lease(TTL_S)
    client.revoke(lease.id)
    with pytest.raises(CoordinationError):
        client.campaign(0, "late", lease.id)
    assert client.leader(0) is None


def test_the_leader_mirrors_its_cursor(site: Site) -> None:
    client = site.client()
    won = client.campaign(0, "first", client.grant_lease(TTL_S).id)
    assert client.cursor(0) is None
    assert client.put_cursor(0, won, '{"due_ms": 1}')
    assert client.put_cursor(0, won, '{"due_ms": 2}')
    assert site.client().cursor(0) == '{"due_ms": 2}'
    assert client.cursor(1) is None


def test_a_cursor_is_refused_after_the_leadership_changed(site: Site) -> None:
    """Rules: mirror-guarded"""
    client = site.client()
    lease = client.grant_lease(TTL_S)
    former = client.campaign(0, "same owner", lease.id)
    assert client.put_cursor(0, former, "former")
    client.revoke(lease.id)
    assert not client.put_cursor(0, former, "while nobody leads")
    current = client.campaign(0, "same owner", client.grant_lease(TTL_S).id)
    assert not client.put_cursor(0, former, "while another leads")
    assert client.cursor(0) == "former"
    assert client.put_cursor(0, current, "current")
    assert client.cursor(0) == "current"


def test_members_appear_and_vanish_with_their_leases(site: Site) -> None:
    client = site.client()
    leaving, staying = client.grant_lease(TTL_S), client.grant_lease(60)
    assert client.members() == {}
    client.put_member("node-1", "one", leaving.id)
    client.put_member("node-2", "two", staying.id)
    assert client.members() == {"node-1": "one", "node-2": "two"}
    site.eventually(lambda: client.members() == {"node-2": "two"}, EXPIRY_MS_MAX)
    client.revoke(staying.id)
    assert client.members() == {}


def test_a_member_under_a_dead_lease_is_refused(site: Site) -> None:
    client = site.client()
    with pytest.raises(CoordinationError):
        client.put_member("node-1", "one", 987_654_321)
    assert client.members() == {}


def test_a_member_is_known_beyond_its_lease_until_it_is_forgotten(site: Site) -> None:
    client = site.client()
    lease = client.grant_lease(60)
    assert client.known() == set()
    client.put_member("node-1", "one", lease.id)
    client.put_member("node-2", "two", lease.id)
    client.revoke(lease.id)
    assert client.members() == {}
    assert client.known() == {"node-1", "node-2"}
    client.forget("node-1")
    client.forget("node-9")
    assert client.known() == {"node-2"}
    with pytest.raises(CoordinationError):
        client.put_member("node-3", "three", lease.id)
    assert client.known() == {"node-2"}, "the two keys are written together or not at all"


def test_one_node_at_a_time_has_the_turn_to_repair(site: Site) -> None:
    """docs/design/repairing.md, "Two at once"."""
    a, b = site.client(), site.client()
    assert a.repair_claim() is None
    first, second = a.grant_lease(60).id, b.grant_lease(60).id
    assert a.claim_repair("a", first) == "a"
    assert b.claim_repair("b", second) == "a", "it is taken"
    assert a.claim_repair("a again", first) == "a"
    assert b.repair_claim() == "a"
    assert a.members() == {} and a.leader(0) is None
    a.revoke(first)
    assert b.repair_claim() is None
    assert b.claim_repair("b", second) == "b"
    b.revoke(second)


def test_settings_can_be_written_again(site: Site) -> None:
    client = site.client()
    client.put_settings("{}")
    client.put_settings('{"lanes": 64}')


def test_clusters_of_one_name_have_keys_of_their_own(site: Site) -> None:
    """docs/design/election.md, Realm."""
    nameless = site.client()
    mine, theirs = site.client(), site.client()
    mine.enter(f"{site.cluster}/mine")
    theirs.enter(f"{site.cluster}/the/irs")
    leases = [client.grant_lease(60).id for client in (nameless, mine, theirs)]
    for client, lease_id in zip((nameless, mine, theirs), leases, strict=True):
        held = client.campaign(0, f"of {lease_id}", lease_id)
        assert held.owner == f"of {lease_id}"
        assert client.put_cursor(0, held, "{}")
        assert client.settings() is None
        client.put_settings(f"of {lease_id}")
        client.put_member("node-1", f"of {lease_id}", lease_id)
    for client, lease_id in zip((nameless, mine, theirs), leases, strict=True):
        assert client.settings() == f"of {lease_id}"
        assert client.members() == {"node-1": f"of {lease_id}"}
    assert sorted(theirs.members_by_realm().values(), key=str) == sorted(
        ({"node-1": f"of {lease_id}"} for lease_id in leases), key=str
    )


def test_a_closed_client_refuses_and_can_be_closed_again(site: Site) -> None:
    client = site.client()
    client.close()
    client.close()
    with pytest.raises(CoordinationError):
        client.leader(0)
