"""`delayd limits`: how many messages may be pending for a target topic, and how many requests a
second are taken for it."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from delayd.cluster.connect import open_bus
from delayd.cluster.limiting import change_quota, limits_of, set_quota
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
from delayd.errors import ConfigError
from delayd.request.grammar import number_of
from replication.quotas import MAX_PENDING_MAX, RATE_MAX, RATE_WINDOW_S, Quota, QuotaOrder

app = typer.Typer(
    no_args_is_help=True,
    help="Limit how many messages are pending for a target topic, and how many a second are taken.",
)


@app.command("set")
def set_limit(
    topic: Topic,
    bootstrap: Bootstrap,
    cluster_key: ClusterKey,
    max_pending: Annotated[
        int | None,
        typer.Option(
            "--max-pending",
            min=0,
            max=MAX_PENDING_MAX,
            help="When as many messages are pending for it, requests are refused; 0: any number.",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            help=f"Requests a second, such as 100/s, as a mean of {RATE_WINDOW_S} s: what comes "
            "faster is refused; 0: any number.",
        ),
    ] = None,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    timeout_s: TimeoutS = TIMEOUT_S_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Limit how many messages are pending for a target, or come in a second. Over that, requests
    are refused.

    Repeat it with another number to change a limit. The one that is not named stays as it is.

    Example: delayd limits set orders --max-pending 1000000 --rate 100/s --bootstrap 127.0.0.1:9092
    """
    if max_pending is None and rate is None:
        raise ConfigError("no limit is named", remedy="give --max-pending, --rate, or both")
    requests_per_s = None if rate is None else _rate_of(rate)
    there = ordered_at(bootstrap, cluster_key, cluster, prefix, config, timeout_s)
    _show(topic, change_quota(there, topic, max_pending, requests_per_s), as_json)


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
    """End the limits of a target: any number of messages may be pending for it, and come.

    Example: delayd limits clear orders --bootstrap 127.0.0.1:9092
    """
    there = ordered_at(bootstrap, cluster_key, cluster, prefix, config, timeout_s)
    _show(topic, set_quota(there, QuotaOrder(topic, there.clock.wall_ms(), 0)), as_json)


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
    table = Table("target", "pending", "limit", "a second", "limit", "state", "full since")
    for each in limits:
        since = "" if each["full_since_ms"] is None else moment(each["full_since_ms"])
        most = "" if each["max_pending"] is None else f"{each['max_pending']:,}"
        counts = (f"{each['pending']:,}", most, "", "")
        if each["rate"] is not None:
            counts = (*counts[:2], f"{each['taken'] / RATE_WINDOW_S:,.1f}", f"{each['rate']:,}")
        table.add_row(each["topic"], *counts, each["state"], since)
    Console().print(table)


def _rate_of(text: str) -> int:
    """Return a rate in requests a second: `100/s` or `100`. Raises typer.BadParameter, which ends
    the command with the exit code of a wrong usage, before anything is asked of a cluster."""
    number = number_of(text.removesuffix("/s"))
    if number is None or number > RATE_MAX:
        raise typer.BadParameter(
            f"{text[:80]!a} is no rate: give requests a second as N/s or N, a whole number from 1"
            f" to {RATE_MAX}; 0 ends the limit",
            param_hint="--rate",
        )
    return number


def _show(topic: str, quota: Quota | None, as_json: bool) -> None:
    """Show what an order came to."""
    shown = limits_of({} if quota is None else {topic: quota})
    if as_json:
        typer.echo(json.dumps(shown[0] if shown else {"topic": topic, "state": "unlimited"}))
    else:
        typer.echo(limit_told(shown[0]) if shown else f"{topic} has no limit")
