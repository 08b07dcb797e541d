"""What benchmarks report. Not here: measuring, which is `delayd bench` itself."""

import pytest

from delayd.bench.figures import Figure
from delayd.bench.neighbours import is_wrong


def test_the_ratio_is_of_paired_runs() -> None:
    figure = Figure("p99", "ms", (10.0, 40.0, 30.0), "whole", (10.0, 20.0, 10.0))
    assert (figure.value, figure.ratio) == (30.0, 2.0)


def test_a_lateness_of_nothing_can_be_compared_with() -> None:
    assert Figure("p50", "ms", (3.0,), "whole", (0.0,)).ratio == 3.0


@pytest.mark.parametrize("wrong", [(0.0, 1.0), (2.0, 0.0)])
def test_one_wrong_message_in_any_run_is_wrong(wrong: tuple[float, ...]) -> None:
    right = Figure("neighbours-wrong", "messages", (0.0, 0.0))
    late = Figure("neighbours-p99", "ms", (50.0,))
    assert not is_wrong([right, late])
    assert is_wrong([right, late, Figure("retried-wrong", "messages", wrong)])
