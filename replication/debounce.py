"""What a debounce does to the messages of its id: which it kills, and which run it joins. Pure.

A *run* is the requests of which each came before the message of the one before it was due. The
message of the last one is stored, and due so long after it as it asks for, or so long after the
first one as it waits at most.

Invariant: what is due by the time as of which a debounce is judged is not killed by it.
Source: docs/design/debounce.md.
"""

from collections.abc import Iterable

from replication.ids import (
    IdState,
    KilledMessage,
    LiveMessage,
    held_counting,
    killed_from,
    last_killed,
)


def supersede(
    state: IdState, marker_offset: int, as_of_ms: int, id_memory_ms: int
) -> tuple[IdState, tuple[KilledMessage, ...]]:
    """Return the state after a debounce, without what that stores, and what it kills: all that is
    pending. What is due by then stays live, and goes out: otherwise requests that never cease could
    keep a message from going out at all. What a reschedule holds it takes over unless all of it is
    due, or was so long ago that other nodes may have dropped it."""
    taken: tuple[KilledMessage, ...] = ()
    reserved = state.reserved
    held = held_counting(state, as_of_ms, id_memory_ms)
    if any(each.new_due_ms > as_of_ms for each in held):
        taken, reserved = tuple([each.message for each in held]), None
    pending = [m for m in state.live if m.gives_way(as_of_ms)]
    killed = (*taken, *killed_from(pending))
    if not killed:
        return state, ()
    left = tuple([m for m in state.live if not m.gives_way(as_of_ms)])
    kept = last_killed(state.killed, killed, as_of_ms, id_memory_ms)
    changed = state._replace(live=left, killed=kept, killed_by=marker_offset, reserved=reserved)
    return changed, killed


def run_of(live: Iterable[LiveMessage], as_of_ms: int, append_ms: int) -> int:
    """Return the append time of the first request of the run that a debounce joins, or its own if
    it begins one. A time that a clock was ahead by counts no longer than that."""
    pending = [m.since_ms for m in live if m.since_ms > 0 and m.is_pending(as_of_ms)]
    return min([append_ms, *pending])
