"""Pauses of target topics: what an order says, and the holds that orders make.

An operator's *order* is a record of the buffer. The step that passes it obeys it: from that step on
a *hold* is in the frontier record, so every successor knows it. While the hold is closed nothing
goes to its topic. Once it is open, by its time or by an order to resume, what has waited goes out
at its rate, and the hold stays until that is done (`replication.drain`).

    pause     a hold until then; of a topic that has one, the new time and rate count
    resume    the hold, if there is one, is open from the step on that passes it

All orders about a topic stand in one partition of the buffer, its *home*, so they have one order.

Not here: how messages wait, and in which order they go out (`replication.smoothing`), the record of
an order (`delayd.request.holds`). Pure: times are Unix ms, by the step's `now`.
Source: docs/design/pauses.md.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple
from zlib import crc32

HOLD_MS_MAX: Final = 24 * 60 * 60 * 1000
"""The longest pause that one order asks for: a forgotten one ends by itself."""

ORDER_AGE_MS_MAX: Final = 5 * 60 * 1000
"""How far its time and its append time may be apart: a copy that comes later is refused."""

HOLDS_MAX: Final = 100
"""Topics that may be paused at a time: each is in every frontier record, 60 bytes."""

RATE_DEFAULT: Final = 1_000
"""Records a second that go out after a pause, unless an order says otherwise."""

PARK_SHARE: Final = 8
PARK_MS_MIN: Final = 5_000
PARK_MS_MAX: Final = 5 * 60 * 1000
"""A held message is looked at again after an eighth of what its pause has lasted, within these
bounds. Each look writes it to the buffer once, and an early resume waits for it."""


class Order(NamedTuple):
    """What an operator wants of a topic."""

    topic: str
    at_ms: int
    """When it was given."""
    until_ms: int
    """When the pause ends; 0 of an order to resume."""
    rate: int
    """Records a second from then on; 0: as the hold has it, else RATE_DEFAULT."""

    @property
    def is_pause(self) -> bool:
        """Return whether it pauses its topic."""
        return self.until_ms > 0


class Hold(NamedTuple):
    """A topic that is paused, or whose messages have waited and go out."""

    since_ms: int
    """`now` of the step that closed it."""
    until_ms: int
    """Nothing goes out at a `now` before this."""
    rate: int
    """Records a second from then on."""
    offset: int
    """Of the last order about the topic, in its home."""

    def is_closed(self, now_ms: int) -> bool:
        """Return whether nothing goes out."""
        return now_ms < self.until_ms

    def look_ms(self, now_ms: int) -> int:
        """Return when a message that waits is looked at again, of a hold that is closed."""
        wait_ms = (now_ms - self.since_ms) // PARK_SHARE
        return min(now_ms + min(max(wait_ms, PARK_MS_MIN), PARK_MS_MAX), self.until_ms)


def home_of(topic: str, partitions: int) -> int:
    """Return where the orders about a topic stand among so many partitions."""
    return crc32(topic.encode()) % partitions


def obey(holds: Mapping[str, Hold], order: Order, offset: int, now_ms: int) -> dict[str, Hold]:
    """Return the holds after a step at `now_ms` has passed an order, which stands at this offset.

    A pause that is over by then, or of one topic more than HOLDS_MAX, changes nothing; nor does an
    order to resume what has no hold.
    """
    after, known = dict(holds), holds.get(order.topic)
    rate = order.rate or (RATE_DEFAULT if known is None else known.rate)
    if order.is_pause:
        is_new = known is None and (len(holds) >= HOLDS_MAX or order.until_ms <= now_ms)
        if not is_new:
            goes_on = known is not None and known.is_closed(now_ms)
            since_ms = known.since_ms if known is not None and goes_on else now_ms
            after[order.topic] = Hold(since_ms, order.until_ms, rate, offset)
    elif known is not None:
        until_ms = min(known.until_ms, now_ms)
        after[order.topic] = Hold(known.since_ms, until_ms, rate, offset)
    return after
