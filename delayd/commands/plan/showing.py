"""A plan as JSON, and as lines for a terminal. Not here: the arithmetic (`sizing.py`)."""

from collections.abc import Mapping
from typing import Any, Final

from delayd.commands.plan import figures as known
from delayd.commands.plan.figures import DAY_S
from delayd.commands.plan.sizing import (
    CLUSTERS_MAX,
    MASTER_PER_S_PLANNED,
    PROCESSORS_PLANNED,
    Demand,
    Limit,
    Load,
    longest_delay_days,
)
from delayd.commands.wording import plural

WIDTH: Final = 14
"""Of the names before the lines."""
_BYTES: Final = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_SECONDS: Final = ((365 * DAY_S, "years"), (DAY_S, "days"), (3_600, "hours"), (60, "minutes"))
_COUNTS: Final = ((1e9, "bn"), (1e6, "M"))


def report_of(demand: Demand, load: Load, clusters: int | None) -> dict[str, Any]:
    """Return what `--json` prints. Bytes, seconds and messages are whole numbers."""
    disk, network, durations = load.disk, load.network, load.durations
    return {
        "rate_per_s": round(demand.rate_per_s),
        "pending": round(demand.pending),
        "message_bytes": demand.message_bytes,
        "id_share": demand.id_share,
        "native": demand.is_native,
        "nodes": load.size.nodes,
        "shards": load.size.shards,
        "partitions": load.partitions,
        "max_delay_days": longest_delay_days(demand),
        "shards_of_a_node_max": load.size.leads_max,
        "processors": {
            "leader": round(load.leader_processors, 2),
            "follower": round(load.follower_processors, 2),
            "planned": PROCESSORS_PLANNED,
        },
        "memory_bytes": round(load.memory_bytes),
        "disk": {
            "volume_bytes": round(disk.volume),
            "pending_bytes": round(disk.pending),
            "held_bytes": round(disk.held),
            "hour_bytes": round(disk.hour),
            "ids_bytes": round(disk.ids),
            "export_bytes": round(disk.export),
            "reserve_bytes": round(disk.reserve),
            "write_bytes_per_s": round(load.disk_write_bytes_per_s),
        },
        "topics": {
            "replicas": round(known.BUFFER_COPIES.value),
            "buffer_retention_days": longest_delay_days(demand) + 1,
            "buffer_bytes": round(load.topics.buffer),
            "frontier_bytes": round(load.topics.frontier),
        },
        "network": {
            "node_reads_bytes_per_s": round(network.node_reads),
            "leaders_write_bytes_per_s": round(network.leaders_write),
            "brokers_send_bytes_per_s": round(network.brokers_send),
            "etcd_reads_per_s": round(network.etcd_reads_per_s),
            "etcd_writes_per_s": round(network.etcd_writes_per_s),
        },
        "durations_s": {
            "copy": round(durations.copy),
            "replay": round(durations.replay),
            "compare": round(durations.compare),
            "audit": round(durations.audit),
        },
        "limits": [_limit_of(each) for each in load.limits],
        "clusters": clusters,
        "notes": _notes_of(demand, load),
        "create": None if load.limits else _create_of(demand, load),
    }


def _create_of(demand: Demand, load: Load) -> str:
    """Return the command that creates the topics of the plan."""
    shards = f" --shards {load.size.shards}" if load.size.shards > 1 else ""
    return (
        f"delayd topics create --partitions {load.partitions}{shards}"
        f" --max-delay-days {longest_delay_days(demand)}"
    )


def _limit_of(limit: Limit) -> dict[str, Any]:
    return {
        "name": limit.name,
        "needed": round(limit.needed, 2),
        "available": round(limit.available, 2),
        "unit": limit.unit,
        "remedy": limit.remedy,
    }


def _notes_of(demand: Demand, load: Load) -> list[str]:
    """Return what the figures do not cover."""
    notes = []
    if demand.pending > known.PENDING_MEASURED.value:
        notes.append(
            f"memory was measured up to {count(known.PENDING_MEASURED.value)} pending messages: "
            "beyond, it is a guess"
        )
    if demand.is_native:
        notes.append(
            "how fast a master delivers natively was not measured on a quiet machine: a master is "
            f"planned with {MASTER_PER_S_PLANNED:,.0f} a second, as in Python"
        )
    if load.size.shards > 1:
        notes.append("nodes that lead several shards, or follow several, were not measured")
    if load.size.nodes < known.NODES_MIN.value:
        notes.append("fewer than three nodes: one that restarts leaves none to spare")
    return notes


