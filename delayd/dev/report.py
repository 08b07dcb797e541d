"""The output of `delayd dev up` and `status`: the shape that docs/reference/cli.md promises."""

from typing import TypedDict

from delayd.dev.nodes import ask_node
from delayd.dev.parts import Kind, Part, State


class BrokerReport(TypedDict):
    """`pid` is None for a dead broker; `address` is `host:port`."""

    name: str
    pid: int | None
    address: str


class EtcdReport(TypedDict):
    """`pid` is None for a dead etcd; `url` is where clients reach it."""

    name: str
    pid: int | None
    url: str


class NodeReport(TypedDict):
    """`pid` is None for a dead node; `admin` is a URL, `data` the folder of its wheel."""

    name: str
    pid: int | None
    admin: str
    data: str


class Report(TypedDict):
    """The cluster now. `master` is the name of the node that delivers, or None."""

    bootstrap: str
    brokers: list[BrokerReport]
    etcd: EtcdReport
    dir: str
    nodes: list[NodeReport]
    master: str | None


def report_of(state: State, directory: str) -> Report:
    """Ask the processes themselves; takes at most a second or two per node that does not answer."""
    [etcd] = state.of(Kind.ETCD)
    return Report(
        bootstrap=bootstrap_of(state),
        brokers=[
            BrokerReport(name=part.name, pid=_pid_now(part), address=part.address)
            for part in state.of(Kind.BROKER)
        ],
        etcd=EtcdReport(name=etcd.name, pid=_pid_now(etcd), url=etcd.address),
        dir=directory,
        nodes=[
            NodeReport(name=part.name, pid=_pid_now(part), admin=part.address, data=str(part.data))
            for part in state.of(Kind.NODE)
        ],
        master=master_of(state),
    )


def bootstrap_of(state: State) -> str:
    """Return all brokers, dead ones too: a client needs one that answers."""
    return ",".join(part.address for part in state.of(Kind.BROKER))


def master_of(state: State) -> str | None:
    """Return the node that says it delivers. Of two (an old master has just woken), return the
    one of higher term."""
    masters = []
    for node in state.of(Kind.NODE):
        answer = ask_node(node.address) if node.alive() else None
        if answer is not None and answer.master and answer.delivering:
            masters.append((answer.term, node.name))
    return max(masters)[1] if masters else None


def _pid_now(part: Part) -> int | None:
    return part.process.pid if part.process is not None and part.alive() else None
