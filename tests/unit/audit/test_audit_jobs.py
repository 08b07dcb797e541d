"""delayd.audit.jobs: jobs side by side, each behind those that it needs."""

import threading

import pytest

from delayd.audit.jobs import jobs_at_once

HANGS_S = 60


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_job_gets_the_results_of_those_that_it_needs(count: int) -> None:
    with jobs_at_once(count) as jobs:
        one = jobs.begin(lambda: 1)
        two = jobs.begin(lambda it: it + 1, one)
        three = jobs.begin(lambda a, b: a + b, one, two)

    assert three.result() == 3


def test_jobs_run_side_by_side() -> None:
    meeting = threading.Barrier(2)

    with jobs_at_once(2) as jobs:
        begun = [jobs.begin(lambda: meeting.wait(HANGS_S)) for _ in range(2)]

    assert sorted(each.result() for each in begun) == [0, 1]


def test_one_at_once_is_carried_out_by_whoever_begins_it() -> None:
    with jobs_at_once(1) as jobs:
        ran_by = jobs.begin(threading.current_thread)

        assert ran_by.result() is threading.current_thread()


@pytest.mark.parametrize("count", [1, 2])
def test_what_fails_fails_all_that_needs_it(count: int) -> None:
    def fail() -> int:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), jobs_at_once(count) as jobs:
        jobs.begin(lambda it: it + 1, jobs.begin(fail)).result()


def test_what_has_not_begun_when_one_has_failed_never_does() -> None:
    busy, ran = threading.Event(), []

    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), jobs_at_once(2) as jobs:
        jobs.begin(lambda: busy.wait(HANGS_S))
        failed = jobs.begin(fail)
        jobs.begin(lambda: busy.wait(HANGS_S))
        jobs.begin(lambda: ran.append(1)).add_done_callback(lambda _: busy.set())
        failed.result()

    assert ran == []
