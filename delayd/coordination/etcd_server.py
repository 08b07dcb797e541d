"""What a server of etcd says of itself: for people who look for what is wrong with it.

Not here: the keys of a cluster (`etcd.py`), and what follows from an answer.

Invariant: only what etcd answers without a user is asked for, once, and within its time.
"""

import http.client
import json
import re
import ssl
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

from delayd.config.security import Security
from delayd.errors import CoordinationError

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
GAUGES: Final = re.compile(r"^(etcd_\w+) ([-+.e\d]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EtcdServer:
    """The answers of one server."""

    endpoint: str
    version: tuple[int, ...]
    problem: str
    """Why it takes no writes, as its health check says; empty if it does."""
    db_bytes: int
    quota_bytes: int
    revisions_kept: int
    """Written since the last compaction."""
    at_ms: int
    """Its clock, in whole seconds, Unix ms."""
    clients_at: tuple[str, ...]
    """The URLs of all members of its cluster; empty if it does not say them without a user."""


def look_at(endpoint: str, security: Security, timeout_s: float) -> EtcdServer:
    """Return what a server says of itself. CoordinationError if it does not answer."""
    context = ssl.create_default_context(cafile=security.etcd_ca_file)
    if security.etcd_cert_file is not None:
        context.load_cert_chain(security.etcd_cert_file, security.etcd_key_file)
    url = urlsplit(endpoint)

    def ask(path: str, body: str | None = None) -> tuple[str, str]:
        made = (
            http.client.HTTPSConnection(url.netloc, timeout=timeout_s, context=context)
            if url.scheme == "https"
            else http.client.HTTPConnection(url.netloc, timeout=timeout_s)
        )
        with closing(made) as connection:
            connection.request("GET" if body is None else "POST", path, body)
            answer = connection.getresponse()
            return answer.read(BODY_BYTES_MAX).decode(), answer.headers["Date"] or ""

    try:
        said, at = ask("/version")
        version = str(json.loads(said)["etcdserver"])
        health: dict[str, Any] = json.loads(ask("/health")[0])
        gauges = {name: float(value) for name, value in GAUGES.findall(ask("/metrics")[0])}
        listed: dict[str, Any] = json.loads(ask("/v3/cluster/member/list", "{}")[0])
        return EtcdServer(
            endpoint=endpoint,
            version=tuple(int(part) for part in re.findall(r"\d+", version)[:3]),
            problem=""
            if health.get("health") == "true"
            else str(health.get("reason") or "not well"),
            db_bytes=int(gauges.get("etcd_mvcc_db_total_size_in_bytes", 0)),
            quota_bytes=int(gauges.get("etcd_server_quota_backend_bytes", 0)),
            revisions_kept=int(
                gauges.get("etcd_debugging_mvcc_current_revision", 0)
                - max(0, gauges.get("etcd_debugging_mvcc_compact_revision", 0))
            ),
            at_ms=int(parsedate_to_datetime(at).timestamp() * 1000),
            clients_at=tuple(
                str(each) for member in listed.get("members", ()) for each in member["clientURLs"]
            ),
        )
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
        raise CoordinationError(
            f"etcd at {endpoint} does not say how it is: {error}", remedy="is it up?"
        ) from error
