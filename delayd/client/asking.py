"""From the arguments of a Python call to a buffer record. Pure.

delayd's own parser reads the record back, so the client refuses exactly what delayd would reject,
except for what only the cluster knows: its longest delay and its largest record.

`Request` and the functions for plain records are for users who send with their own producer, in a
transaction for instance. A record with an id must reach partition murmur2(id) modulo the buffer's
partitions: set `partitioner=murmur2_random` in librdkafka (Java and kafka-python do it by default),
or let `Client.schedule_in` and its like send it, which name the partition.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, Required, TypeAlias, TypedDict, Unpack

from delayd.bus import Headers, Record
from delayd.client.driver import PlainRecord
from delayd.client.errors import RequestRefusedError
from delayd.request import LocalTime, Op, Reason, Reject, RequestLimits, Series, parse, size_of
from delayd.request.headers import HEADER_PREFIX
from delayd.request.recurrence.expressions import next_after
from delayd.request.recurrence.local_times import problem_of as problem_of_zone
from delayd.request.recurrence.local_times import resolved_ms
from delayd.request.recurrence.series import problem_of

Moment: TypeAlias = datetime | int | str
"""A due time: an aware datetime, Unix ms, or text as `delayd-due` takes it (RFC 3339). With `zone`
what the clock of that zone shows: a naive datetime, or text like `2027-03-28T09:00`."""

Span: TypeAlias = timedelta | int | str
"""A delay: a timedelta, ms, or text as `delayd-delay` takes it (`10s`)."""

Content: TypeAlias = bytes | str | None
UserHeaders: TypeAlias = Mapping[str, Content] | Sequence[tuple[str, Content]]

UNLIMITED: Final = 2**62
BUFFER_SUFFIX: Final = "buffer"

ID_BYTES_MAX: Final = 256
"""The longest id in UTF-8, by the wire contract."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


class Options(TypedDict, total=False):
    """Options of a message besides target and value; exactly one of `in_`, `at` and `cron`."""

    key: Content
    """Key of the delivered record; default: the id, else none."""
    in_: Span | None
    at: Moment | None
    headers: UserHeaders | None
    partition: int | None
    """The partition of the target."""
    receipts: bool
    """True: all its receipts are written, `scheduled` and `delivered` too, whatever the cluster's
    setting. Needs rules version 5."""
    late: Span | None
    """How much later than its due time it is still worth delivering; then it expires: a dead letter
    and the receipt `expired`. Needs rules version 5."""
    window: Span | None
    """It may go out so much later: spread evenly, so that a crowd is no peak. Needs rules version
    5."""
    group: str | None
    """A name that it shares with others, by which all of them are listed, cancelled and moved.
    Needs an id, and rules version 7."""
    cron: str | None
    """It recurs: five fields, six with seconds first, or `@daily` and its like. Needs rules version
    6."""
    zone: str | None
    """Of `cron`: an IANA name; default: UTC. Of `at`: whose clock it is a time of; that is resolved
    by the master, and again a day before it is due. Needs rules version 7."""
    until: Moment | None
    """Of `cron`: no occurrence is later."""
    catchup: str | None
    """Of `cron`: after an outage `once` (the default) or `all` that were missed."""


class ScheduleOptions(Options, total=False):
    """Options of a schedule, which may have an id."""

    id: str | None


class DebounceOptions(TypedDict, total=False):
    """Options of a debounce besides id, target and value."""

    in_: Required[Span]
    """So long after the last of several requests the message of that goes out."""
    max_wait: Required[Span]
    """And at the latest so long after the first of them."""
    key: Content
    headers: UserHeaders | None
    partition: int | None
    receipts: bool
    late: Span | None
    group: str | None


