"""A follower that sees nothing says so, and ends only when it has failed for long."""

import pytest

from delayd.audit.errors import FollowFailedError
from delayd.audit.following.stall_watch import GIVE_UP_MS, STALL_MS, StallWatch


def test_a_stall_is_told_once_and_its_end_too() -> None:
    watch = StallWatch(0)
    watch.failed(5, "no broker")
    assert list(watch.lines(STALL_MS - 1)) == []
    assert list(watch.lines(STALL_MS)) == ["follow: no batch for 60 s: no broker"]
    assert list(watch.lines(STALL_MS + 9_000)) == []
    watch.judged(STALL_MS + 10_000)
    assert list(watch.lines(STALL_MS + 10_001)) == ["follow: batches come again"]
    assert list(watch.lines(2 * STALL_MS + 9_999)) == []
    [line] = watch.lines(2 * STALL_MS + 10_000)
    assert line.endswith("it is still being read and judged"), "nothing failed since"


def test_it_gives_up_when_it_only_failed_for_long() -> None:
    watch = StallWatch(0)
    for now_ms in range(1_000, GIVE_UP_MS + 1_000, 1_000):
        watch.failed(now_ms, "no broker")
        list(watch.lines(now_ms))
    with pytest.raises(FollowFailedError, match="10 min: no broker"):
        list(watch.lines(GIVE_UP_MS + 1_000))


def test_the_first_failure_after_a_long_batch_is_no_reason_to_give_up() -> None:
    watch = StallWatch(0)
    watch.failed(3 * GIVE_UP_MS, "no broker")
    assert len(list(watch.lines(3 * GIVE_UP_MS))) == 1


def test_a_batch_ends_all_failures_before_it() -> None:
    watch = StallWatch(0)
    watch.failed(1_000, "no broker")
    watch.judged(GIVE_UP_MS)
    watch.failed(GIVE_UP_MS + 1_000, "no broker")
    list(watch.lines(2 * GIVE_UP_MS + 999))
    with pytest.raises(FollowFailedError):
        list(watch.lines(2 * GIVE_UP_MS + 1_000))
