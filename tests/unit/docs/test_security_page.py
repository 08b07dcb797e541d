"""docs/security.md: each row names tests that there are, or says that nothing tries it."""

import pytest
from test_docs import ROOT, coded, headings, page, rows
from test_docs import functions as functions_of

NAME = "docs/security.md"
UNTRIED = "Nothing tries it."
TABLES = [text for text in headings(page(NAME)) if text != "Security"]


def wrong_with(cell: str) -> list[str]:
    """What is wrong with what a row says of its tests."""
    named = coded(cell)
    if not named:
        return [] if cell.strip(" |") == UNTRIED else [f"{cell!r} names no test"]
    found = []
    for each in named:
        file, _, test = each.partition("::")
        path = ROOT / file
        if not path.is_file() or not test.startswith("test_") or test not in functions_of(path):
            found.append(f"there is no {each}")
    return found


@pytest.mark.parametrize("heading", TABLES)
def test_each_row_names_tests_that_there_are_or_says_that_nothing_tries_it(heading: str) -> None:
    table = rows(NAME, heading)
    assert len(table) > 3
    assert [problem for row in table for problem in wrong_with(row[2])] == []


def test_a_test_that_is_not_there_and_a_row_without_one_are_found() -> None:
    here = "tests/unit/docs/test_security_page.py"
    assert wrong_with(f"`{here}::test_nobody_wrote_this`")
    assert (
        wrong_with("`tests/unit/none.py::test_x`") and wrong_with("") and wrong_with("it is safe")
    )
    this = "test_a_test_that_is_not_there_and_a_row_without_one_are_found"
    assert wrong_with(f"`{here}::{this}`") == wrong_with(f"{UNTRIED} |") == []
