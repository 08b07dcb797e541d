"""`delayd audit`: is anything lost, doubled, early or altered, and do all replicas agree?

A thin shell: where the cluster is, what is shown, and the exit code. The audit is run.py, which is
loaded when it is needed: it takes Spark along.
"""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from delayd.audit.cut import NodeAddress, nodes_of_members
from delayd.audit.reading.session import require_spark
from delayd.cluster.connect import open_bus, open_coordination
from delayd.cluster.lookup import members_of
from delayd.config.cli_options import AsJson, ClusterName, Config, Prefix, endpoints
from delayd.config.security import Security, load_security
from delayd.dev.cluster import LocalCluster
from delayd.dev.commands import default_directory
from delayd.dev.interrupts import interrupts_raised
from delayd.dev.nodes import CLUSTER_NAME
from delayd.errors import ConfigError, ExitCode
from delayd.request.reasons import RefusedError
from delayd.request.times import delay_ms_of, due_ms_of

if TYPE_CHECKING:
    from delayd.audit.table_loader import Source

CONNECT_TIMEOUT_MS: Final = 15_000
MEMORY_DEFAULT: Final = "2g"
INTERVAL_DEFAULT: Final = "10s"
INTERVAL_MS_MIN: Final = 1_000
INTERVAL_MS_MAX: Final = 20_000
"""So that an alarm comes within a minute: 30 s of grace and two looks."""


@dataclass(frozen=True, slots=True)
class Where:
    """The cluster to audit. `nodes` None: none can be asked."""

    bootstrap: str
    cluster: str
    prefix: str
    nodes: tuple[NodeAddress, ...] | None
    cluster_key: str | None
    security: Security
    count: int | None = None
    """How many nodes there are, where that is known."""
    etcd: tuple[str, ...] = ()
    """Where the nodes are found that get the report; empty: nobody knows any."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options ask for besides the cluster."""

    follow: bool
    work: Path | None
    metrics: Path | None
    interval: str
    master: str
    memory: str
    nodes: int | None
    at_ms: int | None
    html: Path | None
    as_json: bool
    no_publish: bool


Bootstrap = Annotated[
    str | None,
    typer.Option(
        *("--bootstrap", "-b"),
        envvar="DELAYD_BOOTSTRAP",
        help="Kafka brokers, host:port,host:port. Default: the local cluster of --dir.",
    ),
]
Etcd = Annotated[
    str | None,
    typer.Option(envvar="DELAYD_ETCD", help="etcd endpoints: the nodes it knows are compared."),
]
Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="A local cluster's folder (`delayd dev up`); its nodes are compared."
    ),
]
Nodes = Annotated[
    int | None, typer.Option(min=1, help="How many nodes there must be; fewer are a finding.")
]
ClusterKey = Annotated[
    str | None,
    typer.Option(
        envvar="DELAYD_CLUSTER_KEY",
        help="The cluster's secret: proves the records that its master wrote.",
    ),
]
ExportToken = Annotated[
    str | None,
    typer.Option(
        envvar="DELAYD_EXPORT_TOKEN", help="The token that nodes ask for before they export."
    ),
]
At = Annotated[
    str | None,
    typer.Option(help="Also: what was pending then. Unix ms, or RFC 3339 with offset."),
]
Html = Annotated[Path | None, typer.Option(help="Write the report as one page to this file.")]
Work = Annotated[
    Path | None,
    typer.Option(
        help="Folder for tables and exports, which are kept. Default: a temporary one. With"
        " --follow: the state that a restart needs."
    ),
]
NoPublish = Annotated[
    bool,
    typer.Option("--no-publish", help="Do not send the report to the nodes, for their consoles."),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow", help="Keep running until SIGTERM; raise an alarm for each new violation."
    ),
]
Metrics = Annotated[
    Path | None,
    typer.Option(
        help="With --follow: write metrics to this file, in the text format of Prometheus."
    ),
]
Interval = Annotated[
    str, typer.Option(help="With --follow: time from one look to the next, 1s to 20s.")
]
Master = Annotated[str, typer.Option(help="Spark's master; others than local[*] share --work.")]
Memory = Annotated[str, typer.Option(help="Memory of Spark's driver, such as 2g.")]


