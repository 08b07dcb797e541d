"""The state of one id in a partition's log: its live messages, and those killed last.

Pure data of the ingest rules; the wheel keeps it, `ingest` computes it. A message is *live* from
when it is stored until it is killed or continued; that it was delivered is not in the log, so it
stays live here too, and the frontier tells the two apart.

Invariant: a state depends on the partition's log alone. It is kept or dropped as a whole, never in
parts, so that nodes which drop sooner and later go on to decide alike.
Source: docs/design/frontier.md, "Ids".
"""

from collections.abc import Iterable
from typing import NamedTuple

LIVE_MAX = 64
"""Live messages kept per id; beyond it the one due first is forgotten: it has fired long ago, and
can no longer be cancelled while it is being retried."""

REDRIVES_MAX = LIVE_MAX // 2
"""With so many messages pending under an id no redrive is added to them, so that none of those
forgotten is pending."""


class LiveMessage(NamedTuple):
    """A message that its id can still reach. Sorts by due time, then by offset."""

    due_ms: int
    offset: int
    lane: int
    digest: bytes
    """Of the request as sent; a continuation inherits it."""
    origin: int = -1
    """Of a continuation: offset of the user's own request."""

    @property
    def asked_at(self) -> int:
        """Offset of the user's own request."""
        return self.offset if self.origin < 0 else self.origin


class KilledMessage(NamedTuple):
    """A message that a cancel marker killed, unless it had been done before."""

    due_ms: int
    offset: int
    lane: int
    origin: int = -1
    """As of the live message."""

    @property
    def asked_at(self) -> int:
        """Offset of the user's own request."""
        return self.offset if self.origin < 0 else self.origin


def killed_from(live: Iterable[LiveMessage]) -> tuple[KilledMessage, ...]:
    """Return what remains of live messages that a cancel marker has killed."""
    return tuple(KilledMessage(m.due_ms, m.offset, m.lane, m.origin) for m in live)


class IdState(NamedTuple):
    """One id, or one redriven source, in one partition."""

    live: tuple[LiveMessage, ...] = ()
    killed: tuple[KilledMessage, ...] = ()
    """The last killed set."""
    killed_by: int = -1
    """Offset of the cancel marker that killed it; -1 for none."""

    @property
    def last_due_ms(self) -> int:
        """The latest due time of anything remembered; the id is forgotten some time after it."""
        dues = [m.due_ms for m in self.live] + [m.due_ms for m in self.killed]
        return max(dues, default=0)


NOTHING = IdState()
"""An id that was never used, or was forgotten."""


def with_live(state: IdState, message: LiveMessage) -> IdState:
    """Return the state with one more live message, at most LIVE_MAX of them."""
    live = sorted((*state.live, message))
    return state._replace(live=tuple(live[-LIVE_MAX:]))


def without_live(state: IdState, offset: int) -> IdState:
    """Return the state after the message at `offset` was continued."""
    return state._replace(live=tuple(m for m in state.live if m.offset != offset))


def kill_all(state: IdState, marker_offset: int, as_of_ms: int, id_memory_ms: int) -> IdState:
    """Return the state after a cancel marker: nothing is live.

    What this marker kills replaces the last killed set. Messages that were due longer ago than
    ids are remembered are added to it, but do not displace it: other nodes may have dropped them.
    """
    killed = killed_from(state.live)
    if not any(m.due_ms + id_memory_ms >= as_of_ms for m in killed):
        if not killed:
            return state
        killed = (*state.killed, *killed)[-LIVE_MAX:]
    return IdState((), killed, marker_offset)