class Ask(NamedTuple):
    """A record for the buffer that delayd accepts as far as a client can know."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    asked_ms: int
    """Unix ms, or ms after the append time if `relative`; 0 for a cancel."""
    relative: bool
    op: Op = Op.SCHEDULE
    id: str | None = None
    """The `id` that its receipt will name; None: none, or its source if it wants receipts."""
    partition: int | None = None
    """The partition of the buffer, if it must be a certain one; else the key decides."""
    series: Series | None = None
    local: LocalTime | None = None

    def due_ms(self, append_ms: int) -> int:
        """Return the due time as asked, for a record appended at `append_ms`; of a series that of
        its first occurrence, or `append_ms` if it has none by then; of a local time by the tzdata
        here."""
        if self.local is not None:
            return resolved_ms(self.local.text, self.local.zone)
        if self.series is not None:
            first_ms = next_after(self.series.cron, self.series.zone, append_ms)
            return append_ms if first_ms is None else first_ms
        return append_ms + self.asked_ms if self.relative else self.asked_ms

    def record(self, buffer: str, partition: int | None = None) -> PlainRecord:
        """Return the record to send."""
        wanted = self.partition if partition is None else partition
        return PlainRecord(buffer, self.key, self.value, self.headers, wanted)

    def size(self) -> int:
        """Return roughly how many bytes it takes in memory and on the wire."""
        return size_of(self.key, self.value, self.headers)


def ask(
    buffer: str,
    topic: str,
    value: Content,
    *,
    key: Content = None,
    in_: Span | None = None,
    at: Moment | None = None,
    headers: UserHeaders | None = None,
    partition: int | None = None,
    receipts: bool = False,
    late: Span | None = None,
    window: Span | None = None,
    group: str | None = None,
    cron: str | None = None,
    zone: str | None = None,
    until: Moment | None = None,
    catchup: str | None = None,
    id: str | None = None,
    op: Op = Op.SCHEDULE,
    max_wait: Span | None = None,
) -> Ask:
    """Return the record of a message; RequestRefusedError if delayd rejects it."""
    pairs = _user_headers(headers)
    pairs.append(("delayd-topic", _bytes("topic", topic)))
    if isinstance(at, datetime) and at.utcoffset() is None and zone is not None:
        at = at.isoformat()
    pairs.append(_when(in_, at, cron))
    for name, text in (("zone", zone), ("catchup", catchup)):
        if text is not None:
            pairs.append((f"delayd-{name}", _bytes(name, text)))
    if until is not None:
        pairs.append(("delayd-until", _due(until)))
    if partition is not None:
        pairs.append(("delayd-partition", str(partition).encode()))
    if receipts:
        pairs.append(("delayd-receipt", b"yes"))
    for name, span in (("late", late), ("window", window), ("max-wait", max_wait)):
        if span is not None:
            pairs.append((f"delayd-{name}", _delay(span)))
    if group is not None:
        pairs.append(("delayd-group", _bytes("group", group)))
    record_key = _bytes("key", key)
    if id is not None:
        delivered_key, record_key = record_key, _id(id)
        if delivered_key is not None and delivered_key != record_key:
            pairs.append(("delayd-key", delivered_key))
        pairs += _identity(record_key, op)
    record = Record(0, 0, -1, 0, record_key, _bytes("value", value), pairs)
    request = parse(record, _limits(buffer))
    if isinstance(request, Reject):
        raise RequestRefusedError(f"{request.reason.slug}: {request.detail}")
    if request.series is not None:
        _refuse_series(request.series._replace(until_ms=None), 0)
    if request.local is not None and (problem := problem_of_zone(request.local.zone)) is not None:
        raise RequestRefusedError(f"{Reason.NO_OCCURRENCE.slug}: {problem}")
    sent = (record.key, record.value, pairs, request.asked_due_ms)
    found = Ask(*sent, relative=at is None, op=op, id=id)
    return found._replace(series=request.series, local=request.local)


def refuse_beyond(asked: Ask, limits: RequestLimits, now_ms: int) -> None:
    """Raise RequestRefusedError if a cluster with these limits would reject the request now.

    `ask` has checked the rest; the limits are named in the error.
    """
    # The place does not matter: an id's partition is chosen when it is sent.
    anywhere = replace(limits, partitions=1)
    next_offset = 1 << 62  # behind all barriers: by the rules in force
    record = Record(0, next_offset, -1, now_ms, asked.key, asked.value, asked.headers)
    request = parse(record, anywhere)
    if isinstance(request, Reject):
        raise RequestRefusedError(f"{request.reason.slug}: {request.detail}")
    if asked.series is not None:
        _refuse_series(asked.series, now_ms)


def _refuse_series(series: Series, after_ms: int) -> None:
    """Refuse what the master would find out: that there is no occurrence."""
    if problem := problem_of(series, after_ms):
        raise RequestRefusedError(f"{Reason.NO_OCCURRENCE.slug}: {problem}")


def ask_cancel(id: str) -> Ask:
    """Return the record that cancels whatever is pending under the id."""
    key = _id(id)
    return Ask(key, None, _identity(key, Op.CANCEL), 0, relative=False, op=Op.CANCEL, id=id)


def ask_fire(id: str) -> Ask:
    """Return the record that delivers what is pending under the id at once."""
    key = _id(id)
    return Ask(key, None, _identity(key, Op.FIRE), 0, relative=True, op=Op.FIRE, id=id)


def ask_reschedule(
    id: str, *, in_: Span | None = None, at: Moment | None = None, by: Span | None = None
) -> Ask:
    """Return the record that gives what is pending under the id another due time;
    RequestRefusedError if delayd rejects it."""
    if sum(each is not None for each in (in_, at, by)) != 1:
        raise RequestRefusedError(
            "give exactly one of in_, at and by",
            remedy="in_ is a delay from now on, at a time, by how much later or earlier it is due",
        )
    key = _id(id)
    pairs = _identity(key, Op.RESCHEDULE)
    pairs.append(("delayd-by", _by(by)) if by is not None else _when(in_, at, None))
    record = Record(0, 0, -1, 0, key, None, pairs)
    request = parse(record, _limits(BUFFER))
    if isinstance(request, Reject):
        raise RequestRefusedError(f"{request.reason.slug}: {request.detail}")
    asked_ms, is_relative = request.asked_due_ms, at is None
    return Ask(key, None, pairs, asked_ms, relative=is_relative, op=Op.RESCHEDULE, id=id)


def _by(by: Span) -> bytes | None:
    if isinstance(by, str):
        return _bytes("by", by)
    by_ms = -(-by // _MS) if isinstance(by, timedelta) else _ms("by", by)
    return b"%+dms" % by_ms


def _id(id: str) -> bytes:
    if not isinstance(id, str):
        raise RequestRefusedError(f"bad-id: the id is {type(id).__name__}, not text")
    key = _bytes("id", id)
    if not key or len(key) > ID_BYTES_MAX:
        raise RequestRefusedError(
            f"bad-id: the id has {len(key or b'')} bytes in UTF-8, it must have 1 to {ID_BYTES_MAX}"
        )
    return key


def _identity(key: bytes, op: Op) -> Headers:
    named: Headers = [("delayd-id", key)]
    return named if op is Op.SCHEDULE else [("delayd-op", op.name.lower().encode()), *named]


def _limits(buffer: str) -> RequestLimits:
    """Return the limits that a client knows: the prefix, from the name of the buffer."""
    prefix = buffer.removesuffix(BUFFER_SUFFIX)
    if prefix and prefix != buffer:
        return RequestLimits(UNLIMITED, UNLIMITED, 1, "", b"", prefix)
    return RequestLimits(UNLIMITED, UNLIMITED, 1, "", b"")


def _bytes(what: str, content: Content) -> bytes | None:
    if isinstance(content, str):
        try:
            return content.encode()
        except UnicodeEncodeError as error:
            raise RequestRefusedError(f"the {what} cannot be encoded as UTF-8") from error
    if content is not None and not isinstance(content, bytes):
        raise RequestRefusedError(f"the {what} is {type(content).__name__}, not bytes or str")
    return content


def _user_headers(headers: UserHeaders | None) -> Headers:
    pairs: Headers = []
    for name, content in headers.items() if isinstance(headers, Mapping) else headers or ():
        if name.startswith(HEADER_PREFIX):
            raise RequestRefusedError(
                f"the header {name[:80]!a} is delayd's: its prefix is reserved",
                remedy="use the arguments of the call; of a delivered record drop delayd's headers",
            )
        if "\0" in name:
            raise RequestRefusedError(
                f"the header name {name[:80]!a} contains NUL, where librdkafka would cut it"
            )
        pairs.append((name, _bytes("header value", content)))
    return pairs


def _when(in_: Span | None, at: Moment | None, cron: str | None) -> tuple[str, bytes | None]:
    """Return the header with the due time, the delay or the expression."""
    if at is None and cron is None and in_ is not None:
        return ("delayd-delay", _delay(in_))
    if in_ is None and cron is None and at is not None:
        return ("delayd-due", _due(at))
    if in_ is None and at is None and cron is not None:
        return ("delayd-cron", _bytes("cron expression", cron))
    raise RequestRefusedError(
        "give exactly one of in_, at and cron",
        remedy="in_ is a delay, at a time, cron an expression by which it recurs",
    )


def _delay(in_: Span) -> bytes | None:
    if isinstance(in_, str):
        return _bytes("delay", in_)
    # Below 1 ms rounds up, so that nothing is early.
    delay_ms = -(-in_ // _MS) if isinstance(in_, timedelta) else _ms("delay", in_)
    if delay_ms < 0:
        raise RequestRefusedError(
            f"the delay {in_!r} is negative", remedy="a time in the past is given with at"
        )
    return b"%dms" % delay_ms


def _due(at: Moment) -> bytes | None:
    if isinstance(at, str):
        return _bytes("due time", at)
    if not isinstance(at, datetime):
        return b"%d" % _ms("due time", at)
    if at.utcoffset() is None:
        raise RequestRefusedError(
            f"the datetime {at.isoformat()} has no time zone, so it names no moment",
            remedy="give it one, for instance datetime.now(UTC); or name the zone whose clock it"
            " is a time of (zone)",
        )
    return b"%d" % -((_EPOCH - at) // _MS)


def _ms(what: str, number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise RequestRefusedError(
            f"the {what} is a {type(number).__name__}",
            remedy="give a whole number of ms, text, or a timedelta (in_) or datetime (at)",
        )
    return number


BUFFER = "delayd-buffer"
"""The buffer's name, unless the cluster has a prefix of its own."""


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of `Client.schedule`, for `schedule_many`."""

    topic: str
    value: Content
    key: Content = None
    in_: Span | None = None
    at: Moment | None = None
    headers: UserHeaders | None = None
    partition: int | None = None
    id: str | None = None
    receipts: bool = False
    late: Span | None = None
    window: Span | None = None
    group: str | None = None
    cron: str | None = None
    zone: str | None = None
    until: Moment | None = None
    catchup: str | None = None

    def ask(self, buffer: str) -> Ask:
        """Return the checked record; RequestRefusedError if delayd would reject it."""
        return ask(buffer, **{each.name: getattr(self, each.name) for each in fields(self)})


def schedule_record(
    topic: str, value: Content, *, buffer: str = BUFFER, **options: Unpack[ScheduleOptions]
) -> PlainRecord:
    """Return the record that schedules a message, as `Client.schedule` does."""
    return ask(buffer, topic, value, **options).record(buffer)


def replace_record(
    id: str, topic: str, value: Content, *, buffer: str = BUFFER, **options: Unpack[Options]
) -> PlainRecord:
    """Return the record that schedules a message in place of what is pending under its id."""
    return ask(buffer, topic, value, id=id, op=Op.REPLACE, **options).record(buffer)


def debounce_record(
    id: str, topic: str, value: Content, *, buffer: str = BUFFER, **options: Unpack[DebounceOptions]
) -> PlainRecord:
    """Return the record that debounces a message, as `Client.debounce` does."""
    return ask(buffer, topic, value, id=id, op=Op.DEBOUNCE, **options).record(buffer)


def cancel_record(id: str, *, buffer: str = BUFFER) -> PlainRecord:
    """Return the record that cancels what is pending under an id."""
    return ask_cancel(id).record(buffer)


def fire_record(id: str, *, buffer: str = BUFFER) -> PlainRecord:
    """Return the record that delivers what is pending under an id at once."""
    return ask_fire(id).record(buffer)


def reschedule_record(
    id: str,
    *,
    in_: Span | None = None,
    at: Moment | None = None,
    by: Span | None = None,
    buffer: str = BUFFER,
) -> PlainRecord:
    """Return the record that gives what is pending under an id another due time."""
    return ask_reschedule(id, in_=in_, at=at, by=by).record(buffer)
