"""What `delayd status` prints: the truth from Kafka, the rest from etcd and from the nodes.

The frontier and the cursor come from the frontier topic, so they are right even when etcd is away.
The names of the master and of the nodes come from etcd; each node is asked for its own status.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, NamedTuple

from delayd.bus import Bus
from delayd.cluster.admin_client import admin_of, get, url_of
from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.limiting import limits_of
from delayd.cluster.pausing import paused_of
from delayd.cluster.timeliness import clocks_of, failovers_of, lateness_of
from delayd.cluster.topics import load_settings
from delayd.coordination import Coordination
from delayd.errors import CoordinationError
from delayd.runtime.clock import Clock

CURSOR_AGE_MAX_MS = 30_000
"""If the cursor is this far behind the clock, nothing delivers."""


HELD_MS_MAX = 60_000
"""How long a transaction of a program that is well stays open; Kafka ends one after at most 15
minutes, unless it is told otherwise."""


class Problem(NamedTuple):
    """What a person must see to: a stable slug, and what is wrong."""

    code: str
    text: str


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
    if coordination is not None:
        coordination.enter(seen.record.settings.realm)
        for name in forget:
            coordination.forget(name)
    return status_at(seen, bus, coordination, clock, timeout_ms)[0]


def status_at(
    seen: SeenFrontier, bus: Bus, coordination: Coordination | None, clock: Clock, timeout_ms: int
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the report of a cluster whose frontier was read, and its problems with their codes.
    The coordination has entered the cluster's realm."""
    frontier = seen.record.frontier
    problems: list[Problem] = []
    with closing(bus.cluster()) as kafka:
        ends = kafka.end_offsets(seen.record.settings.buffer.name, timeout_ms, committed=True)
    cursor_ms = frontier.lowest_cursor.due_ms
    shards = [_shard(each, ends, clock.wall_ms()) for each in seen.parts or (seen,)]
    for shard in shards:
        if shard["cursor_age_ms"] > CURSOR_AGE_MAX_MS:
            of = f" of shard {shard['shard']}" if len(shards) > 1 else ""
            age_s = shard["cursor_age_ms"] // 1000
            stuck = f"nothing{of} has been delivered for {age_s} s: no master, or stuck"
            problems.append(Problem("nothing-delivered", stuck))
    nodes: list[dict[str, Any]] = []
    if coordination is not None:
        nodes = _members(coordination, problems, clock, shards)
    masters = {shard["leader"] for shard in shards}
    # The list of a former master is out of date.
    failing = [
        target
        for node in nodes
        for target in node.pop("failing_targets", None) or ()
        if node["node"] in masters
    ]
    report = {
        "cluster": seen.record.settings.cluster,
        "healthy": not problems,
        "problems": [problem.text for problem in problems],
        "master": shards[0]["leader"],
        "owner": seen.record.owner,
        "term": frontier.term,
        "step": frontier.step,
        "cursor_ms": cursor_ms,
        "cursor": datetime.fromtimestamp(cursor_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "cursor_age_ms": max(shard["cursor_age_ms"] for shard in shards),
        "lag": sum(shard["lag"] for shard in shards),
        "shards": shards,
        "failing_targets": failing,
        "limits": limits_of(seen.record.quotas),
        "paused": paused_of(seen.record.holds, clock.wall_ms()),
        "lateness": lateness_of(nodes),
        "failovers": failovers_of(nodes),
        "clocks": clocks_of(nodes),
        "nodes": [_without(node, "lateness", "failovers") for node in nodes],
    }
    return report, problems


def _shard(seen: SeenFrontier, ends: Mapping[int, int], now_ms: int) -> dict[str, Any]:
    """Return how far a shard has come. Its `leader` is not known yet."""
    frontier = seen.record.frontier
    cursor_ms = frontier.lowest_cursor.due_ms
    offsets = [(p, offset) for p, offset in enumerate(frontier.offsets) if frontier.owns(p)]
    return {
        "shard": frontier.shard,
        "leader": None,
        "owner": seen.record.owner,
        "term": frontier.term,
        "step": frontier.step,
        "cursor_ms": cursor_ms,
        # Before its first step a cluster has delivered nothing since it was made.
        "cursor_age_ms": now_ms - (cursor_ms or seen.append_ms),
        "lag": sum(max(0, ends[p] - offset) for p, offset in offsets),
    }


def _members(
    coordination: Coordination,
    problems: list[Problem],
    clock: Clock,
    shards: Sequence[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return what each node says of itself, and note who leads each shard; add what a person must
    see to."""
    nodes: list[dict[str, Any]] = []
    try:
        for shard in shards:
            held = coordination.leader(shard["shard"])
            shard["leader"] = None if held is None else str(json.loads(held.owner).get("node"))
        nodes = [
            {"node": name, **_ask(admin_of(member), clock)}
            for name, member in sorted(coordination.members().items())
        ]
        missing = sorted(coordination.known() - {node["node"] for node in nodes})
    except CoordinationError as error:
        away = "who leads is not known here, and no successor of the master could be elected"
        problems.append(Problem("etcd-away", f"{away}: {error}"))
        for shard in shards:
            shard["leader"] = None
        return []
    for shard in shards:
        if shard["leader"] is None:
            of = f" of shard {shard['shard']}" if len(shards) > 1 else ""
            problems.append(Problem("no-master", f"no node holds the leader key{of}"))
    problems += [
        Problem(
            "node-missing",
            f"node {name} is missing: start it, or run `delayd status --forget {name}` if it is "
            "gone for good",
        )
        for name in missing
    ]
    problems += [problem for node in nodes for problem in _problems_of(node)]
    problems += _held_partitions(nodes)
    return nodes


def _problems_of(node: dict[str, Any]) -> Iterator[Problem]:
    """Yield what a person must see to, of a node that was asked."""
    name = node["node"]
    if "role" not in node:
        yield Problem("node-silent", f"node {name} does not answer")
    elif problem := node["kafka_problem"]:
        yield Problem("kafka-refuses", f"node {name} does not get into Kafka: {problem}")
    if problem := node.get("ingest_problem"):
        yield Problem("hears-nothing", f"node {name} hears nothing: {problem}")
    if problem := node.get("etcd_problem"):
        yield Problem("etcd-away", f"node {name}: {problem}")
    for spared in node.get("spared_partitions") or ():
        yield Problem("target-hangs", hangs(name, spared))
    for warning in node.get("topic_warnings") or ():
        yield Problem("buffer-endangered", f"node {name}: {warning}")
    compared = node.get("compared") or {}
    if compared.get("differs"):
        [first, *_] = compared["messages"]
        yield Problem(
            "wheels-differ",
            f"node {name} found {compared['differs']} messages that not all nodes hold "
            f"alike; the first is {first['source']}, wrong on {' '.join(first['wrong']) or '?'}",
        )
    for line in _repair_lines(name, compared.get("repair")):
        yield Problem("wheel-repair", line)
    disk = node.get("disk") or {}
    if disk.get("room", "enough") != "enough":
        yield Problem(
            "disk-short",
            f"node {name} takes in no new messages, and delivers what it has: "
            f"{disk['free_bytes']} bytes are free on its disk",
        )


def _held_partitions(nodes: Iterable[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield what holds up all nodes, once."""
    longest: dict[int, int] = {}
    for node in nodes:
        for partition, held_ms in (node.get("buffer_held_ms") or {}).items():
            longest[int(partition)] = max(held_ms, longest.get(int(partition), 0))
    for partition, held_ms in sorted(longest.items()):
        if held_ms > HELD_MS_MAX:
            yield Problem(
                "buffer-held",
                f"a transaction has been open in partition {partition} of the buffer for "
                f"{held_ms // 1000} s, and nobody takes in what is behind it: delayd doctor names "
                "its producer",
            )


def hangs(node: str, spared: Mapping[str, Any]) -> str:
    """Return what is said of a partition that a node leaves out."""
    return (
        f"messages for {spared['topic']}/{spared['partition']} wait: its leader does not answer "
        f"node {node}"
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


def _without(node: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name not in names}


def _ask(admin: str, clock: Clock) -> dict[str, Any]:
    """Return a node's own status, or only its address if it does not answer."""
    asked_ms = clock.wall_ms()
    answer = get(f"{url_of(admin)}/status")
    fields = answer.fields() if answer else None
    if fields is None:
        return {"admin": admin}
    wanted = (
        *("role", "ready", "unready", "leads_since_ms", "shards_led_since_ms"),
        *("lease_margin_ms", "wheel"),
        *("ingested_count", "delivered_count", "late_count"),
        *(
            "lateness",
            "failovers",
            "failing_targets",
            "spared_partitions",
            "kafka_problem",
            "etcd_problem",
        ),
        *("ingest_problem", "ingest_lag", "buffer_held_ms"),
        *("frontier_strays", "log_ms", "clock_drift_ms"),
        *("topic_warnings", "disk", "rebuilt_from", "snapshots", "compared", "fetch", "start"),
        *("path", "version", "checkpoint_took_ms", "process", "cancel_on"),
    )
    found = {name: fields.get(name) for name in wanted}
    said_ms = fields.get("now_ms") or asked_ms  # A node that fetches does not say it.
    found["clock_offset_ms"] = offset_ms((said_ms, said_ms), (asked_ms, clock.wall_ms()))
    return {"admin": admin, **found}


def offset_ms(said_ms: tuple[int, int], between_ms: tuple[int, int]) -> int:
    """Return how far another clock is ahead of this one at least, negative if it is behind. It
    was between the first two times, when this one was between the others."""
    return min(0, said_ms[1] - between_ms[0]) + max(0, said_ms[0] - between_ms[1])
