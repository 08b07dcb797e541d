"""`now`: never ahead of the master's clock nor of the broker's, to the millisecond."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replication.now import (
    BOUND_AGE_MAX_MS,
    MS_NS,
    RATES_PPM_MAX,
    BrokerBound,
    bounded_now_ms,
    drift_ms,
)

SECOND_NS = 1_000 * MS_NS
moments_ns = st.integers(0, 10**6 * MS_NS)


@given(
    broker_ns=moments_ns,
    boot_ns=moments_ns,
    delay_ns=st.integers(0, 10 * SECOND_NS),
    passed_ns=st.integers(0, BOUND_AGE_MAX_MS * MS_NS),
    rate_ppm=st.integers(-200, 200),
    wall_skew_ms=st.integers(-(10**5), 10**5),
)
# The report arrives at the end of a ms, now is read at the beginning of one.
@example(0, 999_999, 0, 1, 0, 10)
# A bound as old as it may be, on a machine that counts too fast.
@example(0, 0, 0, BOUND_AGE_MAX_MS * MS_NS, 200, 10)
def test_now_is_beyond_neither_clock(
    broker_ns: int, boot_ns: int, delay_ns: int, passed_ns: int, rate_ppm: int, wall_skew_ms: int
) -> None:
    """docs/design/frontier.md, Now: what is written by this now is stamped no earlier.

    Rules: now-bounded
    """
    # The broker stamps B, in whole ms; its report arrives later, and later still it is now.
    arrived_ns = boot_ns + delay_ns
    bound = BrokerBound(broker_ns // MS_NS, arrived_ns)
    broker_now_ns = broker_ns + delay_ns + passed_ns
    wall_ms = broker_now_ns // MS_NS + wall_skew_ms
    counted_ns = passed_ns * (1_000_000 + rate_ppm) // 1_000_000
    now_ms = bounded_now_ms(wall_ms, arrived_ns + counted_ns, bound)
    assert now_ms <= wall_ms
    assert now_ms <= broker_now_ns // MS_NS, "a record that is written now is stamped before now"
    # And it lags no more than the report took, two roundings, and the rates twice.
    rates_ms = 2 * RATES_PPM_MAX * passed_ns // SECOND_NS // 1_000 + 1
    assert now_ms >= min(wall_ms, (broker_now_ns - delay_ns) // MS_NS - 2 - rates_ms)


@pytest.mark.parametrize(
    ("passed_ns", "now_ms"),
    [
        (0, 70),
        (999_999, 70),
        (SECOND_NS, 1_069),
        (5 * SECOND_NS, 5_069),
        (SECOND_NS + MS_NS, 1_070),
    ],
)
def test_the_time_since_b_is_cut_to_whole_ms_once(passed_ns: int, now_ms: int) -> None:
    """docs/design/frontier.md, Now: 1 ms in 5 s is kept back, for clocks that run faster.

    Rules: now-bounded
    """
    assert bounded_now_ms(10**9, 123_456_789 + passed_ns, BrokerBound(70, 123_456_789)) == now_ms


def test_a_bound_is_stale_after_a_minute() -> None:
    """docs/design/frontier.md, Now: older than 60 s, an empty step renews it.

    Rules: bound-stale
    """
    bound = BrokerBound(5, 1_000)
    assert BOUND_AGE_MAX_MS == 60_000
    assert not bound.is_stale(1_000 + 60 * SECOND_NS)
    assert bound.is_stale(1_000 + 60 * SECOND_NS + 1)


@pytest.mark.parametrize(
    ("append_ms", "drift"),
    [(100, 0), (150, 0), (200, 0), (201, 1), (900, 700), (99, -1), (0, -100)],
)
def test_drift_is_positive_when_the_broker_is_ahead(append_ms: int, drift: int) -> None:
    """docs/design/frontier.md, Now: B outside [wall clock at send, wall clock at report].

    Rules: clock-drift
    """
    assert drift_ms(append_ms, sent_wall_ms=100, reported_wall_ms=200) == drift
