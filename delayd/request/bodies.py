"""What the wheel stores of a request, and what is produced from it.

    message body = (topic, asked due ms, key, value, [[name, value]...], partition, id,
                    digest, origin, attempt[, [turn ms, since ms]])
    dead body    = (key, value, [[name, value]...], reason slug, detail, truncated size or nil,
                    origin, attempts)
    pending reply body = (dead body or nil, receipt or nil)

All are plain tuples that msgpack carries; the functions that read them take lists and tuples
alike, because unpacking makes one of the other. A later field goes to the end.

Invariants:
- delivered: user headers first, in their order, then `delayd-id`, `delayd-due`, `delayd-fired`,
  `delayd-source`, of a requeued message `delayd-origin`, and of a retry `delayd-attempt`;
- dead letters: key, value and headers of the record, then `delayd-reason`, `delayd-detail`,
  `delayd-source`, `delayd-truncated` where the value is left out, and of a message that could not
  be delivered `delayd-origin`, `delayd-attempt`.

Source: docs/design, "The wire contract".
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from delayd.bus import Headers, Record
from delayd.request.headers import size_of
from delayd.request.reasons import Reason, Reject, bounded
from delayd.request.request import Request, Turn

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


def offset_of(source: str) -> int:
    """The offset in a source."""
    return int(source.partition("/")[2])


def message_body(request: Request) -> tuple[Any, ...]:
    """What a message's frame keeps of its request."""
    _, topic, asked_due_ms, _, key, value, headers, partition, id, digest, origin, attempt, *_ = (
        request
    )
    assert topic is not None, "a message without a target cannot be stored"
    body = (topic, asked_due_ms, key, value, headers, partition, id, digest, origin, attempt)
    return body if request.turn is None else (*body, request.turn)


def asked_due_of(body: Body) -> int:
    """The due time of a message body as asked, Unix ms."""
    due_ms: int = body[1]
    return due_ms


def id_of(body: Body) -> str | None:
    """The id of a message body."""
    id: str | None = body[6]
    return id


def attempt_of(body: Body) -> int:
    """How often the message was tried in vain."""
    attempt: int = body[9]
    return attempt


def turn_of(body: Body) -> Turn | None:
    """The turn of a message body that smoothing deferred."""
    return Turn(*body[10]) if len(body) > 10 else None


def is_requeued(body: Body) -> bool:
    """Return whether this message was requeued into the buffer."""
    return bool(body[8])


def origin_of(body: Body, partition: int, offset: int) -> str:
    """The source of the user's own request for the message `body`, which is stored under this
    partition and offset of the buffer."""
    origin: str = body[8]
    return origin or source_of(partition, offset)


def delivered(body: Body, *, fired_ms: int, source: str) -> Delivery:
    """What a message body is delivered as, at `fired_ms`; `source` is of its buffer record."""
    topic, asked_due_ms, key, value, pairs, partition, id, _, origin, attempt, *_ = body
    headers: Headers = [(name, content) for name, content in pairs]
    if id is not None:
        headers.append(("delayd-id", id.encode()))
    headers.append(("delayd-due", b"%d" % asked_due_ms))
    headers.append(("delayd-fired", b"%d" % fired_ms))
    headers.append(("delayd-source", source.encode()))
    if origin:
        headers.append(("delayd-origin", origin.encode()))
    if attempt:
        headers.append(("delayd-attempt", b"%d" % attempt))
    return Delivery(topic, partition, key, value, headers)


def pending_reply_body(
    *, dead: tuple[Any, ...] | None, receipt: tuple[Any, ...] | None
) -> tuple[tuple[Any, ...] | None, tuple[Any, ...] | None]:
    """Return the body of a pending reply: a dead body, a stored receipt, or both."""
    assert dead is not None or receipt is not None, "a reply says something"
    return (dead, receipt)


def reject_body(record: Record, reject: Reject) -> tuple[Any, ...]:
    """The dead body of a rejected record."""
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
    return (key, value, pairs, reject.reason.slug, bounded(reject.detail), truncated_size, "", 0)


def conflict_body(record: Record, detail: str) -> tuple[Any, ...]:
    """The dead body of a schedule whose id is taken by a different pending message."""
    return reject_body(record, Reject(Reason.CONFLICT, detail))


def dead_body(
    body: Body, *, reason: Reason, detail: str, origin: str, attempts: int
) -> tuple[Any, ...]:
    """The dead body of a stored message that cannot be delivered; `detail` has the last error.

    The request headers are restored, so that the dead letter can be sent again: the due time is
    the asked one, absolute. `origin` is the source of the user's own request (`origin_of`),
    `attempts` how often it was tried, at least once.
    """
    assert attempts >= 1, "what was never tried is not dead"
    topic, asked_due_ms, key, value, pairs, partition, id, *_ = body
    key, asked = request_headers(topic, asked_due_ms, key, partition, id)
    headers: Headers = [(name, content) for name, content in pairs]
    headers += asked
    return (key, value, headers, reason.slug, bounded(detail), None, origin, attempts)


def reason_of(dead: Body) -> str:
    """The reason's slug of a dead body."""
    slug: str = dead[3]
    return slug


def request_headers(
    topic: str, asked_due_ms: int, key: bytes | None, partition: int | None, id: str | None
) -> tuple[bytes | None, Headers]:
    """Record key and `delayd-*` headers that ask for a message again, at its asked due time.

    With an id the record key is the id; without one it is `key`, the one to deliver.
    """
    headers: Headers = [("delayd-topic", topic.encode()), ("delayd-due", b"%d" % asked_due_ms)]
    if id is not None:
        headers.append(("delayd-id", id.encode()))
        if key != id.encode():
            headers.append(("delayd-key", key))
        key = id.encode()
    if partition is not None:
        headers.append(("delayd-partition", b"%d" % partition))
    return key, headers


def dead_letter(body: Body, *, source: str) -> DeadLetter:
    """What a dead body is dead-lettered as; `source` is of its buffer record."""
    key, value, pairs, slug, detail, truncated_size, origin, attempts = body
    headers: Headers = [(name, content) for name, content in pairs]
    headers.append(("delayd-reason", slug.encode()))
    headers.append(("delayd-detail", detail.encode()))
    headers.append(("delayd-source", source.encode()))
    if truncated_size is not None:
        headers.append(("delayd-truncated", b"%d" % truncated_size))
    if attempts:
        headers.append(("delayd-origin", origin.encode()))
        headers.append(("delayd-attempt", b"%d" % attempts))
    return DeadLetter(key, value, headers)
