"""Requests: what records of the buffer ask for. Pure.

`parse` reads a record; `message_body` and `reject_body` build the bodies that the wheel stores;
`delivered`, `dead_letter`, `receipt_record` and `continuation` build the records that are produced.

| file | what it holds |
|---|---|
| `request.py` | a valid request, its operation, the cluster's limits |
| `parser.py` | `parse`: the order of checks |
| `headers.py` | names, sizes and text of headers |
| `grammar.py`, `times.py`, `local_times.py` | the grammar of the headers' texts |
| `reasons.py` | every reason to reject a request |
| `proof.py`, `internal.py` | digests and proofs; the master's internal records |
| `settlements.py` | of these, what cancels and replaces came to |
| `holds.py` | orders to pause a target topic, and to resume it |
| `bodies.py`, `receipts.py` | the stored and the produced form |

Not here: the state of ids and cancel markers, which ingest decides; whether a target exists, which
a step checks.

Invariants:
- the outcome depends only on the record and on the cluster's fixed limits and key, never on a clock
  or on the version of the package: every replica decides alike;
- `parse` never raises: whatever the bytes are, there is exactly one outcome;
- user headers keep their order and repeats; details never carry payloads.

Source: docs/design, "The wire contract".
"""

from delayd.request.bodies import (
    Body,
    DeadLetter,
    Delivery,
    ToldMessage,
    asked_due_of,
    attempt_of,
    conflict_body,
    dead_body,
    dead_letter,
    delivered,
    group_of,
    id_of,
    is_requeued,
    local_of,
    message_body,
    offset_of,
    order_body,
    order_of,
    origin_of,
    pending_reply_body,
    planned_of,
    quota_body,
    quota_of,
    reason_of,
    reject_body,
    series_of,
    source_of,
    told_id_of,
    told_message_of,
    turn_of,
    wishes_of,
    worth_until_ms_of,
)
from delayd.request.headers import size_of
from delayd.request.holds import order_record
from delayd.request.internal import (
    INTERNAL_MARGIN_BYTES,
    BufferRecord,
    continuation,
    moved_body,
    occurrence_body,
    resolved_body,
)
from delayd.request.parser import parse
from delayd.request.quotas import quota_record
from delayd.request.reasons import DIED, Reason, Reject
from delayd.request.receipts import (
    Forecast,
    ReceiptRecord,
    Verdict,
    receipt,
    receipt_record,
    reject_receipt,
    verdict_of,
)
from delayd.request.redrives import redriven_before
from delayd.request.request import (
    LocalState,
    LocalTime,
    Op,
    Request,
    RequestLimits,
    Series,
    SeriesState,
    Turn,
    Wishes,
)
from delayd.request.settlements import Settled, settlement_records

__all__ = [
    "DIED",
    "INTERNAL_MARGIN_BYTES",
    "Body",
    "BufferRecord",
    "DeadLetter",
    "Delivery",
    "Forecast",
    "LocalState",
    "LocalTime",
    "Op",
    "Reason",
    "ReceiptRecord",
    "Reject",
    "Request",
    "RequestLimits",
    "Series",
    "SeriesState",
    "Settled",
    "ToldMessage",
    "Turn",
    "Verdict",
    "Wishes",
    "asked_due_of",
    "attempt_of",
    "conflict_body",
    "continuation",
    "dead_body",
    "dead_letter",
    "delivered",
    "group_of",
    "id_of",
    "is_requeued",
    "local_of",
    "message_body",
    "moved_body",
    "occurrence_body",
    "offset_of",
    "order_body",
    "order_of",
    "order_record",
    "origin_of",
    "parse",
    "pending_reply_body",
    "planned_of",
    "quota_body",
    "quota_of",
    "quota_record",
    "reason_of",
    "receipt",
    "receipt_record",
    "redriven_before",
    "reject_body",
    "reject_receipt",
    "resolved_body",
    "series_of",
    "settlement_records",
    "size_of",
    "source_of",
    "told_id_of",
    "told_message_of",
    "turn_of",
    "verdict_of",
    "wishes_of",
    "worth_until_ms_of",
]
