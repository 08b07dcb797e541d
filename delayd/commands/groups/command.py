"""What the commands about a group share: who is asked, what is printed, how they end."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import typer

from delayd.client.asking import refuse_beyond
from delayd.client.changing import Changer
from delayd.cluster.connect import open_bus
from delayd.cluster.pending_pages import PendingPages
from delayd.cluster.request_limits import request_limits_if_told
from delayd.cluster.topics import topic_names
from delayd.commands.groups.change import Change, Kind
from delayd.commands.groups.job import carry_out
from delayd.commands.groups.journal import UNKNOWN, Journal, listed_of
from delayd.commands.knowing import nodes_to_ask
from delayd.commands.messages import CONNECT_TIMEOUT_MS
from delayd.config.security import load_security
from delayd.errors import ConfigError, DelaydError, ExitCode
from delayd.runtime.clock import SystemClock
from delayd.runtime.temp_dirs import temporary_folder

TOLD_MS: Final = 5_000
"""Between two lines about the progress."""
NOT_DONE: Final = frozenset({UNKNOWN, "rejected"})
"""Answers by which a job has not reached its aim."""


class Where(NamedTuple):
    """The cluster, and who is asked what is pending."""

    bootstrap: str
    prefix: str
    config: Path | None
    etcd: str | None
    admin: str | None
    token: str | None
    cluster: str

    @property
    def name(self) -> str:
        """Of the cluster, for people."""
        return f"{self.prefix}* at {self.bootstrap}"


def change_group(
    where: Where,
    group: str,
    change: Change,
    file: Path | None,
    is_meant: bool,
    timeout_s: float,
    as_json: bool,
) -> NoReturn:
    """Carry a job out, or, unless `is_meant`, say what it is about. Ends the command: exit 1 unless
    each id has a verdict, and none was refused."""
    if not group:
        raise ConfigError("an empty name is no group", remedy="name the group with --group")
    if file is None and is_meant and change.kind is Kind.BY:
        raise ConfigError(
            "--by needs a journal: without it a second run would move everything once more",
            remedy="name a file with --job, which a second run goes on from",
        )
    # A dry run leaves a journal as it is, and makes none.
    kept = file if is_meant or _has_list(file, change, group, where.name) else None
    with _journal(kept, change, group, where.name) as journal:
        if not journal.is_listed:
            pages = _pages(where, group)
            journal.list_ids(listed_of(each, group) for each in pages.messages())
        stopped_by = None
        if is_meant:
            stopped_by = _ask(where, journal, timeout_s)
        report = _report(journal, group, is_meant)
    _show(report, stopped_by, as_json)
    raise typer.Exit(_exit_code(report) if is_meant else ExitCode.FINE)


def _has_list(file: Path | None, change: Change, group: str, cluster: str) -> bool:
    if file is None or not file.exists() or not file.stat().st_size:
        return False
    with Journal(file, change, group, cluster) as journal:
        return journal.is_listed


@contextmanager
def _journal(file: Path | None, change: Change, group: str, cluster: str) -> Iterator[Journal]:
    if file is not None:
        with Journal(file, change, group, cluster) as journal:
            yield journal
        return
    with (
        temporary_folder("delayd-group-") as folder,
        Journal(Path(folder) / "job", change, group, cluster) as journal,
    ):
        yield journal


def _pages(where: Where, group: str) -> PendingPages:
    security = load_security(where.config)
    nodes = nodes_to_ask(where.admin, where.etcd, where.cluster, security)
    return PendingPages(nodes, where.token, {"group": group})


def _ask(where: Where, journal: Journal, timeout_s: float) -> DelaydError | None:
    """Ask for each id without a verdict. RequestRefusedError, and nothing is sent, if the cluster
    would refuse the latest due time."""
    total = journal.left_count()
    names, security = topic_names(where.prefix), load_security(where.config)
    clock = SystemClock()
    if (latest_ms := journal.latest_ms()) is not None and total:
        bus = open_bus(where.bootstrap, security.properties())
        limits = request_limits_if_told(bus, names.frontier, CONNECT_TIMEOUT_MS)
        if limits is not None:
            refuse_beyond(journal.change.ask("id", latest_ms), limits, clock.wall_ms())
    told_ms = clock.monotonic_ms()

    def tell(done: int) -> None:
        nonlocal told_ms
        if clock.monotonic_ms() - told_ms >= TOLD_MS:
            told_ms = clock.monotonic_ms()
            typer.echo(f"{done:,} of {total:,}", err=True)

    with Changer(
        where.bootstrap, security=security, buffer=names.buffer, receipts=names.receipts
    ) as changer:
        send = partial(changer.change, timeout_ms=int(timeout_s * 1000))
        return carry_out(journal, send, tell) if total else None


def _report(journal: Journal, group: str, is_meant: bool) -> dict[str, Any]:
    targets = journal.targets()
    return {
        **journal.change.fields(),
        "group": group,
        "ids": sum(targets.values()),
        "targets": targets,
        "verdicts": journal.verdicts(),
        "open": journal.open_count(),
        "left": journal.left_count(),
        "dry_run": not is_meant,
    }


def _exit_code(report: dict[str, Any]) -> ExitCode:
    verdicts: Counter[str] = report["verdicts"]
    is_done = not report["open"] and NOT_DONE.isdisjoint(verdicts)
    return ExitCode.FINE if is_done else ExitCode.PROBLEM


def _show(report: dict[str, Any], stopped_by: DelaydError | None, as_json: bool) -> None:
    if stopped_by is not None:
        typer.echo(f"stopped: {stopped_by}", err=True)
    if as_json:
        typer.echo(json.dumps(report))
        return
    counts = report["targets"] if report["dry_run"] else report["verdicts"]
    for name, count in counts.items():
        typer.echo(f"{count:>14,}  {name}")
    total, left_count = report["ids"], report["left"]
    if report["dry_run"]:
        done = f", {total - left_count:,} of them done by this job" if left_count < total else ""
        said = f"pending in {report['group']} when listed{done}; nothing was sent: --yes does it"
        typer.echo(f"{total:>14,}  {said}", err=True)
        return
    left = f", {left_count:,} of them without an answer: run it again" if left_count else ""
    typer.echo(f"{total:>14,}  {report['op']}s asked in {report['group']}{left}", err=True)
