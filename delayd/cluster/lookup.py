"""What `delayd show` and `delayd pending` print: a node's view of an id, or of all that is pending.

Nodes are asked in the order of their names. The first that knows the id is believed: a node that
has just started may not know it yet. What a message contains comes from its record in the buffer.
"""

import urllib.parse
from contextlib import closing, suppress
from http import HTTPStatus
from typing import Any, Final

from delayd.bus import Bus, Position, Record
from delayd.cluster.admin_client import admin_of, get
from delayd.coordination import Coordination
from delayd.errors import BufferPositionError, ConfigError, NodeUnreachableError
from delayd.request import size_of
from delayd.runtime.clock import Clock

LIVE_SHOWN_MAX: Final = 20
"""Live messages of one id whose records are read; normally there is one."""

POLL_MS: Final = 100


def known_of_id(
    id: str,
    bus: Bus,
    nodes: tuple[str, ...],
    clock: Clock,
    *,
    buffer: str,
    timeout_ms: int,
) -> dict[str, Any] | None:
    """Return a JSON-able object with `live` and `killed` messages; None if no node knows any.

    Raises NodeUnreachableError if no node answers, ConsumerError if the buffer cannot be read.
    """
    found = _ask(nodes, id)
    if found is None:
        return None
    live: list[dict[str, Any]] = []
    for each in found["live"]:
        state = "done" if each["done"] else "pending"
        entry = {"source": each["source"], "due_ms": each["due_ms"], "state": state}
        if len(live) < LIVE_SHOWN_MAX:
            entry |= _content(bus, buffer, str(each["source"]), clock, timeout_ms)
        else:
            entry |= {"topic": None, "bytes": None, "problem": "not read: there are too many"}
        live.append(entry)
    return {**found, "live": live}


def admin_ports(coordination: Coordination | None, admin: str | None) -> tuple[str, ...]:
    """Return the addresses of the admin ports to ask: the one named, or all that etcd knows."""
    if admin is not None:
        return (admin,)
    if coordination is None:
        raise ConfigError(
            "no node to ask", remedy="name a node with --admin, or etcd's endpoints with --etcd"
        )
    return tuple(admin_of(member) for _, member in sorted(members_of(coordination).items()))


def members_of(coordination: Coordination) -> dict[str, str]:
    """Return the nodes that etcd knows of the cluster of this name, by name; ConfigError if it
    knows several such clusters."""
    found = coordination.members_by_realm()
    if len(found) > 1:
        raise ConfigError(
            f"etcd knows {len(found)} clusters of this name",
            remedy="name the nodes: see docs/operations.md, 'Two clusters of one name'",
        )
    return next(iter(found.values()), {})


def pending_of(nodes: tuple[str, ...]) -> dict[str, Any]:
    """Return what the first node that answers counts as pending, and its `node`.

    Raises NodeUnreachableError if none answers.
    """
    for node in nodes:
        answer = get(f"http://{node}/pending")
        found = answer.fields() if answer else None
        if found is not None and {"total", "hours", "topics"} <= found.keys():
            return {**found, "node": node}
    raise _no_node_answers(nodes)


def _no_node_answers(nodes: tuple[str, ...]) -> NodeUnreachableError:
    return NodeUnreachableError(
        f"no node answers ({', '.join(nodes) or 'etcd knows none of this cluster'})",
        remedy="start a node, check --cluster, or name the admin port of a live node with --admin",
    )


def _ask(nodes: tuple[str, ...], id: str) -> dict[str, Any] | None:
    """Return the answer of the first node that knows the id; None if those that answer do not."""
    answered = False
    for node in nodes:
        answer = get(f"http://{node}/ids/{urllib.parse.quote(id, safe='')}")
        found = answer.fields() if answer else None
        if found is not None and {"live", "killed"} <= found.keys():
            return {**found, "node": node}
        answered = answered or (answer is not None and answer.status == HTTPStatus.NOT_FOUND)
    if answered:
        return None
    raise _no_node_answers(nodes)


def _content(
    bus: Bus, buffer: str, source: str, clock: Clock, timeout_ms: int
) -> dict[str, str | int | None]:
    partition, _, offset = source.partition("/")
    record = _record(bus, buffer, int(partition), int(offset), clock, timeout_ms)
    if record is None:
        return {"topic": None, "bytes": None, "problem": f"{source} is not in {buffer} any more"}
    topic = dict(record.headers).get("delayd-topic")
    return {
        "topic": None if topic is None else topic.decode(errors="replace"),
        "bytes": size_of(record.key, record.value, record.headers),
        "problem": None if topic else "its record names no target",
    }


def _record(
    bus: Bus, buffer: str, partition: int, offset: int, clock: Clock, timeout_ms: int
) -> Record | None:
    """Return the record at exactly that place; None if the log no longer holds it."""
    deadline_ms = clock.monotonic_ms() + timeout_ms
    with closing(bus.consumer(buffer)) as consumer, suppress(BufferPositionError):
        consumer.assign({partition: Position(offset)})
        while clock.monotonic_ms() < deadline_ms and consumer.position(partition) <= offset:
            for record in consumer.poll(1, POLL_MS):
                return record if record.offset == offset else None
    return None
