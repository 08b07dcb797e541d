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
from delayd.errors import ConfigError, DelaydError, NodeUnreachableError
from delayd.runtime.clock import Clock
from delayd.runtime.visible import visible

TIMEOUT_S: Final = 10.0
"""Of one node: it takes a body for as long."""
AT_ONCE: Final = 8
"""Nodes that are sent to at a time."""
DIGEST_DIGITS: Final = 32
REPORT_BYTES_MAX: Final = 8 * 1024 * 1024
"""What a node takes."""
COUNTS: Final = ("made_ms", "messages", "nodes", "compared")
"""Numbers of an audit in a list."""


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
    if len(body) > REPORT_BYTES_MAX:
        return [f"no node takes the report: it has {len(body)} bytes, {REPORT_BYTES_MAX} at most"]
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
    was published lacks it. NodeUnreachableError or ConfigError if no node shows any."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="ask") as pool:
        answers = list(pool.map(lambda node: _asked(node, "/v1/audits", token), nodes))
    lists = [
        kept
        for status, body in answers
        if status == HTTPStatus.OK and _are_listed(kept := _json(body))
    ]
    if not lists:
        raise _nothing_shown(nodes, answers)
    found = {each["id"]: each for kept in lists for each in kept}
    return [found[id] for id in sorted(found, reverse=True)]


def content_of(nodes: Sequence[str], token: str | None, path: str) -> bytes | None:
    """Return what the first node that has this answers; None if those that answer have it not.
    NodeUnreachableError or ConfigError if none answers."""
    answers = []
    for node in nodes:
        status, body = _asked(node, path, token)
        if status == HTTPStatus.OK:
            return body
        answers.append((status, body))
    if not any(status == HTTPStatus.NOT_FOUND for status, _ in answers):
        raise _nothing_shown(nodes, answers)
    return None


def _asked(node: str, path: str, token: str | None) -> tuple[int, bytes]:
    """Return status and body of a node's answer; 0 and why there is none."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    try:
        with opened(url_of(node) + path, TIMEOUT_S, headers=headers) as answer:
            return answer.status, answer.read(BODY_BYTES_MAX)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return 0, f"{type(error).__name__} {error}".encode()


def _are_listed(kept: Any) -> bool:
    """Return whether these are audits as a node lists them."""
    return isinstance(kept, list) and all(
        isinstance(each, dict)
        and isinstance(each.get("id"), str)
        and isinstance(each.get("found"), dict)
        and all(isinstance(each.get(name), int) for name in COUNTS)
        and 0 <= each["made_ms"] < 10**13
        for each in kept
    )


def _nothing_shown(nodes: Sequence[str], answers: Sequence[tuple[int, bytes]]) -> DelaydError:
    """Return the error when no node shows what was asked for."""
    said = []
    for node, (status, body) in zip(nodes, answers, strict=True):
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return ConfigError(
                f"{node} shows no audits: {_detail(body)}",
                remedy="give a token with the scope read by --token or DELAYD_API_TOKEN, see "
                "docs/operations.md, 'Tokens'",
            )
        why = f"status {status}, {_detail(body)}" if status else visible(body.decode())
        said.append(f"{node}: {why}")
    return NodeUnreachableError(
        f"no node shows audits ({'; '.join(said) or 'etcd knows none of this cluster'})",
        remedy="start a node, or name the admin port of a live one with --admin",
    )


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _detail(body: bytes) -> str:
    """Return what is wrong, as the answer says."""
    fields = _json(body)
    said = fields if isinstance(fields, dict) else {}
    return visible(str(said.get("detail") or said.get("problem") or "it gives no reason"))
