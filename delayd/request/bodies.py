"""The bodies that the wheel stores, and the records that delayd produces from them.

    message body       = (topic, asked due ms, key, value, [[name, value]...], partition, id,
                          digest, origin, attempt[, [turn ms, since ms] or nil[, [told, late ms
                          or nil, window ms or nil[, group]][, [cron, zone, until ms or nil,
                          catches up, occurrence, state[, moved ms]] or nil[, [text, zone,
                          state]]]]])
    dead body          = (key, value, [[name, value]...], reason slug, detail,
                          truncated size or nil, origin, attempts[, occurrence])
    pending reply body = (dead body or nil, receipt or nil), of a message that is stored for later
                         (nil, receipt, nil, nil, (due ms, topic)), or of an operator's order
                         (nil, nil, (topic, at ms, until ms, rate)) or
                         (nil, nil, nil, (topic, at ms, max pending, rate))

All are plain tuples that msgpack carries. The functions that read them take lists and tuples alike,
because unpacking may return either. A new field goes to the end. The layout of a message body is
written here and nowhere else: its positions are the constants below, and the hot paths, which
unpack or build a body in one go, check their order against them.

Invariants, the order of headers:
- delivered: the user's headers in their order, `delayd-id`, `delayd-group`, `delayd-due`, with a
  window `delayd-planned`, `delayd-fired`, `delayd-source`; if requeued, `delayd-origin`; of a
  retry, `delayd-attempt`; of a series, `delayd-occurrence`; of a local time, `delayd-local`;
- dead letter: the headers of the record, `delayd-reason`, `delayd-detail`, `delayd-source`;
  `delayd-truncated` if the value is left out; of a message that was accepted, `delayd-origin` and,
  if it was tried, `delayd-attempt`; of an occurrence of a series, `delayd-occurrence`.

Source: docs/design, "The wire contract".
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from delayd.bus import Headers, Record
from delayd.request.headers import LOCAL_TIME, size_of
from delayd.request.local_times import shown
from delayd.request.reasons import Reason, Reject, bounded
from delayd.request.request import (
    LocalState,
    LocalTime,
    Request,
    Series,
    SeriesState,
    Turn,
    Wishes,
)
from delayd.request.spreading import planned_ms_of
from replication.holds import Order
from replication.quotas import QuotaOrder

Body: TypeAlias = Sequence[Any]
"""A stored body: the tuple that was built here, or the sequence that msgpack unpacked from it."""

TOPIC, ASKED_DUE_MS, KEY, VALUE, HEADERS, PARTITION, ID, DIGEST, ORIGIN, ATTEMPT = range(10)
TURN, WISHES, SERIES, LOCAL = 10, 11, 12, 13
"""Positions in a message body."""
PLAIN_FIELDS: Final = TURN
"""Number of fields of a message body that smoothing has not deferred, without wishes, and of no
series: the only one that the hot paths take."""
NO_WISHES: Final = Wishes()

TRUNCATED_KEPT_BYTES_MAX: Final = 32 * 1024
"""A too large record keeps its key and headers in the dead letter only up to this size: half of
the 64 KiB by which the limit stays below what delayd's topics accept."""


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
    """Return the stable identity of a buffer record, as `delayd-source` has it."""
    return f"{partition}/{offset}"


def offset_of(source: str) -> int:
    """Return the offset in a source."""
    return int(source.partition("/")[2])


def message_body(request: Request) -> tuple[Any, ...]:
    """Return the message body of a request."""
    _, topic, asked_due_ms, _, key, value, headers, partition, id, digest, origin, attempt, *_ = (
        request
    )
    assert topic is not None, "a message without a target cannot be stored"
    body = (topic, asked_due_ms, key, value, headers, partition, id, digest, origin, attempt)
    wishes = () if request.wishes is None else _stored_wishes(request.wishes)
    if request.local is not None:
        return (*body, request.turn, wishes, None, request.local)
    if request.series is not None:
        return (*body, request.turn, wishes, _stored(request.series))
    if request.wishes is not None:
        return (*body, request.turn, wishes)
    return body if request.turn is None else (*body, request.turn)


