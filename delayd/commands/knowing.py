"""`delayd show` and `pending`: what the nodes know of an id, and how much is pending."""

import json
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any

import typer

from delayd.client import cancel_record
from delayd.cluster.connect import coordination_if_named, open_bus
from delayd.cluster.lookup import admin_ports, known_of_id, pending_of
from delayd.cluster.topics import topic_names
from delayd.commands.messages import CONNECT_TIMEOUT_MS, Id
from delayd.commands.wording import moment
from delayd.config.cli_options import (
    AsJson,
    Bootstrap,
    ClusterName,
    Config,
    Etcd,
    Prefix,
    endpoints,
)
from delayd.config.security import Security, load_security
from delayd.errors import ExitCode
from delayd.runtime.clock import SystemClock

Admin = Annotated[
    str | None, typer.Option("--admin", help="Admin port of the node to ask: host:port, or a URL.")
]


class Grouping(Enum):
    """The ways to count pending messages."""

    HOUR = "hour"
    TOPIC = "topic"


def show(
    id: Id,
    bootstrap: Bootstrap,
    etcd: Etcd = None,
    admin: Admin = None,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show the messages that are known under an id. Exit 1 if there are none.

    Example: delayd show order-7 --etcd http://127.0.0.1:2379
    """
    cancel_record(id)  # refuses what cannot be an id
    security = load_security(config)
    known = known_of_id(
        id,
        open_bus(bootstrap, security.properties()),
        nodes_to_ask(admin, etcd, cluster, security),
        SystemClock(),
        buffer=topic_names(prefix).buffer,
        dead=topic_names(prefix).dead,
        timeout_ms=CONNECT_TIMEOUT_MS,
    )
    if as_json:
        typer.echo(json.dumps({"id": id, "known": known is not None, **(known or {})}))
    elif known is None:
        typer.echo(f"nothing is known of {id}")
    else:
        _show_known(known)
    raise typer.Exit(ExitCode.PROBLEM if known is None else ExitCode.FINE)


def pending(
    etcd: Etcd = None,
    admin: Admin = None,
    by: Annotated[
        Grouping, typer.Option("--by", help="Count by the hour of the due time, or by topic.")
    ] = Grouping.HOUR,
    cluster: ClusterName = "delayd",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Count the pending messages by hour or by target topic.

    Example: delayd pending --by topic --etcd http://127.0.0.1:2379
    """
    found = pending_of(nodes_to_ask(admin, etcd, cluster, load_security(config)))
    if as_json:
        typer.echo(json.dumps(found))
        return
    if by is Grouping.TOPIC:
        rows = [(topic or "?", count) for topic, count in found["topics"].items()]
    else:
        rows = [(_hour(each["from_ms"]), each["messages"]) for each in found["hours"]]
    for name, count in rows:
        typer.echo(f"{count:>14,}  {name}")
    typer.echo(f"{found['total']:>14,}  pending, as {found['node']} counts")


def nodes_to_ask(
    admin: str | None, etcd: str | None, cluster: str, security: Security
) -> tuple[str, ...]:
    """Return the admin ports of the node that is named, or of all that etcd knows."""
    if admin is not None:
        return admin_ports(None, admin)
    named = coordination_if_named(endpoints(etcd), cluster, security, must_answer=True)
    with named as coordination:
        return admin_ports(coordination, None)


def _hour(from_ms: int) -> str:
    return f"{datetime.fromtimestamp(from_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def _show_known(known: dict[str, Any]) -> None:
    for live in known["live"]:
        where = f"to {live['topic']}, {live['bytes']} bytes" if live["topic"] else live["problem"]
        series = live.get("series")
        if series is not None:
            number = f"occurrence {series['occurrence']}" if series["occurrence"] else "not begun"
            where += f", series {series['cron']} in {series['zone']}, {number}"
        if (local := live.get("local")) is not None:
            when = f": {moment(local['due_ms'])}" if local["due_ms"] is not None else ""
            where += f", local time {local['at']} in {local['zone']}{when}"
        place = _record_place(live)
        typer.echo(f"{live['state']:9} {live['source']}, {_due(live)}, {where}{place}")
    for killed in known["killed"]:
        state, by = killed.get("state", "asked"), killed["killed_by"]
        text = {
            "asked": f"asked for by {by}",
            "cancelled": f"by {by} at {moment(killed.get('decided_ms'))}",
            "replaced": f"by {by} at {moment(killed.get('decided_ms'))}",
        }.get(state, f"before {by}")
        place = _record_place(killed)
        typer.echo(f"{state:9} {killed['source']}, {_due(killed)}, {text}{place}")


def _due(message: dict[str, Any]) -> str:
    return f"due at {moment(message['due_ms'])}"


def _record_place(message: dict[str, Any]) -> str:
    return f": {message['at']} at {moment(message['at_ms'])}" if "at" in message else ""
