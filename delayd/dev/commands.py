"""`delayd dev`: the local cluster on the command line. A thin shell around cluster.py.

Stdout carries the answer only (one JSON object with --json); progress goes to stderr.
"""

import json
import os
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from delayd.dev.advancing import ADVANCE_TIMEOUT_S, text_of
from delayd.dev.batch import COUNT_MAX
from delayd.dev.cluster import LocalCluster, Report
from delayd.dev.demo import ORDERS_MIN, SECONDS_MIN, run_demo
from delayd.dev.demo_report import DemoReport
from delayd.dev.display import Display
from delayd.dev.drawing import summary
from delayd.dev.interrupts import interrupts_raised
from delayd.dev.kafka import HEAP_MB
from delayd.dev.startup import ClusterOptions
from delayd.request.reasons import RefusedError
from delayd.request.times import delay_ms_of
from delayd.runtime.virtual_time import VARIABLE
from replication.settings import SHARDS_MAX

app = typer.Typer(
    no_args_is_help=True,
    help="A local cluster: real Kafka, real etcd and delayd nodes as processes of this machine.",
)


def default_directory() -> Path:
    """Return the one folder per user that holds the cluster unless --dir names another."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "delayd" / "dev"


def _one_or_three(brokers: int | None) -> int | None:
    if brokers is not None and brokers not in HEAP_MB:
        raise typer.BadParameter("1 or 3: two cannot lose one of them and go on")
    return brokers


Directory = Annotated[
    Path,
    typer.Option(
        "--dir",
        default_factory=default_directory,
        show_default="$XDG_STATE_HOME/delayd/dev, that is ~/.local/state/delayd/dev",
        help="The cluster's folder: data, logs, configuration.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


@app.command()
def up(
    directory: Directory,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=9,
            help="delayd nodes; 0 starts Kafka and etcd only. Default: as before, or 3.",
        ),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            help="1, or 3 of which any one may die. Default: as before, or 1.",
            callback=_one_or_three,
        ),
    ] = None,
    shards: Annotated[
        int,
        typer.Option(
            min=1,
            max=SHARDS_MAX,
            help="Of a new cluster: parts of its buffer with masters of their own.",
        ),
    ] = 1,
    virtual: Annotated[
        bool,
        typer.Option(
            "--virtual",
            help="Its clock is moved by `delayd dev advance`. Default: as before, or a real one.",
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove the data of the folder's last cluster first.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start a cluster, and wait until a master delivers.

    A cluster that was brought down goes on with its data. The first start fetches Kafka (44 MB)
    into DELAYD_CACHE (default: the virtual environment). Ctrl-C leaves nothing running.

    Examples: delayd dev up --nodes 3 --brokers 3; delayd dev up --virtual --nodes 1
    """
    usual = ClusterOptions()
    if not fresh:
        usual = LocalCluster(directory).kept() or usual
    options = ClusterOptions(
        nodes=usual.nodes if nodes is None else nodes,
        brokers=usual.brokers if brokers is None else brokers,
        shards=shards,
        virtual=virtual or usual.virtual,
    )
    with interrupts_raised(), _progress_display() as progress:
        cluster = LocalCluster(directory, options, progress=progress)
        report = cluster.up(fresh=fresh)
    _show(report, cluster, as_json=as_json)
    if not as_json:
        typer.echo(f'next: eval "$({cluster.command("env")})"')


@app.command()
def env(directory: Directory) -> None:
    """Print the variables by which all commands find this cluster, for the shell to read.

    Example: eval "$(delayd dev env)"
    """
    variables = LocalCluster(directory).variables()
    if VARIABLE in os.environ and VARIABLE not in variables:
        typer.echo(f"unset {VARIABLE}")
    for name, value in variables.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


