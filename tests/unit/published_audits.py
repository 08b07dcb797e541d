"""Reports of audits as they are published, for the tests of what a node makes of them."""

import json
from typing import Any

from one_node import CLUSTER_KEY

from delayd.cluster.audit_reports import id_of
from delayd.cluster.member_proof import Asked, MemberKeys
from delayd.runtime.clock import Clock

MADE_MS = 1_790_000_000_000
PAGE = "<!doctype html><title>report</title>"


def report(made_ms: int = MADE_MS, **fields: Any) -> dict[str, Any]:
    """As much of a report as matters, and a little more."""
    return {
        "verdict": "ok",
        "accepted": 20_000,
        "found": {},
        "cluster": "c",
        "version": "0.2.0",
        "made_ms": made_ms,
        "wall_ms": 9_000,
        "notes": ["nothing was due"],
        "lateness_ms": None,
        "nodes": [
            {"node": "n0", "admin": "h:1", "pending": 7, "problem": None},
            {"node": "n1", "admin": "h:2", "pending": None, "problem": "it is not running"},
        ],
        **fields,
    }


def body_of(said: dict[str, Any], page: str = PAGE) -> bytes:
    return json.dumps({"report": said, "page": page}).encode()


def published(said: dict[str, Any], page: str = PAGE) -> tuple[str, bytes]:
    """The id and the body."""
    body = body_of(said, page)
    return id_of(said["made_ms"], body), body


def proof(path: str, clock: Clock, *, key: str = CLUSTER_KEY, realm: str = "c") -> dict[str, str]:
    """The headers of who has the cluster key."""
    asked = Asked(MemberKeys(key.encode(), realm), "PUT", path, "life", clock)
    return {"authorization": asked.header}
