"""The `delayd` command. A thin shell: every command is a call into the package.

A command's module is imported when the command runs, so that `delayd --help` and `delayd send` load
neither a node nor Spark. The table of commands therefore repeats the first sentence of each help.

Exit codes: 0 fine, 1 found a problem, 2 usage, 3 cannot reach Kafka or etcd. With --json, stdout
carries one JSON object and nothing else.
"""

import contextlib
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from delayd import __version__
from delayd.errors import DelaydError, ExitCode
from delayd.runtime import native


class Command(NamedTuple):
    """A command or a group of commands: its place, and its line in `delayd --help`."""

    module: str
    attribute: str
    help: str


COMMANDS: Final[Mapping[str, Command]] = {
    "audit": Command(
        "delayd.audit.commands",
        "audit",
        "Prove that nothing was lost, doubled, early or altered, and that all replicas agree.",
    ),
    "audits": Command(
        "delayd.commands.audits",
        "audits",
        "List the last audits with their verdicts, or show the report of one.",
    ),
    "bench": Command(
        "delayd.bench.commands",
        "bench",
        "Measure delayd on this machine, and the bare driver on the same brokers.",
    ),
    "send": Command("delayd.commands.messages", "send", "Schedule one message."),
    "cancel": Command(
        "delayd.commands.changes",
        "cancel",
        "Cancel what is pending under an id. With --wait, exit 1 if it was not cancelled.",
    ),
    "replace": Command(
        "delayd.commands.messages",
        "replace",
        "Schedule a message in place of what is pending under an id.",
    ),
    "debounce": Command(
        "delayd.commands.messages",
        "debounce",
        "Schedule a message of which only the last one counts.",
    ),
    "fire": Command(
        "delayd.commands.changes",
        "fire",
        "Deliver what is pending under an id now, once. With --wait, exit 1 if it was too late.",
    ),
    "reschedule": Command(
        "delayd.commands.changes",
        "reschedule",
        "Give what is pending under an id another due time. With --wait, exit 1 if it was too "
        "late.",
    ),
    "pause": Command(
        "delayd.commands.pauses",
        "pause",
        "Deliver nothing to a target for a while. What becomes due waits, in its order.",
    ),
    "resume": Command(
        "delayd.commands.pauses",
        "resume",
        "End the pause of a target. What has waited goes out in its order, at a rate.",
    ),
    "limits": Command(
        "delayd.commands.limits",
        "app",
        "Limit how many messages are pending for a target topic, and how many a second are taken.",
    ),
    "shards": Command(
        "delayd.commands.shards",
        "app",
        "Give a running cluster more shards, or fewer, for more masters.",
    ),
    "show": Command(
        "delayd.commands.knowing",
        "show",
        "Show the messages that are known under an id. Exit 1 if there are none.",
    ),
    "pending": Command(
        "delayd.commands.knowing",
        "pending",
        "Count the pending messages by hour or by target topic.",
    ),
    "list": Command(
        "delayd.commands.listing",
        "list_pending",
        "List pending messages: of a group, for a target, by their ids.",
    ),
    "import": Command(
        "delayd.commands.importing.command",
        "import_",
        "Schedule what another system holds, each row with its verdict. Exit 1 if a row was "
        "refused.",
    ),
    "move": Command(
        "delayd.commands.move.commands",
        "move",
        "Move the pending messages of an old cluster into a new one, each once.",
    ),
    "node": Command("delayd.commands.node", "node", "Run a node until SIGTERM."),
    "status": Command(
        "delayd.commands.cluster",
        "status",
        "Show the cluster: frontier, cursor, master, failing targets and nodes.",
    ),
    "console": Command(
        "delayd.commands.console",
        "console",
        "Open the console of the first node that answers, and print its address.",
    ),
    "top": Command(
        "delayd.commands.top",
        "top",
        "Show the cluster live in the terminal: leader, rates, nodes, failing targets. Ctrl-C ends "
        "it.",
    ),
    "doctor": Command(
        "delayd.commands.doctor.commands",
        "doctor",
        "Look for what is wrong with the cluster, its Kafka, its etcd and its nodes.",
    ),
    "topics": Command("delayd.commands.cluster", "topics_app", "delayd's own topics."),
    "backup": Command(
        "delayd.commands.backup.commands",
        "backup",
        "Back up the pending messages of a running cluster, with their payloads.",
    ),
    "restore": Command(
        "delayd.commands.backup.commands",
        "restore",
        "Make a verified wheel from a backup, in the data directory of a stopped node.",
    ),
    "recover": Command(
        "delayd.commands.recover.commands",
        "app",
        "Recover a cluster whose Kafka has lost something.",
    ),
    "plan": Command(
        "delayd.commands.plan.command",
        "plan",
        "Work out what a cluster takes for a rate and a delay. Exit 1 if something does not fit.",
    ),
    "upgrade": Command(
        "delayd.commands.upgrade", "app", "Switch a running cluster to what newer nodes know."
    ),
    "dead": Command(
        "delayd.commands.dead.commands",
        "app",
        "Dead letters: list them, show one, send them again.",
    ),
    "dev": Command(
        "delayd.dev.commands",
        "app",
        "A local cluster: real Kafka, real etcd and delayd nodes as processes of this machine.",
    ),
    "wheel": Command(
        "delayd.commands.examine.commands",
        "app",
        "The wheel of a stopped node: look at it, verify it, compare it.",
    ),
}


class LazyGroup(TyperGroup):
    """The root command. Its `commands` are placeholders with a name and a line of help."""

    def __init__(self, **attributes: Any) -> None:
        placeholders = {name: TyperCommand(name, help=each.help) for name, each in COMMANDS.items()}
        super().__init__(**{**attributes, "commands": placeholders})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that the arguments name."""
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, placeholder if name is None else load_command(name), rest


def load_command(name: str) -> TyperCommand | TyperGroup:
    """Import one of `COMMANDS`."""
    module, attribute, _ = COMMANDS[name]
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        return typer.main.get_group(found)
    alone = typer.Typer(add_completion=False)
    alone.command(name)(found)
    command = typer.main.get_command(alone)
    assert isinstance(command, TyperCommand), f"{name} is one function"
    return command


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Delayed messages for Kafka: exactly once, never early, through the death of any node.",
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Delayed messages for Kafka: exactly once, never early, through the death of any node."""
    from delayd.runtime.logs import set_up_logs  # 0.1 s that `--help` does not need

    set_up_logs(as_json=False)
    if version:
        typer.echo(_version())
        raise typer.Exit


def _version() -> str:
    return f"delayd {__version__} ({native.described})"


def main() -> None:
    """Run `delayd`; an environment failure becomes one line on stderr and an exit code."""
    try:
        if sys.argv[1:] == ["--version"]:
            # Typer takes pydantic along, and the logs rich: three times what the answer costs.
            print(_version())
            return
        app()
    except DelaydError as error:
        line = f"delayd: {error} [{error.code}]"
        print(line, file=sys.stderr)
        sys.stdout.flush()
        _leave_word(line)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.PROBLEM)


def _leave_word(line: str) -> None:
    """Write why the process ends into the file that its supervisor reads, if one is named."""
    if path := os.environ.get("DELAYD_TERMINATION_LOG"):
        with contextlib.suppress(OSError):
            Path(path).write_text(line)


if __name__ == "__main__":
    main()
