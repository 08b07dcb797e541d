"""`delayd send`, `replace` and `debounce`."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from delayd.client import Client, Scheduled, Sent, Verdict
from delayd.client.asking import (
    Ask,
    DebounceOptions,
    Options,
    ask,
    refuse_beyond,
)
from delayd.cluster.connect import open_bus
from delayd.cluster.request_limits import request_limits_if_told
from delayd.cluster.topic_checks import RECORD_MARGIN_BYTES
from delayd.cluster.topics import topic_names
from delayd.commands.wording import moment
from delayd.config.cli_options import (
    AsJson,
    At,
    Bootstrap,
    Catchup,
    Config,
    Cron,
    Group,
    In,
    Key,
    Late,
    MaxWait,
    Partition,
    Prefix,
    Receipts,
    TimeoutS,
    Topic,
    Until,
    Wait,
    Window,
    Zone,
)
from delayd.config.security import load_security
from delayd.errors import ConfigError, ExitCode
from delayd.request import Op
from delayd.runtime.clock import SystemClock

CONNECT_TIMEOUT_MS = 10_000
"""How long Kafka may take to answer a person who waits; longer than a broker's election."""

WAIT_S_DEFAULT = 30.0

IN_TIME = frozenset({"cancelled", "replaced", "scheduled", "duplicate", "rescheduled"})
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
    group: Group = None,
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
    options |= {
        "zone": zone,
        "until": until,
        "catchup": catchup,
        "receipts": receipts or wait,
        "group": group,
    }
    client = client_of(bootstrap, prefix, config, Asked(topic, content, options, id))
    send = partial(client.schedule, topic, content, id=id, **options)
    carry_out(client, send, wait, timeout_s, as_json)


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
    group: Group = None,
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
    options |= {
        "zone": zone,
        "until": until,
        "catchup": catchup,
        "receipts": receipts,
        "group": group,
    }
    client = client_of(bootstrap, prefix, config, Asked(topic, content, options, id, Op.REPLACE))
    send = partial(client.replace, id, topic, content, **options)
    carry_out(client, send, wait, timeout_s, as_json)


def debounce(
    id: Id,
    bootstrap: Bootstrap,
    topic: Topic,
    in_: Annotated[
        str, typer.Option("--in", help="So long after the last one it goes out: 2s, 1m.")
    ],
    max_wait: MaxWait,
    value: Value = None,
    value_from: ValueFrom = None,
    key: Key = None,
    partition: Partition = None,
    late: Late = None,
    group: Group = None,
    receipts: Receipts = False,
    prefix: Prefix = "delayd-",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Schedule a message of which only the last one counts.

    It goes out --in after the last one with this id, and --max-wait after the first one at the
    latest. What else is pending under the id it replaces.

    Example: delayd debounce search-7 --topic index --in 2s --max-wait 30s 'reindex'
    """
    content = _content(value, value_from)
    options: DebounceOptions = {
        "in_": in_,
        "max_wait": max_wait,
        "key": key,
        "partition": partition,
        "late": late,
        "group": group,
        "receipts": receipts,
    }
    names = topic_names(prefix)
    record = ask(names.buffer, topic, content, id=id, op=Op.DEBOUNCE, **options)
    with client_of(bootstrap, prefix, config, record=record) as client:
        _show_place(client.debounce(id, topic, content, **options), as_json)


class Asked(NamedTuple):
    """A message that a command will schedule."""

    topic: str
    content: bytes
    options: Options
    id: str | None
    op: Op = Op.SCHEDULE


def client_of(
    bootstrap: str,
    prefix: str,
    config: Path | None,
    asked: Asked | None = None,
    record: Ask | None = None,
) -> Client:
    """Return the client of a cluster that answers; RequestRefusedError if it would reject the
    message, KafkaUnreachableError."""
    names, security = topic_names(prefix), load_security(config)
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


def carry_out(
    client: Client, send: Callable[..., Any], wait: bool, timeout_s: float, as_json: bool
) -> None:
    """Send a request by a method of the client, and show its place or its verdict."""
    with client:
        if not wait:
            _show_place(send(wait=False), as_json)
            return
        verdict = send(wait=True, timeout_ms=int(timeout_s * 1000))
    _show_verdict(verdict, as_json)


def _show_place(place: Scheduled | Sent, as_json: bool) -> None:
    fields: dict[str, Any] = {"source": place.source, "append_ms": place.append_ms}
    if isinstance(place, Scheduled):
        fields["due_ms"] = place.due_ms
        line = f"scheduled as {place.source}, due at {moment(place.due_ms)}"
    else:
        line = f"sent as {place.source}"
    typer.echo(json.dumps(fields) if as_json else line)


def _show_verdict(verdict: Verdict, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(verdict)))
    else:
        what = f", killed {', '.join(verdict.killed)}" if verdict.killed else ""
        if verdict.old_due_ms is not None:
            what = f", due at {moment(verdict.due_ms)}, and not at {moment(verdict.old_due_ms)}"
        if verdict.forecast_messages:
            span = "second" if verdict.forecast_span_ms == 1000 else "hour"
            what += f", one of {verdict.forecast_messages} for its target in that {span}"
        if verdict.forecast_late_ms:
            what += f", up to {verdict.forecast_late_ms} ms late"
        detail = f": {verdict.detail}" if verdict.detail else ""
        typer.echo(f"{verdict.verdict}{what}{detail}")
    raise typer.Exit(ExitCode.FINE if verdict.verdict in IN_TIME else ExitCode.PROBLEM)
