"""delayd.audit.following.pulse: a follower that sees nothing says so, and ends only when it failed
for long."""

import pytest

from delayd.audit.following.failures import FollowFailedError
from delayd.audit.following.pulse import GIVE_UP_MS, STALL_MS, Pulse


def test_a_stall_is_told_once_and_its_end_too() -> None:
    pulse = Pulse(0)
    pulse.failed(5, "no broker")
    assert list(pulse.lines(STALL_MS - 1)) == []
    assert list(pulse.lines(STALL_MS)) == ["follow: no batch for 60 s: no broker"]
    assert list(pulse.lines(STALL_MS + 9_000)) == []
    pulse.judged(STALL_MS + 10_000)
    assert list(pulse.lines(STALL_MS + 10_001)) == ["follow: batches come again"]
    assert list(pulse.lines(2 * STALL_MS + 9_999)) == []
    [line] = pulse.lines(2 * STALL_MS + 10_000)
    assert line.endswith("it is still being read and judged"), "nothing failed since"


def test_it_gives_up_when_it_only_failed_for_long() -> None:
    pulse = Pulse(0)
    for now_ms in range(1_000, GIVE_UP_MS + 1_000, 1_000):
        pulse.failed(now_ms, "no broker")
        list(pulse.lines(now_ms))
    with pytest.raises(FollowFailedError, match="10 min: no broker"):
        list(pulse.lines(GIVE_UP_MS + 1_000))


def test_the_first_failure_after_a_long_batch_is_no_reason_to_give_up() -> None:
    pulse = Pulse(0)
    pulse.failed(3 * GIVE_UP_MS, "no broker")
    assert len(list(pulse.lines(3 * GIVE_UP_MS))) == 1


def test_a_batch_ends_all_failures_before_it() -> None:
    pulse = Pulse(0)
    pulse.failed(1_000, "no broker")
    pulse.judged(GIVE_UP_MS)
    pulse.failed(GIVE_UP_MS + 1_000, "no broker")
    list(pulse.lines(2 * GIVE_UP_MS + 999))
    with pytest.raises(FollowFailedError):
        list(pulse.lines(2 * GIVE_UP_MS + 1_000))
