"""`delayd import`: see the package."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import typer

from delayd.client.changing import Changer
from delayd.cluster.connect import open_bus
from delayd.cluster.request_limits import request_limits_if_told
from delayd.cluster.topic_checks import RECORD_MARGIN_BYTES
from delayd.cluster.topics import topic_names
from delayd.commands.importing.job import (
    FINE,
    MALFORMED,
    Import,
    Requests,
    Source,
    look,
    refuse_wrong_mapping,
)
from delayd.commands.importing.journal import About, Journal
from delayd.commands.importing.mapping import mapping_of
from delayd.commands.importing.sources import Given, source_of
from delayd.commands.messages import CONNECT_TIMEOUT_MS, WAIT_S_DEFAULT
from delayd.commands.wording import moment, plural
from delayd.config.cli_options import AsJson, Bootstrap, Config, Prefix, TimeoutS
from delayd.config.security import Security, load_security
from delayd.errors import ConfigError, DelaydError, ExitCode
from delayd.request import RequestLimits
from delayd.runtime.clock import SystemClock

PROBLEMS_MAX: Final = 20
"""Printed; the rest is counted."""
TOLD_MS: Final = 5_000
"""Between two lines about the progress."""

FromBootstrap: TypeAlias = Annotated[
    str | None,
    typer.Option("--from-bootstrap", help="Brokers of the source's topic, if they are others."),
]
FromConfig: TypeAlias = Annotated[
    Path | None,
    typer.Option("--from-config", help="TOML file with the settings of those brokers."),
]
FromUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--from-url",
        envvar="DELAYD_FROM_URL",
        help="Where zset:, celery: and rabbitmq: are: redis://HOST:PORT/DB, amqp://...",
    ),
]
Payload: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--payload",
        help="Of zset: a hash with a field for each member, or keys like job:{member}.",
    ),
]
Ttl: TypeAlias = Annotated[
    str | None,
    typer.Option("--ttl", help="Of rabbitmq: the x-message-ttl of the queue, like 15m."),
]
WorkersStopped: TypeAlias = Annotated[
    bool, typer.Option("--workers-stopped", help="Of celery: do not look whether workers run.")
]


def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="A file of JSON lines (.jsonl) or CSV, a topic (kafka:NAME), of Redis a sorted "
            "set (zset:KEY) or a queue of Celery (celery:QUEUE), or a queue of RabbitMQ "
            "(rabbitmq:QUEUE)."
        ),
    ],
    bootstrap: Bootstrap,
    mapping: Annotated[
        Path, typer.Option("--mapping", "-m", help="TOML file: how a row becomes a request.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Make all requests, say what they are, send none.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an earlier run ended.")
    ] = False,
    job: Annotated[
        Path | None,
        typer.Option("--job", help="The journal of the import. Default: MAPPING.job."),
    ] = None,
    from_bootstrap: FromBootstrap = None,
    from_config: FromConfig = None,
    from_url: FromUrl = None,
    payload: Payload = None,
    ttl: Ttl = None,
    workers_stopped: WorkersStopped = False,
    timeout_s: TimeoutS = WAIT_S_DEFAULT,
    prefix: Prefix = "delayd-",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Schedule what another system holds, each row with its verdict. Exit 1 if a row was refused.

    Example: delayd import jobs.jsonl --mapping jobs.toml --dry-run
    """
    # The settings of one Kafka hold passwords that are no business of another.
    its_config = from_config if from_bootstrap else config
    given = Given(
        *(from_bootstrap or bootstrap, its_config, from_url, payload, ttl, workers_stopped),
        timeout_s=timeout_s,
    )
    where = _Where(bootstrap, prefix, load_security(config), timeout_s)
    with closing(source_of(source, given)) as rows:
        requests = _requests(where, mapping)
        if dry_run:
            seen = look(rows.rows(None), requests, _Problems())
            _show_look(rows.name, seen.fields(), as_json)
            raise typer.Exit(ExitCode.PROBLEM if seen.malformed else ExitCode.FINE)
        path = job or mapping.with_suffix(".job")
        _refuse_wrong_resume(path, resume)
        raise typer.Exit(_import(rows, where, requests, _digest(mapping, given), path, as_json))


def _import(
    rows: Source, where: "_Where", requests: Requests, digest: str, path: Path, as_json: bool
) -> ExitCode:
    if rows.disarms and not path.exists():
        refuse_wrong_mapping(rows, requests)
    with Journal(path) as journal:
        known = None if journal.about is None else journal.about.identity
        about = About(where.name, rows.name, rows.identity(known), digest)
        journal.begin(about, rows.start, requests.now_ms)
        requests.begun_ms = journal.begun_ms
        _disarm(rows, journal)
        run = Import(journal, rows, requests, _Problems(), _teller())
        stopped_by = _carry_out(run, where, requests.limits)
        report = {
            "source": rows.name,
            "rows": journal.rows,
            "verdicts": journal.verdicts,
            "complete": journal.is_done,
        }
    kept = rows.kept()
    if kept is not None:
        report["kept"] = kept._asdict()
    _show(report, stopped_by, path, as_json)
    is_whole = kept is None or (kept.messages == journal.rows and not kept.rest)
    is_fine = report["complete"] and is_whole and {*journal.verdicts} <= {FINE}
    return ExitCode.FINE if is_fine else ExitCode.PROBLEM


