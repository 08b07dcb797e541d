"""The digest of a message as sent, and the proof of an internal record.

Both are computed over a list of texts, each behind its length (int32, big endian; -1 for null), so
no two records give the same bytes:

    digest = BLAKE2b-128(topic, key, value, headers, partition, name and text of the due header,
             and of each wish that is compared);
             since rules version 4 without the headers that tracing agents write
    proof  = HMAC-SHA256(cluster key, LABEL, cluster, partition, key, value, headers)
             of the keys of a cluster the first signs, and a proof by any of them is valid
    headers = their number, then name and content of each, in order

The digest is of the message as sent: the same due time in another form gives another digest.
"""

import hmac
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Final

from delayd.bus import Headers
from delayd.request.headers import name_bytes
from delayd.request.request import RequestLimits
from replication.settings import TRACING_HEADERS

DIGEST_BYTES: Final = 16
TRACING_REMEMBERED: Final = 8
"""Lists of a cluster's own tracing headers; a process serves one cluster."""
LABEL: Final = b"delayd internal record"
"""Keeps proofs apart from anything else that the cluster key may sign."""

_LENGTH = Struct(">i").pack
_NULL = _LENGTH(-1)


def digest_of(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    partition: int | None,
    forms: tuple[str, ...],
) -> bytes:
    """Return the digest of a message as sent; `headers` are the user's, `key` is the one to
    deliver, `forms` are names and texts of delayd's own headers as they were sent."""
    parts = [topic.encode(), key, value, *_listed(headers)]
    parts.append(None if partition is None else b"%d" % partition)
    parts += [text.encode() for text in forms]
    return blake2b(_joined(parts), digest_size=DIGEST_BYTES).digest()


def without_tracing(headers: Headers, limits: RequestLimits) -> Headers:
    """Return a user's headers without those that a tracing agent writes anew at each send."""
    is_tracing = _tracing(limits.tracing_headers)
    return [header for header in headers if not is_tracing(header[0].lower())]


@lru_cache(TRACING_REMEMBERED)
def _tracing(own: tuple[str, ...]) -> Callable[[str], object]:
    patterns = (re.escape(name).replace(r"\*", ".*") for name in (*TRACING_HEADERS, *own))
    return re.compile("|".join(patterns), re.DOTALL).fullmatch


def proof_of(
    limits: RequestLimits, partition: int, key: bytes | None, value: bytes | None, headers: Headers
) -> bytes:
    """Return the proof, as hex, of a record for this `partition` of the buffer."""
    assert limits.proof_key, "a proof needs the cluster's key"
    return next(_proofs(limits, partition, key, value, headers))


def is_proof(
    proof: bytes,
    limits: RequestLimits,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> bool:
    """Return whether this is the proof of a record, under one of the cluster's keys."""
    if not limits.proof_key:
        return False
    wanted = _proofs(limits, partition, key, value, headers)
    return any(hmac.compare_digest(proof, each) for each in wanted)


def _proofs(
    limits: RequestLimits, partition: int, key: bytes | None, value: bytes | None, headers: Headers
) -> Iterator[bytes]:
    """Yield the proof under each key."""
    parts = [LABEL, limits.cluster.encode(), b"%d" % partition, key, value, *_listed(headers)]
    signed = _joined(parts)
    for proof_key in limits.proof_key.split(b"\n"):
        yield hmac.digest(proof_key, signed, "sha256").hex().encode()


def _listed(headers: Headers) -> list[bytes | None]:
    parts: list[bytes | None] = [b"%d" % len(headers)]
    for name, content in headers:
        parts += (name_bytes(name), content)
    return parts


def _joined(parts: Iterable[bytes | None]) -> bytes:
    return b"".join(_NULL if part is None else _LENGTH(len(part)) + part for part in parts)
