"""`delayd status` and `delayd topics`: the cluster as a whole, and its topics."""

import contextlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from delayd.cluster.connect import coordination_if_named, open_bus
from delayd.cluster.status import status_report
from delayd.cluster.topic_checks import check_topics
from delayd.cluster.topics import MAX_DELAY_MS_DEFAULT, create_topics, load_settings
from delayd.commands.wording import limit_told, told_of
from delayd.config.cli_options import (
    AsJson,
    Bootstrap,
    ClusterName,
    Config,
    Etcd,
    Prefix,
    endpoints,
)
from delayd.config.cluster_key import check_key, fingerprint, new_cluster_key
from delayd.config.security import load_security
from delayd.errors import ConfigError, DelaydError, ExitCode, ProducerError
from delayd.request.reasons import RefusedError
from delayd.request.times import delay_ms_of
from delayd.runtime.clock import SystemClock
from replication.settings import DAY_MS, EXACTLY_ONCE, RECEIPTS_VERDICTS, SHARDS_MAX, Settings

CONNECT_TIMEOUT_MS = 10_000
SHARD_FIELDS = ("shard", "leader", "term", "step", "cursor_age_ms", "lag")
NAME_WIDTH_MAX = 40
"""Of a target's name in a line; half a terminal."""
ID_MEMORY_DEFAULT = "24h"
RETRY_DELAYS_DEFAULT = "10s,30s,1m,2m,3m,4m,5m,6m,7m,8m,9m,10m,20m,30m,1h,2h"

Partitions = Annotated[
    int, typer.Option(min=1, max=1024, help="Partitions of the buffer. They cannot be changed.")
]
Shards = Annotated[
    int,
    typer.Option(
        min=1,
        max=SHARDS_MAX,
        help="Parts of the buffer with masters of their own: a divisor of --partitions. `delayd "
        "shards set` changes it.",
    ),
]
ReplicationFactor = Annotated[
    int | None, typer.Option(min=1, help="Default: 3, or the number of brokers if fewer.")
]
MaxDelayDays = Annotated[
    int, typer.Option(min=1, max=3650, help="Longest delay; sets the buffer's retention.")
]
RetryDelays = Annotated[str, typer.Option(help="Pauses before each retry of a target that fails.")]
Receipts = Annotated[str, typer.Option(help="verdicts, or all (also scheduled and delivered).")]
Guarantee = Annotated[
    str, typer.Option(help="exactly-once, or at-least-once for brokers without transactions.")
]
IdMemory = Annotated[
    str,
    typer.Option(
        help="How long an id is remembered after its message was due: at most 1d. Until then a "
        "repeated cancel gets the same verdict."
    ),
]
TracingHeaders = Annotated[
    str,
    typer.Option(
        help="Headers, besides those of known tracing agents, that do not tell two requests of an "
        "id apart: a list such as x-trace,x-acme-*."
    ),
]
ClusterKey = Annotated[
    str | None,
    typer.Option(
        envvar="DELAYD_CLUSTER_KEY",
        help="The cluster's secret. Default for a new cluster: a random one, which is printed.",
    ),
]
AdoptBuffer = Annotated[
    bool,
    typer.Option(
        "--adopt-buffer", help="Accept a buffer that already holds records, and deliver them all."
    ),
]

topics_app = typer.Typer(no_args_is_help=True, help="delayd's own topics.")


