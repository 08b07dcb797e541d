"""Pages of docs/ that the code generates: compared in every run, written with `--rewrite`."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def check_blocks(page: Path, blocks: Mapping[str, str], request: pytest.FixtureRequest) -> None:
    """Assert that the page's generated blocks are these, in this order; write them if asked to."""
    written = page.read_text(encoding="utf-8")
    assert [name for _, name, _ in BLOCK.findall(written)] == list(blocks)
    wanted = BLOCK.sub(lambda found: found[1] + blocks[found[2]] + found[3], written)
    check_page(page, wanted, request)


def check_page(page: Path, wanted: str, request: pytest.FixtureRequest) -> None:
    """Assert that the page says what is generated; write it if asked to."""
    if request.config.getoption("--rewrite"):
        page.write_text(wanted, encoding="utf-8")
        return
    command = f"pytest {request.path.relative_to(request.config.rootpath)} --rewrite"
    assert wanted == page.read_text(encoding="utf-8"), f"if this is meant: {command}"
