"""delayd.audit.judging.too_late: the latest that a `too-late` can be about."""

from dataclasses import replace

from past import SETTINGS, frame, frontier_rows
from pyspark.sql import SparkSession

from delayd.audit.judging.frontiers import frontiers_of
from delayd.audit.judging.too_late import CLOCKS_APART_MS, not_due_yet
from delayd.audit.tables import RECORDS
from replication.frontier import Frontier, first_frontier
from replication.rank import Rank, passed_by
from replication.record import FrontierRecord, StepCounts

NOW_MS = 1_785_000_000_000
PLAIN = first_frontier(0, 2, 4)


def step(number: int, now_ms: int, *cursors: Rank) -> FrontierRecord:
    """A step whose lanes stand here; all at the first one if there is but one."""
    whole = cursors if len(cursors) > 1 else cursors * 4
    frontier: Frontier = replace(PLAIN, term=1, step=number, cursors=whole)
    return FrontierRecord(frontier, "n0/a", now_ms, StepCounts(), 0, SETTINGS)


def test_only_what_no_step_before_had_reached_is_not_due_yet(spark: SparkSession) -> None:
    ahead = NOW_MS + 700
    """Where a master with a faster clock had come."""
    records = [
        *(step(1, NOW_MS, passed_by(NOW_MS)), step(2, ahead, *[passed_by(ahead)] * 4)),
        # Its successor's clock is behind; its step is the first that may call that too late.
        *(step(3, NOW_MS + 100, passed_by(ahead)), step(4, ahead + 50, passed_by(ahead + 50))),
        # What was compacted away may have reached more.
        step(9, ahead + 90, passed_by(ahead + 90)),
    ]
    rows = [(2 * at, record.now_ms, record) for at, record in enumerate(records)]
    frontiers = frontiers_of(frame(spark, frontier_rows(rows), RECORDS))
    unknown_ms = NOW_MS + 12
    """No step's `now` that is left."""
    told = {
        "the step before had reached it": (NOW_MS + 100, ahead, False),
        "its own step is the first to reach it": (NOW_MS + 100, ahead + 10, True),
        "no step has reached it": (ahead + 50, NOW_MS + 3_600_000, True),
        "behind a gap": (ahead + 90, ahead + 90 + CLOCKS_APART_MS, False),
        "too far behind a gap": (ahead + 90, ahead + 91 + CLOCKS_APART_MS, True),
        "its step is gone": (unknown_ms, unknown_ms + CLOCKS_APART_MS, False),
        "its step is gone, but no clock is so wrong": (unknown_ms, NOW_MS + 3_600_000, True),
    }
    receipts = spark.createDataFrame(
        [(what, at_ms, latest_ms) for what, (at_ms, latest_ms, _) in told.items()],
        "what string, at_ms long, latest_ms long",
    )

    found = not_due_yet(receipts, frontiers).collect()

    assert {row.what for row in found} == {what for what, (_, _, is_so) in told.items() if is_so}
    assert len(found) == 4 and found[0].asDict().keys() == {"what", "at_ms", "latest_ms"}
