"""A request: what one record of the buffer asks for. Pure.

`parse` reads a record, `message_body` and `reject_body` make what the wheel stores, `delivered` and
`dead_letter` make what is produced from it. `headers.py` holds the headers of a request, `times.py`
the grammar of times, `reasons.py` every way to be refused, `bodies.py` the stored and the produced
form.

Not here: ids and marks (ingest decides them), and whether a target exists (a step checks it).

Invariants:
- the outcome depends on the record and on the cluster's fixed limits only, never on a clock, on
  configuration or on the version of the package: every replica decides alike;
- `parse` never raises: whatever the bytes are, there is exactly one outcome;
- user headers keep their order and repeats; details never carry payloads.

Source: docs/design, "The wire contract".
"""

from delayd.request.bodies import (
    DeadLetter,
    Delivery,
    dead_body,
    dead_letter,
    delivered,
    message_body,
    reject_body,
    source_of,
)
from delayd.request.headers import Op, RequestLimits, Schedule, parse, size_of
from delayd.request.reasons import Reason, Reject

__all__ = [
    "DeadLetter",
    "Delivery",
    "Op",
    "Reason",
    "Reject",
    "RequestLimits",
    "Schedule",
    "dead_body",
    "dead_letter",
    "delivered",
    "message_body",
    "parse",
    "reject_body",
    "size_of",
    "source_of",
]
