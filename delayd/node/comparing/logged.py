"""The buffer's word on a message: what its record makes of it, by the rules of ingest.

A schedule without an id is stored whatever came before, and a request that is refused never is:
for these the record alone decides. Of others it tells only what they look like if they are stored.

It has no word on a debounce, whose due time depends on those before it; nor on a record that claims
to be the master's and proves it by no key that this node has: it may have been stored under a key
that was taken away since (`delayd.config.cluster_key`).
"""

from contextlib import closing, suppress
from dataclasses import replace
from typing import Final

from delayd.bus import Bus, Position, Record
from delayd.errors import DelaydError
from delayd.node.comparing.judging import Logged
from delayd.node.comparing.side import Source, Value
from delayd.node.replica.replica import Replica
from delayd.request import Op, Reason, Reject, RequestLimits, message_body, parse
from delayd.runtime.clock import Clock
from delayd.wheel import FrameKind
from delayd.wheel.frame import FORM_OF, encode_fields
from replication.quotas import NO_FULL
from replication.rank import due_of, lane_of

POLL_MS: Final = 100
READ_MS: Final = 5_000
"""How long one record is waited for."""
_STORING: Final = frozenset({Op.SCHEDULE, Op.REPLACE, Op.CONTINUE, Op.REDRIVE})


class BufferLog:
    """The records of the buffer, one at a time."""

    def __init__(self, bus: Bus, replica: Replica, clock: Clock) -> None:
        self._bus = bus
        self._replica = replica
        self._clock = clock

    def logged(self, source: Source) -> Logged | None:
        """Return what the log says of a message; None if it does not have it, or cannot be
        read."""
        if source.kind != FrameKind.MESSAGE:
            return None
        with suppress(DelaydError):
            record = self._record(source)
            if record is not None:
                replica = self._replica
                # Whether its target was full there is not known any more; what is stored was not.
                limits = replace(replica.limits, full=NO_FULL)
                return logged_of(record, limits, replica.settings.lanes)
        return None

    def _record(self, source: Source) -> Record | None:
        deadline_ms = self._clock.monotonic_ms() + READ_MS
        _, partition, offset = source
        buffer = self._replica.settings.buffer.name
        with closing(self._bus.consumer(buffer, careful=True)) as consumer:
            consumer.assign({partition: Position(offset)})
            while (
                self._clock.monotonic_ms() < deadline_ms and consumer.position(partition) <= offset
            ):
                for record in consumer.poll(1, POLL_MS):
                    return record if record.offset == offset else None
        return None


def logged_of(record: Record, limits: RequestLimits, lanes: int) -> Logged | None:
    """Return what a record says of the message that it may have become; None if its proof is of no
    key that this node knows, and of a debounce."""
    request = parse(record, limits)
    if isinstance(request, Reject) and request.reason is Reason.BAD_PROOF:
        return None
    if not isinstance(request, Reject) and request.op is Op.DEBOUNCE:
        return None
    if isinstance(request, Reject) or request.op not in _STORING:
        return Logged(None, is_stored=False)
    assert request.topic is not None, "a message has a target"
    due_ms = due_of(request.due_ms, record.append_ms)
    _, crc = encode_fields(
        FORM_OF[FrameKind.MESSAGE],
        lane_of(request.topic, lanes),
        record.partition,
        record.offset,
        record.append_ms,
        due_ms,
        message_body(request),
    )
    is_plain = request.op is Op.SCHEDULE and request.id is None
    return Logged(Value(due_ms, crc), is_stored=True if is_plain else None)
