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

from delayd.bench.figures import Figure, machine
from delayd.bench.rates import Bench, bench_deliver, bench_ingest
from delayd.dev.cluster import LocalCluster
from delayd.dev.interrupts import interrupts_raised
from delayd.dev.startup import ClusterOptions
from delayd.node import tune_collector

BENCHES: dict[str, Callable[[Bench], list[Figure]]] = {
    "ingest": bench_ingest,
    "deliver": bench_deliver,
}


def bench(
    name: Annotated[str, typer.Argument(help="ingest, deliver, or all.")],
    messages: Annotated[int, typer.Option(min=1000, help="Messages of 300 B per run.")] = 300_000,
    runs: Annotated[int, typer.Option(min=1, max=20, help="Runs; medians are shown.")] = 3,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", "-b", help="Brokers to use instead of own ones.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure delayd against the bare driver, on the same brokers in the same minutes.

    Example: delayd bench all --json
    """
    chosen = BENCHES if name == "all" else {name: BENCHES[name]} if name in BENCHES else {}
    if not chosen:
        raise typer.BadParameter(f"{name} is none of: all, {', '.join(BENCHES)}")
    tune_collector()
    figures: list[Figure] = []
    with _brokers(bootstrap) as brokers:
        for measure in chosen.values():
            figures += measure(Bench(brokers, messages, runs))
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
            f"{figure.value:,.0f}",
            figure.unit,
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
            figure.against,
            ", ".join(f"{run:,.0f}" for run in figure.runs),
        )
    Console().print(table)


@contextlib.contextmanager
def _brokers(bootstrap: str | None) -> Iterator[str]:
    """The brokers that were named, or a local cluster for the time of the benchmark."""
    if bootstrap is not None:
        yield bootstrap
        return
    with (
        interrupts_raised(),
        tempfile.TemporaryDirectory(prefix="delayd-bench-") as folder,
        LocalCluster(Path(folder), ClusterOptions(nodes=0)) as cluster,
    ):
        yield cluster.bootstrap
