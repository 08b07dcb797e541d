"""`delayd wheel`: what lies on the disk of a node that is stopped."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress as Bar

from delayd.errors import ExitCode
from delayd.examine.inspecting import inspect
from delayd.examine.showing import findings_json, findings_lines, overview_json, overview_lines
from delayd.examine.verifying import verify
from delayd.options import AsJson

app = typer.Typer(no_args_is_help=True, help="The wheel of a stopped node: look at it, verify it.")

DataDir = Annotated[
    Path,
    typer.Argument(
        metavar="DATA_DIR",
        exists=True,
        file_okay=False,
        help="A node's data_dir. The node is stopped.",
    ),
]


@app.command("inspect")
def inspect_wheel(data_dir: DataDir, as_json: AsJson = False) -> None:
    """Show what a wheel holds: its checkpoint, counts, a histogram by hour, the largest slots.

    Reads the catalogue only, and changes nothing.

    Example: delayd wheel inspect /var/lib/delayd
    """
    overview = inspect(data_dir)
    if as_json:
        typer.echo(json.dumps(overview_json(overview)))
        return
    for line in overview_lines(overview):
        typer.echo(line)


@app.command("verify")
def verify_wheel(data_dir: DataDir, as_json: AsJson = False) -> None:
    """Read every frame of a wheel, and say what is damaged. Exit 1 if anything is.

    Changes nothing. What came after the last checkpoint is no damage.

    Example: delayd wheel verify /var/lib/delayd
    """
    with _progress() as tell:
        findings, progress = verify(data_dir, tell)
    if as_json:
        typer.echo(json.dumps(findings_json(findings, progress)))
    else:
        for line in findings_lines(findings, progress):
            typer.echo(line)
    raise typer.Exit(ExitCode.FINE if findings.is_whole else ExitCode.PROBLEM)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Shows bytes read of bytes in all, on a terminal only."""
    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("verifying", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=max(1, total))
