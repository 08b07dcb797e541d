"""What `delayd show` and `delayd pending` print, and the HTTP API answers: a node's view of an id,
or of all that is pending.

Nodes are asked in the order of their names. The first that knows the id is believed: a node that
has just started may not know it yet. What a message contains comes from its record in the buffer.
"""

import urllib.parse
from collections.abc import Iterator
from contextlib import closing, suppress
from http import HTTPStatus
from typing import Any, Final

from delayd.bus import Bus, Position, Record
from delayd.cluster.admin_client import admin_of, get, url_of
from delayd.coordination import Coordination
from delayd.errors import BufferPositionError, ConfigError, DelaydError, NodeUnreachableError
from delayd.request import size_of
from delayd.runtime.clock import Clock

SEARCH_BEFORE_MS: Final = 60_000
"""How much earlier than the due time a delivery is searched for: by so much clocks may differ."""

LIVE_SHOWN_MAX: Final = 20
"""Live messages of one id whose records are read; normally there is one."""

POLL_MS: Final = 100
SEARCH_BATCH: Final = 1_000


def known_of_id(
    id: str,
    bus: Bus,
    nodes: tuple[str, ...],
    clock: Clock,
    *,
    buffer: str,
    dead: str,
    timeout_ms: int,
) -> dict[str, Any] | None:
    """Return a JSON-able object with `live` and `killed` messages; None if no node knows any.

    A message that is done was delivered or is dead: its record is searched for, for at most
    `timeout_ms` each.

    Raises NodeUnreachableError if no node answers, ConsumerError if the buffer cannot be read.
    """
    found = _ask(nodes, id)
    if found is None:
        return None
    return with_records(found, bus, clock, buffer=buffer, dead=dead, timeout_ms=timeout_ms)


def with_records(
    found: dict[str, Any], bus: Bus, clock: Clock, *, buffer: str, dead: str, timeout_ms: int
) -> dict[str, Any]:
    """Return what a node knows of an id with target, size and outcome of each message, as
    `known_of_id` does. Raises ConsumerError if the buffer cannot be read."""
    shown: dict[str, list[dict[str, Any]]] = {"live": [], "killed": []}
    for name, entries in shown.items():
        for each in found[name]:
            entry = dict(each)
            if name == "live":
                entry |= state_of(entry)
                del entry["done"]
            if len(entries) < LIVE_SHOWN_MAX:
                entry |= _content(bus, buffer, str(each["source"]), clock, timeout_ms)
            else:
                entry |= {"topic": None, "bytes": None, "problem": "not read: there are too many"}
            if entry.get("state") == "done" and entry["topic"] is not None:
                entry |= _outcome(bus, (str(entry["topic"]), dead), each, clock, timeout_ms)
            entries.append(entry)
    return {**found, **shown}


def state_of(live: dict[str, Any]) -> dict[str, str]:
    """Return the `state` of a live message by what a node says of it."""
    return {"state": "done" if live["done"] else "pending"}


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
        answer = get(f"{url_of(node)}/pending")
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
        answer = get(f"{url_of(node)}/ids/{urllib.parse.quote(id, safe='')}")
        found = answer.fields() if answer else None
        if found is not None and {"live", "killed"} <= found.keys():
            return {**found, "node": node}
        answered = answered or (answer is not None and answer.status == HTTPStatus.NOT_FOUND)
    if answered:
        return None
    raise _no_node_answers(nodes)


def _content(bus: Bus, buffer: str, source: str, clock: Clock, timeout_ms: int) -> dict[str, Any]:
    partition, _, offset = source.partition("/")
    record = _record(bus, buffer, int(partition), int(offset), clock, timeout_ms)
    if record is None:
        return {"topic": None, "bytes": None, "problem": f"{source} is not in {buffer} any more"}
    headers = dict(record.headers)
    topic = headers.get("delayd-topic")
    found: dict[str, Any] = {
        "topic": None if topic is None else topic.decode(errors="replace"),
        "bytes": size_of(record.key, record.value, record.headers),
        "problem": None if topic else "its record names no target",
    }
    if cron := headers.get("delayd-cron"):
        found["series"] = {
            "cron": cron.decode(errors="replace"),
            "zone": (headers.get("delayd-zone") or b"UTC").decode(errors="replace"),
            "occurrence": int(headers.get("delayd-occurrence") or 0),
        }
    elif (local := _local_in(headers)) is not None:
        found["local"] = local
    return found


def _local_in(headers: dict[str, bytes | None]) -> dict[str, Any] | None:
    """Return the local time of a message, and when that is, as far as its record knows."""
    asked, zone = headers.get("delayd-due"), headers.get("delayd-zone")
    if (written := headers.get("delayd-local")) is not None:
        text, _, name = written.decode(errors="replace").removesuffix("]").partition("[")
        is_known = headers.get("delayd-resolved") in (b"expected", b"final")
        return {"at": text, "zone": name, "due_ms": int(asked or 0) if is_known else None}
    if asked is None or zone is None:
        return None
    texts = (each.decode(errors="replace") for each in (asked, zone))
    return {**dict(zip(("at", "zone"), texts, strict=True)), "due_ms": None}


def _outcome(
    bus: Bus, topics: tuple[str, str], message: dict[str, Any], clock: Clock, timeout_ms: int
) -> dict[str, str | int]:
    """Return where the record of a message is that is done, in its target or among the dead
    letters, and since when; nothing if it is not found."""
    source, since_ms = str(message["source"]).encode(), int(message["due_ms"]) - SEARCH_BEFORE_MS
    deadline_ms = clock.monotonic_ms() + timeout_ms
    for topic, state in zip(topics, ("delivered", "dead"), strict=True):
        with suppress(DelaydError):
            for record in _records_since(bus, topic, since_ms, clock, deadline_ms):
                headers = dict(record.headers)
                if headers.get("delayd-source") == source:
                    is_expired = headers.get("delayd-reason") == b"expired"
                    return {
                        "state": "expired" if is_expired else state,
                        "at": f"{topic}/{record.partition}/{record.offset}",
                        "at_ms": record.append_ms,
                    }
    return {}


def _records_since(
    bus: Bus, topic: str, since_ms: int, clock: Clock, deadline_ms: int
) -> Iterator[Record]:
    """Yield the records of a topic from a time on, until its end as of now, or the deadline."""
    left_ms = max(1, deadline_ms - clock.monotonic_ms())
    with closing(bus.cluster()) as kafka:
        starts = kafka.offsets_since(topic, since_ms, left_ms)
        ends = kafka.end_offsets(topic, left_ms, committed=True)
    with closing(bus.consumer(topic)) as consumer:
        consumer.assign({each: Position(start) for each, start in starts.items()})
        while clock.monotonic_ms() < deadline_ms and any(
            consumer.position(each) < end for each, end in ends.items()
        ):
            yield from consumer.poll(SEARCH_BATCH, POLL_MS)


def _record(
    bus: Bus, buffer: str, partition: int, offset: int, clock: Clock, timeout_ms: int
) -> Record | None:
    """Return the record at exactly that place; None if the log no longer holds it."""
    deadline_ms = clock.monotonic_ms() + timeout_ms
    reader = bus.consumer(buffer, careful=True)
    with closing(reader) as consumer, suppress(BufferPositionError):
        consumer.assign({partition: Position(offset)})
        while clock.monotonic_ms() < deadline_ms and consumer.position(partition) <= offset:
            for record in consumer.poll(1, POLL_MS):
                return record if record.offset == offset else None
    return None
