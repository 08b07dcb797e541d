"""Requests to the admin port of a node: straight to it, whatever proxy the environment names.

A node that speaks TLS announces `https://DIGEST@HOST:PORT`, DIGEST being the SHA-256 of its own
certificate. Whoever reads that in etcd needs no authority to trust: it talks to the holder of this
certificate, or to nobody.

Invariants: every wait is bounded, because a frozen process accepts connections and never answers;
an answer of `get` takes a bounded amount of memory; nothing is sent to a node with another
certificate than the one that is asked for.
"""

import hashlib
import http.client
import json
import ssl
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

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


class Member(NamedTuple):
    """A node as etcd announces it."""

    node: str
    admin: str
    """`host:port` of its admin port."""
    life: str
    """The nonce of its life."""

    @classmethod
    def of(cls, node: str, value: str) -> "Member":
        """Return what a member key says."""
        fields = json.loads(value)
        return cls(node, str(fields.get("admin", "")), str(fields.get("nonce", "")))


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
    connection = _connection(parts, timeout_s)
    try:
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, path, body, dict(headers or {}))
        with connection.getresponse() as response:
            yield response
    finally:
        connection.close()


def _connection(parts: urllib.parse.SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    host, port = parts.hostname or "", parts.port
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    if parts.username is None:
        return http.client.HTTPSConnection(host, port, timeout=timeout_s)
    # The digest says more than any authority could: which certificate it is.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    try:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket), "it speaks TLS"
        shown = connection.sock.getpeercert(binary_form=True) or b""
        if hashlib.sha256(shown).hexdigest() != parts.username:
            raise ssl.SSLError("its certificate is not the one that it announces in etcd")
    except BaseException:
        connection.close()
        raise
    return connection


def url_of(admin: str) -> str:
    """Return the URL of an admin port: its address, with `http://` if it names no scheme."""
    return admin if "://" in admin else f"http://{admin}"


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
