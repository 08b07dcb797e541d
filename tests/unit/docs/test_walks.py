"""docs/architecture.md walks through functions that are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STOP = re.compile(r"^\d\. `([\w/]+\.py)`, `([\w.]+)`: ", re.MULTILINE)
WALKS = ("The walk of a buffer record", "The walk of a due message")


def section(heading: str) -> str:
    """Return what stands under a heading of the page, up to the next one."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def functions(path: Path) -> set[str]:
    """Return the functions and methods that a module defines, as `name` or `Class.name`."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse(path.read_text(encoding="utf-8")).body
    classes = [node for node in tree if isinstance(node, ast.ClassDef)]
    return {node.name for node in tree if isinstance(node, kinds)} | {
        f"{owner.name}.{node.name}"
        for owner in classes
        for node in owner.body
        if isinstance(node, kinds)
    }


@pytest.mark.parametrize("heading", WALKS)
def test_each_stop_of_a_walk_is_a_function_that_is_there(heading: str) -> None:
    stops = STOP.findall(section(heading))
    numbered = re.findall(r"^\d+\. ", section(heading), re.MULTILINE)
    assert 1 < len(stops) == len(numbered) <= 8
    for path, function in stops:
        assert function in functions(ROOT / path), f"{path} has no {function}"
