"""`delayd pause` and `delayd resume`: what is for a target waits, until it goes out again."""

import json
from typing import Annotated

import typer

from delayd.cluster.ordering import Cluster
from delayd.cluster.pausing import give_order, paused_of
from delayd.commands.order_options import (
    TIMEOUT_S_DEFAULT,
    ClusterKey,
    TimeoutS,
    Topic,
    ordered_at,
)
from delayd.commands.wording import told_of
from delayd.config.cli_options import AsJson, Bootstrap, ClusterName, Config, Prefix
from delayd.errors import ConfigError
from delayd.request.reasons import RefusedError
from delayd.request.times import delay_ms_of, due_ms_of
from delayd.runtime.clock import SystemClock
from replication.holds import RATE_DEFAULT, Order
from replication.smoothing import RATE_MAX

Rate = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=RATE_MAX,
        help=f"Records a second of what has waited. Default: as the pause has it, or {RATE_DEFAULT}"
        ".",
    ),
]


def pause(
    topic: Topic,
    bootstrap: Bootstrap,
    cluster_key: ClusterKey,
    until: Annotated[
        str | None, typer.Option(help="When it ends by itself: RFC 3339, or Unix ms.")
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", help="How long it lasts: 10m, 2h; 24h at most.")
    ] = None,
    rate: Rate = None,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    timeout_s: TimeoutS = TIMEOUT_S_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Deliver nothing to a target for a while. What becomes due waits, in its order.

    Repeat it to renew the pause. It ends by itself, or with delayd resume.

    Example: delayd pause orders --for 1h --bootstrap 127.0.0.1:9092
    """
    if (until is None) == (for_ is None):
        raise ConfigError("give --until or --for", remedy="a pause always has an end")
    try:
        if for_ is not None:
            until_ms = SystemClock().wall_ms() + delay_ms_of(for_)
        else:
            until_ms = due_ms_of(until or "")
    except RefusedError as error:
        raise ConfigError(error.detail) from error
    there = ordered_at(bootstrap, cluster_key, cluster, prefix, config, timeout_s)
    _give(there, topic, max(1, until_ms), rate, as_json)


def resume(
    topic: Topic,
    bootstrap: Bootstrap,
    cluster_key: ClusterKey,
    rate: Rate = None,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    timeout_s: TimeoutS = TIMEOUT_S_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """End the pause of a target. What has waited goes out in its order, at a rate.

    The first of it goes out after an eighth of what the pause has lasted: 5 s to 5 min.

    Example: delayd resume orders --rate 500 --bootstrap 127.0.0.1:9092
    """
    there = ordered_at(bootstrap, cluster_key, cluster, prefix, config, timeout_s)
    _give(there, topic, 0, rate, as_json)


def _give(there: Cluster, topic: str, until_ms: int, rate: int | None, as_json: bool) -> None:
    """Give an order, wait until it is obeyed, and show what it came to."""
    hold = give_order(there, Order(topic, there.clock.wall_ms(), until_ms, rate or 0))
    shown = paused_of({} if hold is None else {topic: hold}, there.clock.wall_ms())
    if as_json:
        typer.echo(json.dumps(shown[0] if shown else {"topic": topic, "state": "not-paused"}))
    else:
        typer.echo(told_of(shown[0]) if shown else f"{topic} is not paused, and nothing waits")
