"""`delayd console`: where the console is."""

import json
import webbrowser
from typing import Annotated
from urllib.parse import urlsplit

import typer

from delayd.cluster.admin_client import get, url_of
from delayd.cluster.connect import coordination_if_named
from delayd.cluster.lookup import admin_ports
from delayd.config.cli_options import AsJson, ClusterName, Config, Etcd, endpoints
from delayd.config.security import load_security
from delayd.errors import NodeUnreachableError


def console(
    etcd: Etcd = None,
    admin: Annotated[
        str | None, typer.Option("--admin", help="Admin port of a node, host:port, or its URL.")
    ] = None,
    cluster: ClusterName = "delayd",
    print_only: Annotated[
        bool, typer.Option("--print", help="Only print the address; open no browser.")
    ] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Open the console of the first node that answers, and print its address.

    Example: delayd console --etcd http://127.0.0.1:2379
    """
    named = endpoints(None if admin is not None else etcd)
    with coordination_if_named(named, cluster, load_security(config), must_answer=True) as found:
        nodes = admin_ports(found, admin)
    for node in nodes:
        answer = get(f"{url_of(node)}/")
        if answer is not None and answer.status == 200:
            break
    else:
        raise NodeUnreachableError(
            "no node shows its console", remedy="start one, or name one with --admin"
        )
    parts = urlsplit(url_of(node))
    # A browser has no use for the digest of a certificate.
    url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"
    typer.echo(json.dumps({"url": url}) if as_json else url)
    if not print_only and not as_json:
        webbrowser.open(url)
