"""`delayd bench`: the benchmarks on the command line."""

import json
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from delayd.bench.brokers import brokers_at
from delayd.bench.catalogue import (
    ALL,
    BESIDE_ALL,
    ON_BROKERS,
    ON_CLUSTER,
    ON_PAIR,
    measure,
    measure_on_cluster,
    sizes_of,
)
from delayd.bench.context import Context
from delayd.bench.figures import Figure, is_wrong
from delayd.bench.hot_second import warm_up
from delayd.bench.ids import bench_ids
from delayd.bench.plot import plot
from delayd.bench.report import report
from delayd.bench.result import Result, machine, result_from_json, sizes_said, table_of
from delayd.bench.wheels.measuring import bench_wheel
from delayd.config.cli_options import Config
from delayd.config.security import Security, load_security
from delayd.dev.interrupts import interrupts_raised
from delayd.runtime import native
from delayd.runtime.gc_tuning import tune_collector

EVERYTHING: Final = "all"
REPORT: Final = "report"
WHEEL: Final = "wheel"
IDS: Final = "ids"
ON_DISK: Final = (WHEEL, IDS)
"""Benchmarks that need no brokers."""
PATHS_OF: Final = ("ingest", "deliver")
"""Benchmarks that measure both paths side by side."""
WHEEL_MESSAGES: Final = 10_000_000
"""An hour and 20 GB of disk; a million tells about the same in a tenth of it."""

WHEEL_MESSAGES_QUICK: Final = 100_000
WHEEL_RUNS: Final = 3
IDS_SIZES: Final = {"messages": 200_000, "pending": 1_000_000, "runs": 3}
IDS_SIZES_QUICK: Final = {"messages": 20_000, "pending": 20_000, "runs": 1}


