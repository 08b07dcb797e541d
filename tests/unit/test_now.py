"""`now`: never ahead of the master's clock nor of the broker's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.now import BOUND_AGE_MAX_MS, BrokerBound, bounded_now_ms, drift_ms

times_ms = st.integers(0, 10**6)


@given(
    broker_ms=times_ms,
    wall_skew_ms=st.integers(-(10**5), 10**5),
    boot_ms=times_ms,
    delay_ms=st.integers(0, 10**4),
    passed_ms=times_ms,
)
def test_now_is_beyond_neither_clock(
    broker_ms: int, wall_skew_ms: int, boot_ms: int, delay_ms: int, passed_ms: int
) -> None:
    """docs/design/frontier.md, Now: now = min(wall clock, B + monotonic time since B arrived)."""
    # The broker stamps B; the report arrives `delay_ms` later; `passed_ms` after that is now.
    bound = BrokerBound(broker_ms, boot_ms + delay_ms)
    brokers_clock_ms = broker_ms + delay_ms + passed_ms
    wall_ms = brokers_clock_ms + wall_skew_ms
    now_ms = bounded_now_ms(wall_ms, boot_ms + delay_ms + passed_ms, bound)
    assert now_ms <= wall_ms
    assert now_ms <= brokers_clock_ms
    assert now_ms == min(wall_ms, brokers_clock_ms - delay_ms)


def test_a_bound_is_stale_after_a_minute() -> None:
    """docs/design/frontier.md, Now: older than 60 s, an empty step renews it."""
    bound = BrokerBound(5, 1_000)
    assert BOUND_AGE_MAX_MS == 60_000
    assert not bound.is_stale(1_000 + 60_000)
    assert bound.is_stale(1_000 + 60_001)


@pytest.mark.parametrize(
    ("append_ms", "drift"),
    [(100, 0), (150, 0), (200, 0), (201, 1), (900, 700), (99, -1), (0, -100)],
)
def test_drift_is_positive_when_the_broker_is_ahead(append_ms: int, drift: int) -> None:
    """docs/design/frontier.md, Now: B outside [wall clock at send, wall clock at report]."""
    assert drift_ms(append_ms, sent_wall_ms=100, reported_wall_ms=200) == drift
