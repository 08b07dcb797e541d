"""What a receipt `scheduled` says of the second in which its message is due.

    span 1 s    the hour of the message is near, and split or indexed: messages due in that second.
                Those that were killed since they were stored count too, but never more than are
                pending in the hour
    span 1 h    the hour is far: messages pending in that hour; nothing is said of lateness

Messages are counted on this node when the step writes the receipt, the message itself among them
unless it was cancelled by then: of its target, or of all further targets together if the wheel
counts it as one of those. Of these nobody knows how many wait for the target's own rate.

    lateness = max((all of the second - 1) / (measured rate * shards),
                   (those of the target - 1) / the target's rate_max)

So late is the message if every other one of the second goes out before it. The rate is what this
node measured of its own steps; other shards are taken to be as fast. Advice: no function of the
log. So it goes into the receipt and nowhere else, nothing is decided by it, and a successor that
writes the receipt instead may say something else.

Source: docs/reference/requests.md, "Forecasts".
"""

from delayd.node.delivery.delivery_context import DeliveryContext
from delayd.request import Body, Forecast, told_message_of
from delayd.wheel.layout import HOUR_MS, hour_of
from replication.rank import SLOT_MS, slot_of


class Forecasts:
    """Of the receipts of one step. Takes no lock."""

    def __init__(self, context: DeliveryContext, now_ms: int) -> None:
        """`now_ms`: of the step."""
        self._wheel = context.replica.wheel
        self._rate = context.step_sizing.measured_rate * context.replica.settings.shards
        self._rates = context.options.rates
        self._now_ms = now_ms

    def of(self, reply: Body) -> Forecast | None:
        """Return the forecast for the receipt in a pending reply; None if its message is due
        already, or the reply is of none."""
        message = told_message_of(reply)
        if message is None or message.due_ms <= self._now_ms:
            return None
        slot, counts = slot_of(message.due_ms), self._wheel.counts
        near_slot, _ = self._wheel.filing
        whole_below = self._wheel.whole_below
        if slot >= (near_slot if whole_below is None else min(near_slot, whole_below)):
            return Forecast(counts.pending_of(hour_of(slot), message.topic), HOUR_MS)
        hour = hour_of(slot)
        count = min(counts.due_of(slot, message.topic), counts.pending_of(hour, message.topic))
        limit = self._rates.get(message.topic) if counts.is_named(message.topic) else None
        lates_ms = [(count - 1) * 1000 // limit] if limit else []
        if self._rate:
            due = min(counts.due_in(slot), counts.pending_in_hour(hour))
            lates_ms.append((due - 1) * 1000 // self._rate)
        return Forecast(count, SLOT_MS, max(0, *lates_ms) if lates_ms else None)
