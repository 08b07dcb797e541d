"""`delayd top`: the cluster in the terminal, as it is now, until somebody ends it.

Each look is that of `delayd status`. What happens in a second is what nodes have counted between
two looks. Not here: what a look asks (`delayd.cluster.status`).
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from delayd.bus import Bus
from delayd.cluster.connect import coordination_if_named, open_bus
from delayd.cluster.status import status_report
from delayd.commands.wording import limit_told, local_time, told_of
from delayd.config.cli_options import Bootstrap, ClusterName, Config, Etcd, Prefix, endpoints
from delayd.config.security import load_security
from delayd.coordination import Coordination
from delayd.errors import DelaydError
from delayd.runtime.clock import SystemClock

TIMEOUT_MS = 5_000
COUNTED = ("delivered_count", "late_count", "ingested_count")


def top(
    bootstrap: Bootstrap,
    etcd: Etcd = None,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    every_s: Annotated[
        float, typer.Option("--every-s", min=0.2, max=60, help="Pause between two looks.")
    ] = 1.0,
    number: Annotated[
        int | None, typer.Option("--number", "-n", min=1, help="End after so many looks.")
    ] = None,
    config: Config = None,
) -> None:
    """Show the cluster live in the terminal: leader, rates, nodes, failing targets. Ctrl-C ends it.

    Example: delayd top --bootstrap 127.0.0.1:9092 --etcd http://127.0.0.1:2379
    """
    security = load_security(config)
    console = Console()
    with (
        coordination_if_named(endpoints(etcd), cluster, security) as coordination,
        Live(console=console, auto_refresh=False, screen=console.is_terminal) as live,
        contextlib.suppress(KeyboardInterrupt),
    ):
        bus = open_bus(bootstrap, security.properties())
        looks = _looks(bus, coordination, cluster, prefix)
        for count, shown in enumerate(looks, 1):
            live.update(shown, refresh=True)
            if count == number:
                break
            threading.Event().wait(every_s)


def _looks(
    bus: Bus, coordination: Coordination | None, cluster: str, prefix: str
) -> Iterator[RenderableType]:
    """Yield one look after the other; one that fails says why, above the last that did not."""
    clock = SystemClock()
    before: tuple[int, Mapping[str, Any]] | None = None
    last: RenderableType = ""
    while True:
        try:
            report = status_report(
                bus, coordination, clock, cluster=cluster, prefix=prefix, timeout_ms=TIMEOUT_MS
            )
        except DelaydError as error:
            yield Group(Text(f"{error} [{error.code}]", style="red"), last)
            continue
        now_ms = clock.monotonic_ms()
        rates = {} if before is None else rates_of(before[1], report, now_ms - before[0])
        before = now_ms, report
        last = view(report, rates, clock.wall_ms())
        yield last


def rates_of(
    before: Mapping[str, Any], now: Mapping[str, Any], between_ms: int
) -> dict[str, float]:
    """Return what happened in a second between two reports: messages delivered and late by all
    nodes, and taken in by the fastest, since each takes in all."""
    former = {node["node"]: node for node in before["nodes"]}
    rates = {}
    for name in COUNTED:
        counted = [
            max(0, (node.get(name) or 0) - (former[node["node"]].get(name) or 0))
            for node in now["nodes"]
            if former.get(node["node"], {}).get(name) is not None
        ]
        found = max(counted, default=0) if name == "ingested_count" else sum(counted)
        rates[name] = 1000 * found / max(1, between_ms)
    return rates


def view(report: Mapping[str, Any], rates: Mapping[str, float], now_ms: int) -> RenderableType:
    """Return what is shown of a report."""
    leaders = [each for each in report["nodes"] if each["node"] == report["master"]]
    since_ms = leaders[0].get("leads_since_ms") if leaders else None
    delivered, late, taken = (f"{rates[name]:,.0f}" if rates else "..." for name in COUNTED)
    head = Table.grid(padding=(0, 2))
    for name, value in (
        ("cluster", f"{report['cluster']}, {local_time(now_ms)}"),
        ("leader", f"{report['master'] or 'nobody'}" + _since(since_ms)),
        ("behind", f"{max(0, report['cursor_age_ms']) / 1000:.1f} s; {report['lag']} unread"),
        ("per second", f"{delivered} delivered, {late} late (over 1 s), {taken} taken in"),
    ):
        head.add_row(Text(name, style="bold"), Text(value))
    nodes = Table("node", "role", "ready", "unread", "free", "memory", "checkpoint", "release")
    for node in report["nodes"]:
        nodes.add_row(*map(Text, _row(node)))
    parts: list[RenderableType] = [head, nodes]
    if report["failing_targets"]:
        failing = Table("failing target", "messages", "problem")
        for each in report["failing_targets"]:
            failing.add_row(Text(each["topic"]), str(each["messages"]), Text(each["problem"]))
        parts.append(failing)
    parts += [Text(told_of(each), style="yellow") for each in report["paused"]]
    parts += [
        Text(limit_told(each), style="yellow")
        for each in report["limits"]
        if each["state"] != "open"
    ]
    return Group(*parts, *(Text(problem, style="red") for problem in report["problems"]))


def _since(since_ms: int | None) -> str:
    return "" if since_ms is None else f" since {local_time(since_ms)}"


def _row(node: Mapping[str, Any]) -> list[str]:
    if "role" not in node:
        return [node["node"], "does not answer", *[""] * 6]
    disk, process = node["disk"] or {}, node["process"] or {}
    return [
        node["node"],
        node["role"],
        "yes" if node["ready"] else str(node["unready"] or "no"),
        str(sum(each or 0 for each in node["ingest_lag"] or ())),
        f"{(disk.get('free_bytes') or 0) / 1e9:.1f} GB",
        f"{process.get('memory_bytes', 0) / 1e6:.0f} MB",
        f"{node['checkpoint_took_ms'] or 0} ms",
        str(node["version"] or ""),
    ]
