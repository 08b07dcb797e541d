"""What a replica drops: delivered slots and replies, and what is remembered of ids.

Used by the replica under its lock. Not here: by which frontier (`retention.py`).

Invariant: nothing is dropped that a frontier younger than `export_hold` may ask for, unless the
disk is short, nor who was killed while a continuation may come that is decided by it.
Source: docs/design/frontier.md, "Forgetting".
"""

from collections.abc import Sequence

from delayd.node.replica.retention import Retention, is_passed
from delayd.wheel.layout import HOUR_SLOTS
from delayd.wheel.storage import Wheel
from replication.frontier import Frontier
from replication.ingest import LogState
from replication.rank import SLOT_MS, slot_of
from replication.rules import is_steady
from replication.settings import AT_LEAST_ONCE, Settings


def has_passed(frontier: Frontier, ingested: tuple[int, ...]) -> bool:
    """Return whether all below O and up to R of a frontier has been ingested."""
    return frontier.reached_by(ingested) and all(
        own > written for own, written in zip(ingested, frontier.own_writes, strict=True)
    )


def forget_covered(wheel: Wheel, retention: Retention, hold_ms: int) -> None:
    """Drop slots and replies that a frontier at least `hold_ms` old covers, or the one that this
    node began with. It need not have ingested that far: what is still to come for such a slot is
    not stored."""
    newest = retention.newest
    if newest is not None:
        # Once more: when it was read, the hour that it stands in may not have been whole.
        wheel.pass_to(slot_of(newest.record.frontier.lowest_cursor.due_ms))
    retention.advance(hold_ms)
    cut = retention.covered
    if cut is None:
        return
    floor_ms = slot_of(cut.lowest_cursor.due_ms) * SLOT_MS
    slots = wheel.slots(0, slot_of(floor_ms) - 1)
    wheel.forget_pending_replies(cut.offsets)
    hours = [hour for hour in wheel.hours() if (hour + 1) * HOUR_SLOTS <= slot_of(floor_ms)]
    wheel.forget(
        [slot for slot in slots if is_passed(wheel.info(slot), cut)],
        [hour for hour in hours if is_passed(wheel.hour_info(hour), cut)],
    )


def forget_some_ids(
    wheel: Wheel,
    cut: Frontier | None,
    states: Sequence[LogState],
    versions: Sequence[int],
    settings: Settings,
) -> bool:
    """Look at some of what is remembered by a frontier; True if there may be more to drop.

    `states` is how far the node has come, `versions` which rules the next record, by partition.
    A continuation that comes after this must be decided as by nodes that forget later: either
    none comes any more, or by its time it is not refused, whatever was killed. At least once, one
    may always come: that of a master which was superseded and does not know it.
    """
    if cut is None:
        return False
    floor_ms = slot_of(cut.lowest_cursor.due_ms) * SLOT_MS
    log_ms = tuple(state.log_ms for state in states)
    ingested = tuple(state.next_offset for state in states)
    is_last, knows_time = has_passed(cut, ingested), is_steady(min(versions))
    if is_last and (settings.guarantee != AT_LEAST_ONCE or not knows_time):
        return wheel.ids.forget(cut, log_ms, floor_ms)
    if not knows_time:
        return False
    return wheel.ids.forget(cut, log_ms, floor_ms, keep_kills_ms=settings.id_memory_ms)
