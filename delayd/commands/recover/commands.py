"""The group `delayd recover`."""

import typer

from delayd.commands.recover.frontier.commands import frontier
from delayd.commands.recover.marker.commands import marker

app = typer.Typer(no_args_is_help=True, help="Recover a cluster whose Kafka has lost something.")


@app.callback()
def recover() -> None:
    """Recover a cluster whose Kafka has lost something. Without --yes nothing is written."""


app.command("frontier")(frontier)
app.command("marker")(marker)
