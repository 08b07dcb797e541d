"""`delayd node`: one running node."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer

from delayd.config.node import load
from delayd.errors import ExitCode, ShardsChangedError
from delayd.node.node import run_node
from delayd.runtime.logs import set_up_logs

log = structlog.get_logger()


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
    signal.signal(signal.SIGTERM, _end_at_once)
    try:
        code = asyncio.run(run_node(settings))
    except ShardsChangedError as changed:
        # A new process image: nothing of the node that has ended is left in it, whatever hung.
        log.info("node_begins_anew", node=settings.node, why=changed.message)
        told = [] if config is None else ["--config", str(config)]
        os.execv(sys.executable, [sys.executable, "-m", "delayd.commands.cli", "node", *told])
    raise typer.Exit(code)


def _end_at_once(*_: object) -> None:
    """End a node that has not begun to run: it leads nothing, and a wheel bears any end. Threads
    that wait for Kafka, or for shards to be opened, are not waited for."""
    # As a signal's default action would, which the kernel ignores for a container's first process.
    os._exit(ExitCode.FINE)
