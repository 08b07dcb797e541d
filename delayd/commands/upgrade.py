"""`delayd upgrade`: what a running cluster is switched to once all of its nodes know it."""

import json
from contextlib import closing
from typing import Annotated

import typer

from delayd.cluster.connect import open_bus, open_coordination
from delayd.cluster.rules_switch import switch_rules
from delayd.config.cli_options import (
    AsJson,
    Bootstrap,
    ClusterName,
    Config,
    Etcd,
    Prefix,
    endpoints,
)
from delayd.config.security import load_security
from delayd.errors import ConfigError
from delayd.runtime.clock import SystemClock
from replication.settings import RULES_VERSION

app = typer.Typer(no_args_is_help=True, help="Switch a running cluster to what newer nodes know.")

ClusterKey = Annotated[
    str,
    typer.Option(
        envvar="DELAYD_CLUSTER_KEY", help="The cluster's secret, which proves the switch."
    ),
]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", min=1, help="How long to wait for the master.")
]


@app.callback()
def upgrade() -> None:
    """Switch a running cluster to what newer nodes know."""


@app.command("rules")
def rules(
    bootstrap: Bootstrap,
    cluster_key: ClusterKey,
    etcd: Etcd = None,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    timeout_s: TimeoutS = 60,
    as_json: AsJson = False,
) -> None:
    """Switch the cluster to the newest ingest rules, for good. Does no harm if repeated.

    Every node must be of a release that knows them. No older one can join afterwards.

    Example: delayd upgrade rules --bootstrap 127.0.0.1:9092 --etcd http://127.0.0.1:2379
    """
    if etcd is None:
        raise ConfigError(
            "--etcd is missing", remedy="nodes say there which rules they know: name its endpoints"
        )
    security = load_security(config)
    with closing(open_coordination(endpoints(etcd), cluster, security)) as coordination:
        written = switch_rules(
            open_bus(bootstrap, security.properties()),
            coordination,
            SystemClock(),
            cluster=cluster,
            prefix=prefix,
            cluster_key=cluster_key,
            version=RULES_VERSION,
            timeout_ms=int(timeout_s * 1000),
        )
    if as_json:
        typer.echo(json.dumps({"rules_version": RULES_VERSION, "partitions": written}))
    elif written:
        listed = ", ".join(map(str, written))
        typer.echo(f"rules version {RULES_VERSION} holds behind a barrier in partitions {listed}")
    else:
        typer.echo(f"all partitions are under rules version {RULES_VERSION} already")
