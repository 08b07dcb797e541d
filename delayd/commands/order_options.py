"""The options of commands that give orders about target topics, and the cluster that these name."""

from typing import Annotated, Final

import typer

from delayd.cluster.connect import open_bus
from delayd.cluster.ordering import Cluster
from delayd.config.cli_options import Config
from delayd.config.security import load_security
from delayd.runtime.clock import SystemClock

TIMEOUT_S_DEFAULT: Final = 30.0

Topic = Annotated[str, typer.Argument(help="The target topic.")]
ClusterKey = Annotated[
    str,
    typer.Option(envvar="DELAYD_CLUSTER_KEY", help="The cluster's secret, which proves the order."),
]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", min=1, help="How long to wait for the master.")
]


def ordered_at(
    bootstrap: str, cluster_key: str, cluster: str, prefix: str, config: Config, timeout_s: float
) -> Cluster:
    """Return the cluster that the options name."""
    bus = open_bus(bootstrap, load_security(config).properties())
    return Cluster(bus, SystemClock(), cluster, prefix, cluster_key, int(timeout_s * 1000))
