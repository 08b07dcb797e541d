"""delayd.audit.reading.progress: what is going on, on a terminal and elsewhere."""

import io
import threading
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from delayd.audit.reading.progress import Progress, Tasks


def test_on_a_terminal_a_bar_shows_the_share_of_tasks() -> None:
    out, seen = io.StringIO(), threading.Event()
    console = Console(file=out, force_terminal=True, width=80)
    progress = Progress(console, _tasks(seen, Tasks(3, 4)))

    with progress.stage("reading [orders]"):
        assert seen.wait(10)

    assert "75%" in out.getvalue()
    assert "reading [orders]: done in " in out.getvalue()


def test_elsewhere_there_is_a_line_now_and_then() -> None:
    out, seen = io.StringIO(), threading.Event()
    progress = Progress(Console(file=out), _tasks(seen, Tasks(1, 3)), line_ms=1)

    with progress.stage("judging"):
        assert seen.wait(10)

    first, *_, last = out.getvalue().splitlines()
    assert first == "judging: 33 %" and last.startswith("judging: done in ")


def test_a_stage_that_fails_says_so_and_fails() -> None:
    out = io.StringIO()

    with (
        pytest.raises(ValueError, match="broken"),
        Progress(Console(file=out)).stage("judging"),
    ):
        raise ValueError("broken")

    assert out.getvalue().startswith("judging: failed after ")


def test_the_tasks_are_those_of_spark(spark: SparkSession) -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out), line_ms=1)

    with progress.stage("counting"):
        spark.range(0, 4_000_000, numPartitions=8).selectExpr("sum(hash(id))").collect()

    assert any(line.endswith(" %") for line in out.getvalue().splitlines())


def _tasks(seen: threading.Event, tasks: Tasks) -> Callable[[], Tasks]:
    """Says that it was asked twice: the first answer has been shown by then."""
    asked = [0]

    def answer() -> Tasks:
        asked[0] += 1
        if asked[0] > 2:
            seen.set()
        return tasks

    return answer