def status(
    bootstrap: Bootstrap,
    etcd: Etcd = None,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    forget: Annotated[
        list[str] | None,
        typer.Option("--forget", help="Miss this node no longer: it is gone for good. Repeatable."),
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show the cluster: frontier, cursor, master, failing targets and nodes.

    Exit 1 if nothing delivers, or a node is missing that was there.

    Example: delayd status --bootstrap 127.0.0.1:9092 --etcd http://127.0.0.1:2379
    """
    security = load_security(config)
    with coordination_if_named(endpoints(etcd), cluster, security) as coordination:
        if forget and coordination is None:
            raise ConfigError("--forget needs etcd", remedy="name its endpoints with --etcd")
        report = status_report(
            open_bus(bootstrap, security.properties()),
            coordination,
            SystemClock(),
            cluster=cluster,
            prefix=prefix,
            timeout_ms=CONNECT_TIMEOUT_MS,
            forget=forget or (),
        )
    if as_json:
        typer.echo(json.dumps(report))
    else:
        _show_status(report)
    raise typer.Exit(ExitCode.FINE if report["healthy"] else ExitCode.PROBLEM)


@topics_app.command("create")
def topics_create(
    bootstrap: Bootstrap,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    partitions: Partitions = 4,
    shards: Shards = 1,
    replication_factor: ReplicationFactor = None,
    max_delay_days: MaxDelayDays = MAX_DELAY_MS_DEFAULT // DAY_MS,
    retry_delays: RetryDelays = RETRY_DELAYS_DEFAULT,
    receipts: Receipts = RECEIPTS_VERDICTS,
    guarantee: Guarantee = EXACTLY_ONCE,
    id_memory: IdMemory = ID_MEMORY_DEFAULT,
    tracing_headers: TracingHeaders = "",
    cluster_key: ClusterKey = None,
    adopt_buffer: AdoptBuffer = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Create delayd's topics and initialise the cluster. Does no harm if repeated.

    Example: delayd topics create --bootstrap 127.0.0.1:9092 --partitions 12
    """
    proposed_key = new_cluster_key() if cluster_key is None else cluster_key
    try:
        settings = create_topics(
            open_bus(bootstrap, load_security(config).properties()),
            cluster=cluster,
            cluster_key=proposed_key,
            prefix=prefix,
            partitions=partitions,
            shards=shards,
            replication_factor=replication_factor,
            max_delay_ms=max_delay_days * DAY_MS,
            retry_delays_ms=_retry_delays_ms(retry_delays),
            receipts_written=receipts,
            guarantee=guarantee,
            id_memory_ms=_id_memory_ms(id_memory),
            tracing_headers=tuple(
                name for text in tracing_headers.split(",") if (name := text.strip().lower())
            ),
            adopt_buffer=adopt_buffer,
            timeout_ms=CONNECT_TIMEOUT_MS,
        )
    except ProducerError:
        if cluster_key is None:
            typer.echo(f"if the cluster was initialised, its key is {proposed_key}", err=True)
        raise
    if cluster_key is not None:
        check_key(cluster_key, settings)
    is_made = cluster_key is None and settings.key_fingerprint == fingerprint(proposed_key, cluster)
    _show_made(settings, proposed_key if is_made else None, as_json)


@topics_app.command("check")
def topics_check(
    bootstrap: Bootstrap,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Check topics and broker settings against the contract. Exit 1 if something is wrong.

    Example: delayd topics check --bootstrap 127.0.0.1:9092
    """
    bus = open_bus(bootstrap, load_security(config).properties())
    problems: Sequence[str] = ()
    advice: Sequence[str] = ()
    try:
        seen = load_settings(bus, cluster, prefix, CONNECT_TIMEOUT_MS)
        with contextlib.closing(bus.cluster()) as kafka:
            found = check_topics(kafka, seen.record.settings, CONNECT_TIMEOUT_MS)
        problems, advice = found.all, found.advice
    except DelaydError as error:
        if error.exit_code is not ExitCode.PROBLEM:
            raise
        problems = [str(error)]
    if as_json:
        typer.echo(json.dumps({"ok": not problems, "problems": problems, "advice": advice}))
    else:
        typer.echo("\n".join(problems) or "all topics are as they should be")
        for line in advice:
            typer.echo(f"advice: {line}")
    raise typer.Exit(ExitCode.PROBLEM if problems else ExitCode.FINE)


def _show_made(settings: Settings, new_key: str | None, as_json: bool) -> None:
    if as_json:
        made = {} if new_key is None else {"cluster_key": new_key}
        typer.echo(json.dumps({**settings.to_json(), **made}))
        return
    names = ", ".join(topic.name for topic in settings.topics)
    typer.echo(f"cluster {settings.cluster} is initialised: {names}")
    if new_key is not None:
        typer.echo(f"cluster key, for every node and shown only now: {new_key}")


def _retry_delays_ms(text: str) -> tuple[int, ...]:
    try:
        return tuple(delay_ms_of(part.strip()) for part in text.split(","))
    except RefusedError as error:
        raise ConfigError(f"--retry-delays {text!r} is not a list such as 10s,30s,1m") from error


def _id_memory_ms(text: str) -> int:
    try:
        return delay_ms_of(text)
    except RefusedError as error:
        raise ConfigError(f"--id-memory {text!r} is not a time such as 12h") from error


def _copying(node: str, copied: dict[str, Any]) -> str:
    """Return who copies a node's wheel, how far that is, and how long it still takes."""
    left = "?" if copied["left_s"] is None else copied["left_s"]
    return (
        f"{copied['fetcher']} copies {node}: {copied['position']} of {copied['bytes']} bytes, "
        f"{copied['bytes_per_s'] / 1e6:.1f} MB/s, {left} s left"
    )


def _fetching(node: str, fetch: dict[str, Any]) -> str:
    """Return from whom a node fetches its wheel, or why nobody gives one."""
    donor, stage, problems = fetch["donor"], fetch["stage"], fetch["problems"]
    told = f"{node} fetches its wheel from {donor or 'any node'}: {stage}"
    if donor is None and problems:
        told += "; " + "; ".join(f"{name} {why}" for name, why in sorted(problems.items()))
    return f"{told}; {fetch['why']}" if "replay_s" in fetch else told


def _show_status(report: dict[str, Any]) -> None:
    console = Console()
    table = Table("", "", show_header=False)
    for name in ("cluster", "master", "term", "step", "cursor", "cursor_age_ms", "lag"):
        table.add_row(name, str(report[name]))
    console.print(table)
    if len(report["shards"]) > 1:
        shards = Table(*SHARD_FIELDS)
        for entry in report["shards"]:
            shards.add_row(*(str(entry[name]) for name in SHARD_FIELDS))
        console.print(shards)
    nodes = Table("node", "role", "ready", "ingested", "delivered", "path", "admin")
    for entry in report["nodes"]:
        nodes.add_row(
            entry["node"],
            entry.get("role", "unreachable"),
            *(
                "" if (value := entry.get(name)) is None else str(value)
                for name in ("ready", "ingested_count", "delivered_count")
            ),
            # Why it is Python is in /status, and in the first line of the node's log.
            (entry.get("path") or "").partition(" ")[0],
            entry["admin"],
        )
    console.print(nodes)
    for entry in report["nodes"]:
        if fetch := entry.get("fetch"):
            console.print(_fetching(entry["node"], fetch))
        elif (start := entry.get("start")) and not entry["ready"]:
            console.print(f"{entry['node']} {start}")
        for copied in entry.get("snapshots") or ():
            console.print(_copying(entry["node"], copied))
    if report["failing_targets"]:
        longest = max(len(failing["topic"]) for failing in report["failing_targets"])
        # A name that is cut in two is not found again.
        topic = Column("failing target", overflow="fold", min_width=min(NAME_WIDTH_MAX, longest))
        targets = Table(topic, "since", "messages", "attempts", "problem")
        for failing in report["failing_targets"]:
            since = datetime.fromtimestamp(failing["since_ms"] / 1000, UTC)
            began = f"{since:%Y-%m-%dT%H:%M:%SZ}"
            counts = (str(failing.get(name, "")) for name in ("messages", "attempts"))
            targets.add_row(failing["topic"], began, *counts, failing["problem"])
        console.print(targets)
    for paused in report["paused"]:
        console.print(told_of(paused))
    for limit in report["limits"]:
        console.print(limit_told(limit))
    for problem in report["problems"]:
        console.print(f"[red]{problem}[/red]")
