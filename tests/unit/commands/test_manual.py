"""The manual of the protocol, replication/__init__.py, says of the election what its table says."""

import re
from pathlib import Path
from textwrap import fill

import pytest

from replication.election import _BY_TIME, _TRANSITIONS, State

MANUAL = Path(__file__).parents[3] / "replication" / "__init__.py"
BLOCK = re.compile(r"(\(generated from election\.py: [^)]*\)\n).*?(\(end\)\n)", re.DOTALL)
TIME = "*time*"


def arrow(label: str, facts: list[str]) -> str:
    indent = f"      {label:17}"
    return fill(", ".join(facts), 98, initial_indent=indent, subsequent_indent=" " * 23) + "\n"


def diagram() -> str:
    """By state, the states that may follow, and the facts that lead there."""
    text = "\n"
    for state, facts in _TRANSITIONS.items():
        arrows: dict[State, list[str]] = {}
        if state in _BY_TIME:
            arrows[_BY_TIME[state]] = [TIME]
        for fact, (_, *leads_to) in facts.items():
            for after in leads_to:
                arrows.setdefault(after, []).append(fact.__name__)
        stays = arrows.pop(state, [])
        text += f"    {state.name}\n"
        for after, names in sorted(arrows.items(), key=lambda arrow: list(State).index(arrow[0])):
            text += arrow(f"--> {after.name}", names)
        text += arrow("stays", stays)
    return text + "\n"


def test_the_state_diagram_is_drawn_from_the_transitions(request: pytest.FixtureRequest) -> None:
    """With `--rewrite` it is written."""
    written = MANUAL.read_text(encoding="utf-8")
    assert BLOCK.search(written) is not None
    wanted = BLOCK.sub(lambda found: found[1] + diagram() + found[2], written)
    if request.config.getoption("--rewrite"):
        MANUAL.write_text(wanted, encoding="utf-8")
    else:
        command = "pytest tests/unit/commands/test_manual.py --rewrite"
        assert wanted == written, f"if this is meant: {command}"


def test_the_manual_names_every_file_of_the_protocol() -> None:
    files = {path.name for path in MANUAL.parent.glob("*.py")} - {MANUAL.name}
    text = MANUAL.read_text(encoding="utf-8")
    assert {name for name in files if name not in text} == set()
