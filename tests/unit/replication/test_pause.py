"""How long a master with an empty plan waits. Rules: idle-step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.pause import HELD_WAIT_MS, WAIT_MAX_MS, pause_ms

INTERVAL_MS = 5_000


@pytest.mark.parametrize(
    ("due_ms", "idle_ms", "wait_ms"),
    [
        pytest.param(None, 0, WAIT_MAX_MS, id="nothing known to be due"),
        pytest.param(1_100, 0, 100, id="due soon"),
        pytest.param(10_000, 0, WAIT_MAX_MS, id="due later"),
        pytest.param(1_000, 0, HELD_WAIT_MS, id="due and held back"),
        pytest.param(10, 0, HELD_WAIT_MS, id="overdue and held back"),
        pytest.param(None, INTERVAL_MS - 3, 3, id="until the idle step"),
        pytest.param(1_001, INTERVAL_MS - 3, 1, id="due before the idle step"),
    ],
)
def test_a_master_waits_for_what_comes_first(
    due_ms: int | None, idle_ms: int, wait_ms: int
) -> None:
    assert pause_ms(due_ms, 1_000, idle_ms, INTERVAL_MS) == wait_ms


@given(
    st.none() | st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**5),
    st.integers(1, 10**5),
)  # fmt: skip
def test_only_an_idle_step_is_taken_without_a_wait(
    due_ms: int | None, now_ms: int, idle_ms: int, interval_ms: int
) -> None:
    """A loop that waited 0 ms would spin."""
    wait_ms = pause_ms(due_ms, now_ms, idle_ms, interval_ms)
    assert (wait_ms == 0) == (idle_ms >= interval_ms)
    assert 0 <= wait_ms <= WAIT_MAX_MS
