"""Parsing a record into the request that it asks for.

`parse` checks in this order, and the first problem is the outcome:
0. whether it stands for a batch that cannot be read,
1. the size of the record,
2. the proof of an internal record, and nothing else unless it is valid,
3. header names, then each `delayd-*` header in the order of the record,
4. operation, headers that do not go with it, id, target topic, due time, wishes, distance of the
   planned time, target partition, redrive,
5. whether its target topic is full.
"""

from delayd.bus import Headers, Record
from delayd.bus.unreadable import UnreadableBatch
from delayd.request.bodies import source_of
from delayd.request.grammar import (
    ID_BYTES_MAX,
    Fields,
    as_sent,
    asked_due_ms_of,
    check_id,
    check_no_value,
    debounce_of,
    due_form_of,
    new_due_of,
    op_named,
    op_of,
    redrive_of,
    refuse_by,
    refuse_max_wait,
    series_of,
    source_partition_of,
    target_of,
    target_partition_of,
    wishes_of,
)
from delayd.request.headers import (
    HEADER_ALLOWANCE_BYTES,
    HEADER_PREFIX,
    RECORD_ALLOWANCE_BYTES,
    REDRIVE_MARGIN_BYTES,
    check_names,
    fields_of,
    headers_known,
    name_bytes,
)
from delayd.request.holds import is_hold, parse_hold
from delayd.request.internal import INTERNAL_MARGIN_BYTES, is_internal, parse_internal
from delayd.request.local_times import earliest_ms_of, local_time_of
from delayd.request.proof import digest_of, without_tracing
from delayd.request.quotas import is_quota, parse_quota, refuse_full
from delayd.request.reasons import Reason, RefusedError, Reject
from delayd.request.request import Op, Request, RequestLimits
from delayd.request.settlements import is_settlement, parse_settlement
from delayd.request.spreading import planned_ms_of
from replication.rules import (
    is_steady,
    knows_local_times,
    knows_pauses,
    knows_quotas,
    knows_series,
    knows_wishes,
)

# Python 3.11 takes 125 ns to look up a member of an enum, a global takes 2.
_SCHEDULE = Op.SCHEDULE
_CANCEL = Op.CANCEL
_REDRIVE = Op.REDRIVE
_REPLACE = Op.REPLACE
_DEBOUNCE = Op.DEBOUNCE
_MOVES = frozenset({Op.RESCHEDULE, Op.FIRE})
# Past the constructor's arguments, which take 140 ns more; mypy cannot count the fields here.
_made = tuple.__new__
_NO_ID = (
    *(None, b"", "", 0, None, None, None, None, (), False, None, None, None, -1, False, None, None),
    *(0, None, None),
)


def parse(record: Record, limits: RequestLimits) -> Request | Reject:
    """Return the request of `record` under the cluster's `limits`, or its reject. Never raise.

    The hot path of ingest: one pass over the headers, no allocation for those of the user. An
    internal record is recognised when one of its headers is refused, at no cost to other records.
    """
    if type(record) is UnreadableBatch:
        return Reject(Reason.UNREADABLE_BATCH, (record.value or b"").decode())
    key, value = record.key, record.value
    size = RECORD_ALLOWANCE_BYTES
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    user: Headers = []
    asked: Headers = []
    ascii_names = True
    for header in record.headers:
        name, content = header
        size += HEADER_ALLOWANCE_BYTES + len(name)
        if content is not None:
            size += len(content)
        if not name.isascii():
            ascii_names = False
            size += len(name_bytes(name)) - len(name)
        if name.startswith(HEADER_PREFIX):
            asked.append(header)
        else:
            user.append(header)
    if size > limits.record_bytes_max and size > limits.record_bytes_max + _margin_bytes(
        record, asked, limits
    ):
        return _too_large(record, asked, limits, size)
    try:
        if not ascii_names:
            check_names(record.headers)
        request = _request_of(record, limits, key, user, asked)
        if limits.full:
            refuse_full(request, record, limits)
        return request
    except RefusedError as refusal:
        return _refused(record, asked, limits, refusal)


