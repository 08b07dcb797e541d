"""`delayd bench startup`: from the start of a node that was killed with kill -9 during ingest
until it says that it could take over; with very many messages pending, and with few."""

from signal import SIGKILL
from typing import Final, NamedTuple

from delayd.bench.context import Context
from delayd.bench.deliver import lead_ms
from delayd.bench.figures import Figure, Measured
from delayd.bench.hot_second import LATE_MS_MAX
from delayd.bench.lateness import paced
from delayd.bench.nodes import QUICK_LOOK_S
from delayd.bench.pending import Pair, Standing
from delayd.bench.process_costs import tree_memory
from delayd.bench.reading import reading
from delayd.bench.receipts import Faults
from delayd.bench.sending import finish, sending

KILL_SHARE: Final = 10
"""The node is killed when it has ingested one in so many messages."""

READY_S_MAX: Final = 300


class _Start(NamedTuple):
    ready_ms: int
    anon_mib: float
    faults: Faults


def bench_startup(context: Context, pair: Pair) -> list[Figure]:
    """Return the time until ready, and memory then. The kill may lose or double nothing."""
    measured = Measured()
    for _ in context.runs("startup"):
        many, few = _play(context, pair.many), _play(context, pair.few)
        measured.add("startup-ready", "ms", many.ready_ms, pair.against, few.ready_ms)
        measured.add("startup-anon", "MiB", many.anon_mib, pair.against, few.anon_mib)
        measured.add_faults("startup", many.faults, few.faults)
    return measured.figures()


def _play(context: Context, standing: Standing) -> _Start:
    nodes, sizes, kafka = standing.nodes, context.sizes, context.brokers.client
    first_ms = nodes.clock.wall_ms() + lead_ms(sizes.rate * sizes.seconds)
    load = paced(nodes.create_target(), sizes.rate, sizes.seconds, first_ms)
    before = nodes.count(standing.name, "ingested_count")
    with (
        reading(kafka, load) as reader,
        sending(kafka, nodes.buffer, load) as sender,
    ):
        nodes.wait(
            lambda: (
                nodes.count(standing.name, "ingested_count") >= before + load.count // KILL_SHARE
            ),
            READY_S_MAX,
            "some are taken in",
            QUICK_LOOK_S,
        )
        nodes.end(standing.name, SIGKILL)
        begun_ms = nodes.clock.monotonic_ms()
        nodes.start(standing.name)
        nodes.wait(lambda: nodes.is_ready(standing.name), READY_S_MAX, "it is ready", QUICK_LOOK_S)
        ready_ms = nodes.clock.monotonic_ms() - begun_ms
        finish(sender)
        found = reader.finish(load.end_ms + LATE_MS_MAX)
    standing.ingested = nodes.count(standing.name, "ingested_count")
    return _Start(ready_ms, tree_memory(standing.pid).anon / 2**20, found.faults())
