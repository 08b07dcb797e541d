"""`delayd move`."""

import json
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from delayd.cluster.connect import open_bus
from delayd.cluster.topics import load_settings
from delayd.commands.move.moving import Move, planned, run
from delayd.commands.move.old_cluster import OldCluster
from delayd.commands.move.showing import is_fine, moved_json, moved_lines
from delayd.commands.move.source import Source
from delayd.commands.terminal import stages
from delayd.config.cli_options import AsJson, Bootstrap, ClusterName, Config, Prefix
from delayd.config.security import load_security
from delayd.errors import ConfigError, ExitCode
from delayd.request.reasons import RefusedError
from delayd.request.times import due_ms_of
from delayd.runtime.clock import Clock, SystemClock
from delayd.wheel.stopped import locked, open_stopped
from replication.record import FrontierRecord
from replication.settings import AT_LEAST_ONCE

TIMEOUT_MS = 15_000
"""Of one answer of a broker."""


class Preference(Enum):
    """What to do with what is in doubt."""

    REFUSE = "refuse"
    AT_LEAST_ONCE = "at-least-once"


DataDir = Annotated[
    Path,
    typer.Argument(
        metavar="DATA_DIR",
        exists=True,
        file_okay=False,
        help="The data_dir of a node of the old cluster, which is stopped.",
    ),
]
FrontierFrom = Annotated[
    str | None,
    typer.Option(
        "--frontier-from",
        metavar="BOOTSTRAP",
        help="Kafka brokers of the old cluster, if they can be reached.",
    ),
]
FromConfig = Annotated[
    Path | None,
    typer.Option("--from-config", help="TOML file with the settings of the old cluster's Kafka."),
]
StoppedAt = Annotated[
    str | None,
    typer.Option(
        "--stopped-at",
        help="When the old cluster delivered last at the latest: Unix ms, or RFC 3339. "
        "Default: now, by this machine's clock. Without --frontier-from only.",
    ),
]
Prefer = Annotated[
    Preference,
    typer.Option(
        "--prefer",
        help="at-least-once: also move what may have been delivered or cancelled already.",
    ),
]
Mirrored = Annotated[
    bool,
    typer.Option(
        "--mirrored",
        help="The new Kafka has copies of the old targets under their names, as MirrorMaker 2 "
        "makes them: move what is not among them. Without --frontier-from only.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be moved; as without --yes.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it.")]
WaitS = Annotated[
    float,
    typer.Option("--timeout-s", min=0, help="How long to wait for the new cluster's master."),
]


def move(
    data_dir: DataDir,
    bootstrap: Bootstrap,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    frontier_from: FrontierFrom = None,
    from_config: FromConfig = None,
    stopped_at: StoppedAt = None,
    mirrored: Mirrored = False,
    prefer: Prefer = Preference.REFUSE,
    dry_run: DryRun = False,
    yes: Yes = False,
    timeout_s: WaitS = 60,
    as_json: AsJson = False,
) -> None:
    """Move the pending messages of an old cluster into a new one, each once.

    Reads the wheel of a stopped node; --bootstrap, --cluster and --prefix name the new cluster. If
    it is interrupted, the next run goes on. Exit 1 if not all of them are accepted there.

    Example: delayd move /var/lib/delayd -b new:9092 --frontier-from old:9092 --yes
    """
    if dry_run and yes:
        raise ConfigError("--dry-run and --yes contradict each other", remedy="choose one")
    if frontier_from is not None:
        _refuse_beside_frontier("--stopped-at", is_said=stopped_at is not None)
        _refuse_beside_frontier("--mirrored", is_said=mirrored)
    clock = SystemClock()
    stopped_ms = None if stopped_at is None else _moment(stopped_at)
    bus = open_bus(bootstrap, load_security(config).properties())
    record = load_settings(bus, cluster, prefix, TIMEOUT_MS).record
    _refuse_unfit(record, "the new cluster", "make one whose guarantee is exactly-once")
    with ExitStack() as stack:
        layout = stack.enter_context(locked(data_dir))
        source = Source(stack.enter_context(open_stopped(layout)))
        old = None
        if frontier_from is not None:
            old = stack.enter_context(_old_cluster(frontier_from, from_config, source))
        what = Move(
            bus=bus,
            record=record,
            old=old,
            stopped_ms=_stopped_ms(stopped_ms, source, clock),
            takes_doubles=prefer is Preference.AT_LEAST_ONCE,
            is_mirrored=mirrored,
            clock=clock,
            timeout_ms=TIMEOUT_MS,
        )
        tell = stack.enter_context(stages())
        moved = (
            run(what, source, tell, int(timeout_s * 1000)) if yes else planned(what, source, tell)
        )
    lines = [json.dumps(moved_json(moved))] if as_json else [*moved_lines(moved)]
    if not yes and not as_json:
        lines.append("nothing was written; add --yes")
    typer.echo("\n".join(lines))
    raise typer.Exit(ExitCode.FINE if is_fine(moved) else ExitCode.PROBLEM)


def _old_cluster(frontier_from: str, config: Path | None, source: Source) -> OldCluster:
    """Return the cluster whose frontier tells what is done. ConfigError if it has none to trust."""
    _refuse_unfit(source.known, "the old cluster", "leave --frontier-from out, and see the doubts")
    bus = open_bus(frontier_from, load_security(config).properties())
    return OldCluster(bus, source.known.settings, TIMEOUT_MS)


def _refuse_beside_frontier(option: str, *, is_said: bool) -> None:
    """Raise ConfigError if an option is said that means nothing beside --frontier-from."""
    if is_said:
        raise ConfigError(
            f"{option} says nothing beside --frontier-from: the frontier tells what is done",
            remedy="leave one of them out",
        )


def _stopped_ms(said_ms: int | None, source: Source, clock: Clock) -> int:
    """Return when the old cluster was stopped at the latest, now if nothing was said. Raise
    ConfigError for a time at which it was alive. All are Unix ms."""
    if said_ms is None:
        return clock.wall_ms()
    if said_ms < source.seen_ms:
        raise ConfigError(
            f"--stopped-at is {said_ms} ms, and by its wheel the old cluster was alive at "
            f"{source.seen_ms} ms",
            remedy="name the time at which the last node died, by a clock that is set by NTP",
        )
    return said_ms


def _moment(text: str) -> int:
    try:
        return due_ms_of(text)
    except RefusedError as error:
        raise ConfigError(
            f"--stopped-at {text!r} is no time", remedy="write it like 2026-01-31T23:59:59Z"
        ) from error


def _refuse_unfit(record: FrontierRecord, which: str, remedy: str) -> None:
    if record.settings.guarantee == AT_LEAST_ONCE:
        raise ConfigError(
            f"{which} delivers at least once: nobody can be fenced there, and nothing be "
            "written in a transaction",
            remedy=remedy,
        )