def _stored_wishes(wishes: Wishes) -> tuple[Any, ...]:
    """Return wishes as a body has them: a field more of what has a group."""
    return wishes if wishes.group is not None else wishes[:-1]


def _stored(series: Series) -> tuple[Any, ...]:
    """Return a series as a body has it: a field more where an occurrence was fired."""
    return series if series.moved_ms is not None else series[:-1]


def plain_message_body(
    topic: str,
    asked_due_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    partition: int | None,
) -> tuple[Any, ...]:
    """Return the message body of a schedule without an id. Used by the fast path of ingest."""
    return (topic, asked_due_ms, key, value, headers, partition, None, b"", "", 0)


def asked_due_of(body: Body) -> int:
    """Return the due time of a message body as asked, Unix ms."""
    due_ms: int = body[ASKED_DUE_MS]
    return due_ms


def id_of(body: Body) -> str | None:
    """Return the id of a message body."""
    id: str | None = body[ID]
    return id


def attempt_of(body: Body) -> int:
    """Return how many attempts to deliver the message have failed."""
    attempt: int = body[ATTEMPT]
    return attempt


def turn_of(body: Body) -> Turn | None:
    """Return the turn of a message body that smoothing deferred, else None."""
    return Turn(*body[TURN]) if len(body) > TURN and body[TURN] is not None else None


def wishes_of(body: Body) -> Wishes:
    """Return the wishes of a message body."""
    return Wishes(*body[WISHES]) if len(body) > WISHES else NO_WISHES


def series_of(body: Body) -> Series | None:
    """Return the series of a message body, and which occurrence it is; None if it is of none."""
    return Series(*body[SERIES]) if len(body) > SERIES and body[SERIES] is not None else None


def local_of(body: Body) -> LocalTime | None:
    """Return the local time of a message body, and whether it is resolved; None if it has none."""
    return LocalTime(*body[LOCAL]) if len(body) > LOCAL else None


def is_occurrence(body: Body) -> bool:
    """Return whether a message body is delivered once: it is of no series, or a step has found when
    it is due."""
    series = series_of(body)
    return series is None or (series.occurrence > 0 and series.state != SeriesState.OVER)


def group_of(body: Body) -> str | None:
    """Return the group of a message body; None without one."""
    return wishes_of(body).group


def planned_of(body: Body, partition: int, offset: int) -> int:
    """Return the planned due time of a stored message (Unix ms): as asked, without a window."""
    window_ms = wishes_of(body).window_ms
    name = id_of(body) or origin_of(body, partition, offset)
    return planned_ms_of(asked_due_of(body), window_ms, name)


def worth_until_ms_of(body: Body, partition: int, offset: int) -> int | None:
    """Return until when a stored message is worth delivering (Unix ms); None: for ever."""
    late_ms = wishes_of(body).late_ms
    return None if late_ms is None else planned_of(body, partition, offset) + late_ms


def told_id_of(body: Body, partition: int, offset: int) -> str | None:
    """Return the `id` of the receipts of a stored message; None if it gets none."""
    id = id_of(body)
    return origin_of(body, partition, offset) if id is None and wishes_of(body).is_told else id


def is_requeued(body: Body) -> bool:
    """Return whether this message was requeued into the buffer."""
    return bool(body[ORIGIN])


def origin_of(body: Body, partition: int, offset: int) -> str:
    """Return the source of the user's own request for the message `body`, which is stored under
    this partition and offset of the buffer."""
    origin: str = body[ORIGIN]
    return origin or source_of(partition, offset)