def audit(
    context: typer.Context,
    bootstrap: Bootstrap = None,
    etcd: Etcd = None,
    directory: Directory = None,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    nodes: Nodes = None,
    cluster_key: ClusterKey = None,
    export_token: ExportToken = None,
    at: At = None,
    as_json: AsJson = False,
    html: Html = None,
    work: Work = None,
    follow: Follow = False,
    metrics: Metrics = None,
    interval: Interval = INTERVAL_DEFAULT,
    master: Master = "local[*]",
    memory: Memory = MEMORY_DEFAULT,
    no_publish: NoPublish = False,
) -> None:
    """Prove that nothing was lost, doubled, early or altered, and that all replicas agree.

    Reads the buffer, every target, receipts, dead letters and every node's own files. Needs Java 17
    and the extra `audit`. Exit 0 only if all is well, 1 if anything is not.

    Examples: delayd audit --dir ~/.local/state/delayd/dev; delayd audit -b kafka:9092 --etcd
    http://etcd:2379 --nodes 3 --html report.html; delayd audit -b kafka:9092 --follow --work
    /var/lib/delayd-audit --metrics /var/lib/node_exporter/delayd.prom
    """
    require_spark()
    from delayd.audit.table_loader import Source
    from delayd.runtime.clock import SystemClock

    at_ms = None if at is None else _time_of("--at", at, due_ms_of)
    asked = Asked(
        *(follow, work, metrics, interval, master, memory),
        *(nodes, at_ms, html, as_json, no_publish),
    )
    _check(asked)
    if directory is not None and _is_of_environment(context, "bootstrap"):
        bootstrap = None  # what was said here goes before what was said once for all
    where = _where(bootstrap, etcd, directory, cluster, prefix, cluster_key, config)
    kafka = where.security.properties()
    source = Source(
        open_bus(where.bootstrap, kafka),
        where.bootstrap,
        SystemClock(),
        kafka,
        where.cluster_key,
        export_token,
    )
    code = _follow(source, where, asked) if follow else _once(source, where, asked)
    raise typer.Exit(code)


def _check(asked: Asked) -> None:
    """Raise ConfigError if some options do not go together."""
    html, follow = asked.html, asked.follow
    if not follow and (asked.metrics is not None or asked.interval != INTERVAL_DEFAULT):
        raise ConfigError("--metrics and --interval go with --follow", remedy="leave them out")
    if follow and asked.memory != MEMORY_DEFAULT:
        raise ConfigError("--follow takes no --memory", remedy="leave it out: 1g is enough for it")
    if html is not None and not html.resolve().parent.is_dir():
        raise ConfigError(f"--html {html}: there is no such folder", remedy="make it first")
    if follow and (asked.work is None or (asked.at_ms, html, asked.nodes) != (None, None, None)):
        raise ConfigError(
            "--follow needs --work, and takes no --at, --html or --nodes",
            remedy="it judges deliveries as they come; run an audit without it for all else",
        )


def _once(source: "Source", where: Where, asked: Asked) -> ExitCode:
    """Audit once and show the report; a problem if anything is wrong."""
    from delayd.audit.publishing import published
    from delayd.audit.reading.progress import Progress
    from delayd.audit.run import AuditOptions, run
    from delayd.audit.showing.page import page
    from delayd.audit.showing.text import show
    from delayd.runtime.visible import visible

    options = AuditOptions(
        cluster=where.cluster,
        prefix=where.prefix,
        nodes=asked.nodes or where.count,
        master=asked.master,
        memory=asked.memory,
        work=asked.work,
        at_ms=asked.at_ms,
    )
    with interrupts_raised():  # what was written on the way is removed
        report = run(source, where.nodes, options, Progress(Console(stderr=True)))
    if asked.as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        show(report, Console())
    if asked.html is not None:
        _write(asked.html, page(report))
        if not asked.as_json:
            typer.echo(f"report: {asked.html}")
    if where.etcd and not asked.no_publish:
        for line in published(report, source, where.etcd, where.prefix, where.security):
            typer.echo(visible(line), err=True)
    return ExitCode.FINE if report.ok else ExitCode.PROBLEM


