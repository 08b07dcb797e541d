"""The documentation says what the code says: commands, settings, codes, reasons, routes, links.

Not here: whether a sentence is true; whether the README's commands work
(tests/integration/test_readme.py).
"""

import ast
import importlib
import pkgutil
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from pydantic.fields import FieldInfo
from typer.core import TyperGroup

import delayd
import replication
from delayd.commands import cli
from delayd.config.api_tokens import ApiTokens
from delayd.config.node import NodeConfig
from delayd.config.security import Security
from delayd.errors import DelaydError
from delayd.node.monitoring.api.access import Access, Rates
from delayd.node.monitoring.http import build_app
from delayd.request import Reason
from delayd.request.headers import (
    GROUP_HEADERS,
    INTERNAL_HEADERS,
    LOCAL_TIME,
    PLANNED_BEFORE_SERIES,
    PLANNED_TIME,
    SUPPORTED_HEADERS,
    WISH_HEADERS,
    WRITTEN_HEADERS,
)
from delayd.request.times import LEVELS
from delayd.runtime.clock import SystemClock
from replication.election_facts import ANSWERS, ResignReason
from replication.election_times import COOL_DOWN_POLLS

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "chaos").rglob("*.md"),
        *(ROOT / "k8s").rglob("*.md"),
    ]
)
SOURCES = sorted(
    path
    for pattern in (
        "delayd/**/*.py",
        "replication/**/*.py",
        "chaos/**/*.py",
        "tests/**/*.py",
        "tests/**/*.txt",
    )
    for path in ROOT.glob(pattern)
    if path != Path(__file__)
)
STOP = re.compile(r"^\d\. `([\w/]+\.py)`, `([\w.]+)`: ", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CITATION = re.compile(
    r"""(?P<path>(?<![\w/])docs(?:/[\w-]+)+(?:\.md)?)"""
    r"""(?P<headings>(?:[\s#]*(?:,|and)[\s#]*(?:"[A-Z][^"'\n]*"|'[A-Z][^"'\n]*'))*)"""
)


def page(name: str) -> str:
    return (ROOT / name).read_text()


def headings(text: str) -> list[str]:
    """The headings of a page, without those inside code."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#{1,6} (.+)$", prose, flags=re.MULTILINE)


def anchor(heading: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def section(name: str, heading: str) -> str:
    """What stands under a heading, up to the next one."""
    parts = re.split(r"^#{1,6} (.+)$", page(name), flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert heading in found, f"{name} has no heading {heading!r}"
    return found[heading]


def rows(name: str, heading: str) -> list[list[str]]:
    """The cells of the section's tables, without their heads."""
    found = []
    lines = section(name, heading).splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not line.startswith("|--") and not after.startswith("|--"):
            found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


def coded(cell: str) -> list[str]:
    """The words of a cell that are set as code."""
    return re.findall(r"`([^`]+)`", cell)


def first_words(name: str, heading: str) -> list[str]:
    return [word for row in rows(name, heading) for word in coded(row[0])]


def commands(group: TyperGroup, path: str) -> Iterator[tuple[str, typer.core.TyperCommand]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, f"{path} {name}")
        else:
            assert isinstance(command, typer.core.TyperCommand)
            yield f"{path} {name}", command


ROOT_COMMAND = TyperGroup(
    name="delayd", commands={name: cli.load_command(name) for name in cli.COMMANDS}
)
COMMANDS = dict(commands(ROOT_COMMAND, "delayd"))


def modules() -> Iterator[str]:
    for package in (delayd, replication):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield found.name


def error_classes(of: type[DelaydError] = DelaydError) -> Iterator[type[DelaydError]]:
    """The kinds of errors; their base class has no code."""
    for each in of.__subclasses__():
        yield each
        yield from error_classes(each)


def test_the_reference_has_a_section_for_each_command_and_for_no_other() -> None:
    sections = {text for text in headings(page("docs/reference/cli.md")) if "delayd " in text}
    assert sections == set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_a_commands_section_lists_exactly_its_options_and_arguments(path: str) -> None:
    wanted = {
        name
        for parameter in COMMANDS[path].params
        for name in (
            [*parameter.opts, *parameter.secondary_opts]
            if parameter.param_type_name == "option"
            else [str(parameter.name).upper()]
        )
    }
    assert set(first_words("docs/reference/cli.md", path)) == wanted - {"--help"}


@pytest.mark.parametrize(
    ("heading", "fields"),
    [
        (
            "Configuration",
            {k: f for k, f in NodeConfig.model_fields.items() if k != "security"},
        ),
        ("Getting into Kafka and etcd", Security.model_fields),
    ],
)
def test_the_configuration_tables_have_each_key_with_its_default(
    heading: str, fields: Mapping[str, FieldInfo]
) -> None:
    table = rows("docs/operations.md", heading)
    documented = {coded(row[0])[0]: row[1] for row in table if len(row) == 3}
    assert list(documented) == list(fields)
    for key, field in fields.items():
        default = documented[key]
        if field.is_required():
            assert default == "required", key
        elif field.default_factory is None:
            value = field.default
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            assert default == ("none" if value is None else f"`{shown}`"), key


def test_each_error_code_has_a_remedy_in_the_operations_page_and_no_other_code_has() -> None:
    for name in modules():
        if not name.endswith("__main__"):
            importlib.import_module(name)
    codes = {
        each.code for each in error_classes() if each.__module__.startswith(("delayd", "replic"))
    }
    documented = first_words("docs/operations.md", "Error codes")
    table = rows("docs/operations.md", "Error codes")
    assert {coded(row[0])[0] for row in table} == codes
    assert len(documented) == len(set(documented)), "a code has two rows"


def test_each_reject_reason_is_in_the_reference_and_no_other_is() -> None:
    documented = first_words("docs/reference/requests.md", "Reasons")
    assert documented == [reason.slug for reason in Reason]


def test_the_reference_tells_the_headers_that_work_from_those_that_are_reserved() -> None:
    name = "docs/reference/requests.md"
    assert first_words(name, "Request headers") == list(SUPPORTED_HEADERS)
    assert first_words(name, "Wishes") == [*WISH_HEADERS, *GROUP_HEADERS]
    _, reserved = section(name, "Request headers").split("\nReserved")
    assert {word for word in coded(reserved) if word.startswith("delayd-")} == {
        *PLANNED_BEFORE_SERIES,
        "delayd-*",
    }
    written = {*first_words(name, "Delivered records"), *first_words(name, "Rejects")}
    own = {"delayd-id", "delayd-due", *GROUP_HEADERS, PLANNED_TIME, LOCAL_TIME}
    assert written == {*WRITTEN_HEADERS, *own}
    assert first_words(name, "Internal records") == list(INTERNAL_HEADERS)


def test_the_reference_has_rocketmqs_levels() -> None:
    cells = [row[1:] for row in rows("docs/reference/requests.md", "Grammar")]
    assert [cell.strip(" |") for cell in cells[0]] == list(LEVELS)


def test_each_admin_route_is_in_the_reference_and_no_other_is() -> None:
    access = Access(ApiTokens(), Rates(SystemClock(), 1), anonymous_reads=False)
    services: Any = SimpleNamespace(node=None, access=access, requests=None)
    admin = build_app(None, services=services)  # type: ignore[arg-type]  # nothing is asked
    routes = {
        f"{method.upper()} {path}"
        for path, methods in admin.openapi()["paths"].items()
        for method in methods
    }
    of_api = {route for route in routes if " /v1/" in route}
    assert set(first_words("docs/reference/http-api.md", "HTTP API")) == of_api
    others = routes - of_api | {"GET /docs", f"GET {admin.openapi_url}"}
    assert set(first_words("docs/reference/http.md", "Admin port")) == others


def test_the_election_page_has_each_reason_and_its_cool_down() -> None:
    name = "docs/design/election.md"
    reasons = [reason.value for reason in ResignReason]
    assert first_words(name, "Resigning") == reasons
    polls = {reason: int(row[1]) for row in rows(name, "Cool-down") for reason in coded(row[0])}
    assert polls == {reason.value: count for reason, count in COOL_DOWN_POLLS.items()}


def test_the_election_page_has_each_call_with_its_answers() -> None:
    documented = {
        row[0]: set(row[1].split(", "))
        for row in rows("docs/design/election.md", "Facts and orders")
    }
    for answer, calls in ANSWERS.items():
        assert all(answer.__name__ in documented[call.__name__] for call in calls)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_link_of_a_page_leads_to_a_file_and_a_heading(path: Path) -> None:
    for link in LINK.findall(path.read_text()):
        if link.startswith("https://"):
            continue
        file, _, fragment = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.is_relative_to(ROOT), link
        assert target.is_file(), f"{link}: no such file"
        if fragment:
            assert fragment in map(anchor, headings(target.read_text())), f"{link}: no such heading"


def test_each_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        current = waiting.pop()
        if current in reached or current.suffix != ".md":
            continue
        reached.add(current)
        for link in LINK.findall(current.read_text()):
            file = link.partition("#")[0]
            if file and not link.startswith("https://"):
                waiting.append((current.parent / file).resolve())
    docs = {path for path in PAGES if path.is_relative_to(ROOT / "docs")}
    assert docs - reached == set()


def test_each_file_that_a_page_names_is_there() -> None:
    rooms = "delayd|replication|chaos|tests|k8s|image|docs"
    for path in PAGES:
        for named in re.findall(rf"`((?:{rooms})/[\w./*-]+)", path.read_text()):
            assert any(ROOT.glob(named.rstrip("/"))), f"{path.relative_to(ROOT)}: {named}"


def test_the_readme_names_each_folder_of_the_tree() -> None:
    named = set(re.findall(r"(\w+)/", section("README.md", "Where things are")))
    for parent in (ROOT, ROOT / "delayd", ROOT / "tests"):
        folders = {path.parent for path in parent.glob("*/*") if path.suffix in (".py", ".txt")}
        missing = {folder.name for folder in folders} - named
        assert not missing, f"{parent.name}/: {missing}"


def citations() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(where, path, headings) for each mention of a page in code and tests."""
    for source in SOURCES:
        for found in CITATION.finditer(source.read_text()):
            cited = re.findall(r""""([^"\n]+)"|'([^'\n]+)'""", found["headings"])
            names = tuple(one or other for one, other in cited)
            yield str(source.relative_to(ROOT)), found["path"], names


