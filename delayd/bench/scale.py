"""`delayd bench scale`: the cost of a message with very many pending, and with few.

The cost is the node's processor time by the kernel's account: rates would depend on the other
processes too. Ingest: messages due over the same 30 days as those pending. Delivery: messages due
within seconds, at an even rate, from when all are ingested until all are received.
"""

from typing import NamedTuple

from delayd.bench.context import Context
from delayd.bench.deliver import lead_ms
from delayd.bench.errors import patiently, too_slow
from delayd.bench.figures import Figure, Measured
from delayd.bench.hot_second import LATE_MS_MAX
from delayd.bench.lateness import FAR_FROM_MS, FAR_SPREAD_MS, paced
from delayd.bench.load import shuffled
from delayd.bench.pending import Pair, Standing
from delayd.bench.process_costs import tree_cpu_s
from delayd.bench.reading import reading
from delayd.bench.receipts import Faults
from delayd.bench.sending import fill


class _Cost(NamedTuple):
    """Of one run on one cluster."""

    ingest_us: float
    deliver_us: float
    p50_ms: int
    p99_ms: int
    faults: Faults


def bench_scale(context: Context, pair: Pair) -> list[Figure]:
    """Return cost and lateness with many pending against few."""
    measured = Measured()
    for _ in context.runs("scale"):
        many, few = (_patiently(context, each) for each in (pair.many, pair.few))
        against, unit, late = pair.against, "us/message", "ms late"
        measured.add("scale-ingest-cpu", unit, many.ingest_us, against, few.ingest_us)
        measured.add("scale-deliver-cpu", unit, many.deliver_us, against, few.deliver_us)
        measured.add("scale-lateness-p50", late, many.p50_ms, against, few.p50_ms)
        measured.add("scale-lateness-p99", late, many.p99_ms, against, few.p99_ms)
        measured.add_faults("scale", many.faults, few.faults)
    return measured.figures()


def _patiently(context: Context, standing: Standing) -> _Cost:
    return patiently(context.tell, lambda patience: _play(context, standing, patience))


def _play(context: Context, standing: Standing, patience: int) -> _Cost:
    nodes, sizes, kafka = standing.nodes, context.sizes, context.brokers.client
    begun_s = tree_cpu_s(standing.pid)
    first_ms = nodes.clock.wall_ms() + FAR_FROM_MS
    far = shuffled(nodes.create_target(), sizes.messages, first_ms, FAR_SPREAD_MS)
    fill(kafka, nodes.buffer, far)
    standing.ingested += far.count
    nodes.wait_until_ingested(standing.ingested)
    ingest_s = tree_cpu_s(standing.pid) - begun_s
    first_ms = nodes.clock.wall_ms() + patience * lead_ms(sizes.rate * sizes.seconds)
    near = paced(nodes.create_target(), sizes.rate, sizes.seconds, first_ms)
    with reading(kafka, near) as reader:
        fill(kafka, nodes.buffer, near)
        standing.ingested += near.count
        nodes.wait_until_ingested(standing.ingested)
        begun_s = tree_cpu_s(standing.pid)
        if nodes.clock.wall_ms() >= near.first_due_ms:
            raise too_slow()
        found = reader.finish(near.end_ms + LATE_MS_MAX)
    deliver_s = tree_cpu_s(standing.pid) - begun_s
    p50, p99 = found.quantiles_ms(500, 990)
    return _Cost(
        ingest_s * 10**6 / far.count, deliver_s * 10**6 / near.count, p50, p99, found.faults()
    )
