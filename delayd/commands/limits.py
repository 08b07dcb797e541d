"""`delayd limits`: how many messages may be pending for a target topic."""

import json
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from delayd.cluster.connect import open_bus
from delayd.cluster.limiting import limits_of, set_quota
from delayd.cluster.topics import load_settings
from delayd.commands.wording import limit_told, moment
from delayd.config.cli_options import AsJson, Bootstrap, ClusterName, Config, Prefix
from delayd.config.security import load_security
from delayd.runtime.clock import SystemClock
from replication.quotas import MAX_PENDING_MAX, Quota, QuotaOrder

TIMEOUT_S_DEFAULT: Final = 30.0

Topic = Annotated[str, typer.Argument(help="The target topic.")]
ClusterKey = Annotated[
    str,
    typer.Option(envvar="DELAYD_CLUSTER_KEY", help="The cluster's secret, which proves the order."),
]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", min=1, help="How long to wait for the master.")
]

app = typer.Typer(
    no_args_is_help=True,
    help="Limit how many messages are pending for a target topic.",
)


@app.command("set")
def set_limit(
    topic: Topic,
    max_pending: Annotated[
        int,
        typer.Option(
            "--max-pending",
            min=1,
            max=MAX_PENDING_MAX,
            help="When as many messages are pending for it, requests are refused.",
        ),
    ],
    bootstrap: Bootstrap,
    cluster_key: ClusterKey,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    timeout_s: TimeoutS = TIMEOUT_S_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Limit how many messages are pending for a target. Over that, requests are refused.

    Repeat it with another number to change the limit.

    Example: delayd limits set orders --max-pending 1000000 --bootstrap 127.0.0.1:9092
    """
    where = (bootstrap, cluster_key, cluster, prefix, config, timeout_s)
    _show(topic, _order(topic, max_pending, *where), as_json)


@app.command("clear")
def clear(
    topic: Topic,
    bootstrap: Bootstrap,
    cluster_key: ClusterKey,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    timeout_s: TimeoutS = TIMEOUT_S_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """End the limit of a target: any number of messages may be pending for it.

    Example: delayd limits clear orders --bootstrap 127.0.0.1:9092
    """
    where = (bootstrap, cluster_key, cluster, prefix, config, timeout_s)
    _show(topic, _order(topic, 0, *where), as_json)


@app.command("list")
def list_limits(
    bootstrap: Bootstrap,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    timeout_s: TimeoutS = TIMEOUT_S_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the targets that have a limit, and what is used of it.

    Example: delayd limits list --bootstrap 127.0.0.1:9092
    """
    bus = open_bus(bootstrap, load_security(config).properties())
    seen = load_settings(bus, cluster, prefix, int(timeout_s * 1000))
    limits = limits_of(seen.record.quotas)
    if as_json:
        typer.echo(json.dumps(limits))
        return
    if not limits:
        typer.echo("no target has a limit")
        return
    table = Table("target", "pending", "limit", "state", "full since")
    for each in limits:
        since = "" if each["full_since_ms"] is None else moment(each["full_since_ms"])
        counts = (f"{each['pending']:,}", f"{each['max_pending']:,}")
        table.add_row(each["topic"], *counts, each["state"], since)
    Console().print(table)


def _order(
    topic: str,
    max_pending: int,
    bootstrap: str,
    cluster_key: str,
    cluster: str,
    prefix: str,
    config: Config,
    timeout_s: float,
) -> Quota | None:
    """Give an order, and wait until it is obeyed."""
    clock = SystemClock()
    return set_quota(
        open_bus(bootstrap, load_security(config).properties()),
        clock,
        QuotaOrder(topic, clock.wall_ms(), max_pending),
        cluster=cluster,
        prefix=prefix,
        cluster_key=cluster_key,
        timeout_ms=int(timeout_s * 1000),
    )


def _show(topic: str, quota: Quota | None, as_json: bool) -> None:
    shown = limits_of({} if quota is None else {topic: quota})
    if as_json:
        typer.echo(json.dumps(shown[0] if shown else {"topic": topic, "state": "unlimited"}))
    else:
        typer.echo(limit_told(shown[0]) if shown else f"{topic} has no limit")
