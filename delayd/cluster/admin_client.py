"""Requests to the admin port of a node: straight to it, whatever proxy the environment names.

Invariants: every wait is bounded, because a frozen process accepts connections and never answers;
an answer of `get` takes a bounded amount of memory.
"""

import http.client
import json
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

TIMEOUT_S: Final = 2.0
"""How long one answer may take; long enough for a node under load."""

BODY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Many times the largest answer: what a node counts by hour and by topic."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a node."""

    status: int
    body: bytes

    def fields(self) -> dict[str, Any] | None:
        """Return the JSON object of a successful answer; None if it is not one."""
        try:
            fields = json.loads(self.body) if self.status == http.client.OK else None
        except ValueError:
            return None
        return fields if isinstance(fields, dict) else None


@contextmanager
def opened(
    url: str,
    timeout_s: float,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[http.client.HTTPResponse]:
    """Yield the response to one request, whatever its status; each wait ends after `timeout_s`.

    Raises OSError, ValueError or http.client.HTTPException if there is none.
    """
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request(method, parts.path, body, dict(headers or {}))
        with connection.getresponse() as response:
            yield response
    finally:
        connection.close()


def admin_of(member: str) -> str:
    """Return the address of the admin port in the JSON that a node announces in etcd."""
    return str(json.loads(member).get("admin", ""))


def get(url: str, timeout_s: float = TIMEOUT_S) -> Answer | None:
    """Return the answer to GET, or None if there is none in time."""
    try:
        with opened(url, timeout_s) as response:
            return Answer(response.status, response.read(BODY_BYTES_MAX))
    except (OSError, ValueError, http.client.HTTPException):
        return None
