"""The output of `delayd dev up` and `status`: the shape that docs/reference/cli.md promises."""

from typing import Any, TypedDict

from delayd.dev.nodes import ask_node, master_among
from delayd.dev.parts import Kind, Part, State


class Report(TypedDict):
    """The cluster now. `master` is the name of the node that delivers, or None.

    Each part has a `name`, a `pid` (None: it is dead) and where it is: a broker its `address`
    (`host:port`), etcd the `url` for clients, a node the URL of its `admin` port and its `data`.
    """

    bootstrap: str
    brokers: list[dict[str, Any]]
    etcd: dict[str, Any]
    dir: str
    nodes: list[dict[str, Any]]
    master: str | None


def report_of(state: State, directory: str) -> Report:
    """Ask the processes themselves; takes at most a second or two per node that does not answer."""

    def living(part: Part, **where: str) -> dict[str, Any]:
        pid = part.process.pid if part.process is not None and part.alive() else None
        return {"name": part.name, "pid": pid, **where}

    [etcd] = state.of(Kind.ETCD)
    return Report(
        bootstrap=bootstrap_of(state),
        brokers=[living(part, address=part.address) for part in state.of(Kind.BROKER)],
        etcd=living(etcd, url=etcd.address),
        dir=directory,
        nodes=[
            living(part, admin=part.address, data=str(part.data)) for part in state.of(Kind.NODE)
        ],
        master=master_of(state),
    )


def bootstrap_of(state: State) -> str:
    """Return all brokers, dead ones too: a client needs one that answers."""
    return ",".join(part.address for part in state.of(Kind.BROKER))


def master_of(state: State) -> str | None:
    """Return the node that says it delivers."""
    return master_among(
        {node.name: ask_node(node.address) for node in state.of(Kind.NODE) if node.alive()}
    )
