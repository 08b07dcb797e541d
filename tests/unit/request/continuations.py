"""The records that the master itself writes to the buffer: written, and read."""

from dataclasses import replace
from typing import Any

import msgpack
from cluster_settings import REQUEST_LIMITS

from delayd.bus import Headers, Record
from delayd.bus.murmur2 import partition_of
from delayd.request import (
    BufferRecord,
    Reason,
    Reject,
    Request,
    RequestLimits,
    continuation,
    message_body,
    parse,
)
from delayd.request.proof import proof_of

APPEND_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LIMITS = replace(REQUEST_LIMITS, max_delay_ms=30 * DAY_MS, partitions=8)
USER: Headers = [("b", b"2"), ("a", None), ("b", b"1")]
KEY = b"order-4711"
HOME = partition_of(KEY, LIMITS.partitions)
OFFSET = 77
DUE_MS = APPEND_MS + 10_000
NEXT_MS = APPEND_MS + 40_000

Body = Any


def body_of(*headers: tuple[str, bytes | None], key: bytes | None = KEY) -> Body:
    """The body of a user's schedule, as it comes back from the wheel."""
    asked: Headers = [*USER, ("delayd-topic", b"orders"), ("delayd-delay", b"10s"), *headers]
    request = parse(Record(HOME, OFFSET, 0, APPEND_MS, key, b"v", asked), LIMITS)
    assert isinstance(request, Request), request
    return stored(request)


def continued(body: Body, **changed: Any) -> BufferRecord:
    """What requeues this body, with these arguments changed."""
    arguments: dict[str, Any] = {
        "partition": HOME,
        "offset": OFFSET,
        "rank_due_ms": DUE_MS,
        "next_due_ms": NEXT_MS,
        "limits": LIMITS,
        **changed,
    }
    return continuation(body, **arguments)


def stored(request: Request) -> Body:
    """The body of a request, as it comes back from the wheel."""
    return msgpack.unpackb(msgpack.packb(message_body(request), use_bin_type=True))


def read(written: BufferRecord, limits: RequestLimits = LIMITS, **changed: Any) -> Request | Reject:
    """The outcome of the written record, appended with these fields changed."""
    record = Record(written.partition, 500, 3, DUE_MS + 5, *written[1:])
    return parse(record._replace(**changed), limits)


def signed(*headers: tuple[str, bytes | None], key: bytes | None = KEY) -> BufferRecord:
    """A record with a right proof, whatever its headers are."""
    listed = list(headers)
    listed.append(("delayd-proof", proof_of(LIMITS, HOME, key, b"v", listed)))
    return BufferRecord(HOME, key, b"v", listed)


def reason_of(outcome: Request | Reject) -> Reason:
    assert isinstance(outcome, Reject), outcome
    return outcome.reason


WITH_ID = ("delayd-id", KEY)
