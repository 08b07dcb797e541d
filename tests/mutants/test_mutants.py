"""The catalogue fits the tree, and docs/design/mutants.md tells of all of it.

Not here: the hunt itself, which takes minutes (`make mutants`).
"""

import ast
import re
from pathlib import Path

import pytest

from mutants.catalogue import MUTANTS
from mutants.hunt import ROOT, HuntFailedError, judge
from mutants.mutant import Edit, Mutant, NoSuchTextError, apply
from mutants.page import SIMULATION, SURVIVED, page_of, read_rows, rule_of

PAGE = ROOT / "docs" / "design" / "mutants.md"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutation_fits_the_tree_and_changes_what_is_run(mutant: Mutant, tmp_path: Path) -> None:
    files = {edit.file for edit in mutant.edits}
    roots = ("delayd/", "replication/", "native/")
    assert 0 < len(files) <= 2 and all(file.startswith(roots) for file in files)
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text((ROOT / file).read_text())
    apply(mutant, tmp_path)
    for file in files:
        before, after = ((root / file).read_text() for root in (ROOT, tmp_path))
        if file.endswith(".py"):
            before, after = (ast.dump(ast.parse(text)) for text in (before, after))
        assert before != after, f"{file} does the same"


def test_a_text_that_is_not_there_once_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    for old in ("= 2", "= 1"):
        with pytest.raises(NoSuchTextError):
            Edit("a.py", old, "= 3").apply(tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = 1\ny = 1\n"


def test_each_mutant_has_its_name_and_whoever_is_not_simulated_a_test() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= 24
    assert all(re.fullmatch(r"[a-z-]+", name) for name in names)
    assert [mutant.name for mutant in MUTANTS if not (mutant.tests or mutant.is_simulated)] == []


def test_each_test_that_the_catalogue_names_is_there() -> None:
    missing = []
    for test in {test for mutant in MUTANTS for test in mutant.tests}:
        path, _, name = test.partition("::")
        if f"\ndef {name}(" not in (ROOT / path).read_text():
            missing.append(test)
    assert missing == []


def test_the_page_tells_of_each_mutant_and_of_no_other() -> None:
    """Written by `make mutants`: after a change of the catalogue, hunt what is new."""
    rows = read_rows(PAGE)
    assert [(row.name, row.rule) for row in rows.values()] == [
        (mutant.name, rule_of(mutant)) for mutant in MUTANTS
    ]
    assert PAGE.read_text() == page_of(MUTANTS, rows)
    assert [row.name for row in rows.values() if row.caught_by == SURVIVED] == []


def test_what_a_mutant_is_caught_by_on_the_page_is_what_the_catalogue_asks() -> None:
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    for row in read_rows(PAGE).values():
        mutant = by_name[row.name]
        assert row.caught_by in (*mutant.tests, *[SIMULATION] * mutant.is_simulated), row


@pytest.mark.long
def test_a_hunt_tells_a_test_that_fails_from_one_that_does_not_run(tmp_path: Path) -> None:
    """A hunt that cannot fail would find every mutant caught, or none."""
    (tmp_path / "test_it.py").write_text(
        "def test_good() -> None: ...\ndef test_bad() -> None:\n    assert False\n"
    )
    assert not judge(tmp_path, 0, ["test_it.py::test_good"]).is_caught
    red = judge(tmp_path, 0, ["test_it.py::test_good", "test_it.py::test_bad"])
    assert red.red_test == "test_it.py::test_bad"
    with pytest.raises(HuntFailedError):
        judge(tmp_path, 0, ["test_it.py::test_that_is_not_there"])
