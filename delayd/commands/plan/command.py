"""`delayd plan`: what a cluster takes. Connects to nothing."""

import json
import re
from math import isfinite
from typing import Annotated, Final

import typer

from delayd.commands.plan.figures import DAY_S, MAX_DELAY_DAYS, SHARDS_MAX
from delayd.commands.plan.showing import report_of, shown
from delayd.commands.plan.sizing import NODES_MAX, Demand, clusters_for
from delayd.commands.plan.sizing import plan as plan_of
from delayd.config.cli_options import AsJson
from delayd.errors import ConfigError, ExitCode
from delayd.request.reasons import RefusedError
from delayd.request.times import delay_ms_of

RATE_MAX: Final = 1e9
PENDING_MAX: Final = 1e15
DELAY_DAYS_MAX: Final = 3_650
"""The longest that `delayd topics create` takes."""
BYTES_MAX: Final = 100_000_000

_COUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?)(k|M|bn)?")
_TIMES = {None: 1, "k": 1e3, "M": 1e6, "bn": 1e9}


def plan(
    rate: Annotated[str, typer.Option(help="Messages a second, on average: 50000, 50k, 1M.")],
    delay: Annotated[
        str | None, typer.Option(help="How long a message waits at most: 10m, 24h, 30d.")
    ] = None,
    pending: Annotated[
        str | None,
        typer.Option(help="Pending messages: 1bn. Default: the rate for as long as the delay."),
    ] = None,
    bytes_: Annotated[
        int, typer.Option("--bytes", help="Key, value and headers of a message.")
    ] = 300,
    ids: Annotated[float, typer.Option(help="Share of the messages with an id, 0 to 1.")] = 0.0,
    native: Annotated[
        bool, typer.Option("--native/--no-native", help="Nodes have the native library.")
    ] = True,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=NODES_MAX, help="Take so many nodes.")
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(min=1, max=int(SHARDS_MAX.value), help="Take so many shards."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Work out what a cluster takes for a rate and a delay. Exit 1 if something does not fit.

    Example: delayd plan --rate 50000 --delay 1d --bytes 300
    """
    demand = demand_of(rate, delay, pending, bytes_, ids, is_native=native)
    load = plan_of(demand, nodes, shards)
    clusters = clusters_for(demand) if load.limits else 1
    report = report_of(demand, load, clusters)
    typer.echo(json.dumps(report) if as_json else shown(report))
    raise typer.Exit(ExitCode.PROBLEM if load.limits else ExitCode.FINE)


def demand_of(
    rate: str, delay: str | None, pending: str | None, size: int, ids: float, *, is_native: bool
) -> Demand:
    """Return the demand that the options describe; ConfigError names the option that does not."""
    if delay is None and pending is None:
        raise ConfigError(
            "neither --delay nor --pending is given",
            remedy="say how long a message waits (--delay 30d) or how many wait (--pending 1bn)",
        )
    rate_per_s = count_of("--rate", rate, "50000, 50k or 1M", RATE_MAX)
    longest_s = MAX_DELAY_DAYS.value * DAY_S if delay is None else _delay_s_of(delay)
    waiting = (
        rate_per_s * longest_s
        if pending is None
        else count_of("--pending", pending, "20000000, 20M or 1bn", PENDING_MAX)
    )
    if waiting > rate_per_s * longest_s * (1 + 1e-9):
        raise ConfigError(
            f"{waiting:,.0f} messages cannot be pending: at {rate_per_s:,.0f} a second no more than"
            f" {rate_per_s * longest_s:,.0f} come in {longest_s / DAY_S:g} days",
            remedy="give a longer --delay, a higher --rate or a smaller --pending",
        )
    if not 1 <= size <= BYTES_MAX:
        raise ConfigError(
            f"--bytes {size} is not a message's size", remedy=f"give 1 to {BYTES_MAX:,} bytes"
        )
    if not (isfinite(ids) and 0 <= ids <= 1):
        raise ConfigError(
            f"--ids {ids} is not a share", remedy="give 0.1 if one message in ten has an id"
        )
    return Demand(rate_per_s, waiting, longest_s, size, ids, is_native)


def count_of(option: str, text: str, examples: str, count_max: float) -> float:
    """Return the number that an option names; ConfigError if it is none, 0 or beyond the bound."""
    match = _COUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    if match is None:
        raise ConfigError(f"{option} {text!r} is not a number", remedy=f"write it like {examples}")
    value = float(match[1]) * _TIMES[match[2]]
    if not 0 < value <= count_max:
        raise ConfigError(
            f"{option} {text!r} makes no sense", remedy=f"give more than 0, up to {count_max:,.0f}"
        )
    return value


def _delay_s_of(text: str) -> float:
    try:
        delay_ms = delay_ms_of(text)
    except RefusedError as error:
        raise ConfigError(
            f"--delay {text!r} is not a time", remedy="write it like 10m, 24h or 30d"
        ) from error
    if not 0 < delay_ms <= DELAY_DAYS_MAX * DAY_S * 1_000:
        raise ConfigError(
            f"--delay {text!r} cannot be a cluster's longest delay",
            remedy=f"give 1ms to {DELAY_DAYS_MAX}d",
        )
    return delay_ms / 1_000
