"""What a request asks of the ingest rules (`replication.ingest`). Pure data."""

from enum import IntEnum
from typing import NamedTuple


class Op(IntEnum):
    """The operations of a record, as far as ingest distinguishes them."""

    SCHEDULE = 0
    """Deliver something later."""
    REJECT = 1
    """Nothing that can be done: a reply says why."""
    CANCEL = 2
    """Kill what is live under an id."""
    REPLACE = 3
    """Kill what is live under an id, and deliver something else."""
    CONTINUE = 4
    """The master's own: requeue a message that could not be delivered yet."""
    REDRIVE = 5
    """Deliver a dead letter after all."""
    SWITCH = 6
    """Rule what comes behind it by other rules; or an order about a topic, which a step obeys."""
    SETTLE = 7
    """The master's own: say what cancel markers came to. `ids.settle` does the rest."""
    RESCHEDULE = 8
    """Give what is live under an id another due time, or deliver it at once."""
    DEBOUNCE = 9
    """Kill what is pending under an id, and deliver something else a while after the last of such
    requests."""


class Asked(NamedTuple):
    """The parts of a request that ingest decides by."""

    op: Op
    due_ms: int
    """Requested due time; meaningless for a reject and a cancel."""
    lane: int = 0
    has_id: bool = False
    digest: bytes = b""
    """Of the request as sent, 16 bytes; only with an id."""
    continued_offset: int = -1
    """Of a continuation: offset of the record that it continues."""
    origin: int = -1
    """Of a continuation: offset of the user's own request."""
    continued_due_ms: int = 0
    """Of a continuation: due time of the rank of the record that it continues."""
    has_own_time: bool = False
    """Of a replace: it names its due time, and not a delay."""
    goes_on: int = 0
    """Another record of the series, or of the local time, follows this one (`ids.LiveMessage`)."""
    by_ms: int | None = None
    """Of a reschedule: how much later than now it is to be due; None if `due_ms` says when."""
    is_fire: bool = False
    """Of a reschedule: to be delivered at once."""
    latest_ms: int = 0
    """Of a reschedule: no due time may be later."""
    moved_by: int = -1
    """Of a continuation: offset of the reschedule that wrote it; -1 of all others."""
    follows: bool = False
    """Of a continuation: what it continues has come out, and this is the next occurrence."""
    max_wait_ms: int = 0
    """Of a debounce: how long after the first request of its run it goes out at the latest."""
    waits: bool = False
    """Of a continuation: the message was due, and only deferred (`ids.WAITS`)."""
