"""`delayd bench deliver`: how fast a master delivers a backlog, exactly once.

A node ingests messages, ends before the first of them is due, and starts again when all are due: as
after an outage. Nothing else is delivered, and nobody reads the target meanwhile.
"""

from signal import SIGTERM
from typing import Final

from delayd.bench.bare import Bare
from delayd.bench.context import Context
from delayd.bench.errors import patiently, too_slow
from delayd.bench.figures import Figure, Measured
from delayd.bench.load import in_order, shuffled
from delayd.bench.nodes import BenchNodes
from delayd.bench.reading import read_back
from delayd.bench.sending import fill
from delayd.bench.watching import PROGRESS_S_MAX, watch

SPREAD_MS: Final = 5_000
AGAINST: Final = "bare transactional produce"
LEAD_MS: Final = 8_000
MESSAGES_PER_LEAD_MS: Final = 50
"""The first message is due a ms later for each so many: slower machines take longer."""


def lead_ms(messages: int) -> int:
    """Return how long before they are due so many messages are sent, so that all are ingested by
    then."""
    return LEAD_MS + messages // MESSAGES_PER_LEAD_MS


def bench_deliver(context: Context) -> list[Figure]:
    """Return the backlog's rate, against a bare transactional produce of as many."""
    measured = Measured()
    bare = Bare(context.brokers.client)
    for _ in context.runs("deliver"):
        patiently(context.tell, lambda patience: _play(context, bare, measured, patience))
    return measured.figures()


def _play(context: Context, bare: Bare, measured: Measured, patience: int) -> None:
    with BenchNodes(context.brokers, 1) as nodes:
        [name] = nodes.names
        count = context.sizes.messages
        nodes.start_and_wait()
        first_due_ms = nodes.clock.wall_ms() + patience * lead_ms(count)
        load = shuffled(nodes.create_target(), count, first_due_ms, SPREAD_MS)
        fill(context.brokers.client, nodes.buffer, load)
        nodes.wait_until_ingested(count)
        if nodes.end(name, SIGTERM) >= first_due_ms:
            raise too_slow()
        produced = bare.transactions(in_order(nodes.create_target(), count, 0, 1000))
        nodes.wait(lambda: nodes.clock.wall_ms() > load.end_ms, PROGRESS_S_MAX, "all is due")
        nodes.start()
        progress = watch(nodes, name, "delivered_count", count)
        found = read_back(context.brokers.client, load, nodes.clock.wall_ms())
        measured.add("deliver", "messages/s", progress.rate, AGAINST, produced.rate)
        measured.add("deliver-cpu", "us/message", progress.cpu_us, AGAINST, produced.cpu_us)
        measured.add_faults("deliver", found.faults())
