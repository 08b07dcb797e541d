"""What `delayd status` prints: the truth from Kafka, the rest from etcd and from the nodes.

The frontier and the cursor come from the frontier topic, so they are right even when etcd is away.
The names of the master and of the nodes come from etcd; each node is asked for its own status.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from delayd.bus import Bus
from delayd.cluster.admin_client import admin_of, get, url_of
from delayd.cluster.topics import load_settings
from delayd.coordination import Coordination
from delayd.errors import CoordinationError
from delayd.runtime.clock import Clock

CURSOR_AGE_MAX_MS = 30_000
"""If the cursor is this far behind the clock, nothing delivers."""


def status_report(
    bus: Bus,
    coordination: Coordination | None,
    clock: Clock,
    *,
    cluster: str,
    prefix: str,
    timeout_ms: int,
    forget: Iterable[str] = (),
) -> dict[str, Any]:
    """Return one JSON-able object; `healthy` is False if something needs a person.

    A node that was announced and is not any more is missing, unless it is one to `forget`.

    Targets that fail are listed, as the master sees them; they do not make delayd unhealthy.

    Raises KafkaUnreachableError, NotInitialisedError or TopicMismatchError.
    """
    seen = load_settings(bus, cluster, prefix, timeout_ms)
    frontier = seen.record.frontier
    if coordination is not None:
        coordination.enter(seen.record.settings.realm)
        for name in forget:
            coordination.forget(name)
    problems: list[str] = []
    with closing(bus.cluster()) as kafka:
        ends = kafka.end_offsets(seen.record.settings.buffer.name, timeout_ms, committed=True)
    lag = sum(max(0, ends[p] - offset) for p, offset in enumerate(frontier.offsets))
    cursor_ms = frontier.lowest_cursor.due_ms
    age_ms = clock.wall_ms() - cursor_ms
    if age_ms > CURSOR_AGE_MAX_MS:
        problems.append(f"nothing has been delivered for {age_ms // 1000} s: no master, or stuck")
    master, nodes = (None, []) if coordination is None else _members(coordination, problems)
    # The list of a former master is out of date.
    failing = [
        target
        for node in nodes
        for target in node.pop("failing_targets", None) or ()
        if node["node"] == master
    ]
    return {
        "cluster": cluster,
        "healthy": not problems,
        "problems": problems,
        "master": master,
        "owner": seen.record.owner,
        "term": frontier.term,
        "step": frontier.step,
        "cursor_ms": cursor_ms,
        "cursor": datetime.fromtimestamp(cursor_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "cursor_age_ms": age_ms,
        "lag": lag,
        "failing_targets": failing,
        "nodes": nodes,
    }


def _members(
    coordination: Coordination, problems: list[str]
) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the master and what each node says of itself; add what a person must see to."""
    master: str | None = None
    nodes: list[dict[str, Any]] = []
    try:
        held = coordination.leader(0)
        master = None if held is None else str(json.loads(held.owner).get("node"))
        nodes = [
            {"node": name, **_ask(admin_of(member))}
            for name, member in sorted(coordination.members().items())
        ]
        missing = sorted(coordination.known() - {node["node"] for node in nodes})
    except CoordinationError as error:
        problems.append(
            f"who leads is not known here, and no successor of the master could be elected: {error}"
        )
        return None, []
    if master is None:
        problems.append("no node holds the leader key")
    problems += [
        f"node {name} is missing: start it, or run `delayd status --forget {name}` if it is gone "
        "for good"
        for name in missing
    ]
    problems += [problem for node in nodes for problem in _problems_of(node)]
    return master, nodes


def _problems_of(node: dict[str, Any]) -> Iterator[str]:
    """Yield what a person must see to, of a node that was asked."""
    if "role" not in node:
        yield f"node {node['node']} does not answer"
    elif problem := node["kafka_problem"]:
        yield f"node {node['node']} does not get into Kafka: {problem}"
    if problem := node.get("ingest_problem"):
        yield f"node {node['node']} hears nothing: {problem}"
    if problem := node.get("etcd_problem"):
        yield f"node {node['node']}: {problem}"
    for spared in node.get("spared_partitions") or ():
        yield (
            f"messages for {spared['topic']}/{spared['partition']} wait: its leader does not "
            f"answer node {node['node']}"
        )
    for warning in node.get("topic_warnings") or ():
        yield f"node {node['node']}: {warning}"
    compared = node.get("compared") or {}
    if compared.get("differs"):
        [first, *_] = compared["messages"]
        yield (
            f"node {node['node']} found {compared['differs']} messages that not all nodes hold "
            f"alike; the first is {first['source']}, wrong on {' '.join(first['wrong']) or '?'}"
        )
    yield from _repair_lines(node["node"], compared.get("repair"))
    disk = node.get("disk") or {}
    if disk.get("room", "enough") != "enough":
        yield (
            f"node {node['node']} takes in no new messages, and delivers what it has: "
            f"{disk['free_bytes']} bytes are free on its disk"
        )


def _repair_lines(node: str, repair: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what is to be said of a repair of a wheel that differed."""
    if repair is None or (repair["state"] == "repaired" and not repair["problem"]):
        return
    if repair["state"] in ("wanted", "comparing"):
        yield f"node {node} builds another wheel from the log, because its own differed"
        return
    failed = "failed to repair" if repair["state"] == "failed" else "does not repair"
    yield f"node {node} {failed} its wheel, which differs: {repair['problem']}"


def _ask(admin: str) -> dict[str, Any]:
    """Return a node's own status, or only its address if it does not answer."""
    answer = get(f"{url_of(admin)}/status")
    fields = answer.fields() if answer else None
    if fields is None:
        return {"admin": admin}
    wanted = (
        *("role", "ready", "ingested_count", "delivered_count", "lease_margin_ms", "wheel"),
        *("failing_targets", "spared_partitions", "kafka_problem", "etcd_problem"),
        *("ingest_problem", "ingest_lag"),
        *("topic_warnings", "disk", "rebuilt_from", "snapshots", "compared", "fetch", "start"),
        "path",
    )
    return {"admin": admin, **{name: fields.get(name) for name in wanted}}
