"""What commands write to the terminal: a result, and how far a long run has come."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress as Bar


def show(as_json: bool, fields: dict[str, Any], lines: Iterable[str]) -> None:
    """Print a result as JSON, or as lines for people."""
    for line in [json.dumps(fields)] if as_json else lines:
        typer.echo(line)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar on a terminal; yield what updates it: the stage, done, total."""
    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=max(1, total)
        )