def test_each_page_and_heading_that_code_cites_exists() -> None:
    """A folder stands for its README."""
    found = sorted(set(citations()))
    assert len(found) > 20, "the citations were not found"
    wrong = []
    for source, cited, names in found:
        target = ROOT / cited
        text = target / "README.md" if target.is_dir() else target
        if not text.is_file():
            wrong.append(f"{source}: {cited} does not exist")
            continue
        known = headings(text.read_text())
        wrong += [f"{source}: {cited} has no heading {n!r}" for n in names if n not in known]
    assert wrong == []


def test_each_dependency_has_its_decision() -> None:
    project = tomllib.loads(page("pyproject.toml"))
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(each for extra in project["project"]["optional-dependencies"].values() for each in extra),
    ]
    names = {re.split(r"[<>=!~\[; ]", requirement)[0] for requirement in wanted}
    table = rows("docs/adr/README.md", "Decisions")
    record_of = {name: LINK.findall(row[0])[0] for row in table for name in coded(row[-1])}
    assert set(record_of) == names
    for name, record in record_of.items():
        assert re.search(rf"^Dependencies:.*\b{name}\b", page(f"docs/adr/{record}"), re.MULTILINE)


def test_each_decision_is_in_the_index() -> None:
    index = page("docs/adr/README.md")
    for path in (ROOT / "docs" / "adr").glob("0*.md"):
        assert f"({path.name})" in index


