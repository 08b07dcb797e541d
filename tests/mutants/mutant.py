"""What a mutant is: a small, exact change that breaks one rule."""

import shutil
from dataclasses import dataclass
from pathlib import Path

COPIED = ("delayd", "native", "replication", "tests", "pyproject.toml")
"""All that the simulation and the unit tests need of a checkout."""

SEEDS_MAX = 60
"""Seeds of the simulation (docs/design/simulation.md), from 0 on, that are asked of each mutant:
what they can catch they catch within these."""


class NoSuchTextError(Exception):
    """The text that a mutation replaces is not there exactly once: the catalogue is out of date."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in one file."""

    file: str
    """Path from the root of the checkout."""
    old: str
    """Occurs exactly once."""
    new: str

    def apply(self, tree: Path) -> str:
        """Change the file; its new text. NoSuchTextError unless `old` is there exactly once."""
        path = tree / self.file
        text = path.read_text()
        if (count := text.count(self.old)) != 1:
            raise NoSuchTextError(f"{self.file} has {count} times: {self.old!r}")
        changed = text.replace(self.old, self.new)
        path.write_text(changed)
        return changed


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule, broken."""

    name: str
    """A slug, unique."""
    rule: str
    """What must hold, and does not any more. One sentence without its full stop."""
    source: str
    """Page and heading of the rule in docs/design, as `frontier.md#step`."""
    edits: tuple[Edit, ...]
    tests: tuple[str, ...] = ()
    """Tests (`path::name`) that are asked when no seed has noticed anything."""
    is_simulated: bool = True
    """False: the simulation does not reach what was changed, or no seed has noticed it for as long
    as it was asked. Then only its tests are asked."""


def one_edit(
    name: str,
    rule: str,
    source: str,
    file: str,
    old: str,
    new: str,
    *tests: str,
    is_simulated: bool | None = None,
) -> Mutant:
    """Return a mutant of one replacement in one file; it is simulated unless it names tests."""
    is_simulated = not tests if is_simulated is None else is_simulated
    return Mutant(name, rule, source, (Edit(file, old, new),), tests, is_simulated)


def copy_tree(root: Path, tree: Path) -> None:
    """Copy what is needed of a checkout into a new folder."""
    for name in COPIED:
        if (root / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis")
            shutil.copytree(root / name, tree / name, ignore=ignored)
        else:
            shutil.copy(root / name, tree / name)


def apply(mutant: Mutant, tree: Path) -> None:
    """Make the mutant out of a copy. NoSuchTextError if it does not fit; SyntaxError if what comes
    out is no Python."""
    for edit in mutant.edits:
        changed = edit.apply(tree)
        if edit.file.endswith(".py"):
            compile(changed, edit.file, "exec")
