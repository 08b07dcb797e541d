"""`delayd recover frontier`."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from delayd.commands.terminal import show, stages
from delayd.config.cli_options import AsJson
from delayd.errors import ConfigError, ExitCode
from delayd.request.reasons import RefusedError
from delayd.request.times import due_ms_of
from delayd.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from delayd.commands.recover.frontier.recovering import Recovery
    from delayd.config.node import NodeConfig

TIMEOUT_MS = 30_000
"""Of one answer of a broker."""

WATCH_S = 3.0
"""A master that has something to deliver takes many steps meanwhile."""


class Preference(Enum):
    """What to do with what is in doubt."""

    REFUSE = "refuse"
    AT_LEAST_ONCE = "at-least-once"


NodeFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="TOML file of the node, as for `delayd node`; every key is also DELAYD_<KEY>.",
    ),
]
StoppedAt = Annotated[
    str | None,
    typer.Option(
        "--stopped-at",
        help="When the last node stopped at the latest: Unix ms, or RFC 3339. Default: now.",
    ),
]
Shards = Annotated[
    int | None,
    typer.Option(
        "--shards",
        min=1,
        help="How many shards the cluster had at last, if neither the topic nor the wheel can "
        "tell.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be written; as without --yes.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it.")]


def frontier(
    config: NodeFile = None,
    stopped_at: StoppedAt = None,
    prefer: Annotated[
        Preference,
        typer.Option(
            "--prefer",
            help="at-least-once: also go on while something is in doubt, and deliver that.",
        ),
    ] = Preference.REFUSE,
    shards: Shards = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Write a new frontier where the frontier topic is lost: deleted, emptied or cut.

    Takes a stopped node's own configuration: its data_dir, brokers, etcd and cluster key. All nodes
    must be stopped. Works out from the wheel, the buffer, the targets and the dead letters what was
    delivered, and refuses while anything is in doubt. Without --yes it only says what it would do.
    If it is interrupted, run it again. Exit 1 if something is in doubt.

    Example: delayd recover frontier --config /etc/delayd/node.toml --yes
    """
    if dry_run and yes:
        raise ConfigError("--dry-run and --yes contradict each other", remedy="choose one")
    # `delayd recover --help` needs neither a driver nor a wheel.
    from delayd.commands.move.source import Source
    from delayd.commands.recover.frontier.recovering import planned, run
    from delayd.commands.recover.frontier.showing import is_fine, recovered_json, recovered_lines
    from delayd.config.cluster_key import check_key
    from delayd.config.node import load
    from delayd.wheel.stopped import locked, open_stopped

    node, clock = load(config), SystemClock()
    stopped_ms = clock.wall_ms() if stopped_at is None else _moment(stopped_at)
    key = node.cluster_key.get_secret_value()
    with ExitStack() as stack:
        recovery = stack.enter_context(_recovery(node, stopped_ms, prefer, shards, clock))
        layout = stack.enter_context(locked(node.data_dir))
        source = Source(stack.enter_context(open_stopped(layout)))
        check_key(key, source.known.settings)
        if stopped_ms < source.known.now_ms:
            raise ConfigError(
                f"--stopped-at is {stopped_ms} ms, and this node saw a step at "
                f"{source.known.now_ms} ms",
                remedy="name a time at which no node was running any more",
            )
        tell = stack.enter_context(stages())
        recovered = run(recovery, source, tell) if yes else planned(recovery, source, tell)
    show(as_json, recovered_json(recovered), recovered_lines(recovered))
    if not yes and not as_json and recovered.is_lost:
        typer.echo("nothing was written; add --yes")
    raise typer.Exit(ExitCode.FINE if is_fine(recovered) else ExitCode.PROBLEM)


@contextmanager
def _recovery(
    node: "NodeConfig", stopped_ms: int, prefer: Preference, shards: int | None, clock: Clock
) -> "Iterator[Recovery]":
    """Yield what is to be recovered, with connections to its brokers and etcd."""
    from delayd.cluster.connect import open_bus, open_coordination
    from delayd.commands.recover.frontier.recovering import Recovery
    from delayd.config.cluster_key import proof_key

    with closing(open_coordination(node.etcd, node.cluster, node.security)) as etcd:
        yield Recovery(
            bus=open_bus(node.bootstrap, node.security.properties(), driver=node.driver),
            coordination=etcd,
            cluster=node.cluster,
            prefix=node.prefix,
            proof_key=proof_key(node.cluster_key.get_secret_value()),
            stopped_ms=stopped_ms,
            takes_doubles=prefer is Preference.AT_LEAST_ONCE,
            shards=shards,
            clock=clock,
            timeout_ms=TIMEOUT_MS,
            watch_s=WATCH_S,
        )


def _moment(text: str) -> int:
    try:
        return due_ms_of(text)
    except RefusedError as error:
        raise ConfigError(
            f"--stopped-at {text!r} is no time", remedy="write it like 2026-01-31T23:59:59Z"
        ) from error