def test_the_changelog_begins_with_this_version() -> None:
    [newest, *_] = re.findall(r"^## \[(.+?)\]", page("CHANGELOG.md"), flags=re.MULTILINE)
    assert newest == delayd.__version__


def functions(path: Path) -> set[str]:
    """The functions and methods that a module defines, as `name` or `Class.name`."""
    tree = ast.parse(path.read_text()).body
    bodies = {f"{node.name}.": node.body for node in tree if isinstance(node, ast.ClassDef)}
    return {
        f"{owner}{node.name}"
        for owner, body in {"": tree, **bodies}.items()
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("walk", ["The walk of a buffer record", "The walk of a due message"])
def test_each_stop_of_a_walk_is_a_function_that_is_there(walk: str) -> None:
    text = section("docs/architecture.md", walk)
    stops = STOP.findall(text)
    assert 1 < len(stops) == len(re.findall(r"^\d+\. ", text, re.MULTILINE)) <= 8
    for path, function in stops:
        assert function in functions(ROOT / path), f"{path} has no {function}"


def shell_lines(text: str) -> list[str]:
    """The commands of a page's shell blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
    return [line for block in blocks for line in block.splitlines()]


def test_the_first_steps_are_the_commands_of_the_readme_which_a_test_runs() -> None:
    """tests/integration/test_readme.py."""
    readme = shell_lines(section("README.md", "First schedule"))
    assert len(readme) > 6 and shell_lines(section("docs/start.md", "First steps")) == readme
