"""How long a master with an empty plan waits. Rules: idle-step."""

from hypothesis import given
from hypothesis import strategies as st

from replication.pause import HELD_WAIT_MS, WAIT_MAX_MS, pause_ms

INTERVAL_MS = 5_000


def test_nothing_known_to_be_due_is_the_longest_wait() -> None:
    assert pause_ms(None, 1_000, 0, INTERVAL_MS) == WAIT_MAX_MS


def test_what_is_due_soon_is_waited_for() -> None:
    assert pause_ms(1_100, 1_000, 0, INTERVAL_MS) == 100


def test_what_is_due_later_is_looked_for_now_and_then() -> None:
    assert pause_ms(10_000, 1_000, 0, INTERVAL_MS) == WAIT_MAX_MS


def test_what_is_due_and_held_back_is_looked_at_again_soon() -> None:
    assert pause_ms(1_000, 1_000, 0, INTERVAL_MS) == HELD_WAIT_MS
    assert pause_ms(10, 1_000, 0, INTERVAL_MS) == HELD_WAIT_MS


def test_the_idle_step_is_not_slept_past() -> None:
    assert pause_ms(None, 1_000, INTERVAL_MS - 3, INTERVAL_MS) == 3
    assert pause_ms(1_001, 1_000, INTERVAL_MS - 3, INTERVAL_MS) == 1


def test_the_idle_step_is_taken_when_its_time_has_come() -> None:
    """docs/design/frontier.md: the cursor that people see moves."""
    assert pause_ms(None, 1_000, INTERVAL_MS, INTERVAL_MS) == 0
    assert pause_ms(900, 1_000, INTERVAL_MS + 1, INTERVAL_MS) == 0


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
