"""A file and a function of the product stay short enough to be read in one go."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 450
FUNCTION_LINES_MAX = 60
ROOMS = ("replication", "delayd", "chaos", "native")


def test_files_and_functions_are_short() -> None:
    """450 lines a file, 60 a function. What grows beyond is two things by then: split it."""
    sources = [
        path for room in ROOMS for end in ("*.py", "*.c") for path in (ROOT / room).rglob(end)
    ]
    assert len(sources) > 400
    too_long = []
    for path in sources:
        text, name = path.read_text(), path.relative_to(ROOT)
        lines = text.count("\n")
        if lines > FILE_LINES_MAX:
            too_long.append(f"{name}: {lines} lines")
        if path.suffix == ".py":
            too_long += [f"{name}: {each}" for each in long_functions(text)]
    assert not too_long, "\n".join(too_long)


def long_functions(text: str) -> list[str]:
    """Return name and size of each function in this source that is too long."""
    functions = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    sizes = ((each.name, (each.end_lineno or 0) - each.lineno + 1) for each in functions)
    return [f"{name}, {size} lines" for name, size in sizes if size > FUNCTION_LINES_MAX]


def test_a_long_function_is_named() -> None:
    """The check sees one line too many, and none too few."""
    body = "    pass\n"
    assert not long_functions("def f():\n" + body * (FUNCTION_LINES_MAX - 1))
    assert long_functions("def f():\n" + body * FUNCTION_LINES_MAX) == ["f, 61 lines"]