def delivered(body: Body, *, fired_ms: int, source: str) -> Delivery:
    """Return the record that delivers a message body at `fired_ms`; `source` is its buffer
    record's."""
    topic, asked_due_ms, key, value, pairs, partition, id, _, origin, attempt, *_ = body
    headers: Headers = [(name, content) for name, content in pairs]
    if id is not None:
        headers.append(("delayd-id", id.encode()))
    window_ms = None
    if len(body) > WISHES:
        wishes = wishes_of(body)
        window_ms = wishes.window_ms
        if wishes.group is not None:
            headers.append(("delayd-group", wishes.group.encode()))
    headers.append(("delayd-due", b"%d" % asked_due_ms))
    if window_ms is not None:
        planned_ms = planned_ms_of(asked_due_ms, window_ms, id or origin or source)
        headers.append(("delayd-planned", b"%d" % planned_ms))
    headers.append(("delayd-fired", b"%d" % fired_ms))
    headers.append(("delayd-source", source.encode()))
    if origin:
        headers.append(("delayd-origin", origin.encode()))
    if attempt:
        headers.append(("delayd-attempt", b"%d" % attempt))
    if len(body) > SERIES and (series := series_of(body)) is not None:
        headers.append(("delayd-occurrence", b"%d" % series.occurrence))
    if len(body) > LOCAL and (local := local_of(body)) is not None:
        headers.append((LOCAL_TIME, shown(local).encode()))
    return Delivery(topic, partition, key, value, headers)


class ToldMessage(NamedTuple):
    """The message that a receipt `scheduled` is about, for a forecast."""

    due_ms: int
    """As planned, Unix ms."""
    topic: str


def pending_reply_body(
    *,
    dead: tuple[Any, ...] | None,
    receipt: tuple[Any, ...] | None,
    message: ToldMessage | None = None,
) -> tuple[Any, ...]:
    """Return the body of a pending reply: a dead body, a stored receipt, or both; `message`: what a
    receipt `scheduled` is about, if a forecast is to say more of it. It is a function of the log
    alone, as all of the body: replicas compare their frames."""
    assert dead is not None or receipt is not None, "a reply says something"
    return (dead, receipt) if message is None else (dead, receipt, None, None, tuple(message))


def told_message_of(body: Body) -> ToldMessage | None:
    """Return the message that the receipt in a pending reply is about; None if there is to be no
    forecast: it was stored by older rules, is due at once, or there is no such receipt."""
    return ToldMessage(*body[4]) if len(body) == 5 else None


def order_body(order: Order) -> tuple[None, None, tuple[Any, ...]]:
    """Return the body of a pending reply that replies nothing: the step that passes it obeys."""
    return (None, None, tuple(order))


def order_of(body: Body) -> Order | None:
    """Return the order in the body of a pending reply that is about pauses; None if it is none."""
    return Order(*body[2]) if len(body) == 3 else None


def quota_body(order: QuotaOrder) -> tuple[None, None, None, tuple[Any, ...]]:
    """As `order_body`, of an order to limit what is pending for a topic."""
    return (None, None, None, tuple(order))


def quota_of(body: Body) -> QuotaOrder | None:
    """Return the order in the body of a pending reply that limits a topic; None if it is none."""
    return QuotaOrder(*body[3]) if len(body) == 4 else None


def reject_body(record: Record, reject: Reject) -> tuple[Any, ...]:
    """Return the dead body of a rejected record."""
    key, value, headers = record.key, record.value, record.headers
    truncated_size = None
    if reject.reason is Reason.UNREADABLE_BATCH:
        value = None  # The detail says what the driver says there.
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
    """Return the dead body of a schedule whose id another pending message has."""
    return reject_body(record, Reject(Reason.CONFLICT, detail))


def dead_body(
    body: Body, *, reason: Reason, detail: str, origin: str, attempts: int
) -> tuple[Any, ...]:
    """Return the dead body of a stored message that cannot be delivered.

    It has the request headers, so that the dead letter can be sent again. `detail` has the last
    error, `origin` is the source of the user's own request (`origin_of`), `attempts` counts the
    attempts to deliver it, at least one unless it has expired.
    """
    assert attempts or reason is not Reason.DEAD, "a message that was never tried is not dead"
    key, value, headers = asked_again(body)
    dead = (key, value, headers, reason.slug, bounded(detail), None, origin, attempts)
    series = series_of(body)
    return dead if series is None else (*dead, series.occurrence)


def reason_of(dead: Body) -> str:
    """Return the reason's slug of a dead body."""
    slug: str = dead[3]
    return slug