def shown(report: Mapping[str, Any]) -> str:
    """Return a plan as lines for a terminal."""
    lines = [
        *_cluster_of(report),
        *_node_of(report),
        *_rest_of(report),
        *(("create", each) for each in (report["create"],) if each is not None),
        *(("note", note) for note in report["notes"]),
        *(("DOES NOT FIT", _told_of(limit)) for limit in report["limits"]),
    ]
    if report["limits"]:
        lines.append(("clusters", _clusters_told_of(report["clusters"])))
    return "\n".join(f"{name:<{WIDTH}}{text}" for name, text in lines)


def _cluster_of(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (
            "messages",
            f"{report['rate_per_s']:,} a second, {count(report['pending'])} pending, "
            f"{report['message_bytes']} bytes each",
        ),
        (
            "cluster",
            f"{plural(report['nodes'], 'node')}, {plural(report['shards'], 'shard')}, "
            f"{report['partitions']} partitions",
        ),
    ]


def _node_of(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    disk, processors = report["disk"], report["processors"]
    return [
        (
            "processor",
            f"{processors['leader']:.2f} of a node that leads "
            f"{plural(report['shards_of_a_node_max'], 'shard')}, {processors['follower']:.2f} of "
            f"one that follows; {processors['planned']:g} is planned for",
        ),
        ("memory", f"{size(report['memory_bytes'])} a node"),
        (
            "disk",
            f"{size(disk['volume_bytes'])} a node: {size(disk['pending_bytes'])} pending, "
            f"{size(disk['held_bytes'])} delivered and kept, {size(disk['hour_bytes'])} an hour "
            f"twice, {size(disk['ids_bytes'])} ids, {size(disk['export_bytes'])} for exports; "
            f"writes {size(disk['write_bytes_per_s'])}/s",
        ),
    ]


def _rest_of(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    topics, network, took = report["topics"], report["network"], report["durations_s"]
    return [
        (
            "topics",
            f"{topics['replicas']} replicas: buffer {size(topics['buffer_bytes'])} in "
            f"{topics['buffer_retention_days']} days, frontier {size(topics['frontier_bytes'])}",
        ),
        (
            "network",
            f"each node reads {size(network['node_reads_bytes_per_s'])}/s, leaders write "
            f"{size(network['leaders_write_bytes_per_s'])}/s, brokers send "
            f"{size(network['brokers_send_bytes_per_s'])}/s",
        ),
        (
            "etcd",
            f"{network['etcd_reads_per_s']:,} reads and {network['etcd_writes_per_s']:,} writes a "
            "second",
        ),
        (
            "a lost disk",
            f"copied in {time(took['copy'])}, or rebuilt from the buffer in {time(took['replay'])}",
        ),
        (
            "proof",
            f"two nodes compare all in {time(took['compare'])}; an audit of the whole buffer takes "
            f"{time(took['audit'])} on two processors",
        ),
    ]


def _clusters_told_of(clusters: int | None) -> str:
    if clusters is None:
        return f"not even {CLUSTERS_MAX} would do"
    return (
        "one would do, with the nodes and shards that a plan chooses by itself"
        if clusters == 1
        else f"{clusters} would do, each with its part"
    )


def _told_of(limit: Mapping[str, Any]) -> str:
    needed, available = (
        size(number) if limit["unit"] == "bytes" else f"{number:,g} {limit['unit']}"
        for number in (limit["needed"], limit["available"])
    )
    return f"{limit['name']}: {needed}, and {available} are planned for; {limit['remedy']}"


def size(number: float) -> str:
    """Return bytes as people read them."""
    return _scaled(number, _BYTES, "bytes")


def time(seconds: float) -> str:
    """Return a duration as people read it."""
    return _scaled(seconds, _SECONDS, "s")


def count(number: float) -> str:
    """Return a number of messages as people read it."""
    for least, unit in _COUNTS:
        if number >= least:
            return f"{number / least:,.3g} {unit}".replace("e+03", ",000")
    return f"{number:,.0f}"


def _scaled(number: float, units: tuple[tuple[float, str], ...], smallest: str) -> str:
    """Return a number in the largest of the units of which there is one at least."""
    for least, unit in units:
        if number >= least:
            value = number / least
            text = f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
            return f"{text} {unit.removesuffix('s') if text == '1' else unit}"
    return f"{number:,.0f} {smallest}"
