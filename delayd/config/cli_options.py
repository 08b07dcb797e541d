"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", envvar="DELAYD_BOOTSTRAP", help="Kafka brokers, host:port,host:port."
    ),
]
Etcd = Annotated[
    str | None,
    typer.Option(
        "--etcd", envvar="DELAYD_ETCD", help="etcd endpoints as URLs, separated by commas."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="DELAYD_CONFIG",
        help="TOML file with the settings of Kafka and etcd, such as a node's own.",
    ),
]
ClusterName = Annotated[
    str, typer.Option("--cluster", envvar="DELAYD_CLUSTER", help="Name of the delayd cluster.")
]
Prefix = Annotated[
    str, typer.Option("--prefix", envvar="DELAYD_PREFIX", help="Prefix of delayd's topics.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Topic = Annotated[str, typer.Option("--topic", "-t", help="Target topic.")]
In = Annotated[str | None, typer.Option("--in", help="Delay: 250ms, 10s, 5m, 2h, 30d.")]
At = Annotated[str | None, typer.Option("--at", help="Due time: Unix ms, or RFC 3339 with offset.")]
MaxWait = Annotated[
    str, typer.Option("--max-wait", help="And so long after the first one at the latest: 30s, 5m.")
]
By = Annotated[
    str | None,
    typer.Option("--by", help="How much later than it is due now, or earlier: +10m, -1h."),
]
Key = Annotated[str | None, typer.Option("--key", "-k", help="Key of the delivered record.")]
Partition = Annotated[int | None, typer.Option("--partition", help="Target partition.")]
Late = Annotated[
    str | None,
    typer.Option("--late", help="How much later than due it is still worth it: 10s, 5m, 2h."),
]
Window = Annotated[
    str | None,
    typer.Option("--window", help="Spread it: it may go out so much later than due: 10s, 5m, 2h."),
]
Group = Annotated[
    str | None,
    typer.Option("--group", help="Name that it shares with others; needs an id."),
]
OfGroup = Annotated[
    str | None,
    typer.Option("--group", help="In place of an id: each id that is pending in this group."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Of a group: say how many are pending, and send nothing.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Of a group: do it.")]
JobFile = Annotated[
    Path | None,
    typer.Option("--job", help="Of a group: the journal, from which a second run goes on."),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="DELAYD_API_TOKEN",
        help="Token of the HTTP API, unless nodes let everybody read.",
    ),
]
Cron = Annotated[
    str | None,
    typer.Option("--cron", help="It recurs: '0 9 * * MON-FRI', six fields with seconds, @daily."),
]
Zone = Annotated[
    str | None,
    typer.Option(
        "--zone",
        help="Time zone of --cron (default: UTC), or of --at without offset: Europe/Berlin.",
    ),
]
Until = Annotated[
    str | None, typer.Option("--until", help="End of --cron: Unix ms, or RFC 3339 with offset.")
]
Catchup = Annotated[
    str | None,
    typer.Option("--catchup", help="Of --cron after an outage: once (default), or all missed."),
]
Receipts = Annotated[
    bool,
    typer.Option("--receipts", help="Have all its receipts written, scheduled and delivered too."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the verdict.")]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", min=0.1, help="How long to wait for the verdict.")
]


def endpoints(etcd: str | None) -> tuple[str, ...]:
    """Return the endpoints that the option names."""
    return tuple(part for part in (etcd or "").split(",") if part)
