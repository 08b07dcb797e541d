"""The local delayd nodes: their configuration file, command line, and what they say of themselves.

Not here: what a node's settings mean (delayd.config.node), what it answers
(delayd.node.monitoring).
"""

import json
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delayd.cluster.admin_client import get
from delayd.config.api_tokens import Scope, digest_of
from delayd.config.security import Security
from delayd.dev.parts import Kind, Part, State
from delayd.dev.ports import LOOPBACK
from delayd.runtime.virtual_time import VARIABLE

CLUSTER_NAME = "dev"
NODE_VARIABLES = frozenset(
    f"DELAYD_{key}"
    for key in (
        *("CLUSTER", "NODE", "PREFIX", "BOOTSTRAP", "ETCD"),
        *("CLUSTER_KEY", "CLUSTER_KEY_FILE", "DATA_DIR", "ADMIN_HOST", "ADMIN_PORT"),
        *("ADMIN_ADVERTISED", "API_TOKENS_FILE", "API_ANONYMOUS_READS", "API_REQUESTS_PER_S"),
        VARIABLE.removeprefix("DELAYD_"),
        *(key.upper() for key in Security.model_fields),
    )
)
"""Variables that a node's environment must not hold: they override the file written here."""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What a node's admin server said of the node's own part in the cluster."""

    ready: bool
    is_delivering: bool
    """As the master."""
    term: int


def plan_node(
    directory: Path,
    number: int,
    *,
    port: int,
    bootstrap: str,
    etcd_url: str,
    cluster_key: str,
    settings: Mapping[str, object],
    env: Mapping[str, str] | None = None,
    module: str = "delayd.commands.cli",
) -> Part:
    """Write the node's configuration file, and return how to start it. `module`: takes the command
    line."""
    name = f"node-{number}"
    data = directory / "data" / name
    file = directory / "config" / f"{name}.toml"
    document: dict[str, object] = {
        "cluster": CLUSTER_NAME,
        "node": name,
        "bootstrap": bootstrap,
        "etcd": [etcd_url],
        "cluster_key": cluster_key,
        "data_dir": str(data),
        "admin_host": LOOPBACK,
        "admin_port": port,
        "api_anonymous_reads": True,
        **settings,
    }
    if (tokens := api_tokens_file(directory)).exists():
        document = {"api_tokens_file": str(tokens), **document}
    file.write_text("".join(f"{key} = {toml_value(value)}\n" for key, value in document.items()))
    return Part(
        kind=Kind.NODE,
        name=name,
        command=(sys.executable, "-m", module, "node", "--config", str(file)),
        env=env or {},
        address=f"http://{LOOPBACK}:{port}",
        data=data,
        log=directory / "logs" / f"{name}.log",
    )


def virtual_time_file(directory: Path) -> Path:
    """Return the file of a virtual cluster that says what time it is in it. It lies with the data:
    what was stored by it is worth nothing without."""
    return directory / "data" / "virtual-time.json"


def virtual_variables(directory: Path) -> dict[str, str]:
    """Return what a process of the cluster in this folder needs in its environment to live in the
    time of it; nothing if that is real."""
    file = virtual_time_file(directory)
    return {VARIABLE: str(file)} if file.exists() else {}


def api_tokens_file(directory: Path) -> Path:
    """Return the file with the tokens of the local nodes."""
    return directory / "config" / "api-tokens.toml"


def write_api_token(directory: Path) -> None:
    """Write a token that may do everything into the cluster's folder, and the nodes' file of it."""
    token = secrets.token_hex(32)
    api_token_file(directory).write_text(token)
    scopes = ", ".join(f'"{scope.value}"' for scope in Scope)
    api_tokens_file(directory).write_text(
        f'[[token]]\nname = "dev"\nsha256 = "{digest_of(token)}"\nscopes = [{scopes}]\n'
    )


def api_token_file(directory: Path) -> Path:
    """Return the file with that token."""
    return directory / "config" / "api-token"


def read_status(admin_url: str) -> dict[str, Any] | None:
    """Return `GET /status` of a node, or None if it gives no valid answer in time."""
    answer = get(f"{admin_url}/status")
    return answer.fields() if answer else None


def ask_node(admin_url: str) -> NodeAnswer | None:
    """Return what the node says of itself, or None if it gives no valid answer in time."""
    document = read_status(admin_url)
    if document is None:
        return None
    ready = get(f"{admin_url}/readyz")
    term = document.get("term")
    return NodeAnswer(
        ready=ready is not None and ready.status == 200,
        is_delivering=document.get("role") == "master" and document.get("delivering") is True,
        term=term if isinstance(term, int) else 0,
    )


def master_among(answers: Mapping[str, NodeAnswer | None]) -> str | None:
    """Return the node, of those that answered, that says it delivers. Of two (an old master has
    just woken), return the one of higher term."""
    masters = [
        (answer.term, name) for name, answer in answers.items() if answer and answer.is_delivering
    ]
    return max(masters)[1] if masters else None


def master_of(state: State) -> str | None:
    """Return the node that says it delivers."""
    return master_among(
        {node.name: ask_node(node.address) for node in state.of(Kind.NODE) if node.alive()}
    )


def toml_value(value: object) -> str:
    """Return a setting in TOML: strings, numbers, booleans, lists and tables of these."""
    if isinstance(value, str | bool | int | float | Path):
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(str(key))} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    raise TypeError(f"no TOML for a setting of type {type(value).__name__}: {value!r}")
