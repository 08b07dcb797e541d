"""Reschedules on nodes that have forgotten a kill, or lack the beginning of the log.

Source: docs/design/rescheduling.md.
"""

from typing import Any, cast

from exporting_node import SETTINGS

from delayd.bus import Record
from delayd.node.replica.noted_kills import NotedKills
from delayd.node.replica.unknown_past import past_of
from replication.ids import HeldMessage, IdState, KilledMessage, Reservation
from replication.ingest import Decision, LogState, PendingReply
from replication.rank import Rank
from replication.trimmed import UNTRIMMED, Beginning, horizon_of

HELD = KilledMessage(1_000, 3, 0)
OTHER = KilledMessage(2_000, 7, 0)
BEGINS = Beginning(100, 1_000_000_000, 200, False)


class NoKills:
    """A memory of ids that has forgotten the kills."""

    def kill(self, rank: Rank) -> None:
        return None


def test_a_marker_that_takes_over_what_is_done_asks_for_no_kill_of_it() -> None:
    """The state of its id stays longer than the kill."""
    kills = NotedKills(cast(Any, NoKills()), None)
    held = HeldMessage(HELD, b"m" * 16, False, 1_000, 9_000)
    kills.note(0, 50, (HELD, OTHER), {}, Reservation(40, (held,)))
    assert kills.get(Rank(HELD.due_ms, 0, HELD.offset)) is None
    taken = kills.get(Rank(OTHER.due_ms, 0, OTHER.offset))
    assert taken is not None and taken.marker_offset == 50


def test_a_reservation_that_nothing_ends_hides_no_schedule_once_nothing_trimmed_counts() -> None:
    beginnings = (BEGINS, *[UNTRIMMED] * (SETTINGS.partitions - 1))
    past = past_of(SETTINGS, beginnings)
    at_ms = horizon_of(BEGINS, SETTINGS).ids_ms + 1
    record = Record(0, 300, -1, at_ms, b"a", None, [])
    decision = Decision(Rank(at_ms, 0, 300), PendingReply.NONE, LogState(301, at_ms))
    before = IdState(killed_by=150, reserved=Reservation(150, (), is_whole=False))
    assert not past.hides_schedule(record, at_ms, decision, before, None)
