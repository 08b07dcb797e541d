"""`delayd send`, `cancel`, `replace`, `show` and `pending`: single messages."""

import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from delayd.client import Client, Scheduled, Sent, Verdict, cancel_record
from delayd.client.asking import Options, ask, refuse_beyond
from delayd.cluster.connect import coordination_if_named, open_bus
from delayd.cluster.lookup import admin_ports, known_of_id, pending_of
from delayd.cluster.request_limits import request_limits_if_told
from delayd.cluster.topic_checks import RECORD_MARGIN_BYTES
from delayd.cluster.topics import topic_names
from delayd.commands.wording import local_time
from delayd.config.cli_options import (
    AsJson,
    At,
    Bootstrap,
    Catchup,
    ClusterName,
    Config,
    Cron,
    Etcd,
    In,
    Key,
    Late,
    Partition,
    Prefix,
    Receipts,
    TimeoutS,
    Topic,
    Until,
    Wait,
    Window,
    Zone,
    endpoints,
)
from delayd.config.security import Security, load_security
from delayd.errors import ConfigError, ExitCode
from delayd.request import Op
from delayd.runtime.clock import SystemClock

CONNECT_TIMEOUT_MS = 10_000
"""How long Kafka may take to answer a person who waits; longer than a broker's election."""

WAIT_S_DEFAULT = 30.0

IN_TIME = frozenset({"cancelled", "replaced", "scheduled", "duplicate"})
"""Verdicts by which a request has reached its aim."""

Id = Annotated[str, typer.Argument(help="The id that the message was scheduled with.")]
Value = Annotated[str | None, typer.Argument(help="The message's value.")]
ValueFrom = Annotated[
    Path | None,
    typer.Option(
        "--value-from",
        allow_dash=True,
        help="Read the value from this file, byte for byte, or from stdin with -.",
    ),
]
Admin = Annotated[
    str | None, typer.Option("--admin", help="Admin port of the node to ask: host:port, or a URL.")
]


class Grouping(Enum):
    """The ways to count pending messages."""

    HOUR = "hour"
    TOPIC = "topic"