def _digest(mapping: Path, given: Given) -> str:
    """Return by what the mapping is known again, and all else that says what a row is."""
    more = [
        f"{name}={each}" for name, each in (("payload", given.payload), ("ttl", given.ttl)) if each
    ]
    content = mapping.read_bytes() + "".join(f"\0{each}" for each in more).encode()
    return hashlib.sha256(content).hexdigest()


def _disarm(rows: Source, journal: Journal) -> None:
    """Take the messages, unless an earlier run has. The journal says so before one is sent."""
    if not rows.disarms:
        return
    if journal.position is None:
        journal.note(rows.disarm(), Counter())
    if (kept := rows.kept()) is not None:
        typer.echo(f"taken: {kept.messages:,} messages, kept in {kept.where}", err=True)


class _Where(NamedTuple):
    """The cluster that gets the messages."""

    bootstrap: str
    prefix: str
    security: Security
    timeout_s: float

    @property
    def name(self) -> str:
        return f"{self.prefix}* at {self.bootstrap}"


def _requests(where: _Where, mapping: Path) -> Requests:
    names = topic_names(where.prefix)
    made = mapping_of(mapping)
    bus = open_bus(where.bootstrap, where.security.properties())
    limits = request_limits_if_told(bus, names.frontier, CONNECT_TIMEOUT_MS)
    return Requests(made, names.buffer, limits, SystemClock().wall_ms())


def _carry_out(run: Import, where: _Where, limits: RequestLimits | None) -> DelaydError | None:
    names = topic_names(where.prefix)
    # librdkafka's own bound may be below what the cluster takes.
    largest: dict[str, Any] = {}
    if limits is not None:
        largest = {"producer.message.max.bytes": limits.record_bytes_max + RECORD_MARGIN_BYTES}
    with Changer(
        where.bootstrap,
        security=where.security,
        buffer=names.buffer,
        receipts=names.receipts,
        overrides=largest,
    ) as changer:
        return run.run(partial(changer.change, timeout_ms=int(where.timeout_s * 1000)))


def _refuse_wrong_resume(path: Path, resume: bool) -> None:
    if resume and not path.exists():
        raise ConfigError(
            f"there is no journal {path} to go on from",
            remedy="leave --resume out, or name the journal with --job",
        )
    if not resume and path.exists():
        raise ConfigError(
            f"{path} is the journal of an import that was begun",
            remedy="go on with --resume, or name another file with --job",
        )


class _Problems:
    """Prints the first problems of rows."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, name: str, why: str) -> None:
        self._count += 1
        if self._count <= PROBLEMS_MAX:
            # A row may hold what a terminal would obey.
            said = "".join(each if each.isprintable() else "?" for each in why)
            typer.echo(f"{name}: {said}", err=True)
        elif self._count == PROBLEMS_MAX + 1:
            typer.echo("... and more", err=True)


def _teller() -> Callable[[int], None]:
    clock = SystemClock()
    told_ms = clock.monotonic_ms()

    def tell(rows: int) -> None:
        nonlocal told_ms
        if clock.monotonic_ms() - told_ms >= TOLD_MS:
            told_ms = clock.monotonic_ms()
            typer.echo(f"{rows:,} rows", err=True)

    return tell


def _show_look(source: str, seen: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"source": source, **seen, "dry_run": True}))
        return
    for topic, count in sorted(seen["targets"].items()):
        typer.echo(f"{count:>14,}  {topic}")
    if seen["malformed"]:
        typer.echo(f"{seen['malformed']:>14,}  {MALFORMED}")
    said = [f"in {source}; nothing was sent"]
    if seen["first_ms"] is not None:
        said.append(f"due from {moment(seen['first_ms'])} to {moment(seen['last_ms'])}")
    if seen["overdue"]:
        said.append(f"{seen['overdue']:,} of them already: they are delivered at once")
    typer.echo(f"{seen['rows']:>14,}  {'; '.join(said)}", err=True)


def _show(
    report: dict[str, Any], stopped_by: DelaydError | None, journal: Path, as_json: bool
) -> None:
    if stopped_by is not None:
        typer.echo(f"stopped: {stopped_by}", err=True)
    if as_json:
        typer.echo(json.dumps({**report, "dry_run": False}))
        return
    for name, count in sorted(report["verdicts"].items()):
        typer.echo(f"{count:>14,}  {name}")
    left = "" if report["complete"] else f"; not all: --resume --job {journal} goes on"
    typer.echo(f"{plural(report['rows'], 'row')} of {report['source']}{left}", err=True)
    if (kept := report.get("kept")) is not None and report["complete"]:
        is_whole = kept["messages"] == report["rows"]
        equal = "as many are" if is_whole else f"{kept['messages']:,} are, which is not as many;"
        end = "remove it when you need it no more" if is_whole else "somebody changed it"
        if kept["rest"]:
            typer.echo(f"{kept['rest']} are in {report['source']} again: import it again", err=True)
        typer.echo(f"{equal} kept in {kept['where']}: {end}", err=True)
