"""`delayd audit`: is anything lost, doubled, early or altered, and do all replicas agree?

A thin shell: where the cluster is, what is shown, and the exit code. The audit is run.py, which is
loaded when it is needed: it takes Spark along.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from delayd.audit.cut import NodeAddress, nodes_of_members
from delayd.audit.reading.session import require_spark
from delayd.dev.cluster import LocalCluster
from delayd.dev.commands import default_directory
from delayd.dev.nodes import CLUSTER_NAME
from delayd.errors import ConfigError, ExitCode
from delayd.node import cluster_members, open_bus
from delayd.options import AsJson, ClusterName, Prefix, endpoints
from delayd.request.reasons import RefusedError
from delayd.request.times import due_ms_of

CONNECT_TIMEOUT_MS: Final = 15_000
MEMORY_DEFAULT: Final = "2g"


@dataclass(frozen=True, slots=True)
class Where:
    """The cluster to audit. `nodes` None: none can be asked."""

    bootstrap: str
    cluster: str
    prefix: str
    nodes: tuple[NodeAddress, ...] | None
    cluster_key: str | None


def audit(
    bootstrap: Annotated[
        str | None,
        typer.Option(
            *("--bootstrap", "-b"),
            envvar="DELAYD_BOOTSTRAP",
            help="Kafka brokers, host:port,host:port. Default: the local cluster of --dir.",
        ),
    ] = None,
    etcd: Annotated[
        str | None,
        typer.Option(envvar="DELAYD_ETCD", help="etcd endpoints: the nodes it knows are compared."),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="A local cluster's folder (`delayd dev up`); its nodes are compared."
        ),
    ] = None,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="How many nodes there must be; fewer are a finding."),
    ] = None,
    cluster_key: Annotated[
        str | None,
        typer.Option(
            envvar="DELAYD_CLUSTER_KEY",
            help="The cluster's secret: proves the records that its master wrote.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", help="Also: what was pending then. Unix ms, or RFC 3339 with offset."),
    ] = None,
    as_json: AsJson = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the report as one page to this file.")
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            "--work", help="Folder for tables and exports, which stay. Default: a temporary one."
        ),
    ] = None,
    master: Annotated[
        str, typer.Option("--master", help="Spark's master; others than local[*] share --work.")
    ] = "local[*]",
    memory: Annotated[
        str, typer.Option("--memory", help="Memory of Spark's driver, such as 2g.")
    ] = MEMORY_DEFAULT,
) -> None:
    """Prove that nothing was lost, doubled, early or altered, and that all replicas agree.

    Reads the buffer, every target, receipts, dead letters and every node's own files. Needs Java 17
    and the extra `audit`. Exit 0 only if all is well, 1 if anything is not.

    Examples: delayd audit --dir ~/.local/state/delayd/dev; delayd audit -b kafka:9092 --etcd
    http://etcd:2379 --nodes 3 --html report.html
    """
    require_spark()
    from delayd.audit.reading.progress import Progress
    from delayd.audit.run import AuditOptions, run
    from delayd.audit.showing.page import page
    from delayd.audit.showing.text import show
    from delayd.audit.tabling import Source
    from delayd.clock import SystemClock

    at_ms = None if at is None else _moment(at)
    where = _where(bootstrap, etcd, directory, cluster, prefix, cluster_key)
    source = Source(
        open_bus(where.bootstrap), where.bootstrap, SystemClock(), cluster_key=where.cluster_key
    )
    options = AuditOptions(
        cluster=where.cluster,
        prefix=where.prefix,
        nodes=nodes,
        master=master,
        memory=memory,
        work=work,
        at_ms=at_ms,
    )
    report = run(source, where.nodes, options, Progress(Console(stderr=True)))
    if html is not None:
        html.write_text(page(report), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        show(report, Console())
        if html is not None:
            typer.echo(f"report: {html}")
    raise typer.Exit(ExitCode.FINE if report.ok else ExitCode.PROBLEM)


def _where(
    bootstrap: str | None,
    etcd: str | None,
    directory: Path | None,
    cluster: str,
    prefix: str,
    cluster_key: str | None,
) -> Where:
    if bootstrap is not None and directory is not None:
        raise ConfigError("--bootstrap and --dir name two clusters", remedy="give one of them")
    if bootstrap is None:
        return _local(LocalCluster(directory or default_directory()))
    found = None
    if etcd is not None:
        found = nodes_of_members(cluster_members(endpoints(etcd), cluster, CONNECT_TIMEOUT_MS))
    return Where(bootstrap, cluster, prefix, found, cluster_key)


def _local(cluster: LocalCluster) -> Where:
    report = cluster.status()
    nodes = tuple(
        NodeAddress(
            node["name"],
            None if node["pid"] is None else node["admin"].removeprefix("http://"),
        )
        for node in report["nodes"]
    )
    return Where(report["bootstrap"], CLUSTER_NAME, "delayd-", nodes, cluster.cluster_key)


def _moment(text: str) -> int:
    try:
        return due_ms_of(text)
    except RefusedError as error:
        raise ConfigError(f"--at {text!r} is no time", remedy=str(error)) from error
