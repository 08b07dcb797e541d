"""The delivery queue and cancel markers: when a verdict may be given."""

from dataclasses import replace

from replication.delivery_queue import (
    DeliveryQueue,
    StepLimits,
)
from replication.entry import Entry
from replication.frontier import first_frontier
from replication.rank import Rank

MARKER = 2


def queue_with_marker(own_write: int) -> DeliveryQueue:
    """One cancel marker at offset 5 waits, and steps have requeued up to `own_write`."""
    first = first_frontier(0, partitions=1, lanes=1)
    frontier = replace(first, own_writes=(own_write,))
    marker = Entry(1_000, 0, 5, 0, MARKER, 0, 100)
    return DeliveryQueue(frontier, [marker], marker_kinds=(MARKER,))


def test_a_cancel_marker_waits_until_all_that_was_requeued_is_ingested() -> None:
    """docs/design/frontier.md, Verdicts: a cancel marker is passed once ingest is beyond R.

    Rules: verdict-waits-for-r
    """
    queue = queue_with_marker(own_write=10)
    held = queue.plan(5_000, (10,), StepLimits())
    assert held.replies == () and held.frontier.offsets == (5,)
    passed = queue.plan(5_000, (11,), StepLimits())
    assert len(passed.replies) == 1 and passed.frontier.offsets == (11,)


def test_a_cancel_marker_waits_for_what_was_requeued_when_it_could_first_be_passed() -> None:
    """docs/design/frontier.md, Verdicts: a target that fails all the time starves no verdict."""
    queue = queue_with_marker(own_write=10)
    for written in range(11, 20):
        held = queue.plan(5_000, (10,), StepLimits())
        assert held.replies == ()
        queue.begin(held)
        queue.wrote((written,))
    passed = queue.plan(5_000, (11,), StepLimits())
    assert len(passed.replies) == 1 and passed.frontier.own_writes == (19,)


def test_a_cancel_marker_that_arrives_during_a_step_waits_for_what_that_step_requeues() -> None:
    """docs/design/frontier.md, Verdicts: it may continue what the cancel marker kills.

    Rules: verdict-waits-for-r
    """
    queue = DeliveryQueue(first_frontier(0, partitions=1, lanes=1), [], marker_kinds=(MARKER,))
    queue.begin(queue.plan(5_000, (5,), StepLimits()))
    queue.reply_arrived(Entry(1_000, 0, 5, 0, MARKER, 0, 100))
    queue.wrote((8,))
    assert queue.plan(5_000, (8,), StepLimits()).replies == ()
    assert len(queue.plan(5_000, (9,), StepLimits()).replies) == 1


def test_a_postponed_verdict_waits_for_the_step_that_may_requeue_what_it_kills() -> None:
    """docs/design/frontier.md, Verdicts: the continuation must have been refused before."""
    queue = queue_with_marker(own_write=10)
    queue.begin(queue.plan(5_000, (10,), StepLimits()))
    queue.postpone_verdict(0, 5)
    queue.wrote((15,))
    assert queue.plan(5_000, (12,), StepLimits()).replies == ()
    assert len(queue.plan(5_000, (16,), StepLimits()).replies) == 1


def test_a_message_and_the_cancel_marker_of_a_replace_are_passed_together_or_not_at_all() -> None:
    """docs/design/frontier.md, Verdicts: O passes both, or neither."""
    first = first_frontier(0, partitions=1, lanes=1)
    frontier = replace(first, cursors=(Rank(9_000, 0, 0),), own_writes=(10,))
    message = Entry(1_000, 0, 5, 0, 0, 0, 100)
    marker = Entry(1_000, 0, 5, 0, MARKER, 100, 100)
    queue = DeliveryQueue(frontier, [marker], marker_kinds=(MARKER,))
    queue.arrived(message)
    held = queue.plan(9_000, (10,), StepLimits())
    assert (held.deliveries, held.replies, held.frontier.offsets) == ((), (), (5,))
    passed = queue.plan(9_000, (11,), StepLimits(records_max=1))
    assert len(passed.deliveries) == len(passed.replies) == 1
