"""What a node leaves for its next start when its wheel is of no use (delayd.node.disk_opening)."""

from pathlib import Path

import pytest

from delayd.errors import BufferTrimmedError, CorruptionError, LogNotEnoughError
from delayd.node.disk_opening import note_end_of_wheel
from delayd.node.snapshots.fetching import ready_directory

PROBLEM = "a record that was trimmed may decide what becomes of 0/7"
MAY_DECIDE = LogNotEnoughError(PROBLEM, remedy="-")


def test_where_the_log_is_not_enough_the_next_start_asks_for_a_copy(tmp_path: Path) -> None:
    """docs/design/trimmed.md, What decides later. A replay would meet the same record again."""
    note_end_of_wheel(tmp_path, MAY_DECIDE, may_fetch=True)
    with pytest.raises(CorruptionError, match=PROBLEM):
        ready_directory(tmp_path)


@pytest.mark.parametrize(
    ("error", "may_fetch"),
    [(MAY_DECIDE, False), (BufferTrimmedError("trimmed while it was away", remedy="-"), True)],
    ids=["copies nothing", "may rebuild from the log"],
)
def test_a_wheel_that_may_go_on_is_left_alone(
    tmp_path: Path, error: BufferTrimmedError, may_fetch: bool
) -> None:
    """With `on_damage = stop` time may help; and a start decides by itself what a trim asks for."""
    note_end_of_wheel(tmp_path, error, may_fetch=may_fetch)
    ready_directory(tmp_path)