def _follow(source: "Source", where: Where, asked: Asked) -> ExitCode:
    """Runs until it is asked to stop; a problem if there were alarms."""
    from delayd.audit.errors import refuse_at_least_once, refuse_virtual
    from delayd.audit.follow import FollowOptions, follow, line_of
    from delayd.audit.reading.access import Access
    from delayd.cluster.key_checks import check_keys
    from delayd.cluster.topics import load_settings
    from delayd.runtime.visible import visible

    assert asked.work is not None, "checked before"
    interval_ms = _interval_ms(asked.interval)
    record = load_settings(source.bus, where.cluster, where.prefix, CONNECT_TIMEOUT_MS).record
    settings = record.settings
    refuse_at_least_once(settings)
    refuse_virtual(settings)
    if where.cluster_key is not None:
        check_keys(source.bus, where.cluster_key, settings, source.clock, CONNECT_TIMEOUT_MS)

    def tell(alarm: Mapping[str, object]) -> None:
        # Flushed line by line: whoever reads them must not wait for a full block.
        print(
            json.dumps(alarm) if asked.as_json else line_of(alarm),
            file=sys.stdout if asked.as_json else sys.stderr,
            flush=True,
        )

    access = Access.of(record, where.bootstrap, source.kafka, where.cluster_key)
    options = FollowOptions(
        access, settings, asked.work, asked.metrics, interval_ms, asked.master, record.rules
    )
    told = follow(options, tell, lambda line: print(visible(line), file=sys.stderr, flush=True))
    return ExitCode.PROBLEM if told else ExitCode.FINE


def _interval_ms(text: str) -> int:
    interval_ms = _time_of("--interval", text, delay_ms_of)
    if not INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
        raise ConfigError(
            f"--interval {text} is not from {INTERVAL_MS_MIN} to {INTERVAL_MS_MAX} ms",
            remedy="with a longer one an alarm would not come within a minute",
        )
    return interval_ms


def _where(
    bootstrap: str | None,
    etcd: str | None,
    directory: Path | None,
    cluster: str,
    prefix: str,
    cluster_key: str | None,
    config: Path | None,
) -> Where:
    if bootstrap is not None and directory is not None:
        raise ConfigError("--bootstrap and --dir name two clusters", remedy="give one of them")
    if bootstrap is None:
        return _local(LocalCluster(directory or default_directory()))
    found, named = None, endpoints(etcd)
    security = load_security(config)
    if etcd is not None:
        with closing(open_coordination(named, cluster, security)) as coordination:
            coordination.check_reachable(CONNECT_TIMEOUT_MS)
            members = members_of(coordination)
        found = nodes_of_members(members)
    return Where(bootstrap, cluster, prefix, found, cluster_key, security, etcd=named)


def _local(cluster: LocalCluster) -> Where:
    report = cluster.status()
    nodes = tuple(
        NodeAddress(
            node["name"],
            None if node["pid"] is None else node["admin"].removeprefix("http://"),
        )
        for node in report["nodes"]
    )
    return Where(
        report["bootstrap"],
        CLUSTER_NAME,
        "delayd-",
        nodes,
        cluster.cluster_key,
        Security.none(),
        len(nodes),
        (cluster.etcd_url,),
    )


def _is_of_environment(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"


def _write(html: Path, text: str) -> None:
    try:
        html.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the report cannot be written: {error}") from error


def _time_of(option: str, text: str, parse: Callable[[str], int]) -> int:
    try:
        return parse(text)
    except RefusedError as error:
        raise ConfigError(f"{option} {text!r} is not a time", remedy=str(error)) from error
