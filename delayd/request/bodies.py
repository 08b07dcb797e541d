"""What the wheel stores of a request, and what is produced from it.

    message body = (topic, asked due ms, key, value, [[name, value]...], partition, id)
    reject body  = (key, value, [[name, value]...], reason slug, detail, truncated size or nil)

Both are plain tuples that msgpack carries; the functions that read them take lists and tuples
alike, because unpacking makes one of the other. A later field goes to the end.

Invariants:
- delivered: user headers first, in their order, then `delayd-id`, `delayd-due`, `delayd-fired`,
  `delayd-source`;
- dead letters: key, value and headers of the record, then `delayd-reason`, `delayd-detail`,
  `delayd-source`, and `delayd-truncated` where the value is left out.

Source: docs/design, "The wire contract".
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from delayd.bus import Headers, Record
from delayd.request.headers import Schedule, size_of
from delayd.request.reasons import Reason, Reject, bounded

Body: TypeAlias = Sequence[Any]
"""A stored body: the tuple that was made here, or what msgpack gave back for it."""

TRUNCATED_KEPT_BYTES_MAX: Final = 32 * 1024
"""Key and headers of a too large record are dead-lettered only up to this size: half of the 64 KiB
by which the limit stays below what delayd's topics accept."""


class Delivery(NamedTuple):
    """A record to produce to a target."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


class DeadLetter(NamedTuple):
    """A record to produce to the dead-letter topic."""

    key: bytes | None
    value: bytes | None
    headers: Headers


def source_of(partition: int, offset: int) -> str:
    """The stable identity of a buffer record, as `delayd-source` has it."""
    return f"{partition}/{offset}"


def message_body(schedule: Schedule) -> tuple[Any, ...]:
    """What a message's frame keeps of its request."""
    _, topic, asked_due_ms, key, value, headers, partition, id = schedule
    assert topic is not None, "a message without a target cannot be stored"
    return (topic, asked_due_ms, key, value, headers, partition, id)


def delivered(body: Body, *, fired_ms: int, source: str) -> Delivery:
    """What a message body is delivered as, at `fired_ms`; `source` is of its buffer record."""
    topic, asked_due_ms, key, value, pairs, partition, id = body
    headers: Headers = [(name, content) for name, content in pairs]
    if id is not None:
        headers.append(("delayd-id", id.encode()))
    headers.append(("delayd-due", b"%d" % asked_due_ms))
    headers.append(("delayd-fired", b"%d" % fired_ms))
    headers.append(("delayd-source", source.encode()))
    return Delivery(topic, partition, key, value, headers)


def reject_body(record: Record, reject: Reject) -> tuple[Any, ...]:
    """What the answer frame of a rejected record keeps."""
    key, value, headers = record.key, record.value, record.headers
    truncated_size = None
    if reject.truncated:
        truncated_size = size_of(key, value, headers)
        value = None
        if size_of(key, None, headers) > TRUNCATED_KEPT_BYTES_MAX:
            headers = []
        if size_of(key, None, headers) > TRUNCATED_KEPT_BYTES_MAX:
            key = None
    # A name that is not UTF-8 is a reject, and neither msgpack nor Kafka's clients could carry it.
    pairs = [(name.encode("utf-8", "backslashreplace").decode(), item) for name, item in headers]
    return (key, value, pairs, reject.reason.slug, bounded(reject.detail), truncated_size)


def dead_body(body: Body, reason: Reason, detail: str) -> tuple[Any, ...]:
    """The reject body of a stored message that cannot be delivered; `detail` has the last error.

    The request headers are put back, so that the dead letter can be sent again: the due time is
    the asked one, absolute. With an id the record key is the id again; without one it is the key
    that would have been delivered.
    """
    topic, asked_due_ms, key, value, pairs, partition, id = body
    headers: Headers = [(name, content) for name, content in pairs]
    headers.append(("delayd-topic", topic.encode()))
    headers.append(("delayd-due", b"%d" % asked_due_ms))
    if id is not None:
        headers.append(("delayd-id", id.encode()))
        if key != id.encode():
            headers.append(("delayd-key", key))
        key = id.encode()
    if partition is not None:
        headers.append(("delayd-partition", b"%d" % partition))
    return (key, value, headers, reason.slug, bounded(detail), None)


def dead_letter(body: Body, *, source: str) -> DeadLetter:
    """What a reject body is dead-lettered as; `source` is of its buffer record."""
    key, value, pairs, slug, detail, truncated_size = body
    headers: Headers = [(name, content) for name, content in pairs]
    headers.append(("delayd-reason", slug.encode()))
    headers.append(("delayd-detail", detail.encode()))
    headers.append(("delayd-source", source.encode()))
    if truncated_size is not None:
        headers.append(("delayd-truncated", b"%d" % truncated_size))
    return DeadLetter(key, value, headers)
