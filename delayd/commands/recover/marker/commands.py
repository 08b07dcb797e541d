"""`delayd recover marker`."""

import json
from contextlib import closing
from typing import Annotated

import typer

from delayd.cluster.connect import coordination_if_named, open_bus, open_raw_log
from delayd.cluster.topics import load_settings
from delayd.commands.recover.marker.changes import any_frontier
from delayd.commands.recover.marker.mending import at_work, refuse_at_work, refuse_running
from delayd.commands.recover.marker.of_shards import look, mend_all
from delayd.commands.recover.marker.showing import marker_json, marker_lines
from delayd.commands.terminal import stages
from delayd.config.cli_options import (
    AsJson,
    Bootstrap,
    ClusterName,
    Config,
    Etcd,
    Prefix,
    endpoints,
)
from delayd.config.security import load_security
from delayd.errors import ConfigError, ExitCode
from delayd.request.reasons import RefusedError
from delayd.request.times import due_ms_of
from replication.settings import AT_LEAST_ONCE

TIMEOUT_MS = 30_000
"""Of one answer of a broker."""

Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        help="Look at all steps since then, even if nothing hangs: Unix ms, or RFC 3339. "
        "For records that were aborted later.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be done; as without --yes.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it. All nodes must be stopped.")]
NodesAreStopped = Annotated[
    bool,
    typer.Option("--nodes-are-stopped", help="etcd is lost: I have seen that no node runs."),
]


def marker(
    bootstrap: Bootstrap,
    etcd: Etcd = None,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    since: Since = None,
    nodes_are_stopped: NodesAreStopped = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Mend a step of which a part is visible and another part hangs: a commit marker was lost.

    Names the records, and says what becomes of them. Nothing is doubled, and nothing is lost. Exit
    1 if something is to be done, or cannot be decided. Does no harm if repeated.

    Example: delayd recover marker -b kafka:9092 --etcd http://etcd:2379 --yes
    """
    if dry_run and yes:
        raise ConfigError("--dry-run and --yes contradict each other", remedy="choose one")
    if yes and (etcd is None) != nodes_are_stopped:
        raise ConfigError(
            "--yes needs either --etcd or --nodes-are-stopped",
            remedy="name etcd, which knows the nodes that run; without etcd, look yourself",
        )
    since_ms = None if since is None else _moment(since)
    security = load_security(config)
    kafka = security.properties()
    bus = open_bus(bootstrap, kafka)
    settings = load_settings(bus, cluster, prefix, TIMEOUT_MS, any_frontier).record.settings
    if settings.guarantee == AT_LEAST_ONCE:
        raise ConfigError(
            f"{cluster} delivers at least once: it has no transactions, so no markers",
            remedy="nothing is to be done",
        )
    said = ""
    with coordination_if_named(endpoints(etcd), cluster, security) as coordination:
        if coordination is not None:
            coordination.enter(settings.realm)
            if yes:
                refuse_running(coordination)
            elif members := coordination.members():
                said = f"etcd knows nodes that run: {', '.join(sorted(members))}"
    with closing(open_raw_log(bootstrap, kafka)) as raw, stages() as tell:
        seen = look(bus, raw, settings, since_ms=since_ms, timeout_ms=TIMEOUT_MS, tell=tell)
        watched = [(each.looker, each.before) for each in seen.shards]
        said = said or at_work(raw, watched, settings, TIMEOUT_MS)
        if yes and seen.is_mendable:
            refuse_at_work(said)
            seen = mend_all(bus, raw, seen, since_ms=since_ms, timeout_ms=TIMEOUT_MS, tell=tell)
    if as_json:
        typer.echo(json.dumps(marker_json(seen, said)))
    else:
        typer.echo("\n".join(marker_lines(seen, said)))
    raise typer.Exit(ExitCode.FINE if seen.is_fine else ExitCode.PROBLEM)


def _moment(text: str) -> int:
    try:
        return due_ms_of(text)
    except RefusedError as error:
        raise ConfigError(
            f"--since {text!r} is no time", remedy="write it like 2026-01-31T23:59:59Z"
        ) from error
