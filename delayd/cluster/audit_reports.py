"""Reports of audits on their way to the nodes of a cluster, and back to whoever asks.

    PUT /audits/MADE_MS-DIGEST    {"report": ..., "page": ...}, with a proof of a member

The proof (`member_proof.py`) is over method and path; DIGEST, in the path, is the beginning of the
SHA-256 of the body. So nobody without the cluster key publishes a report, and none is changed on
its way. Every node that answers gets it: each keeps its own.

Not here: what a node keeps (`delayd.node.monitoring.api.kept_audits`).
"""

import hashlib
import http.client
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, Final

from delayd.cluster.admin_client import BODY_BYTES_MAX, Member, opened, url_of
from delayd.cluster.member_proof import Asked, MemberKeys
from delayd.errors import ConfigError, NodeUnreachableError
from delayd.runtime.clock import Clock

TIMEOUT_S: Final = 10.0
"""Of one node: it takes a body for as long."""
AT_ONCE: Final = 8
"""Nodes that are sent to at a time."""
DIGEST_DIGITS: Final = 32


def id_of(made_ms: int, body: bytes) -> str:
    """Return the id of an audit by its time and what is published of it."""
    return f"{made_ms}-{hashlib.sha256(body).hexdigest()[:DIGEST_DIGITS]}"


def publish(
    report: Mapping[str, Any],
    page: str,
    members: Sequence[Member],
    keys: MemberKeys,
    clock: Clock,
) -> list[str]:
    """Send a report to these nodes; return why it is not on some of them, a line each."""
    body = json.dumps({"report": report, "page": page}, separators=(",", ":")).encode()
    path = f"/audits/{id_of(report['made_ms'], body)}"

    def send(member: Member) -> str | None:
        asked = Asked(keys, "PUT", path, member.life, clock)
        headers = {"authorization": asked.header, "content-type": "application/json"}
        try:
            url = f"{url_of(member.admin)}{path}"
            with opened(url, TIMEOUT_S, "PUT", body, headers) as answer:
                if answer.status in (HTTPStatus.OK, HTTPStatus.CREATED):
                    return None
                said = _detail(answer.read(64 * 1024))
                return f"{member.node} does not keep the report: status {answer.status}, {said}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            return f"{member.node} did not take the report: {type(error).__name__}: {error}"

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="publish") as pool:
        return [problem for problem in pool.map(send, members) if problem is not None]


def kept_by(nodes: Sequence[str], token: str | None) -> list[dict[str, Any]]:
    """Return the audits that nodes keep, the newest first, each once: a node that was down when one
    was published lacks it. NodeUnreachableError if none answers; ConfigError."""
    answers = [
        json.loads(body) for body in _asked_of(nodes, "/v1/audits", token) if body is not None
    ]
    if not answers:
        raise NodeUnreachableError(
            f"no node answers ({', '.join(nodes) or 'etcd knows none of this cluster'})",
            remedy="start a node, or name the admin port of a live one with --admin",
        )
    found = {each["id"]: each for kept in answers for each in kept}
    return [found[id] for id in sorted(found, reverse=True)]


def content_of(nodes: Sequence[str], token: str | None, path: str) -> bytes | None:
    """Return what a node answers that has this; None if none has. ConfigError."""
    return next((body for body in _asked_of(nodes, path, token) if body is not None), None)


def _asked_of(nodes: Sequence[str], path: str, token: str | None) -> "list[bytes | None]":
    headers = {} if token is None else {"authorization": f"Bearer {token}"}

    def ask(node: str) -> bytes | None:
        try:
            with opened(url_of(node) + path, TIMEOUT_S, headers=headers) as answer:
                status, body = answer.status, answer.read(BODY_BYTES_MAX)
        except (OSError, ValueError, http.client.HTTPException):
            return None
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise ConfigError(
                f"{node} shows no audits: {_detail(body)}",
                remedy="give a token with the scope read by --token or DELAYD_API_TOKEN, see "
                "docs/operations.md, 'Tokens'",
            )
        return body if status == HTTPStatus.OK else None

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="ask") as pool:
        return list(pool.map(ask, nodes))


def _detail(body: bytes) -> str:
    try:
        fields = json.loads(body)
        return str(fields.get("detail") or fields["problem"])[:500]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "it gives no reason"
