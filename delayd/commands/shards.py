"""`delayd shards`: how many parts of the buffer have masters of their own."""

import json
from typing import Annotated

import typer

from delayd.cluster.connect import open_bus
from delayd.cluster.resharding import Resharding
from delayd.cluster.topics import load_settings
from delayd.config.cli_options import AsJson, Bootstrap, ClusterName, Config, Prefix
from delayd.config.security import load_security
from delayd.runtime.clock import SystemClock
from replication.settings import SHARDS_MAX

TIMEOUT_MS = 15_000
"""Of one answer of a broker."""

app = typer.Typer(
    no_args_is_help=True, help="Give a running cluster more shards, or fewer, for more masters."
)


@app.callback()
def shards_group() -> None:
    """Give a running cluster more shards, or fewer, for more masters."""


@app.command("set")
def set_shards(
    shards: Annotated[
        int,
        typer.Argument(
            metavar="SHARDS",
            min=1,
            max=SHARDS_MAX,
            help="A multiple of what there is, or what that is a multiple of.",
        ),
    ],
    bootstrap: Bootstrap,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    rest_s: Annotated[
        float,
        typer.Option(
            "--rest-s", min=1, max=20, help="Fewer only: how long masters may take to come to rest."
        ),
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Give a running cluster so many shards. Does no harm if repeated, or killed and run again.

    Nothing is delivered for some seconds, and nothing lost or doubled. Every node must be of this
    release: an older one stops.

    Example: delayd shards set 4 --bootstrap 127.0.0.1:9092
    """
    bus = open_bus(bootstrap, load_security(config).properties())
    found = load_settings(bus, cluster, prefix, TIMEOUT_MS).record.settings
    run = Resharding(bus, found, SystemClock(), TIMEOUT_MS, rest_timeout_ms=int(rest_s * 1000))
    settings = run.to(shards)
    if as_json:
        typer.echo(json.dumps({"shards": settings.shards, "before": found.shards}))
    elif settings.shards == found.shards:
        typer.echo(f"{cluster} has {settings.shards} shards")
    else:
        typer.echo(f"{cluster} has {settings.shards} shards now; it had {found.shards}")