@app.command("advance")
def advance_clock(
    directory: Directory,
    by: Annotated[str, typer.Argument(help="How much time passes: 10s, 5m, 2h or 30d.")],
    at_once: Annotated[
        bool,
        typer.Option(
            "--at-once",
            help="Let it pass at one stroke: what is due meanwhile is late, and may expire.",
        ),
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds to wait at most, at each stop.")
    ] = ADVANCE_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Let time pass in a cluster that was made with --virtual, and deliver what is due on the way.

    The clock goes from one second in which something is due to the next one. The command returns
    when all that was due has been delivered, but for what a pause or a rate holds. A `delayd-late`
    below 2 s may expire. What programs schedule when they receive is leapt over: advance in
    smaller steps.

    Example: delayd dev advance 30d
    """
    try:
        by_ms = delay_ms_of(by)
    except RefusedError as error:
        raise typer.BadParameter(f"{by[:80]!a} is no duration", param_hint="BY") from error
    try:
        with _progress_display(is_for_terminals=True) as progress:
            cluster = LocalCluster(directory, progress=progress)
            done = cluster.advance(by_ms, at_once=at_once, timeout_s=timeout_s)
    except KeyboardInterrupt as interrupted:
        typer.echo(str(interrupted), err=True)
        raise typer.Exit(128 + signal.SIGINT) from interrupted
    if as_json:
        typer.echo(json.dumps({"now_ms": done.now_ms, "stops": done.stops}))
        return
    typer.echo(
        f"it is {text_of(done.now_ms)} in the cluster; all that was due is delivered, but for what "
        "a pause or a rate holds"
    )


@app.command()
def topic(
    directory: Directory,
    name: Annotated[str, typer.Argument(help="The topic.")],
    partitions: Annotated[int, typer.Option(min=1, max=1000, help="Its partitions.")] = 1,
) -> None:
    """Create a target topic on the local brokers. Does no harm if it exists.

    Example: delayd dev topic reminders
    """
    is_new = LocalCluster(directory).create_topic(name, partitions)
    typer.echo(f"{name} is there" if is_new else f"{name} was there already, and stays as it is")


@app.command()
def status(directory: Directory, as_json: AsJson = False) -> None:
    """Show which parts run, which are dead, and which node is master. A dead part has no pid in
    JSON."""
    cluster = LocalCluster(directory)
    _show(cluster.status(), cluster, as_json=as_json)


@app.command()
def kill(
    directory: Directory,
    name: Annotated[str, typer.Argument(help="A node, a broker, etcd, or `master`.")],
    signal_name: Annotated[
        str, typer.Option("--signal", help="KILL, TERM, STOP, CONT, or any other signal.")
    ] = "KILL",
) -> None:
    """Send a signal to one part of the cluster; with KILL, wait until it is gone.

    Examples: delayd dev kill master; delayd dev kill broker-2 --signal STOP
    """
    signal_number = _signal(signal_name)
    killed = LocalCluster(directory).kill(name, signal_number)
    typer.echo(f"sent {signal_number.name} to {killed}")


@app.command()
def restart(
    directory: Directory,
    name: Annotated[str, typer.Argument(help="A node, a broker, etcd, or `master`.")],
) -> None:
    """Start a dead part again, or end a living one in good order and start it again.

    It keeps its data and its ports. The command returns when the part answers.
    """
    with _progress_display() as progress:
        progress(f"restarting {name}")
        LocalCluster(directory).restart(name)
    typer.echo(f"restarted {name}")


@app.command()
def down(directory: Directory) -> None:
    """End every process of the cluster. The next `up` goes on with its data."""
    was_up = LocalCluster(directory).down()
    typer.echo("the cluster is down" if was_up else f"no cluster was up in {directory}")


@app.command()
def demo(
    orders: Annotated[
        int, typer.Option(min=ORDERS_MIN, max=COUNT_MAX, help="How many time-outs to schedule.")
    ] = 20_000,
    seconds: Annotated[
        int, typer.Option(min=SECONDS_MIN, max=3600, help="They are due within so many seconds.")
    ] = 60,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            show_default="a temporary folder, removed if all went well",
            help="Where the cluster lives; its files stay.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Schedule time-outs of orders, cancel a third of them, and kill the master in the middle.

    The demo starts a cluster of three nodes, pays a third of the orders, and kills and restarts the
    master. At the end an independent witness and `delayd audit` judge what arrived; the audit's
    page is written to the current folder, or to --dir. Exit 0 only if both find nothing wrong: each
    time-out came once, unaltered and not early, or was cancelled and never came, and every payment
    got a true verdict.

    Example: delayd dev demo --orders 200000
    """

    def show(report: DemoReport) -> None:
        if as_json:
            typer.echo(json.dumps(report.to_json()))
        else:
            Console().print(summary(report.verdict, report.story(), report.problems))
            typer.echo(f"report: {report.proof.page}")

    with interrupts_raised():
        run_demo(orders, seconds, directory, Display(Console(stderr=True)), show)


def _signal(name: str) -> signal.Signals:
    try:
        return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
    except KeyError:
        raise typer.BadParameter(f"no signal is called {name}", param_hint="--signal") from None


@contextmanager
def _progress_display(*, is_for_terminals: bool = False) -> Iterator[Callable[[str], None]]:
    """Show a spinner on a terminal; elsewhere print one line per task that begins, or nothing."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("") as spinner:
            yield spinner.update
        return
    if is_for_terminals:
        yield lambda _: None
        return
    begun: set[str] = set()

    def print_once(doing: str) -> None:
        what = doing.partition(":")[0]
        if what not in begun:
            begun.add(what)
            typer.echo(what, err=True)

    yield print_once


def _show(report: Report, cluster: LocalCluster, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report))
        return
    stopped = cluster.stopped()
    table = Table("part", "state", "pid", "where")
    rows = [(part["name"], part["pid"], part["address"]) for part in report["brokers"]]
    rows.append((report["etcd"]["name"], report["etcd"]["pid"], report["etcd"]["url"]))
    rows += [(part["name"], part["pid"], part["admin"]) for part in report["nodes"]]
    for name, pid, where in rows:
        state = "dead" if pid is None else "frozen" if name in stopped else "running"
        if name == report["master"]:
            state = "master"
        table.add_row(name, state, str(pid or ""), where)
    console = Console()
    console.print(table)
    console.print(f"folder: {report['dir']}", soft_wrap=True)
    if (virtual_ms := report["virtual_ms"]) is not None:
        console.print(f"its clock is virtual: it is {text_of(virtual_ms)}", soft_wrap=True)
