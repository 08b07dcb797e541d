"""The site: every page has its place, and what `make docs` stages is whole; the start page's
commands are those that run.

Not here: the build itself, which is strict about links (`make docs`).
"""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from test_docs import LINK, PAGES, ROOT, anchor, headings, page, section


def module(name: str) -> ModuleType:
    """A script of docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def named(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    values = nav.values() if isinstance(nav, dict) else nav
    return [each for value in values for each in named(value)]


CONFIG = yaml.safe_load(page("mkdocs.yml"))


def test_each_page_has_one_place_in_the_navigation() -> None:
    found = named(CONFIG["nav"])
    assert sorted(found) == sorted(str(path.relative_to(ROOT)) for path in PAGES)


def test_the_site_loads_nothing_from_elsewhere_and_is_searched_offline() -> None:
    assert CONFIG["theme"]["font"] is False
    assert CONFIG["plugins"] == ["search", "offline"]
    assert "extra_javascript" not in CONFIG and "extra_css" not in CONFIG
    # It would draw mermaid with a script from another host: diagrams of design pages stay text.
    assert "superfences" not in page("mkdocs.yml")


def test_what_is_staged_has_each_file_that_a_page_links_to(tmp_path: Path) -> None:
    module("build_site").stage(ROOT, tmp_path)
    for path in PAGES:
        staged = tmp_path / path.relative_to(ROOT)
        for link in LINK.findall(staged.read_text()):
            file = link.partition("#")[0]
            if file and not link.startswith("https://"):
                assert (staged.parent / file).resolve().is_file(), f"{path}: {link}"


def test_a_wrong_link_fails_the_build() -> None:
    """What mkdocs does not log, its strict mode does not count."""
    build = (ROOT / "docs" / "build_site.py").read_text()
    assert '"--strict"' in build and '"--quiet"' not in build
    assert {"not_found": "warn", "anchors": "warn"}.items() <= CONFIG["validation"]["links"].items()
    assert CONFIG["validation"]["nav"]["omitted_files"] == "warn"


def test_headings_have_the_anchors_of_github() -> None:
    hooked = module("site_hooks").anchor
    for path in PAGES:
        for heading in headings(path.read_text()):
            assert hooked(heading) == anchor(heading)


def test_each_command_of_the_start_page_is_run_by_the_test_of_the_readme() -> None:
    run = section("README.md", "First schedule").splitlines()
    steps = page("docs/start.md").partition("## First steps")[2]
    said = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", steps, re.M | re.S)
        for line in block.splitlines()
    ]
    assert len(said) > 7
    assert [line for line in said if line not in run] == []


@pytest.mark.parametrize("name", ["docs/comparison.md", "docs/faq.md"])
def test_what_is_said_of_others_has_sources_that_differ(name: str) -> None:
    links = [link for link in LINK.findall(page(name)) if link.startswith("https://")]
    assert len(set(links)) >= 6
    assert all(
        re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", each)
        for each in links
    )
