"""`delayd wheel`: examine the data directory of a stopped node."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from delayd.commands.examine.diffing import diff
from delayd.commands.examine.inspecting import inspect
from delayd.commands.examine.showing import (
    comparison_json,
    comparison_lines,
    exported_json,
    exported_lines,
    fetched_json,
    fetched_lines,
    findings_json,
    findings_lines,
    overview_json,
    overview_lines,
    repair_json,
    repair_lines,
)
from delayd.commands.examine.verifying import verify
from delayd.commands.terminal import show, stages
from delayd.config.cli_options import AsJson
from delayd.errors import ExitCode

app = typer.Typer(
    no_args_is_help=True, help="The wheel of a stopped node: look at it, verify it, compare it."
)

DataDir = Annotated[
    Path,
    typer.Argument(
        metavar="DATA_DIR",
        exists=True,
        file_okay=False,
        help="A node's data_dir. The node is stopped.",
    ),
]


NodeFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="The node's TOML file; every key is also DELAYD_<KEY>."),
]


@app.command("inspect")
def inspect_wheel(data_dir: DataDir, as_json: AsJson = False) -> None:
    """Show what a wheel holds: its checkpoint, counts, a histogram by hour, the largest slots.

    Reads the catalogue only, and changes nothing.

    Example: delayd wheel inspect /var/lib/delayd
    """
    overview = inspect(data_dir)
    show(as_json, overview_json(overview), overview_lines(overview))


@app.command("verify")
def verify_wheel(data_dir: DataDir, as_json: AsJson = False) -> None:
    """Read every frame of a wheel, and report damage. Exit 1 if there is any.

    Changes nothing. Bytes after the last checkpoint are no damage.

    Example: delayd wheel verify /var/lib/delayd
    """
    with _progress("verifying") as tell:
        findings, progress = verify(data_dir, tell)
    show(as_json, findings_json(findings, progress), findings_lines(findings, progress))
    raise typer.Exit(ExitCode.FINE if findings.is_whole else ExitCode.PROBLEM)


@app.command("repair")
def repair_wheel(config: NodeFile = None, as_json: AsJson = False) -> None:
    """Write the damaged files of a stopped node's wheel again, from the buffer.

    Takes the node's own configuration: its data_dir, its brokers, its cluster key. Damage in files
    of slots and hours can be repaired while the buffer still holds the requests. A file is replaced
    only if its count and digest then match the catalogue. Exit 1 if damage stays.

    Example: delayd wheel repair --config /etc/delayd/node.toml
    """
    # Only a repair needs a node's configuration, the ingest rules and a driver.
    from delayd.cluster.connect import open_bus
    from delayd.cluster.key_checks import check_keys
    from delayd.cluster.topics import load_settings
    from delayd.commands.examine.repairing import Log, repair
    from delayd.config.cluster_key import proof_key
    from delayd.config.node import load
    from delayd.runtime.clock import SystemClock
    from delayd.wheel.draft import forget_damage

    node = load(config)
    timeout_ms = int(node.connect_timeout_s * 1000)
    bus = open_bus(node.bootstrap, node.security.properties(), driver=node.driver)
    settings = load_settings(bus, node.cluster, node.prefix, timeout_ms).record.settings
    key = node.cluster_key.get_secret_value()
    clock = SystemClock()
    check_keys(bus, key, settings, clock, timeout_ms)
    log = Log(bus, settings, proof_key(key), clock, timeout_ms)
    with stages() as tell:
        outcome = repair(node.data_dir, log, tell)
    if outcome.is_whole:
        forget_damage(node.data_dir)
    show(as_json, repair_json(outcome), repair_lines(outcome))
    raise typer.Exit(ExitCode.FINE if outcome.is_whole else ExitCode.PROBLEM)


@app.command("fetch")
def fetch_wheel(
    config: NodeFile = None,
    donor: Annotated[
        str | None, typer.Option("--from", metavar="NODE", help="The only node to fetch from.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy another node's wheel, while that runs, in place of a stopped node's.

    Takes the node's own configuration. The copy is verified before it takes its place; the wheel
    that was there is kept in DATA_DIR/replaced while there is room. If it is interrupted, the next
    run goes on. Without --yes it only says what it would do.

    Example: delayd wheel fetch --config /etc/delayd/node.toml --yes
    """
    # Only a fetch needs a node's configuration, a driver and etcd.
    from delayd.commands.examine.fetching import fetch, plan
    from delayd.config.node import load

    node = load(config)
    if not yes:
        typer.echo(plan(node.data_dir, donor))
        raise typer.Exit(ExitCode.FINE)
    with stages() as tell:
        fetched = fetch(node, donor, tell)
    show(as_json, fetched_json(fetched), fetched_lines(fetched))


@app.command("export")
def export_wheel(
    data_dir: DataDir,
    parquet: Annotated[Path, typer.Option("--parquet", help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the pending messages of a stopped node as Parquet, for Spark and others.

    As of the newest frontier that its checkpoint knows; a running node exports the same file.

    Example: delayd wheel export /var/lib/delayd --parquet pending.parquet
    """
    # The Parquet library takes its time, and nothing else here needs it.
    from delayd.commands.examine.exporting import export

    with _progress("exporting") as tell:
        exported = export(data_dir, parquet, tell, overwrite=force)
    show(as_json, exported_json(exported), exported_lines(exported))


@app.command("diff")
def diff_wheels(
    a: Annotated[
        Path,
        typer.Argument(metavar="A", exists=True, file_okay=False, help="A stopped node's data_dir"),
    ],
    b: Annotated[
        Path,
        typer.Argument(metavar="B", exists=True, file_okay=False, help="That of another node."),
    ],
    as_json: AsJson = False,
) -> None:
    """Compare the wheels of two stopped nodes of one cluster. Exit 1 if they differ.

    Compares the messages that both must hold, even if they were stopped at different moments. Reads
    the catalogues, and the files only where these differ; changes nothing.

    Example: delayd wheel diff /var/lib/delayd-1 /var/lib/delayd-2
    """
    with _progress("comparing") as tell:
        comparison = diff(a, b, tell)
    show(as_json, comparison_json(comparison), comparison_lines(comparison))
    raise typer.Exit(ExitCode.FINE if comparison.is_alike else ExitCode.PROBLEM)


@contextmanager
def _progress(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar of one stage."""
    with stages() as tell:
        yield partial(tell, doing)
