"""The manual of the protocol names every file, and the pages draw its tables of transitions."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType

import pytest
from generated_pages import check_page

from replication import election, leadership_session, pulse, takeover

ROOT = Path(__file__).parents[3]
MANUAL = ROOT / "replication" / "__init__.py"
COMMAND = "pytest tests/unit/replication/test_manual.py --rewrite"
ELECTION, FRONTIER = "docs/design/election.md", "docs/design/frontier.md"
Table = Mapping[object, Mapping[type, tuple[object, ...]]]


def diagram(table: Table, by_time: Mapping[object, tuple[object, ...]]) -> str:
    """Return by state the states that may follow, and the facts that lead there."""
    arrows: dict[tuple[str, str], list[str]] = {}
    if NoneType not in table:
        arrows[name(NoneType), name(next(iter(table)))] = ["start"]
    for before, facts in table.items():
        for after in by_time.get(before, ()):
            arrows[name(before), name(after)] = ["(time)"]
        for fact, (_, *leads_to) in facts.items():
            for after in leads_to:
                arrows.setdefault((name(before), name(after)), []).append(fact.__name__)
    lines = [f"    {a} --> {b}: {', '.join(facts)}" for (a, b), facts in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def name(state: object) -> str:
    if state is NoneType:
        return "[*]"
    return state.__name__ if isinstance(state, type) else state.name  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("page", "file", "table", "by_time"),
    [
        (ELECTION, "election", election.TRANSITIONS, election.BY_TIME),
        (ELECTION, "leadership_session", leadership_session.TRANSITIONS, {}),
        (ELECTION, "pulse", pulse.TRANSITIONS, {}),
        (FRONTIER, "takeover", takeover.TRANSITIONS, {}),
    ],
)
def test_a_diagram_is_drawn_from_its_table(
    page: str,
    file: str,
    table: Table,
    by_time: Mapping[object, tuple[object, ...]],
    request: pytest.FixtureRequest,
) -> None:
    """With `--rewrite` it is written."""
    note = f"<!-- generated from replication/{file}.py: {COMMAND} -->\n"
    written = (ROOT / page).read_text(encoding="utf-8")
    block = re.compile(re.escape(note) + r"```mermaid\n.*?```", re.DOTALL)
    assert len(block.findall(written)) == 1
    wanted = block.sub(note + diagram(table, by_time), written)
    check_page(ROOT / page, wanted, request)


def test_the_manual_names_every_file_of_the_protocol() -> None:
    files = {path.name for path in MANUAL.parent.glob("*.py")} - {MANUAL.name}
    text = MANUAL.read_text(encoding="utf-8")
    assert {name for name in files if name not in text} == set()