def send(
    bootstrap: Bootstrap,
    topic: Topic,
    value: Value = None,
    value_from: ValueFrom = None,
    in_: In = None,
    at: At = None,
    key: Key = None,
    partition: Partition = None,
    id: Annotated[
        str | None, typer.Option("--id", help="Id by which to cancel or replace the message later.")
    ] = None,
    late: Late = None,
    window: Window = None,
    cron: Cron = None,
    zone: Zone = None,
    until: Until = None,
    catchup: Catchup = None,
    receipts: Receipts = False,
    wait: Wait = False,
    timeout_s: TimeoutS = WAIT_S_DEFAULT,
    prefix: Prefix = "delayd-",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Schedule one message.

    With --wait it asks for receipts, and exits with 1 if the message is not pending then.

    With --cron it recurs until it is cancelled.

    Example: delayd send --topic orders --in 10s --key 4711 'cancel if unpaid'
    """
    content = _content(value, value_from)
    options = _options(in_, at, cron, key=key, partition=partition, late=late, window=window)
    options |= {"zone": zone, "until": until, "catchup": catchup, "receipts": receipts or wait}
    with _client(bootstrap, prefix, config, Asked(topic, content, options, id)) as client:
        if not wait:
            _show_place(client.schedule(topic, content, id=id, **options), as_json)
            return
        verdict = client.schedule(
            topic, content, wait=True, timeout_ms=int(timeout_s * 1000), id=id, **options
        )
    _show_verdict(verdict, as_json)


def cancel(
    id: Id,
    bootstrap: Bootstrap,
    wait: Wait = False,
    timeout_s: TimeoutS = WAIT_S_DEFAULT,
    prefix: Prefix = "delayd-",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Cancel what is pending under an id. With --wait, exit 1 if it was not cancelled.

    Example: delayd cancel order-7 --wait
    """
    cancel_record(id)  # refuses what cannot be an id
    with _client(bootstrap, prefix, config) as client:
        if not wait:
            _show_place(client.cancel(id, wait=False), as_json)
            return
        verdict = client.cancel(id, timeout_ms=int(timeout_s * 1000))
    _show_verdict(verdict, as_json)


def replace(
    id: Id,
    bootstrap: Bootstrap,
    topic: Topic,
    value: Value = None,
    value_from: ValueFrom = None,
    in_: In = None,
    at: At = None,
    key: Key = None,
    partition: Partition = None,
    late: Late = None,
    window: Window = None,
    cron: Cron = None,
    zone: Zone = None,
    until: Until = None,
    catchup: Catchup = None,
    receipts: Receipts = False,
    wait: Wait = False,
    timeout_s: TimeoutS = WAIT_S_DEFAULT,
    prefix: Prefix = "delayd-",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Schedule a message in place of what is pending under an id.

    Sent again unchanged with --at, it does nothing more and gets the same verdict.

    Example: delayd replace order-7 --topic orders --in 10m 'cancel if unpaid' --wait
    """
    content = _content(value, value_from)
    options = _options(in_, at, cron, key=key, partition=partition, late=late, window=window)
    options |= {"zone": zone, "until": until, "catchup": catchup, "receipts": receipts}
    asked = Asked(topic, content, options, id, Op.REPLACE)
    with _client(bootstrap, prefix, config, asked) as client:
        if not wait:
            _show_place(client.replace(id, topic, content, wait=False, **options), as_json)
            return
        verdict = client.replace(id, topic, content, timeout_ms=int(timeout_s * 1000), **options)
    _show_verdict(verdict, as_json)


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
        _admin_ports(admin, etcd, cluster, security),
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
    found = pending_of(_admin_ports(admin, etcd, cluster, load_security(config)))
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


def _admin_ports(
    admin: str | None, etcd: str | None, cluster: str, security: Security
) -> tuple[str, ...]:
    if admin is not None:
        return admin_ports(None, admin)
    named = coordination_if_named(endpoints(etcd), cluster, security, must_answer=True)
    with named as coordination:
        return admin_ports(coordination, None)


def _hour(from_ms: int) -> str:
    return f"{datetime.fromtimestamp(from_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


class Asked(NamedTuple):
    """A message that a command will schedule."""

    topic: str
    content: bytes
    options: Options
    id: str | None
    op: Op = Op.SCHEDULE


def _client(bootstrap: str, prefix: str, config: Path | None, asked: Asked | None = None) -> Client:
    """Return the client of a cluster that answers; RequestRefusedError if it would reject the
    message, KafkaUnreachableError."""
    names, security = topic_names(prefix), load_security(config)
    record = None
    if asked is not None:
        topic, content, options, id, op = asked
        record = ask(names.buffer, topic, content, id=id, op=op, **options)
    bus = open_bus(bootstrap, security.properties())
    limits = request_limits_if_told(bus, names.frontier, CONNECT_TIMEOUT_MS)
    overrides: dict[str, Any] = {}
    if limits is not None:
        # librdkafka's own bound may be below what the cluster takes.
        largest = limits.record_bytes_max + RECORD_MARGIN_BYTES
        overrides["producer.message.max.bytes"] = largest
        if record is not None:
            refuse_beyond(record, limits, SystemClock().wall_ms())
    return Client(
        bootstrap,
        security=security,
        buffer=names.buffer,
        receipts=names.receipts,
        overrides=overrides,
    )


def _options(
    in_: str | None,
    at: str | None,
    cron: str | None,
    *,
    key: str | None,
    partition: int | None,
    late: str | None,
    window: str | None,
) -> Options:
    if sum(each is not None for each in (in_, at, cron)) != 1:
        raise ConfigError(
            "give exactly one of --in, --at and --cron",
            remedy="--in is a delay, --at a time, --cron an expression by which it recurs",
        )
    return {
        "in_": in_,
        "at": at,
        "cron": cron,
        "key": key,
        "partition": partition,
        "late": late,
        "window": window,
    }


def _content(value: str | None, value_from: Path | None) -> bytes:
    """Return the value: of the argument with the bytes that the shell gave, or of a file."""
    if (value is None) == (value_from is None):
        raise ConfigError(
            "give exactly one of VALUE and --value-from",
            remedy="an empty value is written as ''; --value-from - reads stdin",
        )
    if value is not None:
        return os.fsencode(value)
    if str(value_from) == "-":
        return sys.stdin.buffer.read()
    assert value_from is not None, "one of the two is given"
    try:
        return value_from.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{value_from} cannot be read: {error.strerror}", remedy="correct --value-from"
        ) from error


def _show_place(place: Scheduled | Sent, as_json: bool) -> None:
    fields: dict[str, Any] = {"source": place.source, "append_ms": place.append_ms}
    if isinstance(place, Scheduled):
        fields["due_ms"] = place.due_ms
        line = f"scheduled as {place.source}, due at {_moment(place.due_ms)}"
    else:
        line = f"sent as {place.source}"
    typer.echo(json.dumps(fields) if as_json else line)


def _show_verdict(verdict: Verdict, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(verdict)))
    else:
        killed = f", killed {', '.join(verdict.killed)}" if verdict.killed else ""
        detail = f": {verdict.detail}" if verdict.detail else ""
        typer.echo(f"{verdict.verdict}{killed}{detail}")
    raise typer.Exit(ExitCode.FINE if verdict.verdict in IN_TIME else ExitCode.PROBLEM)


def _show_known(known: dict[str, Any]) -> None:
    for live in known["live"]:
        where = f"to {live['topic']}, {live['bytes']} bytes" if live["topic"] else live["problem"]
        series = live.get("series")
        if series is not None:
            number = f"occurrence {series['occurrence']}" if series["occurrence"] else "not begun"
            where += f", series {series['cron']} in {series['zone']}, {number}"
        place = _record_place(live)
        typer.echo(f"{live['state']:9} {live['source']}, {_due(live)}, {where}{place}")
    for killed in known["killed"]:
        state, by = killed.get("state", "asked"), killed["killed_by"]
        text = {
            "asked": f"asked for by {by}",
            "cancelled": f"by {by} at {_moment(killed.get('decided_ms'))}",
            "replaced": f"by {by} at {_moment(killed.get('decided_ms'))}",
        }.get(state, f"before {by}")
        place = _record_place(killed)
        typer.echo(f"{state:9} {killed['source']}, {_due(killed)}, {text}{place}")


def _due(message: dict[str, Any]) -> str:
    return f"due at {_moment(message['due_ms'])}"


def _moment(ms: int | None) -> str:
    return "?" if ms is None else f"{ms} ({local_time(ms)})"


def _record_place(message: dict[str, Any]) -> str:
    return f": {message['at']} at {_moment(message['at_ms'])}" if "at" in message else ""