Name = Annotated[
    str,
    typer.Argument(
        help=f"{', '.join(ALL)}; all of these; {', '.join(BESIDE_ALL)}, neighbours, audit, "
        "wheel or ids; or report."
    ),
]
File = Annotated[
    Path | None, typer.Argument(help="For report: the --json output of an earlier run.")
]
Messages = Annotated[
    int | None, typer.Option(min=1000, help="Messages per run, where a benchmark counts them.")
]
Rate = Annotated[
    int | None, typer.Option(min=100, help="Messages per second, where a benchmark has a rate.")
]
Seconds = Annotated[
    int | None, typer.Option(min=1, help="How long the rate, or the window, lasts.")
]
Pending = Annotated[
    int | None, typer.Option(min=100, help="Messages pending meanwhile, due much later.")
]
Runs = Annotated[
    int | None,
    typer.Option(min=1, max=100, help="Runs; in failover, freeze, handover, ends of masters."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Small sizes: minutes for all.")]
Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", "-b", help="Brokers to use instead of a local one.")
]
BothPaths = Annotated[
    bool, typer.Option("--both-paths", help="ingest, deliver: in Python, and natively beside it.")
]
Directory = Annotated[
    Path | None,
    typer.Option("--dir", help="Where `wheel` and `ids` write: on the disk to be measured."),
]
Picture = Annotated[
    Path | None, typer.Option("--plot", help="Draw the figures into this file, as SVG.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def bench(
    name: Name,
    file: File = None,
    messages: Messages = None,
    rate: Rate = None,
    seconds: Seconds = None,
    pending: Pending = None,
    runs: Runs = None,
    quick: Quick = False,
    bootstrap: Bootstrap = None,
    config: Config = None,
    directory: Directory = None,
    both_paths: BothPaths = False,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Measure delayd on this machine, and the bare driver on the same brokers.

    The table has the median of the runs, their range and, because machines differ, the ratio
    against something that was measured in the same minutes: read that first. Every benchmark
    checks its own messages: exit code 1 if any was lost, doubled, early or altered.

    Example: delayd bench all --quick
    """
    _check(name, file, directory, bootstrap)
    if both_paths and name not in PATHS_OF:
        raise typer.BadParameter(f"{name} measures one path", param_hint="--both-paths")
    if both_paths and not native.BUILT.exists():
        raise typer.BadParameter("the native library is not built", param_hint="--both-paths")
    is_fine = True
    if file is not None:
        result = result_from_json(file.read_text())
        typer.echo(report(result), nl=False)
    else:
        given = {"messages": messages, "rate": rate, "seconds": seconds, "pending": pending}
        chosen = {key: value for key, value in {**given, "runs": runs}.items() if value is not None}
        tune_collector()
        if name == WHEEL:
            result = _measure_wheel(directory, chosen, quick=quick)
        elif name == IDS:
            result = _measure_ids(directory, chosen, quick=quick)
        elif name in ON_CLUSTER:
            result = _measure_on_cluster(name, chosen, quick=quick)
        else:
            where = (bootstrap, config)
            result = _measure(name, where, chosen, quick=quick, both_paths=both_paths)
        if as_json:
            typer.echo(json.dumps(result.to_json()))
        else:
            Console().print(table_of(result))
        is_whole = name != EVERYTHING or set(result.sizes) == set(ALL)
        is_fine = is_whole and not is_wrong(result.figures)
    if picture is not None:
        picture.write_text(plot(result))
    if not is_fine:
        raise typer.Exit(1)


def _check(name: str, file: Path | None, directory: Path | None, bootstrap: str | None) -> None:
    """Refuse arguments that the benchmark of that name has no use for."""
    if name not in (*ON_BROKERS, *ON_PAIR, *ON_CLUSTER, *ON_DISK, EVERYTHING, REPORT):
        known = ", ".join((*ALL, EVERYTHING, *BESIDE_ALL, *ON_CLUSTER, *ON_DISK, REPORT))
        raise typer.BadParameter(f"{name} is none of: {known}")
    if (name == REPORT) != (file is not None):
        raise typer.BadParameter("report needs a file; no benchmark takes one")
    if directory is not None and name not in ON_DISK:
        raise typer.BadParameter(f"{name} writes nothing to a disk of its own", param_hint="--dir")
    if bootstrap is not None and name in ON_DISK:
        raise typer.BadParameter(f"{name} needs no brokers", param_hint="--bootstrap")
    if bootstrap is not None and name in ON_CLUSTER:
        raise typer.BadParameter(f"{name} starts a cluster of its own", param_hint="--bootstrap")


def _measure(
    name: str,
    where: tuple[str | None, Path | None],
    chosen: dict[str, int],
    *,
    quick: bool,
    both_paths: bool,
) -> Result:
    bootstrap, config = where
    security = Security.none() if bootstrap is None else load_security(config)
    names = ALL if name == EVERYTHING else (name,)
    sizes = {each: sizes_of(each, quick=quick, chosen=chosen) for each in names}
    found: dict[str, list[Figure]] = {}
    with brokers_at(bootstrap, security) as brokers:
        if bootstrap is None:
            _tell("warming the brokers up")
            warm_up(Context(brokers, sizes[names[0]], _tell))
        failed = measure(
            names, lambda each: Context(brokers, sizes[each], _tell, both_paths), found
        )
    for each, error in failed.items():
        _tell(f"{each} failed: {error}")
    if failed and not found:
        raise next(iter(failed.values()))
    return Result(
        name,
        machine(has_own_brokers=bootstrap is None),
        {each: sizes_said(of) for each, of in sizes.items() if each in found},
        tuple(figure for figures in found.values() for figure in figures),
    )


def _measure_on_cluster(name: str, chosen: dict[str, int], *, quick: bool) -> Result:
    sizes = sizes_of(name, quick=quick, chosen=chosen)
    figures = measure_on_cluster(name, sizes)
    return Result(name, machine(), {name: sizes_said(sizes)}, tuple(figures))


def _measure_wheel(directory: Path | None, chosen: dict[str, int], *, quick: bool) -> Result:
    count = chosen.get("messages", WHEEL_MESSAGES_QUICK if quick else WHEEL_MESSAGES)
    runs = chosen.get("runs", 1 if quick else WHEEL_RUNS)
    with interrupts_raised():
        figures = bench_wheel(count, runs, directory, _tell)
    sizes = {WHEEL: {"runs": runs, "messages": count}}
    return Result(WHEEL, machine(has_own_brokers=False), sizes, tuple(figures))


def _measure_ids(directory: Path | None, chosen: dict[str, int], *, quick: bool) -> Result:
    sizes = IDS_SIZES_QUICK if quick else IDS_SIZES
    sizes = {key: chosen.get(key, size) for key, size in sizes.items()}
    with interrupts_raised():
        figures = bench_ids(**sizes, directory=directory, tell=_tell)
    return Result(IDS, machine(has_own_brokers=False), {IDS: sizes}, tuple(figures))


def _tell(what: str) -> None:
    """Say on standard error what a long benchmark does; standard output is for its figures."""
    typer.echo(what, err=True)
