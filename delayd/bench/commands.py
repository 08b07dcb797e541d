"""`delayd bench`: the benchmarks on the command line."""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from delayd.bench.audits import bench_audit
from delayd.bench.figures import Figure, machine, rounded
from delayd.bench.neighbours import bench_neighbours, is_wrong
from delayd.bench.rates import Bench, bench_deliver, bench_ingest
from delayd.bench.wheels.measuring import bench_wheel
from delayd.collector import tune_collector
from delayd.dev.cluster import LocalCluster
from delayd.dev.interrupts import interrupts_raised
from delayd.dev.startup import ClusterOptions
from delayd.options import Config
from delayd.security import load_security

RATES: dict[str, Callable[[Bench], list[Figure]]] = {
    "ingest": bench_ingest,
    "deliver": bench_deliver,
}
RATES_MESSAGES = 300_000

NEIGHBOURS = "neighbours"
NEIGHBOURS_MESSAGES = 60_000
"""Half a minute."""

AUDIT = "audit"
AUDIT_MESSAGES = 200_000

ON_CLUSTERS: dict[str, tuple[Callable[[LocalCluster, int, int], list[Figure]], int]] = {
    NEIGHBOURS: (bench_neighbours, NEIGHBOURS_MESSAGES),
    AUDIT: (bench_audit, AUDIT_MESSAGES),
}
"""Those that need nodes, each with its messages per run."""


WHEEL = "wheel"
WHEEL_MESSAGES = 10_000_000
"""An hour and 20 GB of disk; a million tells about the same in a tenth of it."""


def bench(
    name: Annotated[str, typer.Argument(help="ingest, deliver, neighbours, audit, all; or wheel.")],
    messages: Annotated[
        int | None,
        typer.Option(
            min=1000,
            help="Messages per run (300000; neighbours 60000; audit 200000; wheel 10000000).",
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, max=20, help="Runs; medians are shown.")] = 3,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", "-b", help="Brokers to use instead of own ones.")
    ] = None,
    config: Config = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where wheel writes: the disk to be measured.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure delayd against the bare driver, on the same brokers in the same minutes.

    neighbours: how late the others are while a tenth of the messages goes to a topic that does not
    exist, against the same with none missing. audit: time and memory of an audit, against a bare
    read of the same topics. Exit code 1 if any message was lost or doubled, or the audit found
    anything.

    wheel: a node's storage by itself, in one thread, without Kafka. It takes an hour, so it is not
    in all.

    Example: delayd bench all --json
    """
    if name not in (*RATES, *ON_CLUSTERS, WHEEL, "all"):
        known = ", ".join((*RATES, *ON_CLUSTERS, WHEEL))
        raise typer.BadParameter(f"{name} is none of: all, {known}")
    if name == WHEEL:
        if bootstrap is not None:
            raise typer.BadParameter("wheel measures the disk, and needs no brokers")
        with interrupts_raised():
            _show(name, bench_wheel(messages or WHEEL_MESSAGES, runs, directory, _tell), as_json)
        return
    if directory is not None:
        raise typer.BadParameter(f"{name} writes nothing to a disk of its own", param_hint="--dir")
    if name in ON_CLUSTERS and bootstrap is not None:
        raise typer.BadParameter(f"{name} needs nodes, and starts a cluster of its own")
    kafka = {} if bootstrap is None else load_security(config).properties()
    tune_collector()
    figures: list[Figure] = []
    if chosen := [measure for rate, measure in RATES.items() if name in (rate, "all")]:
        with _brokers(bootstrap) as brokers:
            for measure in chosen:
                figures += measure(Bench(brokers, messages or RATES_MESSAGES, runs, kafka))
    for on_cluster, (measure_on, count) in ON_CLUSTERS.items():
        if name in (on_cluster, "all") and bootstrap is None:
            with _cluster(nodes=3) as cluster:
                figures += measure_on(cluster, messages or count, runs)
    _show(name, figures, as_json)
    if is_wrong(figures):
        raise typer.Exit(1)


def _tell(what: str) -> None:
    """What a long benchmark is at; standard output is for its figures."""
    typer.echo(what, err=True)


def _show(name: str, figures: list[Figure], as_json: bool) -> None:
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "bench": name,
                    "machine": machine(),
                    "figures": {figure.name: figure.to_json() for figure in figures},
                }
            )
        )
        return
    table = Table("figure", "median", "unit", "ratio", "against", "runs")
    for figure in figures:
        table.add_row(
            figure.name,
            f"{rounded(figure.value):,}",
            figure.unit,
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
            figure.against,
            ", ".join(f"{rounded(run):,}" for run in figure.runs),
        )
    Console().print(table)


@contextlib.contextmanager
def _brokers(bootstrap: str | None) -> Iterator[str]:
    """The brokers that were named, or a local cluster for the time of the benchmark."""
    if bootstrap is not None:
        yield bootstrap
        return
    with _cluster(nodes=0) as cluster:
        yield cluster.bootstrap


@contextlib.contextmanager
def _cluster(nodes: int) -> Iterator[LocalCluster]:
    with (
        interrupts_raised(),
        tempfile.TemporaryDirectory(prefix="delayd-bench-") as folder,
        LocalCluster(Path(folder), ClusterOptions(nodes=nodes)) as cluster,
    ):
        yield cluster
