"""`delayd backup` and `delayd restore`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from delayd.commands.backup.keeping import (
    Removed,
    backups_in,
    chosen,
    remove,
    to_remove,
)
from delayd.commands.backup.keeping import verify as verify_all
from delayd.commands.backup.manifest import Manifest, names_in_future, names_of, owner_of, told_at
from delayd.commands.backup.showing import (
    counts,
    listed_json,
    listed_lines,
    restored_json,
    restored_lines,
    saved_json,
    saved_lines,
    verified_json,
    verified_lines,
)
from delayd.commands.backup.stores import Store, open_store
from delayd.commands.terminal import show, stages
from delayd.config.cli_options import AsJson
from delayd.errors import BackupError, ConfigError, ExitCode
from delayd.request.reasons import RefusedError
from delayd.request.times import due_ms_of

if TYPE_CHECKING:
    from delayd.config.node import NodeConfig

SPARE_BYTES = 256 * 1024 * 1024
"""What a node wants to have free (`disk_free_min_bytes`), where its configuration is not known."""

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="A directory that is there, or a URL such as s3://bucket/delayd."
    ),
]
NodeFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="DELAYD_CONFIG",
        help="A node's TOML file; every key is also DELAYD_<KEY>. data_dir does not matter.",
    ),
]


def backup(
    target: Target,
    config: NodeFile = None,
    donor: Annotated[
        str | None, typer.Option("--from", metavar="NODE", help="The only node to copy from.")
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="Then remove all but the newest N backups; needs --yes."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove what --keep names.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Back nothing up: read all backups and compare them.")
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="Back nothing up: list the backups that are there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Back up the pending messages of a running cluster, with their payloads.

    Copies what is new since the last backup, from a follower rather than from the master. A run
    that is interrupted makes no backup, and the next one goes on. Exit 1 if --verify finds damage.

    Example: delayd backup /mnt/backups --config /etc/delayd/node.toml --keep 7 --yes
    """
    if (verify or list_) and (keep is not None or donor is not None or (verify and list_)):
        raise ConfigError("--verify and --list stand alone: give one of them, and nothing to do")
    store = open_store(target)
    if (list_ or verify) and owner_of(store) is None:
        raise BackupError(f"{target} holds no backups", remedy="name the target of a backup")
    if list_:
        listed = backups_in(store)
        _warn_of_clocks(store)
        show(as_json, listed_json(listed, _now_ms()), listed_lines(listed))
        return
    if verify:
        with stages() as tell:
            found = verify_all(store, tell)
        show(as_json, verified_json(found), verified_lines(found))
        is_whole = verified_json(found)["ok"]
        raise typer.Exit(ExitCode.FINE if is_whole else ExitCode.PROBLEM)
    with store.locked():
        _back_up(store, config, donor, keep, yes, as_json)


def _back_up(
    store: Store, config: Path | None, donor: str | None, keep: int | None, yes: bool, as_json: bool
) -> None:
    # Only a backup that is made needs a driver, etcd and a node's configuration.
    from delayd.commands.backup.donating import back_up, connected
    from delayd.config.node import load
    from delayd.runtime.clock import SystemClock

    with connected(load(config, Path()), SystemClock()) as cluster, stages() as tell:
        saved = back_up(store, cluster, tell, _say, donor)
    _warn_of_clocks(store)
    removed: Removed | None = None
    if keep is not None:
        found = to_remove(store, keep, saved.name)
        what = (
            f"{len(found.backups)} older backups, and {len(found.packs)} packs that no other needs"
        )
        if yes:
            _say(f"removes {what}")
            remove(store, found)
            removed = found
        else:
            _say(f"would remove {what}; add --yes")
    show(as_json, saved_json(saved, removed), saved_lines(saved))


