"""What `delayd show` says of an id: a node's word for what is pending, the buffer's for what it is.

Nodes are asked in the order of their names. The first that knows the id is believed: one that has
just been started may not know it yet. What a message is comes from its own record in the buffer.
"""

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

from delayd.bus import Bus, Position, Record
from delayd.coordination import Coordination
from delayd.errors import BufferPositionError, ConfigError, NodeUnreachableError
from delayd.request import size_of
from delayd.runtime.clock import Clock

NODE_TIMEOUT_S: Final = 2.0
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
    """A JSON-able object with `live` and `killed` messages; None if no node knows of any.

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
    """Where nodes can be asked: the one named, or all that etcd knows."""
    if admin is not None:
        return (admin,)
    if coordination is None:
        raise ConfigError(
            "nobody to ask", remedy="name a node with --admin, or etcd's endpoints with --etcd"
        )
    members = sorted(coordination.members().items())
    return tuple(str(json.loads(value).get("admin", "")) for _, value in members)


def pending_of(nodes: tuple[str, ...]) -> dict[str, Any]:
    """What the first node that answers counts as pending, and its `node`.

    Raises NodeUnreachableError if none answers.
    """
    for node in nodes:
        try:
            url = f"http://{node}/pending"
            with urllib.request.urlopen(url, timeout=NODE_TIMEOUT_S) as answer:
                found = json.load(answer)
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and {"total", "hours", "topics"} <= found.keys():
            return {**found, "node": node}
    raise _nobody_answers(nodes)


def _nobody_answers(nodes: tuple[str, ...]) -> NodeUnreachableError:
    return NodeUnreachableError(
        f"no node answers ({', '.join(nodes) or 'etcd knows none of this cluster'})",
        remedy="start one, check --cluster, or name a living one's admin port with --admin",
    )


def _ask(nodes: tuple[str, ...], id: str) -> dict[str, Any] | None:
    """The first node's answer that knows the id; None if those that answer do not."""
    answered = False
    for node in nodes:
        url = f"http://{node}/ids/{urllib.parse.quote(id, safe='')}"
        try:
            with urllib.request.urlopen(url, timeout=NODE_TIMEOUT_S) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                answered = answered or error.code == 404
            continue
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and {"live", "killed"} <= found.keys():
            return {**found, "node": node}
    if answered:
        return None
    raise _nobody_answers(nodes)


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
    """The record at exactly that place; None if the log does not hold it any more."""
    consumer = bus.consumer(buffer)
    deadline_ms = clock.monotonic_ms() + timeout_ms
    try:
        consumer.assign({partition: Position(offset)})
        while clock.monotonic_ms() < deadline_ms and consumer.position(partition) <= offset:
            for record in consumer.poll(1, POLL_MS):
                return record if record.offset == offset else None
    except BufferPositionError:
        return None
    finally:
        consumer.close()
    return None
