"""`delayd limits`: how many messages may be pending for a target topic."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from delayd.cluster.connect import open_bus
from delayd.cluster.limiting import limits_of, set_quota
from delayd.cluster.ordering import Cluster
from delayd.cluster.topics import load_settings
from delayd.commands.order_options import (
    TIMEOUT_S_DEFAULT,
    ClusterKey,
    TimeoutS,
    Topic,
    ordered_at,
)
from delayd.commands.wording import limit_told, moment
from delayd.config.cli_options import AsJson, Bootstrap, ClusterName, Config, Prefix
from delayd.config.security import load_security
from replication.quotas import MAX_PENDING_MAX, QuotaOrder

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
    there = ordered_at(bootstrap, cluster_key, cluster, prefix, config, timeout_s)
    _give(there, topic, max_pending, as_json)


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
    there = ordered_at(bootstrap, cluster_key, cluster, prefix, config, timeout_s)
    _give(there, topic, 0, as_json)


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


def _give(there: Cluster, topic: str, max_pending: int, as_json: bool) -> None:
    """Give an order, wait until it is obeyed, and show what it came to."""
    quota = set_quota(there, QuotaOrder(topic, there.clock.wall_ms(), max_pending))
    shown = limits_of({} if quota is None else {topic: quota})
    if as_json:
        typer.echo(json.dumps(shown[0] if shown else {"topic": topic, "state": "unlimited"}))
    else:
        typer.echo(limit_told(shown[0]) if shown else f"{topic} has no limit")
