"""Receipts: the verdict on a request with an id, or on a redrive, as a record for its user.

    stored  = (id, verdict slug, op slug, source, [killed source...], due ms or nil, detail
               [, old due ms])
    record  = key: the id; header delayd-source: the source; value: a JSON object in ASCII with
              id, verdict, op, source, killed, due_ms, at_ms, detail, in this order; of what was
              rescheduled then old_due_ms; of what is scheduled for later perhaps
              forecast_messages, forecast_span_ms [, forecast_late_ms]

The stored form has no time: it waits in the wheel until the step that makes it true, and `at_ms`
is that step's `now`.

Source: docs/design, "The wire contract".
"""

import json
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

from delayd.bus import Headers
from delayd.request.reasons import Reason, Reject, bounded
from delayd.request.request import Op


class Verdict(Enum):
    """The outcome of a request: a stable slug, and its meaning."""

    meaning: str

    def __new__(cls, slug: str, meaning: str = "") -> "Verdict":
        member = object.__new__(cls)
        member._value_ = slug
        member.meaning = meaning
        return member

    @property
    def slug(self) -> str:
        """Return the value of `verdict` in a receipt."""
        return str(self._value_)

    CANCELLED = (
        "cancelled",
        "The messages in `killed` were pending and will never be delivered. Of a repeated cancel:"
        " an earlier request had killed them.",
    )
    TOO_LATE = (
        "too-late",
        "What was pending under the id is delivered, expired or dead. After a replace or a debounce"
        " the new message still goes out.",
    )
    NOT_FOUND = "not-found", "Nothing was pending under the id; `detail` has what is known of it."
    RESCHEDULED = (
        "rescheduled",
        "What was pending is due at `due_ms` now, and was at `old_due_ms`; nothing else of it has"
        " changed.",
    )
    REPLACED = "replaced", "The messages in `killed` will never be delivered, the new one will."
    DUPLICATE = (
        "duplicate",
        "The same message is pending under the id already, or the dead letter was sent again"
        " already: nothing was added.",
    )
    CONFLICT = (
        "conflict",
        "A different message is pending under the id: nothing was added or changed, the request is"
        " a dead letter.",
    )
    OVER_QUOTA = (
        "over-quota",
        "The target has as many pending messages, or gets as many requests a second, as its quota"
        " allows (`detail` says which): nothing was added or changed, the request is a dead"
        " letter.",
    )
    REJECTED = "rejected", "The request is a dead letter; `detail` has the reason."
    EXPIRED = "expired", "The message was no longer worth delivering; it is a dead letter."
    DEAD = "dead", "The message could not be delivered; it is a dead letter."
    ENDED = "ended", "The series has ended: its last occurrence is delivered, expired or dead."
    SCHEDULED = (
        "scheduled",
        "The message is pending. Of a replace or a debounce: nothing was there to be replaced. Of a"
        " redrive: the dead letter is sent again. Of a schedule or a debounce: with"
        " `delayd-receipt: yes` or `receipts = all` only.",
    )
    DELIVERED = (
        "delivered",
        "The message is in its target; with `delayd-receipt: yes` or `receipts = all` only.",
    )


class ReceiptRecord(NamedTuple):
    """A record to produce to the receipts topic, in the partition of its key."""

    key: bytes
    value: bytes
    headers: Headers


class Forecast(NamedTuple):
    """What is expected of the time at which a message is due. Advice."""

    messages: int
    """Of the same target, in the same span."""
    span_ms: int
    """A second, or an hour."""
    late_ms: int | None = None
    """How late the last one of a second will be; None if that is not known."""


def receipt(
    *,
    id: str,
    verdict: Verdict,
    op: Op,
    source: str,
    killed: Iterable[str] = (),
    due_ms: int | None = None,
    detail: str = "",
    old_due_ms: int | None = None,
) -> tuple[Any, ...]:
    """Return the stored form of a receipt. `source` is the request's, `killed` are sources,
    `due_ms` is the due time as asked (Unix ms), `old_due_ms` the one before a reschedule."""
    told = (id, verdict.slug, op.slug, source, tuple(killed), due_ms, bounded(detail))
    return told if old_due_ms is None else (*told, old_due_ms)


def reject_receipt(reject: Reject, *, source: str) -> tuple[Any, ...] | None:
    """Return the stored receipt of a reject; None if it has no id to send it to."""
    if reject.id is None:
        return None
    verdict, detail = Verdict.REJECTED, f"{reject.reason.slug}: {reject.detail}"
    if reject.reason is Reason.OVER_QUOTA:
        verdict, detail = Verdict.OVER_QUOTA, reject.detail
    return receipt(id=reject.id, verdict=verdict, op=reject.op, source=source, detail=detail)


def verdict_of(stored: Any) -> str:
    """Return the verdict's slug of a stored receipt."""
    slug: str = stored[1]
    return slug


def receipt_record(stored: Any, *, at_ms: int, forecast: Forecast | None = None) -> ReceiptRecord:
    """Return the record of a stored receipt that a step writes whose `now` is `at_ms` (Unix ms)."""
    id, verdict, op, source, killed, due_ms, detail, *old_due_ms = stored
    fields = {
        "id": id,
        "verdict": verdict,
        "op": op,
        "source": source,
        "killed": list(killed),
        "due_ms": due_ms,
        "at_ms": at_ms,
        "detail": detail,
    }
    if old_due_ms:
        [fields["old_due_ms"]] = old_due_ms
    if forecast is not None:
        said = forecast._asdict().items()
        fields |= {f"forecast_{name}": number for name, number in said if number is not None}
    value = json.dumps(fields, separators=(",", ":")).encode()
    return ReceiptRecord(id.encode(), value, [("delayd-source", source.encode())])
