"""`delayd dead`: list dead letters, show one, send them again."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from delayd.bus import Bus
from delayd.client.redrive_outcomes import Outcome, Plan, Word, redrive, try_out
from delayd.client.redriving import Redriver
from delayd.cluster.connect import open_bus
from delayd.cluster.dead_letters import Wanted, letters, newest, summary, wanted, whole
from delayd.cluster.request_limits import request_limits
from delayd.cluster.topic_checks import RECORD_MARGIN_BYTES
from delayd.cluster.topics import TopicNames, topic_names
from delayd.commands.dead.showing import (
    counted,
    line,
    outcome_line,
    page,
)
from delayd.commands.wording import plural
from delayd.config.cli_options import AsJson, Bootstrap, Config, Prefix, TimeoutS
from delayd.config.security import load_security
from delayd.errors import ConfigError, ExitCode
from delayd.request import RequestLimits
from delayd.request.letters import Letter
from delayd.request.reasons import RefusedError
from delayd.request.redrives import Correction, redrive_of_letter
from delayd.request.times import delay_ms_of, due_ms_of
from delayd.runtime.clock import SystemClock

READ_TIMEOUT_MS = 15_000
LIMIT_DEFAULT = 50
LIMIT_MAX = 10_000
"""Letters that a list keeps in memory, without their values."""

WAIT_S_DEFAULT = 30.0

app = typer.Typer(no_args_is_help=True, help="Dead letters: list them, show one, send them again.")

Source = Annotated[str, typer.Argument(help="Source of the letter, as its delayd-source says.")]
Sources = Annotated[
    list[str] | None, typer.Argument(metavar="[SOURCE]...", help="Sources of the letters.")
]
SourceOption = Annotated[
    list[str] | None, typer.Option("--source", help="Only of this source. Repeatable.")
]
Reasons = Annotated[
    list[str] | None, typer.Option("--reason", help="Only with this reason. Repeatable.")
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", "-t", help="Only for this target. Repeatable.")
]
Ids = Annotated[list[str] | None, typer.Option("--id", help="Only with this id. Repeatable.")]
Since = Annotated[
    str | None,
    typer.Option("--since", help="Only dead since: Unix ms, RFC 3339, or how long ago (2h)."),
]
Until = Annotated[str | None, typer.Option("--until", help="Only dead before: as --since.")]


@app.command("list")
def list_letters(
    bootstrap: Bootstrap,
    reason: Reasons = None,
    topic: Topics = None,
    id: Ids = None,
    source: SourceOption = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LIMIT_MAX, help="The newest so many.")
    ] = LIMIT_DEFAULT,
    prefix: Prefix = "delayd-",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the newest last.

    Example: delayd dead list --reason dead --topic orders --since 2h
    """
    which = wanted(SystemClock().wall_ms(), source, reason, topic, id, since, until)
    bus = open_bus(bootstrap, load_security(config).properties())
    found, reasons = newest(_letters(bus, topic_names(prefix), which), limit)
    total = reasons.total()
    if as_json:
        fields = {"matching": total, "reasons": reasons}
        typer.echo(json.dumps({"letters": [summary(each) for each in found], **fields}))
        return
    for each in found:
        typer.echo(line(each))
    shown = f"; the newest {len(found)} are shown" if len(found) < total else ""
    typer.echo(f"{plural(total, 'dead letter')}: {counted(reasons, 'none')}{shown}", err=True)