def asked_again(body: Body) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of a record that asks for a message again.

    The headers are the user's, then those of the request, with the absolute due time that was
    asked for. The record key is the id, or without an id the key to deliver. An occurrence of a
    series is asked for alone, without the series; a local time that was not resolved as it is.
    """
    key, value, headers = _asked_at_once(body)
    wishes = wish_headers(wishes_of(body))
    local = local_of(body)
    if local is not None and local.state != LocalState.FINAL:
        asked = [header for header in headers if header[0] != "delayd-due"]
        return key, value, [*asked, *wishes, *local_headers(local)]
    if is_occurrence(body):
        return key, value, [*headers, *wishes]
    series = series_of(body)
    assert series is not None, "all else is delivered once"
    asked = [header for header in headers if header[0] != "delayd-due"]
    return key, value, [*asked, *wishes, *series_headers(series)]


def asked_to_go_on(body: Body) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of a record that continues a message: of an occurrence, with
    its due time and its series."""
    key, value, headers = _asked_at_once(body)
    headers += wish_headers(wishes_of(body))
    series = series_of(body)
    return key, value, headers if series is None else [*headers, *series_headers(series)]


def series_again(body: Body) -> tuple[bytes | None, bytes | None, Headers]:
    """As `asked_again`, but of an occurrence: its series, which begins anew; and of a local time as
    it is."""
    series = series_of(body)
    local = local_of(body)
    if local is not None:
        return asked_again([*body[:LOCAL], local._replace(state=LocalState.UNRESOLVED)])
    if series is None:
        return asked_again(body)
    fields = list(body)
    fields[SERIES] = series._replace(occurrence=0, moved_ms=None)
    return asked_again(fields)


def local_headers(local: LocalTime) -> Headers:
    """Return the headers that ask for a local time."""
    return [("delayd-due", local.text.encode()), ("delayd-zone", local.zone.encode())]


def series_headers(series: Series) -> Headers:
    """Return the headers that ask for a series."""
    headers: Headers = [("delayd-cron", series.cron.encode())]
    headers.append(("delayd-zone", series.zone.encode()))
    if series.until_ms is not None:
        headers.append(("delayd-until", b"%d" % series.until_ms))
    if series.catches_up:
        headers.append(("delayd-catchup", b"all"))
    return headers


def _asked_at_once(body: Body) -> tuple[bytes | None, bytes | None, Headers]:
    topic, asked_due_ms, key, value, pairs, partition, id, *_ = body
    headers: Headers = [(name, content) for name, content in pairs]
    headers += [("delayd-topic", topic.encode()), ("delayd-due", b"%d" % asked_due_ms)]
    if id is not None:
        headers.append(("delayd-id", id.encode()))
        if key != id.encode():
            headers.append(("delayd-key", key))
        key = id.encode()
    if partition is not None:
        headers.append(("delayd-partition", b"%d" % partition))
    return key, value, headers


def wish_headers(wishes: Wishes) -> Headers:
    """Return the headers that ask for these."""
    headers: Headers = [("delayd-receipt", b"yes")] if wishes.is_told else []
    if wishes.late_ms is not None:
        headers.append(("delayd-late", b"%dms" % wishes.late_ms))
    if wishes.window_ms is not None:
        headers.append(("delayd-window", b"%dms" % wishes.window_ms))
    if wishes.group is not None:
        headers.append(("delayd-group", wishes.group.encode()))
    return headers


def dead_letter(body: Body, *, source: str) -> DeadLetter:
    """Return the dead letter of a dead body; `source` is its buffer record's."""
    key, value, pairs, slug, detail, truncated_size, origin, attempts, *occurrence = body
    headers: Headers = [(name, content) for name, content in pairs]
    headers.append(("delayd-reason", slug.encode()))
    headers.append(("delayd-detail", detail.encode()))
    headers.append(("delayd-source", source.encode()))
    if truncated_size is not None:
        headers.append(("delayd-truncated", b"%d" % truncated_size))
    if origin:
        headers.append(("delayd-origin", origin.encode()))
    if attempts:
        headers.append(("delayd-attempt", b"%d" % attempts))
    if occurrence:
        headers.append(("delayd-occurrence", b"%d" % occurrence[0]))
    return DeadLetter(key, value, headers)
