"""How large steps are. Source: docs/design/frontier.md, "Full steps"."""

from delayd.node.delivery.step_sizing import BYTES_SLOW, RECORDS_SLOW, STEP_TARGET_MS, StepSizing

MOST = 10_000
BYTES = 16 * 1024 * 1024


def test_a_step_that_takes_too_long_makes_the_next_one_smaller() -> None:
    """Rules: full-step"""
    pace = StepSizing(MOST, BYTES)
    pace.succeeded(STEP_TARGET_MS + 1, MOST)
    assert pace.limits.records_max == MOST // 2


def test_slow_transactions_do_not_keep_a_master_behind() -> None:
    """Steps of a hundred records are as slow as steps of a thousand, and a tenth of the rate."""
    pace = StepSizing(MOST, BYTES)
    for _ in range(30):
        pace.succeeded(STEP_TARGET_MS + 1, pace.limits.records_max)
    assert (pace.limits.records_max, pace.limits.bytes_max) == (RECORDS_SLOW, BYTES_SLOW)
    for _ in range(30):
        pace.failed()
    for _ in range(30):
        pace.succeeded(STEP_TARGET_MS + 1, pace.limits.records_max)
    assert pace.limits.records_max >= RECORDS_SLOW and pace.limits.bytes_max >= BYTES_SLOW


def test_failures_make_steps_as_small_as_one_record_and_success_large_again() -> None:
    pace = StepSizing(MOST, BYTES)
    for _ in range(30):
        pace.failed()
    assert pace.limits.records_max == 1 and pace.limits.bytes_max < BYTES
    for _ in range(30):
        pace.succeeded(1, pace.limits.records_max)
    assert (pace.limits.records_max, pace.limits.bytes_max) == (MOST, BYTES)


def test_a_step_that_was_not_full_changes_nothing() -> None:
    pace = StepSizing(MOST, BYTES)
    pace.succeeded(STEP_TARGET_MS + 1, MOST)
    before = pace.limits
    for _ in range(100):
        pace.succeeded(1, 1)
    assert pace.limits.records_max >= before.records_max