def _request_of(
    record: Record, limits: RequestLimits, key: bytes | None, user: Headers, asked: Headers
) -> Request:
    """Return what the `delayd-*` headers of a user's record ask for. RefusedError if they ask for
    nothing that can be done."""
    version = limits.rules.version_at(record.partition, record.offset)
    fields = fields_of(asked, headers_known(version), version)
    op = _SCHEDULE
    if "delayd-op" in fields or "delayd-redrive" in fields:
        op = op_of(fields, version)
    id = fields.get("delayd-id")
    if id is not None or op is not _SCHEDULE:
        check_id(id, op, record, limits.partitions)
        if op is _CANCEL:
            return Request(op, None, 0, 0, None, None, [], None, id)
        if op in _MOVES:
            return _reschedule_of(record, limits, op, id, fields)
    if "delayd-by" in fields:
        refuse_by(fields, op)
    if op is _DEBOUNCE:
        return _debounce_of(record, limits, key, user, fields)
    if "delayd-max-wait" in fields:
        refuse_max_wait(op)
    topic = target_of(fields, limits.prefix)
    series = local = None
    if knows_series(version):
        series = series_of(fields, knows_local_times=knows_local_times(version))
        if series is None and "delayd-zone" in fields:
            local = local_time_of(fields)
    # Of a series and of a local time: the step that comes to it finds out when it is due.
    due_ms = farthest_ms = record.append_ms
    if local is not None:
        farthest_ms = earliest_ms_of(local)
    elif series is None:
        due_ms = asked_due_ms_of(fields, due_ms, refuses_units=is_steady(version))
        farthest_ms = due_ms
    planned_ms, wishes = due_ms, wishes_of(fields)
    if wishes is not None and wishes.window_ms is not None:
        farthest_ms += wishes.window_ms  # Wherever in it it is planned: luck refuses nothing.
        name = source_of(record.partition, record.offset) if id is None else id
        if local is None:
            planned_ms = planned_ms_of(due_ms, wishes.window_ms, name)
    if farthest_ms - record.append_ms > limits.max_delay_ms:
        raise _too_far(farthest_ms - record.append_ms, limits.max_delay_ms)
    delivered_key = fields.get("delayd-key")
    if delivered_key is not None:
        key = delivered_key.encode()
    value, partition = record.value, target_partition_of(fields)
    sent = (op, topic, due_ms, planned_ms, key, value, user, partition)
    if id is None and op is _SCHEDULE and wishes is None and series is None and local is None:
        return _made(Request, (*sent, *_NO_ID))
    digest = b""
    if id is not None:
        counted = without_tracing(user, limits) if is_steady(version) else user
        forms = due_form_of(fields) if wishes is None else as_sent(fields)
        digest = digest_of(topic, key, value, counted, partition, forms)
    redrive = redrive_of(fields, record) if op is _REDRIVE else None
    has_own_time = op is _REPLACE and "delayd-due" in fields and local is None
    named = Request(*sent, id, digest, redrive=redrive, has_own_time=has_own_time)
    return named._replace(wishes=wishes, series=series, local=local)


def _reschedule_of(
    record: Record, limits: RequestLimits, op: Op, id: str | None, fields: Fields
) -> Request:
    """Return the request for another due time of what is pending under an id."""
    check_no_value(record.value, op)
    due_ms, by_ms = record.append_ms, None
    if op is Op.RESCHEDULE:
        due_ms, by_ms = new_due_of(fields, record.append_ms)
    if due_ms - record.append_ms > limits.max_delay_ms:
        raise _too_far(due_ms - record.append_ms, limits.max_delay_ms)
    asked_ms = due_ms
    if by_ms is not None:
        due_ms, asked_ms = record.append_ms + limits.max_delay_ms, 0
    return Request(op, None, asked_ms, due_ms, None, None, [], None, id, by_ms=by_ms)


