"""The deterministic twin of etcd: the same promises, in memory, with faults on order.

`MemoryEtcd` is the shared server, `MemoryCoordination` one client of it. Time is the given
clock's monotonic time and nothing else: no call waits, a time-out is an error at once (whoever
simulates lets the clock pass). Leases end when they are looked at after their time.

Faults: a client can be partitioned; the server can be paused; the next call of a client can fail
with its effect not applied, applied, or applied late (`MemoryEtcd.apply_late`), which is what a
request in a frozen server's socket does.

Threads: every call holds the server's lock, so calls have one total order.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from delayd.coordination import Leadership, Lease, StoredProgress
from delayd.coordination.keys import (
    cluster_prefix,
    cursor_key,
    known_prefix,
    leader_key,
    leaders_in,
    members_by_realm,
    members_prefix,
    progress_key,
    repair_key,
    settings_key,
    shards_prefix,
)
from delayd.errors import CoordinationError
from delayd.runtime.clock import Clock

TTL_FLOOR_S = 2
"""etcd grants no less: its election time-out, rounded up to seconds."""

T = TypeVar("T")


class Outcome(Enum):
    """What a failed call did all the same."""

    NOT_APPLIED = "not-applied"
    APPLIED = "applied"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class _Stored:
    value: str
    create_revision: int
    lease_id: int | None
    revision: int
    """Of the last write."""


@dataclass(frozen=True, slots=True)
class _Granted:
    ttl_ms: int
    runs_out_ms: int
    """From then on it is not renewed."""
    ends_ms: int
    """Its keys are there until then."""


class MemoryEtcd:
    """One etcd for any number of clients. `expiry_lag_ms`: how long after its TTL a lease ends.

    The real one looks for dead leases twice a second: 0.2 to 0.4 s were measured. Ids of leases
    count on from `leases_before`.
    """

    def __init__(self, clock: Clock, *, expiry_lag_ms: int = 0, leases_before: int = 0) -> None:
        self._clock = clock
        self._expiry_lag_ms = expiry_lag_ms
        self._lock = threading.RLock()
        self._revision = 1
        self._last_lease_id = leases_before
        self._keys: dict[str, _Stored] = {}
        self._leases: dict[int, _Granted] = {}
        self._late: list[Callable[[], object]] = []
        self._paused = False

    @property
    def is_paused(self) -> bool:
        """Return if it answers nobody."""
        return self._paused

    def change_leader(self) -> None:
        """Let another member lead: it restarts every lease that still runs."""
        with self._lock:
            self._applied(lambda: None)
            for lease_id, granted in self._leases.items():
                self._start(lease_id, granted.ttl_ms)

    def end_leases(self) -> None:
        """End every lease before its time, as a person or a server whose clock jumps does."""
        with self._lock:
            for lease_id in list(self._leases):
                self.end_lease(lease_id)

    def wipe(self) -> None:
        """Forget all keys and leases, and count revisions from the start, as an etcd whose data was
        lost."""
        with self._lock:
            self._revision = 1
            self._keys.clear()
            self._leases.clear()
            self._late.clear()

    def pause(self) -> None:
        """Fail every call of every client until `resume`; leases keep expiring."""
        self._paused = True

    def resume(self, looks_in_ms: int = 0) -> None:
        """Answer again; one that was frozen looks only so many ms later which leases have ended."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            for lease_id, granted in self._leases.items():
                if granted.ends_ms <= now_ms:
                    self._leases[lease_id] = replace(granted, ends_ms=now_ms + looks_in_ms)
            self._paused = False

    def apply_late(self) -> None:
        """Carry out, in order, the calls that failed with Outcome.LATE."""
        with self._lock:
            late, self._late = self._late, []
            for operation in late:
                try:
                    self._applied(operation)
                except CoordinationError:
                    continue  # Refused, and nobody is there any more to hear it.

    def client_call(self, operation: Callable[[], T], fault: Outcome | None) -> T:
        """Carry out one call of a client as a whole; `fault` is what its network does to it."""
        with self._lock:
            if self._paused:
                fault = Outcome.NOT_APPLIED
            if fault is None:
                return self._applied(operation)
            if fault is Outcome.APPLIED:
                self._applied(operation)
            elif fault is Outcome.LATE:
                self._late.append(operation)
            raise CoordinationError("etcd did not answer", remedy="check that etcd runs")

    def _applied(self, operation: Callable[[], T]) -> T:
        now_ms = self._clock.monotonic_ms()
        for lease_id in [
            each for each, granted in self._leases.items() if granted.ends_ms <= now_ms
        ]:
            self.end_lease(lease_id)
        return operation()

    # What follows is called by clients from within `client_call`.

    def grant(self, ttl_s: int) -> Lease:
        """Return a new lease; ids are counted."""
        self._last_lease_id += 1
        self._start(self._last_lease_id, max(ttl_s, TTL_FLOOR_S) * 1_000)
        return Lease(self._last_lease_id, self._leases[self._last_lease_id].ttl_ms)

    def renew(self, lease_id: int) -> int | None:
        """Return the TTL in ms that runs from now, or None for a dead lease."""
        granted = self._leases.get(lease_id)
        if granted is None or self._clock.monotonic_ms() >= granted.runs_out_ms:
            return None
        self._start(lease_id, granted.ttl_ms)
        return granted.ttl_ms

    def end_lease(self, lease_id: int) -> None:
        """Delete a lease and its keys in one revision; no lease is no error."""
        if self._leases.pop(lease_id, None) is None:
            return
        held = [key for key, stored in self._keys.items() if stored.lease_id == lease_id]
        self._revision += bool(held)
        for key in held:
            del self._keys[key]

    def put(self, key: str, value: str, lease_id: int | None) -> None:
        """Write a key; under a dead lease it is refused."""
        if lease_id is not None and lease_id not in self._leases:
            raise CoordinationError("etcd knows no such lease", remedy="ask for a new lease")
        self._revision += 1
        before = self._keys.get(key)
        created = before.create_revision if before else self._revision
        self._keys[key] = _Stored(value, created, lease_id, self._revision)

    def put_beside(self, key: str, value: str) -> None:
        """Write a key without a lease, in the revision of the last write: one transaction."""
        before = self._keys.get(key)
        created = before.create_revision if before else self._revision
        self._keys[key] = _Stored(value, created, None, self._revision)

    def delete(self, key: str) -> None:
        """Delete a key; no key is no error."""
        self._revision += self._keys.pop(key, None) is not None

    def get(self, key: str) -> tuple[str, int] | None:
        """Return value and create-revision of a key, or None."""
        stored = self._keys.get(key)
        return (stored.value, stored.create_revision) if stored else None

    def revision_of(self, key: str) -> int:
        """Return the revision of a key's last write; 0 if it is absent."""
        stored = self._keys.get(key)
        return stored.revision if stored else 0

    def get_prefix(self, prefix: str) -> dict[str, str]:
        """Return values by key without the prefix, in key order."""
        return {
            key.removeprefix(prefix): stored.value
            for key, stored in sorted(self._keys.items())
            if key.startswith(prefix)
        }

    def _start(self, lease_id: int, ttl_ms: int) -> None:
        runs_out_ms = self._clock.monotonic_ms() + ttl_ms
        self._leases[lease_id] = _Granted(ttl_ms, runs_out_ms, runs_out_ms + self._expiry_lag_ms)


