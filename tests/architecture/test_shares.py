"""Shares of what takes long: nothing is left out for ever, and they take about equally long."""

from itertools import chain
from pathlib import Path

import pytest
from shares import HEAVY, OTHERS_S, dealt, left_out, slow_tests

TESTS = Path(__file__).parents[1]
LONG = sorted({*HEAVY["long"], "test_one", "test_two", "test_three"})


@pytest.mark.parametrize("shares", [1, 3, 5])
def test_each_file_is_in_one_share(shares: int) -> None:
    named = HEAVY["spark"].keys() | HEAVY["real"].keys()
    of_each = [left_out(LONG, shares, f"{drawn:08x}") for drawn in range(shares)]
    ran = [sorted(named - files) for files, _ in of_each]
    ran_long = [sorted(set(LONG) - files) for _, files in of_each]
    assert sorted(chain.from_iterable(ran)) == sorted(named)
    assert sorted(chain.from_iterable(ran_long)) == LONG


@pytest.mark.parametrize("kind", list(HEAVY))
def test_shares_take_about_equally_long(kind: str) -> None:
    loads = [sum(HEAVY[kind][name] for name in share) for share in dealt(HEAVY[kind], 5)]
    assert max(loads) <= max(1.1 * sum(loads) / len(loads), *HEAVY[kind].values())


def test_a_commit_draws_the_same_share_again_and_others_draw_each() -> None:
    commits = [f"{n * 2_654_435_761 % 2**32:08x}rest" for n in range(40)]
    drawn = [left_out(LONG, 5, commit) for commit in commits]
    assert drawn == [left_out(LONG, 5, commit) for commit in commits]
    assert len({frozenset(files) for files, _ in drawn}) == 5
    assert left_out(LONG, 5, "unknown") == left_out(LONG, 5, "00000000")


def test_what_is_named_is_there_once_and_was_worth_it() -> None:
    """A name that two files have, or none, would leave out what nobody meant."""
    for files in HEAVY.values():
        for name, weight in files.items():
            assert len(list(TESTS.rglob(f"{name}.py"))) == 1, name
            assert weight > OTHERS_S


def test_each_test_that_the_inner_loop_leaves_out_is_there() -> None:
    for name in slow_tests():
        file, *names = name.split("::")
        text = (TESTS.parent / file).read_text()
        assert f"def {names[0]}(" in text or f"{names[0]} = " in text, name
