"""Every rule of docs/design/rules.md has a test that cites it, and every citation has its rule.

A citation is a line `Rules: name, name` in the docstring of a test (function, method or file), or
in a comment of a transcript.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "design" / "rules.md"
ROW = re.compile(r"^\| `([a-z-]+)` \| (.+) \| `([^`]+)` \|$", re.MULTILINE)
CITED = re.compile(r"^[#\s]*Rules: ([a-z, -]+)\.?$", re.MULTILINE)
RULES_MIN = 70


def rows() -> list[tuple[str, str, str]]:
    return ROW.findall(PAGE.read_text(encoding="utf-8"))


def cited_in(text: str) -> list[str]:
    return [name for line in CITED.findall(text) for name in line.split(", ")]


def docstrings(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            yield ast.get_docstring(node) or ""


def citations() -> list[tuple[str, str]]:
    """(where, rule) of each."""
    found = []
    for source in sorted((ROOT / "tests").rglob("test_*.py")):
        if source != Path(__file__):
            where = str(source.relative_to(ROOT))
            found += [(where, name) for text in docstrings(source) for name in cited_in(text)]
    for transcript in sorted((ROOT / "tests" / "scenarios").glob("*.txt")):
        text = transcript.read_text(encoding="utf-8")
        found += [(transcript.name, name) for name in cited_in(text)]
    return found


def test_each_rule_is_named_once_and_stands_in_a_file_that_exists() -> None:
    names = [name for name, _, _ in rows()]
    assert len(names) == len(set(names)) >= RULES_MIN
    written = PAGE.read_text(encoding="utf-8").count("\n| `")
    assert len(names) == written, "a row has another form"
    assert [path for _, _, path in rows() if not (ROOT / path).is_file()] == []


def test_each_rule_has_a_test_that_cites_it() -> None:
    cited = {name for _, name in citations()}
    assert [name for name, _, _ in rows() if name not in cited] == []


def test_each_citation_has_its_rule() -> None:
    known = {name for name, _, _ in rows()}
    assert [found for found in citations() if found[1] not in known] == []