class MemoryCoordination:
    """The port `Coordination` on a MemoryEtcd, with this client's own faults."""

    def __init__(self, etcd: MemoryEtcd, cluster: str) -> None:
        self._etcd = etcd
        self._cluster = self._realm = cluster
        self._partitioned = self._deaf = False
        self._closed = False
        self._next_faults: list[Outcome] = []

    def enter(self, realm: str) -> None:
        self._realm = realm

    def partition(self) -> None:
        """Let no call of this client arrive until `heal`."""
        self._partitioned = True

    def deafen(self) -> None:
        """Let every call arrive and be carried out, and no answer come back, until `heal`."""
        self._deaf = True

    def heal(self) -> None:
        """Let calls arrive again, and their answers."""
        self._partitioned = self._deaf = False

    def fail_next(self, outcome: Outcome, count: int = 1) -> None:
        """Fail the next `count` calls of this client with that outcome; orders add up."""
        self._next_faults += [outcome] * count

    def grant_lease(self, ttl_s: int) -> Lease:
        return self._call(lambda: self._etcd.grant(ttl_s))

    def keep_alive(self, lease_id: int) -> int | None:
        return self._call(lambda: self._etcd.renew(lease_id))

    def revoke(self, lease_id: int) -> None:
        self._call(lambda: self._etcd.end_lease(lease_id))

    def campaign(self, shard: int, owner: str, lease_id: int) -> Leadership:
        return self._created(leader_key(self._realm, shard), owner, lease_id)

    def claim_repair(self, owner: str, lease_id: int) -> str:
        return self._created(repair_key(self._realm), owner, lease_id).owner

    def repair_claim(self) -> str | None:
        found = self._call(lambda: self._etcd.get(repair_key(self._realm)))
        return found[0] if found else None

    def _created(self, key: str, owner: str, lease_id: int) -> Leadership:
        def create_if_absent() -> Leadership:
            if self._etcd.get(key) is None:
                self._etcd.put(key, owner, lease_id)
            found = self._etcd.get(key)
            assert found is not None, f"{key} was absent and then could not be created"
            return Leadership(*found)

        return self._call(create_if_absent)

    def leader(self, shard: int) -> Leadership | None:
        found = self._call(lambda: self._etcd.get(leader_key(self._realm, shard)))
        return Leadership(*found) if found else None

    def leaders(self) -> dict[int, Leadership]:
        prefix = shards_prefix(self._realm)

        def read() -> dict[int, Leadership]:
            names = self._etcd.get_prefix(prefix)
            found = {name: self._etcd.get(prefix + name) for name in names}
            return leaders_in({name: Leadership(*held) for name, held in found.items() if held})

        return self._call(read)

    def put_cursor(self, shard: int, leadership: Leadership, cursor: str) -> bool:
        def put() -> bool:
            self._etcd.put(cursor_key(self._realm, shard), cursor, None)
            return True

        return self._if_leading(shard, leadership, put) or False

    def cursor(self, shard: int) -> str | None:
        found = self._call(lambda: self._etcd.get(cursor_key(self._realm, shard)))
        return found[0] if found else None

    def progress(self, shard: int, leadership: Leadership) -> StoredProgress | None:
        key = progress_key(self._realm, shard)

        def read() -> StoredProgress:
            found = self._etcd.get(key)
            value = b"" if found is None else found[0].encode()
            return StoredProgress(value, self._etcd.revision_of(key))

        return self._if_leading(shard, leadership, read)

    def put_progress(
        self, shard: int, leadership: Leadership, value: bytes, *, after: int
    ) -> int | None:
        key = progress_key(self._realm, shard)

        def put_if_nobody_wrote_since() -> int | None:
            if self._etcd.revision_of(key) != after:
                return None
            self._etcd.put(key, value.decode(), None)
            return self._etcd.revision_of(key)

        return self._if_leading(shard, leadership, put_if_nobody_wrote_since)

    def _if_leading(self, shard: int, leadership: Leadership, do: Callable[[], T]) -> T | None:
        """Call if the leader key is still that creation; return None if it is not."""

        def lead() -> T | None:
            found = self._etcd.get(leader_key(self._realm, shard))
            return do() if found and found[1] == leadership.create_revision else None

        return self._call(lead)

    def put_member(self, node: str, value: str, lease_id: int) -> None:
        key, known = members_prefix(self._realm) + node, known_prefix(self._realm) + node

        def put_both() -> None:
            self._etcd.put(key, value, lease_id)
            self._etcd.put_beside(known, "")

        self._call(put_both)

    def known(self) -> frozenset[str]:
        return frozenset(self._call(lambda: self._etcd.get_prefix(known_prefix(self._realm))))

    def forget(self, node: str) -> None:
        self._call(lambda: self._etcd.delete(known_prefix(self._realm) + node))

    def members(self) -> dict[str, str]:
        return self._call(lambda: self._etcd.get_prefix(members_prefix(self._realm)))

    def members_by_realm(self) -> dict[str, dict[str, str]]:
        prefix = cluster_prefix(self._cluster)
        return members_by_realm(self._call(lambda: self._etcd.get_prefix(prefix)))

    def settings(self) -> str | None:
        found = self._call(lambda: self._etcd.get(settings_key(self._realm)))
        return found[0] if found else None

    def put_settings(self, settings: str) -> None:
        self._call(lambda: self._etcd.put(settings_key(self._realm), settings, None))

    def close(self) -> None:
        self._closed = True

    def _call(self, operation: Callable[[], T]) -> T:
        if self._closed:
            raise CoordinationError("the connection to etcd was closed", remedy="open a new one")
        fault = self._next_faults.pop(0) if self._next_faults else None
        if self._deaf:
            fault = Outcome.APPLIED
        return self._etcd.client_call(
            operation, Outcome.NOT_APPLIED if self._partitioned else fault
        )
