"""docs/reference/requests.md has what the code has: its generated tables, and its examples."""

import re
from pathlib import Path

import pytest
from generated_pages import check_blocks

from delayd.request import Op, Reason, Verdict, receipt, receipt_record

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "requests.md"


def table(first: str, second: str, rows: list[tuple[str, str]]) -> str:
    assert not [text for _, text in rows if "|" in text], "it would begin another cell"
    lines = [f"| {first} | {second} |", "|---|---|", *(f"| `{a}` | {b} |" for a, b in rows)]
    return "".join(f"{line}\n" for line in ["", *lines, ""])


TABLES = {
    "verdicts": table("verdict", "means", [(each.slug, each.meaning) for each in Verdict]),
    "reasons": table("reason", "do", [(each.slug, each.advice) for each in Reason]),
}


def test_the_generated_tables_are_up_to_date(request: pytest.FixtureRequest) -> None:
    """With `--rewrite` they are written."""
    check_blocks(PAGE, TABLES, request)


def test_the_receipt_of_the_page_is_the_one_that_is_written() -> None:
    form = receipt(
        id="order-4711",
        verdict=Verdict.CANCELLED,
        op=Op.CANCEL,
        source="3/99",
        killed=["3/70"],
        due_ms=1_700_000_010_000,
    )
    value = receipt_record(form, at_ms=1_700_000_004_321).value.decode()
    example = re.search(r'^    (\{"id".*?\})$', PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert example is not None
    assert re.sub(r"\n *", "", example[1]) == value
