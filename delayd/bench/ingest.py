"""`delayd bench ingest`: how fast a node ingests a buffer that is full when it starts."""

import contextlib
from typing import Final

from delayd.bench.bare import Bare
from delayd.bench.brokers import PARTITIONS, TOPIC_TIMEOUT_MS
from delayd.bench.context import Context
from delayd.bench.figures import Figure, Measured
from delayd.bench.load import shuffled
from delayd.bench.nodes import BenchNodes
from delayd.bench.receipts import Faults
from delayd.bench.sending import fill
from delayd.bench.watching import watch

LEAD_MS: Final = 3_600_000
"""Nothing becomes due meanwhile."""

SPREAD_MS: Final = 60_000
AGAINST: Final = "bare read_committed consume"


def bench_ingest(context: Context) -> list[Figure]:
    """Return a node's rate of ingest of a full buffer, due times over 60 s, against a bare read
    of it."""
    measured = Measured()
    bare = Bare(context.brokers.client)
    for _ in context.runs("ingest"):
        with BenchNodes(context.brokers, 1) as nodes:
            target, count = nodes.create_target(), context.sizes.messages
            load = shuffled(target, count, nodes.clock.wall_ms() + LEAD_MS, SPREAD_MS)
            fill(context.brokers.client, nodes.buffer, load)
            consumed = bare.consume(nodes.buffer, PARTITIONS, count)
            [name] = nodes.names
            nodes.start()
            progress = watch(nodes, name, "ingested_count", count)
            ingested = nodes.count(name, "ingested_count")
            with contextlib.closing(context.brokers.bus.cluster()) as kafka:
                ends = kafka.end_offsets(target, TOPIC_TIMEOUT_MS, committed=False)
            early = sum(ends.values())  # whatever the offsets tell of came too early
        measured.add("ingest", "messages/s", progress.rate, AGAINST, consumed.rate)
        measured.add("ingest-cpu", "us/message", progress.cpu_us, AGAINST, consumed.cpu_us)
        # `watch` ends when all are ingested: fewer is an error, and not a figure.
        measured.add_faults("ingest", Faults(0, ingested - count, early, 0))
    return measured.figures()
