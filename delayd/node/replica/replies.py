"""The replies of one batch of buffer records: what the steps that pass them will write.

Not here: what they say (`refusals.py`, `cancel_marks.py`).
"""

from typing import Any

from delayd.bus import Record
from delayd.node.replica.refusals import receipt_for
from delayd.request import (
    Reject,
    Request,
    ToldMessage,
    Verdict,
    order_body,
    pending_reply_body,
    quota_body,
    reject_body,
    reject_receipt,
    source_of,
)
from delayd.wheel import Frame, FrameKind
from delayd.wheel.frame import PackedFrame
from replication.frontier import Frontier
from replication.rules import Rules
from replication.settings import FORECAST_RULES

_Body = tuple[Any, ...]
# See `delayd.request.parser`: named tuples, without what their constructors cost.
_made = tuple.__new__


class Replies:
    """Adds frames of replies to those of a batch. Used under the replica's lock."""

    def __init__(
        self, frames: list[Frame | PackedFrame], covered: Frontier | None, rules: Rules
    ) -> None:
        """`covered`: a frontier so old that what it covers is not stored any more."""
        self._frames = frames
        self._covered = covered
        self._rules = rules

    def confirm(self, record: Record, request: Request) -> None:
        """Reply that the message is stored."""
        told, message = receipt_for(record, request, Verdict.SCHEDULED), None
        is_later = request.topic is not None and request.due_ms > record.append_ms
        if is_later and self._rules.version_at(record.partition, record.offset) >= FORECAST_RULES:
            message = ToldMessage(request.due_ms, request.topic or "")
        body = pending_reply_body(dead=None, receipt=told, message=message)
        self.file(record, FrameKind.PENDING_REPLY, body)

    def reject(self, record: Record, reject: Reject) -> None:
        """Reply to a request that cannot be carried out."""
        told = reject_receipt(reject, source=source_of(record.partition, record.offset))
        self.reply(record, told, reject_body(record, reject))

    def keep_order(self, record: Record, request: Request) -> None:
        """Keep an operator's order for the step that passes it; nothing of any other request."""
        if request.order is not None:
            self.file(record, FrameKind.PENDING_REPLY, order_body(request.order))
        elif request.quota is not None:
            self.file(record, FrameKind.PENDING_REPLY, quota_body(request.quota))

    def reply(self, record: Record, told: _Body | None, dead: _Body | None = None) -> None:
        """Reply with a receipt, a dead letter, or both."""
        body = pending_reply_body(dead=dead, receipt=told)
        self.file(record, FrameKind.PENDING_REPLY, body)

    def file(self, record: Record, kind: FrameKind, body: _Body, lane: int = 0) -> None:
        """Keep a reply for the step that passes it, unless an old frontier has passed it."""
        partition, offset, append_ms = record.partition, record.offset, record.append_ms
        if self._covered is None or offset >= self._covered.offsets[partition]:
            frame = (append_ms, partition, offset, lane, kind, append_ms, body)
            self._frames.append(_made(Frame, frame))
