"""`delayd audits`: the audits that the nodes keep, and the report of one."""

import json
import urllib.parse
from pathlib import Path
from typing import Annotated, Any

import typer

from delayd.cluster.audit_reports import content_of, kept_by
from delayd.commands.knowing import Admin, nodes_to_ask
from delayd.commands.wording import local_time, plural
from delayd.config.cli_options import AsJson, ClusterName, Config, Etcd, Token
from delayd.config.security import load_security
from delayd.errors import ConfigError, ExitCode
from delayd.runtime.visible import visible


def audits(
    id: Annotated[str | None, typer.Argument(help="Show this audit's report, as JSON.")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write its report as one page to this file.")
    ] = None,
    etcd: Etcd = None,
    admin: Admin = None,
    token: Token = None,
    cluster: ClusterName = "delayd",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List the last audits with their verdicts, or show the report of one.

    Example: delayd audits --etcd http://127.0.0.1:2379
    """
    if html is not None and id is None:
        raise ConfigError("--html writes the report of one audit", remedy="name it: list them")
    nodes = nodes_to_ask(admin, etcd, cluster, load_security(config))
    if id is None:
        _list(kept_by(nodes, token), as_json)
        return
    path = f"/v1/audits/{urllib.parse.quote(id, safe='')}{'' if html is None else '/page'}"
    content = content_of(nodes, token, path)
    if content is None:
        typer.echo(f"no node that answers has the audit {id}", err=True)
        raise typer.Exit(ExitCode.PROBLEM)
    if html is None:
        typer.echo(json.dumps(json.loads(content)))
        return
    try:
        html.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"the report cannot be written: {error}") from error


def _list(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"audits": found}))
        return
    if not found:
        typer.echo("no audit is known: `delayd audit` with --etcd makes one")
    for each in found:
        findings = ", ".join(f"{visible(fault)} {count}" for fault, count in each["found"].items())
        typer.echo(
            f"{local_time(each['made_ms'])}  {findings or 'ok'}, "
            f"{plural(each['messages'], 'message')}, "
            f"{each['compared']} of {plural(each['nodes'], 'node')} compared  {visible(each['id'])}"
        )
