"""`delayd bench lateness`: messages scheduled some seconds ahead at an even rate, on three nodes,
while very many others are pending. An independent reader on the same host receives them.

Then the bare driver writes messages at the same rate, each as soon as it is due, to the same
reader: nothing can be faster without being early.
"""

from typing import Final

from delayd.bench.context import Context
from delayd.bench.figures import Figure, Measured
from delayd.bench.hot_second import LATE_MS_MAX, add_cpu, cpu_s_of, play_bare
from delayd.bench.load import Load, shuffled
from delayd.bench.nodes import BenchNodes, running
from delayd.bench.reading import reading, received
from delayd.bench.sending import fill, finish, sending

NODES: Final = 3
LEAD_MS: Final = 5_000
"""From sending to due, on average."""

START_MS: Final = 3_000
"""Time to start the processes that send and read."""

FAR_FROM_MS: Final = 2 * 3_600_000
FAR_SPREAD_MS: Final = 30 * 24 * 3_600_000
QUANTILES: Final = {"p50": 500, "p99": 990, "p999": 999, "max": 1000}
BARE_SHARE: Final = 3
"""The bare driver is measured for one in so many seconds."""

AGAINST: Final = "bare transactions at due times"


def bench_lateness(context: Context) -> list[Figure]:
    """Return lateness, faults, and processor time of master and followers."""
    measured = Measured()
    sizes = context.sizes
    with running(context.brokers, NODES) as nodes:
        context.tell(f"lateness: {sizes.pending} messages for later")
        schedule_far(context, nodes, sizes.pending)
        ingested = sizes.pending
        for _ in context.runs("lateness"):
            ingested += _play(context, nodes, measured, ingested)
    return measured.figures()


def schedule_far(context: Context, nodes: BenchNodes, count: int) -> None:
    """Schedule so many messages, uniform over 30 days, and wait until they are ingested."""
    if count:
        first_ms = nodes.clock.wall_ms() + FAR_FROM_MS
        far = shuffled(nodes.create_target(), count, first_ms, FAR_SPREAD_MS)
        fill(context.brokers.client, nodes.buffer, far)
        nodes.wait_until_ingested(count)


def paced(target: str, rate: int, seconds: int, first_due_ms: int) -> Load:
    """Return a load at an even rate; within each second the order of due times is not that of
    sending."""
    return Load(target, rate * seconds, first_due_ms, seconds * 1000, block=rate)


def _play(context: Context, nodes: BenchNodes, measured: Measured, before: int) -> int:
    sizes, kafka = context.sizes, context.brokers.client
    first_due_ms = nodes.clock.wall_ms() + START_MS + LEAD_MS
    load = paced(nodes.create_target(), sizes.rate, sizes.seconds, first_due_ms)
    master, term = nodes.master() or nodes.names[0], nodes.term()
    before_s = cpu_s_of(nodes)
    with (
        reading(kafka, load) as reader,
        sending(kafka, nodes.buffer, load, LEAD_MS) as sender,
    ):
        finish(sender)
        found = received(reader, load.end_ms + LATE_MS_MAX)
    used_s = {name: used_s - before_s[name] for name, used_s in cpu_s_of(nodes).items()}
    nodes.wait_until_ingested(before + load.count)
    seconds = max(1, sizes.seconds // BARE_SHARE)
    bare, bare_cpu_ms = play_bare(
        context,
        Load(
            nodes.create_target(),
            sizes.rate * seconds,
            nodes.clock.wall_ms() + START_MS,
            seconds * 1000,
        ),
    )
    late, bare_late = (each.quantiles_ms(*QUANTILES.values()) for each in (found, bare))
    for name, own, other in zip(QUANTILES, late, bare_late, strict=True):
        measured.add(f"lateness-{name}", "ms late", own, AGAINST, other)
    measured.add("lateness-takeovers", "takeovers", nodes.term() - term)
    add_cpu(measured, "lateness", used_s, master, load.count, bare_cpu_ms)
    measured.add_faults("lateness", found.faults())
    return load.count
