"""Coordination: what delayd needs of etcd, as a port.

`etcd.py` is the real one (etcd3gw over HTTP), `memory.py` the deterministic twin. One conformance
suite (`tests/conformance/test_coordination.py`) runs on both.

etcd only decides who *tries* to be master and mirrors progress for people. It is not a fence: the
transactional id in Kafka is. Only a cluster whose guarantee is at-least-once keeps its progress
here.

Invariants: every call is blocking and bounded by the time-out given at construction; a failure is
a CoordinationError and its outcome is unknown; no call is retried blindly, a caller re-reads and
compares. Every failed endpoint makes the next call use the next one.
"""

from typing import NamedTuple, Protocol


class Lease(NamedTuple):
    """A granted lease. `ttl_ms` is what etcd granted, not what was asked (its floor is 2 s)."""

    id: int
    ttl_ms: int


class Leadership(NamedTuple):
    """The leader key of a shard: its value, and the revision that created it (the guard)."""

    owner: str
    """JSON: {"node", "nonce", "admin", "lease"}."""
    create_revision: int


class StoredProgress(NamedTuple):
    """The progress of a shard as it was written last, and the revision of that (the guard)."""

    value: bytes
    """A frontier record; empty if none was ever written."""
    revision: int
    """0 if none was ever written."""


class Coordination(Protocol):
    """The keys of one cluster."""

    def enter(self, realm: str) -> None:
        """Use the keys of this realm (`Settings.realm`); before, those of the cluster's name."""

    def grant_lease(self, ttl_s: int) -> Lease:
        """Grant a new lease; its TTL may be longer than asked."""

    def keep_alive(self, lease_id: int) -> int | None:
        """Renew a lease; return the TTL in ms that now runs, or None if the lease is dead."""

    def revoke(self, lease_id: int) -> None:
        """End a lease and every key under it; a dead lease is no error."""

    def campaign(self, shard: int, owner: str, lease_id: int) -> Leadership:
        """Create the leader key if absent, under the lease; return its holder afterwards.

        The caller won if and only if the returned owner is its own (owners carry a nonce).
        """

    def leader(self, shard: int) -> Leadership | None:
        """Return the holder of the leader key now."""

    def leaders(self) -> dict[int, Leadership]:
        """Return the holders of all leader keys now, by shard, in one call."""

    def put_cursor(self, shard: int, leadership: Leadership, cursor: str) -> bool:
        """Mirror the cursor (JSON) if the leader key is still that creation; False if not."""

    def cursor(self, shard: int) -> str | None:
        """Return the mirrored cursor, as last written."""

    def progress(self, shard: int, leadership: Leadership) -> StoredProgress | None:
        """Return what was written last; None if the leader key is no longer that creation.

        Linearizable: whoever wrote before the leader key was created is seen.
        """

    def put_progress(
        self, shard: int, leadership: Leadership, value: bytes, *, after: int
    ) -> int | None:
        """Write the progress if the leader key is still that creation and nobody, not even the
        caller, has written it since the revision `after`; its new revision, None if not so.
        """

    def put_member(self, node: str, value: str, lease_id: int) -> None:
        """Announce a node (JSON) under its lease, and remember its name beyond that."""

    def members(self) -> dict[str, str]:
        """Return the announced nodes by name."""

    def known(self) -> frozenset[str]:
        """Return the names of all nodes that were announced and not forgotten since."""

    def forget(self, node: str) -> None:
        """Forget a node; one that is not known is no error. An announcement brings it back."""

    def members_by_realm(self) -> dict[str, dict[str, str]]:
        """Return the announced nodes of all clusters of that name, by cluster and by name."""

    def claim_repair(self, owner: str, lease_id: int) -> str:
        """Create the key of who repairs its wheel if absent, under the lease; return who it is
        afterwards (JSON)."""

    def repair_claim(self) -> str | None:
        """Return who repairs its wheel now."""

    def settings(self) -> str | None:
        """Return the copy of the settings, as last written."""

    def put_settings(self, settings: str) -> None:
        """Copy the cluster's settings (JSON); the truth is the frontier record."""

    def close(self) -> None:
        """Release connections. Idempotent."""
