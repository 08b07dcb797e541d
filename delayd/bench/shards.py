"""`delayd bench shards`: what shards give: a backlog that becomes due at one moment, on one node
and on three, with 1, 2, 4 and 8 shards; and the same where a step takes long, whatever it holds.

On few cores all nodes share what there is: then the processor time for a message says most. It is
taken while messages are written and ingested, and while they are delivered; what nodes use while
they wait is a figure of its own. Where the cores are not the limit, but the wait for each commit
is, delivery grows with the shards. So a second series has nodes whose steps wait (`slow_node.py`),
and holds few messages in each.
"""

from threading import Event
from typing import Final

from delayd.bench.context import Context
from delayd.bench.errors import TooSlowError
from delayd.bench.figures import Figure, Measured
from delayd.bench.hot_second import LATE_MS_MAX, cpu_s_of
from delayd.bench.lateness import LEAD_MS, START_MS, paced
from delayd.bench.load import shuffled
from delayd.bench.nodes import BenchNodes
from delayd.bench.reading import reading, received
from delayd.bench.sending import fill, finish, lead_ms, sending

SHARDS: Final = (1, 2, 4, 8)
NODES: Final = (1, 3)
PARTITIONS: Final = 8
"""Of the buffer: each number of shards has as many."""

HOT_MS: Final = 100
"""All of a backlog is due within this time."""

PLACED_S_MAX: Final = 150
"""A node counts after 30 s; then shards move, one in half a second."""

IDLE_S: Final = 10
"""How long nodes are watched that have nothing to do."""

SLOW_STEP: Final = {"step_records_max": 100}
SLOW_SHARE: Final = 20
"""A series with slow steps has one in so many messages."""


def bench_shards(context: Context) -> list[Figure]:
    """Return rates, lateness and processor time by the number of shards and nodes, each against one
    shard on as many nodes."""
    measured = Measured()
    for _ in context.runs("shards"):
        for nodes in NODES:
            alone: dict[str, float] = {}
            for shards in SHARDS:
                context.tell(f"shards: {shards} on {nodes} nodes")
                found = _play(context, measured, nodes, shards)
                alone = alone or found
                for (what, value), first in zip(found.items(), alone.values(), strict=True):
                    name = f"shards-{shards}x{nodes}-{what}"
                    measured.add(name, UNITS[what], value, f"shards-1x{nodes}-{what}", first)
        _measure_slow_steps(context, measured)
    return measured.figures()


UNITS: Final = {
    "rate": "messages/s",
    "cpu": "us/message",
    "idle": "ms of processor/s",
    "p50": "ms late",
    "p99": "ms late",
    "memory": "MiB",
}


def _measure_slow_steps(context: Context, measured: Measured) -> None:
    alone = 0.0
    for shards in (1, 4):
        context.tell(f"shards: {shards} on 3 nodes, slow steps")
        with BenchNodes(
            context.brokers,
            3,
            shards=shards,
            partitions=PARTITIONS,
            settings=SLOW_STEP,
            module="delayd.bench.slow_node",
        ) as nodes:
            _start(nodes, shards)
            rate, _ = _backlog(context, measured, nodes, shards, SLOW_SHARE)
        alone = alone or rate
        name = f"shards-{shards}x3-slow-steps-rate"
        measured.add(name, "messages/s", rate, "shards-1x3-slow-steps-rate", alone)


def _play(context: Context, measured: Measured, count: int, shards: int) -> dict[str, float]:
    with BenchNodes(context.brokers, count, shards=shards, partitions=PARTITIONS) as nodes:
        _start(nodes, shards)
        idle_ms = _idle_ms(nodes)
        rate, cpu_us = _backlog(context, measured, nodes, shards, 1)
        p50, p99 = _lateness(context, measured, nodes)
        memory_mib = sum(
            int(nodes.status(name)["process"]["memory_bytes"]) for name in nodes.names
        ) / (2**20 * count)
    return {
        "rate": rate,
        "cpu": cpu_us,
        "idle": idle_ms,
        "p50": p50,
        "p99": p99,
        "memory": memory_mib,
    }


def _backlog(
    context: Context, measured: Measured, nodes: BenchNodes, shards: int, part: int
) -> tuple[float, float]:
    """Return the rate of a backlog from the moment at which it is due, and the processor time of
    all nodes for a message, to ingest and to deliver it, in us."""

    def play(patience: int) -> tuple[float, float]:
        kafka, messages = context.brokers.client, context.sizes.messages // part
        begun_s = _used_s(nodes)
        ingested = nodes.count(nodes.names[0], "ingested_count")
        at_ms = nodes.clock.wall_ms() + patience * lead_ms(len(nodes.names) * messages)
        load = shuffled(nodes.create_target(), messages, at_ms, HOT_MS)
        with reading(kafka, load) as reader:
            fill(kafka, nodes.buffer, load)
            nodes.wait_until_ingested(ingested + messages)
            used_s = _used_s(nodes) - begun_s
            if nodes.clock.wall_ms() >= at_ms:
                raise TooSlowError
            Event().wait((at_ms - nodes.clock.wall_ms()) / 1000)
            begun_s = _used_s(nodes)
            found = received(reader, at_ms + LATE_MS_MAX)
        used_s += _used_s(nodes) - begun_s
        [last_ms] = found.quantiles_ms(1000)
        measured.add_faults(f"shards-{shards}x{len(nodes.names)}", found.faults())
        return 1000 * messages / max(1, last_ms), used_s * 10**6 / messages

    return context.patiently(play)


def _idle_ms(nodes: BenchNodes) -> float:
    """Return the processor time of all nodes in a second in which they have nothing to do, ms."""
    begun_s = _used_s(nodes)
    Event().wait(IDLE_S)
    return 1000 * (_used_s(nodes) - begun_s) / IDLE_S


def _used_s(nodes: BenchNodes) -> float:
    return sum(cpu_s_of(nodes).values())


def _lateness(context: Context, measured: Measured, nodes: BenchNodes) -> tuple[float, float]:
    """Return p50 and p99 of the lateness at an even rate, ms."""
    sizes, kafka = context.sizes, context.brokers.client
    first_due_ms = nodes.clock.wall_ms() + START_MS + LEAD_MS
    load = paced(nodes.create_target(), sizes.rate, sizes.seconds, first_due_ms)
    with reading(kafka, load) as reader, sending(kafka, nodes.buffer, load, LEAD_MS) as sender:
        finish(sender)
        found = received(reader, load.end_ms + LATE_MS_MAX)
    measured.add_faults("shards-lateness", found.faults())
    p50, p99 = found.quantiles_ms(500, 990)
    return p50, p99


def _start(nodes: BenchNodes, shards: int) -> None:
    """Start all nodes; return when each shard is led, and no node leads more than its share,
    rounded up."""
    nodes.start_and_wait()
    share = -(-shards // len(nodes.names))

    def is_placed() -> bool:
        led = [nodes.status(name).get("shards_led") or [] for name in nodes.names]
        return sum(map(len, led)) == shards and max(map(len, led)) <= share

    nodes.wait(is_placed, PLACED_S_MAX, f"{shards} shards are led by {len(nodes.names)} nodes")
