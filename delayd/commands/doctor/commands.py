"""`delayd doctor`."""

import json
from contextlib import closing

import typer
from rich.console import Console

from delayd.cluster.connect import coordination_if_named, open_bus, open_raw_log
from delayd.commands.doctor.case import Means
from delayd.commands.doctor.examining import Examination, examine
from delayd.commands.doctor.finding import Severity
from delayd.commands.wording import plural
from delayd.config.cli_options import (
    AsJson,
    Bootstrap,
    ClusterName,
    Config,
    Etcd,
    Prefix,
    endpoints,
)
from delayd.config.security import load_security, read_toml
from delayd.runtime.clock import SystemClock

TIMEOUT_MS = 10_000

COLOURS = {Severity.CRITICAL: "red", Severity.WARNING: "yellow", Severity.ADVICE: "cyan"}


def doctor(
    bootstrap: Bootstrap,
    etcd: Etcd = None,
    cluster: ClusterName = "delayd",
    prefix: Prefix = "delayd-",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Look for what is wrong with the cluster, its Kafka, its etcd and its nodes.

    It changes nothing. Each finding has the command that mends it. Exit 1 if there is more than
    advice, 3 if Kafka or etcd does not answer.

    Example: delayd doctor --bootstrap 127.0.0.1:9092 --etcd http://127.0.0.1:2379
    """
    security = load_security(config)
    with (
        coordination_if_named(endpoints(etcd), cluster, security) as coordination,
        closing(open_raw_log(bootstrap, security.properties())) as raw,
    ):
        means = Means(
            bus=open_bus(bootstrap, security.properties()),
            raw=raw,
            coordination=coordination,
            bootstrap=bootstrap,
            etcd=endpoints(etcd),
            security=security,
            file={} if config is None else read_toml(config),
            clock=SystemClock(),
            timeout_ms=TIMEOUT_MS,
        )
        found = examine(means, cluster, prefix)
    if as_json:
        typer.echo(json.dumps(_fields(found)))
    else:
        _show(found)
    raise typer.Exit(found.exit_code)


def _fields(found: Examination) -> dict[str, object]:
    return {
        "healthy": found.is_well,
        "findings": [each.to_json() for each in found.findings],
        "rebuilding": None if found.rebuilding is None else found.rebuilding.to_json(),
    }


def _show(found: Examination) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for each in found.findings:
        console.print(f"[{COLOURS[each.severity]}]{each.severity:8}[/] {each.code}", end=": ")
        console.print(each.what, markup=False)
        console.print(f"         {each.mend}", markup=False)
    if (way := found.rebuilding) is not None:
        ways = [*["the log"] * way.from_log, *["another node"] * way.from_peer]
        console.print(f"A lost disk would be rebuilt from {' or '.join(ways) or 'nothing'}.")
    wrong = sum(each.is_wrong for each in found.findings)
    console.print(plural(wrong, "problem") if wrong else "Nothing is wrong.")
