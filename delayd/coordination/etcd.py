"""etcd as the coordination of a cluster: etcd3gw over HTTP, one call per operation.

Not here: who should be master (`replication/election.py`), retries and back-off (the caller's).

Invariants:
- One operation is one HTTP request, sent at most once, bounded by the time-out given at
  construction (connecting and reading share it; resolving a host name is outside it). A user's
  token is asked for before it, within the same time; only what etcd refused for the token's sake,
  and so did not do, is sent again.
- A failure is a CoordinationError, its outcome is unknown, its connection is thrown away, and the
  next call uses the next endpoint.
- Threads never share a connection: a call borrows an idle client or makes one, and gives it back
  afterwards, so any number of threads may call at the same time.
- Proxy settings of the environment are ignored: they are not meant for etcd.

Source: docs/design/election.md, "Keys"; the etcd v3 API (needs etcd >= 3.4).
"""

import base64
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from etcd3gw.client import Etcd3Client
from etcd3gw.exceptions import Etcd3Exception

from delayd.coordination import Leadership, Lease, StoredProgress
from delayd.coordination.keys import (
    cursor_key,
    leader_key,
    members_prefix,
    progress_key,
    settings_key,
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

REACH_PAUSE_S = 0.1
"""Between two rounds over all endpoints while a start waits for etcd."""

_LEASE_NOT_FOUND = "requested lease not found"
_TOKEN = "Authorization"
_TOKEN_ENDED = "invalid auth token"

T = TypeVar("T")
Json = dict[str, Any]


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
        self._cluster = cluster
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
        """The endpoint that the next call uses."""
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
                    body = {"key": _encoded(settings_key(self._cluster)), "count_only": True}
                    self._call("kv/range", body, lambda _: None, min(left_ms, self._timeout_ms))
                    return
                except CoordinationError as error:
                    told = _told(error.__cause__ or error)
                    # That a later try had no answer in time says less than why one was refused.
                    if endpoint not in failures or "timed out" not in told:
                        failures[endpoint] = told
            threading.Event().wait(REACH_PAUSE_S)

    def grant_lease(self, ttl_s: int) -> Lease:
        # etcd3gw's own lease() forgets the TTL that was granted; this is the same request.
        return self._call(
            "lease/grant",
            {"TTL": ttl_s, "ID": 0},
            lambda answer: Lease(int(answer["ID"]), int(answer["TTL"]) * 1_000),
        )

    def keep_alive(self, lease_id: int) -> int | None:
        # A dead lease is answered like a live one, only without a TTL.
        ttl_s = self._call(
            "lease/keepalive",
            {"ID": lease_id},
            lambda answer: int(answer["result"].get("TTL", 0)),
        )
        return ttl_s * 1_000 if ttl_s > 0 else None

    def revoke(self, lease_id: int) -> None:
        try:
            self._call("lease/revoke", {"ID": lease_id}, lambda _: None)
        except _LeaseNotFoundError:
            return

    def campaign(self, shard: int, owner: str, lease_id: int) -> Leadership:
        key = leader_key(self._cluster, shard)
        read = {"request_range": {"key": _encoded(key)}}
        put = {"key": _encoded(key), "value": _encoded(owner), "lease": lease_id}
        transaction = {
            "compare": [_created_at(key, 0)],
            "success": [{"request_put": put}, read],
            "failure": [read],
        }
        return self._call(
            "kv/txn",
            transaction,
            lambda answer: _leadership(answer["responses"][-1]["response_range"]["kvs"][0]),
        )

    def leader(self, shard: int) -> Leadership | None:
        def read(answer: Json) -> Leadership | None:
            found = answer.get("kvs", [])
            return _leadership(found[0]) if found else None

        return self._call("kv/range", {"key": _encoded(leader_key(self._cluster, shard))}, read)

    def put_cursor(self, shard: int, leadership: Leadership, cursor: str) -> bool:
        put = {"key": _encoded(cursor_key(self._cluster, shard)), "value": _encoded(cursor)}
        transaction = {
            "compare": [_created_at(leader_key(self._cluster, shard), leadership.create_revision)],
            "success": [{"request_put": put}],
            "failure": [],
        }
        # A transaction whose comparison failed is answered without `succeeded`.
        return self._call("kv/txn", transaction, lambda answer: answer.get("succeeded") is True)

    def cursor(self, shard: int) -> str | None:
        def read(answer: Json) -> str | None:
            found = answer.get("kvs", [])
            return _decoded(found[0].get("value", "")) if found else None

        return self._call("kv/range", {"key": _encoded(cursor_key(self._cluster, shard))}, read)

    def progress(self, shard: int, leadership: Leadership) -> StoredProgress | None:
        transaction = {
            "compare": [_created_at(leader_key(self._cluster, shard), leadership.create_revision)],
            "success": [{"request_range": {"key": _encoded(progress_key(self._cluster, shard))}}],
            "failure": [],
        }

        def read(answer: Json) -> StoredProgress | None:
            if answer.get("succeeded") is not True:
                return None
            found = answer["responses"][0]["response_range"].get("kvs", [])
            if not found:
                return StoredProgress(b"", 0)
            return StoredProgress(
                _decoded(found[0].get("value", "")).encode(), int(found[0]["mod_revision"])
            )

        return self._call("kv/txn", transaction, read)

    def put_progress(
        self, shard: int, leadership: Leadership, value: bytes, *, after: int
    ) -> int | None:
        key = progress_key(self._cluster, shard)
        transaction = {
            "compare": [
                _created_at(leader_key(self._cluster, shard), leadership.create_revision),
                _written_at(key, after),
            ],
            "success": [{"request_put": {"key": _encoded(key), "value": _encoded(value.decode())}}],
            "failure": [],
        }

        def read(answer: Json) -> int | None:
            return int(answer["header"]["revision"]) if answer.get("succeeded") is True else None

        return self._call("kv/txn", transaction, read)

    def put_member(self, node: str, value: str, lease_id: int) -> None:
        key = members_prefix(self._cluster) + node
        body = {"key": _encoded(key), "value": _encoded(value), "lease": lease_id}
        self._call("kv/put", body, lambda _: None)

    def members(self) -> dict[str, str]:
        prefix = members_prefix(self._cluster)
        # The first key behind a prefix is the prefix with its last byte, the slash, plus one.
        end = prefix[:-1] + "0"
        body = {"key": _encoded(prefix), "range_end": _encoded(end), "limit": MEMBERS_MAX}
        return self._call(
            "kv/range",
            body,
            lambda answer: {
                _decoded(found["key"]).removeprefix(prefix): _decoded(found.get("value", ""))
                for found in answer.get("kvs", [])
            },
        )

    def put_settings(self, settings: str) -> None:
        body = {"key": _encoded(settings_key(self._cluster)), "value": _encoded(settings)}
        self._call("kv/put", body, lambda _: None)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for client in idle:
            client.session.close()

    def _call(
        self, path: str, body: Json, read: Callable[[Json], T], timeout_ms: int | None = None
    ) -> T:
        deadline_ms = self._clock.monotonic_ms() + (timeout_ms or self._timeout_ms)
        index, client = self._borrow()
        try:
            answer = read(self._asked(client, path, body, deadline_ms))
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

    def _asked(self, client: Etcd3Client, path: str, body: Json, deadline_ms: int) -> Json:
        """etcd's answer to one request; a connection has the user's token from its first."""
        if self._credentials is None:
            return self._sent(client, path, body, deadline_ms)
        had_token = _TOKEN in client.session.headers
        if not had_token:
            self._authenticate(client, deadline_ms)
        try:
            return self._sent(client, path, body, deadline_ms)
        except Etcd3Exception as error:
            # Tokens end, with etcd's process or their time; what is refused for it is not done.
            if not had_token or _TOKEN_ENDED not in _told(error):
                raise
        self._authenticate(client, deadline_ms)
        return self._sent(client, path, body, deadline_ms)

    def _authenticate(self, client: Etcd3Client, deadline_ms: int) -> None:
        client.session.headers.pop(_TOKEN, None)
        assert self._credentials is not None, "only a user has a token"
        answer = self._sent(client, "auth/authenticate", self._credentials, deadline_ms)
        client.session.headers[_TOKEN] = answer["token"]

    def _sent(
        self, client: Etcd3Client, path: str, body: Mapping[str, Any], deadline_ms: int
    ) -> Json:
        timeout_s = max(1, deadline_ms - self._clock.monotonic_ms()) / 1_000
        # etcd3gw hands this to requests unseen, which also takes (connect, read).
        bounds: Any = (timeout_s * CONNECT_SHARE, timeout_s * (1 - CONNECT_SHARE))
        client.timeout = bounds
        answer: Json = client.post(client.get_url(path), json=body)
        return answer

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


def _created_at(key: str, create_revision: int) -> Json:
    return {
        "key": _encoded(key),
        "result": "EQUAL",
        "target": "CREATE",
        "create_revision": create_revision,
    }


def _written_at(key: str, revision: int) -> Json:
    return {
        "key": _encoded(key),
        "result": "EQUAL",
        "target": "MOD",
        "mod_revision": revision,
    }


def _leadership(found: Json) -> Leadership:
    return Leadership(_decoded(found.get("value", "")), int(found["create_revision"]))


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode("ascii")


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()
