"""How large steps are. Source: docs/design/frontier.md, "Full steps"."""

from delayd.node.delivery.step_sizing import BYTES_SLOW, RECORDS_SLOW, STEP_TARGET_MS, StepSizing

MOST = 10_000
BYTES = 16 * 1024 * 1024


def test_a_step_that_takes_too_long_makes_the_next_one_smaller() -> None:
    """Rules: full-step"""
    sizing = StepSizing(MOST, BYTES)
    sizing.succeeded(STEP_TARGET_MS + 1, MOST, 0)
    assert sizing.limits.records_max == MOST // 2


def test_slow_transactions_do_not_keep_a_master_behind() -> None:
    """Steps of a hundred records are as slow as steps of a thousand, and a tenth of the rate."""
    sizing = StepSizing(MOST, BYTES)
    for _ in range(30):
        sizing.succeeded(STEP_TARGET_MS + 1, sizing.limits.records_max, 0)
    assert (sizing.limits.records_max, sizing.limits.bytes_max) == (RECORDS_SLOW, BYTES_SLOW)
    for _ in range(30):
        sizing.failed()
    for _ in range(30):
        sizing.succeeded(STEP_TARGET_MS + 1, sizing.limits.records_max, 0)
    assert sizing.limits.records_max >= RECORDS_SLOW and sizing.limits.bytes_max >= BYTES_SLOW


def test_failures_make_steps_as_small_as_one_record_and_success_large_again() -> None:
    sizing = StepSizing(MOST, BYTES)
    for _ in range(30):
        sizing.failed()
    assert sizing.limits.records_max == 1 and sizing.limits.bytes_max < BYTES
    for _ in range(30):
        sizing.succeeded(1, sizing.limits.records_max, 0)
    assert (sizing.limits.records_max, sizing.limits.bytes_max) == (MOST, BYTES)


def test_a_step_that_was_not_full_changes_nothing() -> None:
    sizing = StepSizing(MOST, BYTES)
    sizing.succeeded(STEP_TARGET_MS + 1, MOST, 0)
    before = sizing.limits
    for _ in range(100):
        sizing.succeeded(1, 1, 0)
    assert sizing.limits.records_max >= before.records_max
