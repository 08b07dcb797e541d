"""etcd as the coordination of a cluster: etcd3gw over HTTP, one call per operation.

Not here: who should be master (`replication/election.py`), retries and back-off (the caller's).

Invariants:
- One operation is one HTTP request, sent at most once, bounded by the time-out given at
  construction (connecting and reading share it; resolving a host name is outside it). A user's
  token is requested before it, within the same time. A request is sent again only if etcd refused
  it because of the token, and so did not carry it out.
- Every read is part of a transaction, so it is linearizable, and an answer that is not etcd's is
  an error: etcd3gw's `get` would take it for a key that does not exist.
- A failure is a CoordinationError, its outcome is unknown, its connection is thrown away, and the
  next call uses the next endpoint.
- Threads never share a connection: a call borrows an idle client or makes one, and returns it
  afterwards, so any number of threads may call at the same time.
- Proxy settings of the environment are ignored: they are not meant for etcd.

Source: docs/design/election.md, "Keys"; the etcd v3 API (needs etcd >= 3.4).
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from etcd3gw.client import Etcd3Client
from etcd3gw.exceptions import Etcd3Exception
from etcd3gw.lease import Lease as Etcd3Lease

from delayd.coordination import Leadership, Lease, StoredProgress
from delayd.coordination.etcd_json import (
    Json,
    decoded,
    encoded,
    is_created_at,
    is_done,
    is_written_at,
    key_range,
    keys_in,
    leadership_of,
    value_of,
)
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
from delayd.coordination.remedies import remedy_of
from delayd.errors import ConfigError, CoordinationError, EtcdUnreachableError
from delayd.runtime.clock import Clock, SystemClock

DEFAULT_TIMEOUT_MS = 1_000
"""With a TTL of 3 s a keepalive goes out after 1 s and the master's deadline is at 2.4 s: at 1 s,
one frozen endpoint costs one keepalive and the next endpoint is still asked in time. At 1.5 s not.
"""

CONNECT_SHARE = 1 / 3
"""The part of the time-out that connecting may use; reading has the rest."""

IDLE_CLIENTS_MAX = 8
"""Connections kept open for reuse; more threads than this at once open their own for one call."""

MEMBERS_MAX = 1_000
"""Members read at most; every node reads the whole log, so a cluster has a handful."""

KEYS_MAX = 10 * MEMBERS_MAX
"""Keys read at most of all clusters of one name: members, and a few of former clusters."""

REACH_PAUSE_S = 0.1
"""Between two rounds over all endpoints while a start waits for etcd."""

_LEASE_NOT_FOUND = "requested lease not found"
_TOKEN = "Authorization"
_TOKEN_ENDED = "invalid auth token"

T = TypeVar("T")


class _LeaseNotFoundError(CoordinationError):
    """etcd is well and said that there is no such lease: known, not unknown."""


class EtcdCoordination:
    """The port `Coordination` on a real etcd.

    `endpoints` are URLs like `http://10.0.0.1:2379`; with `https` the CA and the client
    certificate are PEM files. With a user, its password too. Raises ConfigError if an endpoint
    makes no sense.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        cluster: str,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        user: str | None = None,
        password: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        assert timeout_ms > 0, f"timeout_ms must be positive, not {timeout_ms}"
        self._endpoints = tuple(_checked_endpoint(endpoint) for endpoint in endpoints)
        if not self._endpoints:
            raise ConfigError("no etcd endpoint is given", remedy="name at least one URL")
        if (cert_file is None) != (key_file is None):
            raise ConfigError(
                "only one of etcd's client certificate and its key is given",
                remedy="set both, or neither",
            )
        plain = [url for url in self._endpoints if not url.startswith("https:")]
        if plain and (ca_file or cert_file):
            raise ConfigError(
                f"a certificate or an authority is given for {plain[0]}, which is without TLS",
                remedy="write the endpoint with https://, or remove etcd_ca_file, etcd_cert_file",
            )
        self._cluster = self._realm = cluster
        self._timeout_ms = timeout_ms
        self._credentials = {"name": user, "password": password or ""} if user else None
        self._ca_file = ca_file
        self._cert = (cert_file, key_file) if cert_file and key_file else None
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        # Guarded by the lock: the endpoint in use, and the idle clients, all of that endpoint.
        self._current = 0
        self._idle: list[Etcd3Client] = []
        self._closed = False

    @property
    def endpoint(self) -> str:
        """Return the endpoint that the next call uses."""
        with self._lock:
            return self._endpoints[self._current]

    def check_reachable(self, timeout_ms: int) -> None:
        """Return as soon as any endpoint answers a linearizable read; for start-up.

        Raises EtcdUnreachableError if none did within `timeout_ms`.
        """
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        failures: dict[str, str] = {}
        while True:
            for _ in self._endpoints:
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if left_ms <= 0:
                    raise EtcdUnreachableError(
                        f"no etcd endpoint answered within {timeout_ms} ms: "
                        + "; ".join(f"{url}: {why}" for url, why in failures.items()),
                        remedy=remedy_of("; ".join(failures.values())),
                    )
                endpoint = self.endpoint
                try:
                    within_ms = min(left_ms, self._timeout_ms)
                    self._reads(settings_key(self._cluster), timeout_ms=within_ms)
                    return
                except CoordinationError as error:
                    told = _told(error.__cause__ or error)
                    # A refusal says more than the time-out of a later attempt.
                    if endpoint not in failures or "timed out" not in told:
                        failures[endpoint] = told
            threading.Event().wait(REACH_PAUSE_S)

    def enter(self, realm: str) -> None:
        self._realm = realm

    def grant_lease(self, ttl_s: int) -> Lease:
        def grant(client: Etcd3Client) -> Lease:
            # etcd3gw's own lease() forgets the TTL that was granted; this is the same request.
            answer = client.post(client.get_url("/lease/grant"), json={"TTL": ttl_s, "ID": 0})
            return Lease(int(answer["ID"]), int(answer["TTL"]) * 1_000)

        return self._call("lease/grant", grant)

    def keep_alive(self, lease_id: int) -> int | None:
        # A dead lease is answered without a TTL.
        ttl_s = self._call("lease/keepalive", lambda c: Etcd3Lease(lease_id, c).refresh())
        return ttl_s * 1_000 if ttl_s > 0 else None

    def revoke(self, lease_id: int) -> None:
        with suppress(_LeaseNotFoundError):
            self._call("lease/revoke", lambda client: Etcd3Lease(lease_id, client).revoke())

    def campaign(self, shard: int, owner: str, lease_id: int) -> Leadership:
        return self._created(leader_key(self._realm, shard), owner, lease_id)

    def claim_repair(self, owner: str, lease_id: int) -> str:
        return self._created(repair_key(self._realm), owner, lease_id).owner

    def repair_claim(self) -> str | None:
        return self._read(repair_key(self._realm), value_of)

    def _created(self, key: str, owner: str, lease_id: int) -> Leadership:
        put = {"key": encoded(key), "value": encoded(owner), "lease": lease_id}
        return self._transact(
            [is_created_at(key, 0)],
            [{"request_put": put}, {"request_range": key_range(key)}],
            lambda answer: leadership_of(keys_in(answer)[0]),
            otherwise=[{"request_range": key_range(key)}],
        )

    def leader(self, shard: int) -> Leadership | None:
        return self._read(leader_key(self._realm, shard), leadership_of)

    def leaders(self) -> dict[int, Leadership]:
        return leaders_in(self._below(shards_prefix(self._realm), KEYS_MAX, leadership_of))

    def put_cursor(self, shard: int, leadership: Leadership, cursor: str) -> bool:
        put = {"key": encoded(cursor_key(self._realm, shard)), "value": encoded(cursor)}
        return self._transact([self._leads(shard, leadership)], [{"request_put": put}], is_done)

    def cursor(self, shard: int) -> str | None:
        return self._read(cursor_key(self._realm, shard), value_of)

    def progress(self, shard: int, leadership: Leadership) -> StoredProgress | None:
        def read(answer: Json) -> StoredProgress | None:
            if not is_done(answer):
                return None
            for found in keys_in(answer):
                return StoredProgress(value_of(found).encode(), int(found["mod_revision"]))
            return StoredProgress(b"", 0)

        reads = [{"request_range": key_range(progress_key(self._realm, shard))}]
        return self._transact([self._leads(shard, leadership)], reads, read)

    def put_progress(
        self, shard: int, leadership: Leadership, value: bytes, *, after: int
    ) -> int | None:
        key = progress_key(self._realm, shard)
        return self._transact(
            [self._leads(shard, leadership), is_written_at(key, after)],
            [{"request_put": {"key": encoded(key), "value": encoded(value.decode())}}],
            lambda answer: int(answer["header"]["revision"]) if is_done(answer) else None,
        )

    def put_member(self, node: str, value: str, lease_id: int) -> None:
        key, known = members_prefix(self._realm) + node, known_prefix(self._realm) + node
        announced = {"key": encoded(key), "value": encoded(value), "lease": lease_id}
        puts = [announced, {"key": encoded(known), "value": ""}]
        self._transact([], [{"request_put": put} for put in puts], is_done)

    def known(self) -> frozenset[str]:
        return frozenset(self._below(known_prefix(self._realm), MEMBERS_MAX, value_of))

    def forget(self, node: str) -> None:
        key = encoded(known_prefix(self._realm) + node)
        self._transact([], [{"request_delete_range": {"key": key}}], is_done)

    def members(self) -> dict[str, str]:
        return self._below(members_prefix(self._realm), MEMBERS_MAX, value_of)

    def members_by_realm(self) -> dict[str, dict[str, str]]:
        return members_by_realm(self._below(cluster_prefix(self._cluster), KEYS_MAX, value_of))

    def settings(self) -> str | None:
        return self._read(settings_key(self._realm), value_of)

    def _below(self, prefix: str, limit: int, read: Callable[[Json], T]) -> dict[str, T]:
        # The first key behind a prefix is the prefix with its last byte, the slash, plus one.
        end = encoded(prefix[:-1] + "0")
        return {
            decoded(found["key"]).removeprefix(prefix): read(found)
            for found in self._reads(prefix, range_end=end, limit=limit)
        }

    def put_settings(self, settings: str) -> None:
        key = settings_key(self._realm)
        self._call("kv/put", lambda client: client.put(key.encode(), settings.encode()))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for client in idle:
            client.session.close()

    def _leads(self, shard: int, leadership: Leadership) -> Json:
        return is_created_at(leader_key(self._realm, shard), leadership.create_revision)

    def _read(self, key: str, read: Callable[[Json], T]) -> T | None:
        return next(map(read, self._reads(key)), None)

    def _reads(self, key: str, *, timeout_ms: int | None = None, **more: object) -> list[Json]:
        """Return what is below a key, or in a range of keys.

        No transaction: etcd 3.5 before 3.5.5 panics if a client that reads in one gives up (its
        issue 14110).
        """
        asks = key_range(key, **more)

        def ask(client: Etcd3Client) -> list[Json]:
            answer = client.post(client.get_url("/kv/range"), json=asks)
            int(answer["header"]["revision"])  # whatever is not etcd's answer has none
            return list(answer.get("kvs", ()))

        return self._call("kv/range", ask, timeout_ms)

    def _transact(
        self,
        compare: Sequence[Json],
        then: Sequence[Json],
        read: Callable[[Json], T],
        *,
        otherwise: Sequence[Json] = (),
    ) -> T:
        transaction = {"compare": compare, "success": then, "failure": otherwise}
        return self._call("kv/txn", lambda client: read(client.transaction(transaction)))

    def _call(self, path: str, do: Callable[[Etcd3Client], T], timeout_ms: int | None = None) -> T:
        deadline_ms = self._clock.monotonic_ms() + (timeout_ms or self._timeout_ms)
        index, client = self._borrow()
        try:
            answer = self._asked(client, do, deadline_ms)
        except (
            Etcd3Exception,
            requests.RequestException,
            AttributeError,
            KeyError,
            IndexError,
            TypeError,
            ValueError,
        ) as error:
            if _LEASE_NOT_FOUND in (getattr(error, "detail_text", None) or ""):
                self._give_back(index, client)
                raise _LeaseNotFoundError(
                    f"etcd knows no such lease ({path})", remedy="ask for a new lease"
                ) from error
            self._discard(index, client)
            raise CoordinationError(
                f"etcd at {self._endpoints[index]} did not answer {path} as expected: "
                f"{type(error).__name__} {_told(error)}",
                remedy="check that etcd runs and has a quorum; the next call tries the next",
            ) from error
        except BaseException:
            self._discard(index, client)
            raise
        self._give_back(index, client)
        return answer

    def _asked(self, client: Etcd3Client, do: Callable[[Etcd3Client], T], deadline_ms: int) -> T:
        """Return etcd's answer to one request; a connection has the user's token from its first."""
        if self._credentials is None:
            return self._bounded(client, do, deadline_ms)
        had_token = _TOKEN in client.session.headers
        if not had_token:
            self._authenticate(client, deadline_ms)
        try:
            return self._bounded(client, do, deadline_ms)
        except Etcd3Exception as error:
            # Tokens end, with etcd's process or their time. etcd does not do what it refuses.
            if not had_token or _TOKEN_ENDED not in _told(error):
                raise
        self._authenticate(client, deadline_ms)
        return self._bounded(client, do, deadline_ms)

    def _authenticate(self, client: Etcd3Client, deadline_ms: int) -> None:
        client.session.headers.pop(_TOKEN, None)
        url = client.get_url("/auth/authenticate")
        answer = self._bounded(client, lambda c: c.post(url, json=self._credentials), deadline_ms)
        client.session.headers[_TOKEN] = answer["token"]

    def _bounded(self, client: Etcd3Client, do: Callable[[Etcd3Client], T], deadline_ms: int) -> T:
        timeout_s = max(1, deadline_ms - self._clock.monotonic_ms()) / 1_000
        # etcd3gw hands this to requests unseen, which also takes (connect, read).
        bounds: Any = (timeout_s * CONNECT_SHARE, timeout_s * (1 - CONNECT_SHARE))
        client.timeout = bounds
        return do(client)

    def _borrow(self) -> tuple[int, Etcd3Client]:
        with self._lock:
            if self._closed:
                raise CoordinationError(
                    "the connection to etcd was closed", remedy="open a new one"
                )
            index = self._current
            client = self._idle.pop() if self._idle else None
        return index, client or self._connected(self._endpoints[index])

    def _give_back(self, index: int, client: Etcd3Client) -> None:
        with self._lock:
            keep = (
                not self._closed and index == self._current and len(self._idle) < IDLE_CLIENTS_MAX
            )
            if keep:
                self._idle.append(client)
        if not keep:
            client.session.close()

    def _discard(self, index: int, client: Etcd3Client) -> None:
        stale = [client]
        with self._lock:
            # Several threads may fail on one endpoint: only the first of them rotates.
            if index == self._current:
                self._current = (index + 1) % len(self._endpoints)
                stale += self._idle
                self._idle = []
        for each in stale:
            each.session.close()

    def _connected(self, endpoint: str) -> Etcd3Client:
        session = requests.Session()
        session.trust_env = False
        session.verify = self._ca_file or True
        session.cert = self._cert
        url = urlsplit(endpoint)
        assert url.hostname is not None and url.port is not None, "checked at construction"
        return Etcd3Client(
            host=url.hostname,
            port=url.port,
            protocol=url.scheme,
            api_path="/v3/",
            session=session,
        )


def _checked_endpoint(endpoint: str) -> str:
    try:
        url = urlsplit(endpoint)
        sound = url.scheme in ("http", "https") and url.hostname and url.port
    except ValueError:
        sound = None
    if not sound:
        raise ConfigError(
            f"not an etcd endpoint: {endpoint!r}", remedy="write it like http://10.0.0.1:2379"
        )
    return endpoint


def _told(error: BaseException) -> str:
    return str(getattr(error, "detail_text", None) or error)
