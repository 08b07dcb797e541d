"""Whole clusters in 200 days of virtual time: promises hold, and nodes keep what is pending."""

from collections import Counter
from functools import cache
from pathlib import Path

import bounds_checker
import pytest
from bounds_checker import Due, due_of
from seeded_tests import parametrize_seeds, played, well
from simulated.chaos import HEAVY_BATCH
from simulated.run import Run, simulate
from simulated.switching import SWITCH

from delayd.bus import Record

DAYS = 200
SEEDS = (1, 2, 3, 8, 10, 19)
"""One test plays them, and sees what they are for. `make test` goes on after them."""
FRESH_SEEDS = 1


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "years: ", FRESH_SEEDS)


@cache
def first_run(seed: int) -> Run:
    return simulate(seed, days=DAYS)


def test_a_cluster_keeps_every_promise_for_months(seed: int) -> None:
    """docs/design/simulation.md, Months; `--seed N` replays one."""
    well(simulate(seed, days=DAYS))


@pytest.mark.long
def test_the_seeds_do_what_they_are_for() -> None:
    """A simulation in which nothing is deleted and nobody is away proves nothing of months."""
    runs = [well(first_run(seed)) for seed in SEEDS]
    faults: Counter[str] = sum((run.faults for run in runs), Counter())
    kinds = ("node away", "disk lost", "disk copied", "rebuilt after a trim")
    assert all(faults[kind] > 5 for kind in (*kinds, SWITCH, HEAVY_BATCH)), faults
    assert all(run.simulated_s > DAYS * 86_400 for run in runs)
    assert sum(run.delivered for run in runs) > 500
    trace = [line.split() for run in runs for line in run.trace if "days later" in line]
    assert sum(int(words[4]) for words in trace) > 500, "hardly anything was trimmed"
    assert sum(int(words[6]) for words in trace) > 500, "hardly anything was compacted"


@pytest.mark.long
def test_a_run_of_months_replays() -> None:
    assert simulate(3, days=DAYS).digest == first_run(3).digest


@pytest.mark.parametrize("what", ["files", "ids", "entries in memory"])
def test_the_judge_sees_a_node_that_keeps_too_much(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = dict.fromkeys(
        ("files", "bytes on disk", "ids", "open files", "entries in memory", "bytes in memory"), 0
    )
    monkeypatch.setattr(bounds_checker, "measured", lambda view: measured)
    bounds_checker.check("node-0", None, Due(0, 0))  # type: ignore[arg-type]
    measured[what] = 10**4
    bounds_checker.check("node-0", None, Due(10**4, 10**4))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=f"node-0 keeps 10000 {what}"):
        bounds_checker.check("node-0", None, Due(0, 0))  # type: ignore[arg-type]


def test_what_a_node_has_to_keep_is_read_from_the_log(tmp_path: Path) -> None:
    world = played(5, tmp_path)
    records = world.records("delayd-buffer")
    frontiers = world.records("delayd-frontier")
    named = {"delayd-id", "delayd-redrive", "delayd-continues"}
    with_ids = sum(len(named & dict(record.headers).keys()) for record in records)
    log_ms = [records[0].append_ms] * world.habits.partitions
    assert due_of(records, frontiers[0], log_ms, 0) == Due(len(records), with_ids)
    later = [_later(record) for record in records]
    assert due_of([*records, *later], frontiers[-1], [10**15] * 3, 0).records >= len(later)
    assert due_of(records, frontiers[-1], [10**15] * 3, 0).with_ids < with_ids


def _later(record: Record) -> Record:
    return record._replace(append_ms=10**14)


def test_containers_are_counted_with_what_is_in_them() -> None:
    assert bounds_checker.held({"a": [b"four", 1], "b": ()}) == (4, 6)
