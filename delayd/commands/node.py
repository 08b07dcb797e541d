"""`delayd node`: one running node."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from delayd.config.node import load
from delayd.node.node import run_node
from delayd.runtime.logs import set_up_logs


def node(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="TOML file; every key is also DELAYD_<KEY>."),
    ] = None,
) -> None:
    """Run a node until SIGTERM.

    Example: delayd node --config /etc/delayd/node.toml
    """
    settings = load(config)
    set_up_logs(as_json=settings.log_json)
    raise typer.Exit(asyncio.run(run_node(settings)))
