"""How long a failover was felt."""

import pytest

from delayd.audit.judging.frontiers import felt
from delayd.audit.report import Failover, Lateness


def late(most_ms: int) -> Lateness:
    return Lateness(3, 1, 1, 1, most_ms)


@pytest.mark.parametrize(
    ("gap_ms", "lateness", "wanted"),
    [
        (9_250, None, 0),
        (9_250, late(12), 12),
        (500, late(480), 480),
        (500, late(2_000), 500),
        (None, late(7), None),
    ],
)
def test_idle_time_is_no_gap(
    gap_ms: int | None, lateness: Lateness | None, wanted: int | None
) -> None:
    """docs/reference/audit.md, "JSON"."""
    shown = felt(Failover(1, 2, "a/1", "b/2", gap_ms, None), lateness)
    assert (shown.gap_ms, shown.lateness) == (wanted, lateness)