def _debounce_of(
    record: Record, limits: RequestLimits, key: bytes | None, user: Headers, fields: Fields
) -> Request:
    """Return the request for the last of several messages under an id."""
    topic = target_of(fields, limits.prefix)
    delay_ms, max_wait_ms = debounce_of(fields)
    wishes = wishes_of(fields)
    if delay_ms > limits.max_delay_ms:
        raise _too_far(delay_ms, limits.max_delay_ms)
    delivered_key = fields.get("delayd-key")
    if delivered_key is not None:
        key = delivered_key.encode()
    value, partition, due_ms = record.value, target_partition_of(fields), record.append_ms
    due_ms += delay_ms
    forms = (*as_sent(fields), "delayd-max-wait", fields["delayd-max-wait"])
    digest = digest_of(topic, key, value, without_tracing(user, limits), partition, forms)
    sent = (_DEBOUNCE, topic, due_ms, due_ms, key, value, user, partition)
    return Request(*sent, fields["delayd-id"], digest, wishes=wishes, max_wait_ms=max_wait_ms)


def _margin_bytes(record: Record, asked: Headers, limits: RequestLimits) -> int:
    """Return how much larger this record may be: a request that was taken must fit again."""
    if is_internal(asked) or _settles(record, asked, limits):
        return INTERNAL_MARGIN_BYTES
    if any(name == "delayd-redrive" for name, _ in asked):
        return REDRIVE_MARGIN_BYTES
    return 0


def _settles(record: Record, asked: Headers, limits: RequestLimits) -> bool:
    """Return whether a record says that it has settlements, where the rules know them."""
    return is_settlement(asked) and is_steady(
        limits.rules.version_at(record.partition, record.offset)
    )


def _too_large(record: Record, asked: Headers, limits: RequestLimits, size: int) -> Reject:
    return Reject(
        Reason.TOO_LARGE,
        f"the record counts {size} bytes of key, value and headers, this cluster takes"
        f" {limits.record_bytes_max}: send a smaller one, for instance a reference to the data",
        truncated=True,
        id=_readable_id(record, asked, limits),
        op=_readable_op(record, asked, limits),
    )


def _too_far(distance_ms: int, max_delay_ms: int) -> RefusedError:
    return RefusedError(
        Reason.TOO_FAR,
        f"the due time is {distance_ms} ms after the append time, this cluster's max_delay is"
        f" {max_delay_ms} ms: choose an earlier time",
    )


def _refused(
    record: Record, asked: Headers, limits: RequestLimits, refusal: RefusedError
) -> Request | Reject:
    """Return the outcome of a record that is no request of a user."""
    settles = _settles(record, asked, limits)
    if settles or is_internal(asked):
        try:
            if settles:
                return parse_settlement(record, limits)
            version = limits.rules.version_at(record.partition, record.offset)
            if is_hold(asked) and knows_pauses(version):
                return parse_hold(record, limits)
            if is_quota(asked) and knows_quotas(version):
                return parse_quota(record, limits)
            return parse_internal(record, asked, limits)
        except RefusedError as refused:
            refusal = refused
    id = _readable_id(record, asked, limits)
    return Reject(refusal.reason, refusal.detail, id=id, op=_readable_op(record, asked, limits))


def _readable_id(record: Record, asked: Headers, limits: RequestLimits) -> str | None:
    """Return the id to send the receipt of a reject to: an id that is present once and valid, else
    the source that is redriven, else its own if it wants receipts."""
    id = _only(asked, "delayd-id")
    if id is not None and len(id.encode()) <= ID_BYTES_MAX:
        return id
    source = _only(asked, "delayd-redrive")
    if source is not None and source_partition_of(source) is not None:
        return source
    version = limits.rules.version_at(record.partition, record.offset)
    is_told = knows_wishes(version) and _only(asked, "delayd-receipt") == "yes"
    return source_of(record.partition, record.offset) if is_told else None


def _readable_op(record: Record, asked: Headers, limits: RequestLimits) -> Op:
    """Return the operation of a rejected request, as far as it can be read."""
    version = limits.rules.version_at(record.partition, record.offset)
    op = op_named(_only(asked, "delayd-op") or "", version)
    if op is not None and op is not Op.SCHEDULE:
        return op
    return Op.SCHEDULE if _only(asked, "delayd-redrive") is None else Op.REDRIVE


def _only(asked: Headers, name: str) -> str | None:
    """Return the text of a header that is present once, not empty, in UTF-8; else None."""
    contents = [content for other, content in asked if other == name]
    if len(contents) != 1 or not contents[0]:
        return None
    try:
        return contents[0].decode()
    except UnicodeDecodeError:
        return None