def restore(
    target: Target,
    into: Annotated[
        Path,
        typer.Option("--into", metavar="DIR", help="The empty data_dir of a stopped node."),
    ],
    at: Annotated[
        str | None,
        typer.Option(help="The newest backup made by then: Unix ms, or RFC 3339. Default: newest."),
    ] = None,
    config: NodeFile = None,
    without_kafka: Annotated[
        bool,
        typer.Option("--without-kafka", help="Do not compare with the cluster; needs no --config."),
    ] = False,
    behind_the_log: Annotated[
        bool,
        typer.Option(
            "--behind-the-log", help="Make a wheel that no node uses, as the buffer was trimmed."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a verified wheel from a backup, in the data directory of a stopped node.

    The node then reads the buffer from the backup's checkpoint on. One node is enough: the others
    copy its wheel when they start. Refuses a directory with a wheel, another cluster's backup, and
    one that the buffer does not reach back to. Without --yes it only says what it would do.

    Example: delayd restore /mnt/backups --into /var/lib/delayd -c /etc/delayd/node.toml --yes
    """
    # Only a restore needs these.
    from delayd.commands.backup import restoring
    from delayd.runtime.clock import SystemClock

    store = open_store(target)
    name, manifest, passed_over = chosen(store, None if at is None else _time_ms(at))
    _warn_of_clocks(store)
    for line in passed_over:
        _say(f"passes over the newer backup {line}")
    node = None if without_kafka else _node_of(config, into)
    if node is not None:
        _compare_with_cluster(manifest, node, behind_the_log)
    made = f"of {told_at(manifest.made_ms)}, from {manifest.about['node']}"
    begun = f"the wheel {made}: {counts(manifest)}"
    if not yes:
        restoring.refuse_full(into)
        typer.echo(f"would restore into {into} {begun}; add --yes")
        return
    _say(f"restores into {into} {begun}")
    spare_bytes = SPARE_BYTES if node is None else node.disk_free_min_bytes
    with stages() as tell:
        restored = restoring.restore(
            store, name, manifest, into, SystemClock(), tell, spare_bytes=spare_bytes
        )
    as_object = restored_json(name, manifest, str(into), restored)
    show(as_json, as_object, restored_lines(name, manifest, str(into)))


def _node_of(config: Path | None, into: Path) -> "NodeConfig":
    """Return the settings of the node that a wheel is restored for. Only a restore needs these."""
    from delayd.config.node import load

    return load(config, into)


def _compare_with_cluster(manifest: Manifest, node: "NodeConfig", behind_the_log: bool) -> None:
    """Refuse a backup of another cluster than this node's, or one that its buffer does not reach
    back to; unless that is wanted, when it is said. Raises as `restoring` does."""
    from delayd.cluster.connect import open_bus
    from delayd.cluster.topics import load_settings
    from delayd.commands.backup import restoring

    timeout_ms = int(node.connect_timeout_s * 1000)
    bus = open_bus(node.bootstrap, node.security.properties(), driver=node.driver)
    settings = load_settings(bus, node.cluster, node.prefix, timeout_ms).record.settings
    restoring.refuse_other_cluster(manifest, settings)
    for line in restoring.refuse_trimmed(
        manifest, settings, bus, timeout_ms, is_told=behind_the_log
    ):
        _say(f"no node will use this wheel: {line}")


def _time_ms(text: str) -> int:
    try:
        return due_ms_of(text)
    except RefusedError as error:
        raise ConfigError(f"--at {text!r} is not a time such as 2026-01-31T23:59:59Z") from error


def _now_ms() -> int:
    from delayd.runtime.clock import SystemClock

    return SystemClock().wall_ms()


def _warn_of_clocks(store: Store) -> None:
    for name in names_in_future(names_of(store), _now_ms()):
        _say(
            f"warning: backup {name} lies in the future: the clock of the host that made it was "
            "wrong, or this one's is. What it holds tells its age, but --at goes by the clock"
        )


def _say(line: str) -> None:
    """Tell what is about to be done; stdout is for the result."""
    typer.echo(line, err=True)
