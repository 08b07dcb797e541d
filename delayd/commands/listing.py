"""`delayd list`: pending messages, as a node lists them."""

import json
from itertools import islice
from typing import Annotated, Any

import typer

from delayd.cluster.pending_pages import PendingPages
from delayd.commands.knowing import Admin, nodes_to_ask
from delayd.commands.wording import moment, plural
from delayd.config.cli_options import (
    AsJson,
    ClusterName,
    Config,
    Etcd,
    Token,
)
from delayd.config.security import load_security

LIMIT_DEFAULT = 100


def list_pending(
    group: Annotated[str | None, typer.Option("--group", help="Only of this group.")] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Only for this target.")
    ] = None,
    id_prefix: Annotated[
        str | None, typer.Option("--id-prefix", help="Only with an id that begins so.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="So many at most.")] = LIMIT_DEFAULT,
    count: Annotated[bool, typer.Option("--count", help="Only count them, without limit.")] = False,
    etcd: Etcd = None,
    admin: Admin = None,
    token: Token = None,
    cluster: ClusterName = "delayd",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List pending messages: of a group, for a target, by their ids.

    By the hour in which they are due; within an hour in no order.

    Example: delayd list --group customer-42 --etcd http://127.0.0.1:2379
    """
    nodes = nodes_to_ask(admin, etcd, cluster, load_security(config))
    filters = {"group": group, "topic": topic, "id_prefix": id_prefix}
    pages = PendingPages(nodes, token, filters)
    if count:
        found = pages.count()
        typer.echo(json.dumps({"messages": found}) if as_json else f"{found:,}")
        return
    messages = pages.messages()
    shown = 0
    if as_json:
        typer.echo('{"messages": [', nl=False)
    for each in islice(messages, limit):
        comma = ", " if shown else ""
        typer.echo(comma + json.dumps(each) if as_json else _line(each), nl=not as_json)
        shown += 1
    is_all = next(messages, None) is None
    if as_json:
        typer.echo(f'], "complete": {json.dumps(is_all)}}}')
        return
    more = "" if is_all else "; there are more: see --limit and --count"
    typer.echo(f"{plural(shown, 'message')}{more}", err=True)


def _line(message: dict[str, Any]) -> str:
    parts = [moment(message["due_ms"]), message["topic"], message["id"] or message["source"]]
    if message.get("group"):
        parts.append(f"of {message['group']}")
    if message.get("cron"):
        parts.append(f"series {message['cron']}")
    if message.get("local"):
        parts.append(f"local time {message['local']} in {message['zone']}")
        if message["resolved_ms"] is not None:
            parts.append(f"due at {moment(message['resolved_ms'])}")
    if message["attempts"]:
        parts.append(f"attempt {message['attempts'] + 1}")
    return "  ".join(parts)