@app.command()
def show(
    source: Source,
    bootstrap: Bootstrap,
    value_to: Annotated[
        Path | None, typer.Option("--value-to", help="Write the value, byte for byte, to this.")
    ] = None,
    prefix: Prefix = "delayd-",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter with its record. Exit 1 if there is none.

    Example: delayd dead show 3/4711
    """
    which = wanted(SystemClock().wall_ms(), [source])
    bus = open_bus(bootstrap, load_security(config).properties())
    found = next(_letters(bus, topic_names(prefix), which), None)
    if found is not None and value_to is not None:
        _write(value_to, found)
    if as_json:
        typer.echo(json.dumps({"found": found is not None, **(whole(found) if found else {})}))
    else:
        typer.echo(f"there is no dead letter of {source}" if found is None else page(found))
    raise typer.Exit(ExitCode.PROBLEM if found is None else ExitCode.FINE)


@app.command("redrive")
def redrive_letters(
    bootstrap: Bootstrap,
    source: Sources = None,
    reason: Reasons = None,
    topic: Topics = None,
    id: Ids = None,
    since: Since = None,
    until: Until = None,
    to: Annotated[str | None, typer.Option("--to", help="Another target than they had.")] = None,
    in_: Annotated[str | None, typer.Option("--in", help="Deliver after this delay.")] = None,
    at: Annotated[str | None, typer.Option("--at", help="Deliver at this time.")] = None,
    without_id: Annotated[
        bool, typer.Option("--without-id", help="Send without its id what cannot keep it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")
    ] = False,
    timeout_s: TimeoutS = WAIT_S_DEFAULT,
    prefix: Prefix = "delayd-",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Send dead letters again, each at most once. Exit 1 if one of them is not sent.

    Example: delayd dead redrive --reason dead --topic orders --since 2h
    """
    which = wanted(SystemClock().wall_ms(), source, reason, topic, id, since, until)
    _refuse_everything(which)
    security, names = load_security(config), topic_names(prefix)
    bus = open_bus(bootstrap, security.properties())
    limits = request_limits(bus, names.frontier, READ_TIMEOUT_MS)
    plan = _plan(limits, _correction(to, in_, at, without_id))
    said = _Said(which.sources, as_json, dry_run)
    found = _letters(bus, names, which)
    complete = True
    if dry_run:
        for outcome in try_out(found, plan):
            said.take(outcome)
    else:
        # librdkafka's own bound may be below what the cluster takes.
        largest = {"producer.message.max.bytes": limits.record_bytes_max + RECORD_MARGIN_BYTES}
        with Redriver(
            bootstrap,
            security=security,
            buffer=names.buffer,
            receipts=names.receipts,
            overrides=largest,
        ) as redriver:
            timeout_ms = int(timeout_s * 1000)
            complete = redrive(
                found, plan, lambda some: redriver.redrive(some, timeout_ms), said.take
            )
    if complete:
        for missing in sorted(said.missing):
            said.take(Outcome(missing, Word.MISSING, "there is no such dead letter that is meant"))
    said.end(complete)
    fine = complete and set(said.words) <= {Word.REDRIVEN.value}
    raise typer.Exit(ExitCode.FINE if fine else ExitCode.PROBLEM)


def _refuse_everything(which: Wanted) -> None:
    if which.is_everything:
        raise ConfigError(
            "this would redrive every dead letter that there is",
            remedy="name sources, or narrow it by --reason, --topic, --id, --since or --until",
        )


class _Said:
    """Outcomes, printed as they arrive: as lines, or as the parts of one JSON object."""

    def __init__(self, sources: Iterable[str], as_json: bool, dry_run: bool) -> None:
        self.words: Counter[str] = Counter()
        self.missing = set(sources)
        """Sources that were named and have no outcome yet."""
        self._as_json = as_json
        self._dry_run = dry_run
        if as_json:
            typer.echo('{"letters": [', nl=False)

    def take(self, outcome: Outcome) -> None:
        """Print one outcome."""
        self.missing.discard(outcome.source)
        if self._as_json:
            comma = ", " if self.words else ""
            typer.echo(comma + json.dumps(outcome.to_json()), nl=False)
        else:
            typer.echo(outcome_line(outcome))
        self.words[outcome.word.value] += 1

    def end(self, complete: bool) -> None:
        """Print the number of outcomes."""
        if self._as_json:
            fields = {"outcomes": self.words, "dry_run": self._dry_run, "complete": complete}
            typer.echo(f"], {json.dumps(fields)[1:]}")
            return
        would = "; nothing was sent" if self._dry_run else ""
        more = "" if complete else "; stopped: is there a master? See `delayd status`"
        typer.echo(f"{counted(self.words, 'no dead letter is meant')}{would}{more}", err=True)


def _letters(bus: Bus, names: TopicNames, which: Wanted) -> Iterator[Letter]:
    return letters(bus, names.dead, which, SystemClock(), READ_TIMEOUT_MS)


def _correction(to: str | None, in_: str | None, at: str | None, without_id: bool) -> Correction:
    if in_ is not None and at is not None:
        raise ConfigError("--in and --at contradict each other", remedy="give one, or none")
    when = None
    try:
        if in_ is not None:
            delay_ms_of(in_)
            when = ("delayd-delay", in_)
        elif at is not None:
            due_ms_of(at)
            when = ("delayd-due", at)
    except RefusedError as error:
        raise ConfigError(error.detail) from error
    return Correction(to, when, without_id)


def _plan(limits: RequestLimits, correction: Correction) -> Plan:
    clock = SystemClock()
    return lambda letter: redrive_of_letter(letter, limits, clock.wall_ms(), correction)


def _write(path: Path, letter: Letter) -> None:
    try:
        path.write_bytes(letter.value or b"")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
