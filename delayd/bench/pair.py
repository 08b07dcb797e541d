"""`delayd bench scale`, `memory` and `startup`: the same with very many messages pending, and with
few. Two clusters of one node each stand side by side on the same brokers.

Scale: a node's processor time for each message, by the kernel's account: rates would depend on the
other processes too. Ingested messages are due over the same 30 days as those pending; delivered
ones within seconds, at an even rate, measured from when all are ingested until all are received.

Memory: anonymous memory is the node's own. Pages of mapped files can be taken back by the kernel at
any time. Both are summed over the node's processes.

Startup: from the start of a node that was killed with kill -9 during ingest until it says that it
could take over. The kill may lose or double nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from signal import SIGKILL
from threading import Event
from typing import Final

from delayd.bench.context import Context
from delayd.bench.errors import TooSlowError
from delayd.bench.figures import Figure, Measured
from delayd.bench.hot_second import LATE_MS_MAX
from delayd.bench.lateness import FAR_FROM_MS, FAR_SPREAD_MS, paced, schedule_far
from delayd.bench.load import Load, shuffled
from delayd.bench.nodes import QUICK_LOOK_MS, BenchNodes, running
from delayd.bench.process_costs import tree_cpu_s, tree_memory
from delayd.bench.reading import reading, received
from delayd.bench.receipts import Faults
from delayd.bench.sending import fill, finish, lead_ms, sending

FEW_SHARE: Final = 100
"""Few are one in so many: 100,000 of 10 million."""

MIB: Final = 2**20
BETWEEN_S: Final = 2
"""Between two looks at memory: two checkpoints."""

KILL_SHARE: Final = 10
"""The node is killed when it has ingested one in so many messages."""

READY_S_MAX: Final = 300


@dataclass(slots=True)
class Standing:
    """One of the two clusters."""

    nodes: BenchNodes
    pending: int
    ingested: int
    """Messages that its node has ingested since the node's start."""

    @property
    def name(self) -> str:
        """Return the name of its node."""
        [name] = self.nodes.names
        return name

    @property
    def pid(self) -> int:
        """Return the process id of its node."""
        return self.nodes.pid(self.name)

    def ingest(self, kafka: dict[str, str], load: Load) -> None:
        """Send a load, and wait until its node has ingested it."""
        fill(kafka, self.nodes.buffer, load)
        self.ingested += load.count
        self.nodes.wait_until_ingested(self.ingested)

    def new_load(self, context: Context, patience: int) -> Load:
        """Return a load at an even rate, to a target of its own, due when it can be ingested."""
        rate, seconds = context.sizes.rate, context.sizes.seconds
        first_ms = self.nodes.clock.wall_ms() + patience * lead_ms(rate * seconds)
        return paced(self.nodes.create_target(), rate, seconds, first_ms)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both clusters."""

    many: Standing
    few: Standing

    @property
    def against(self) -> str:
        """Return, in words, what `many` is compared with."""
        return f"the same with {self.few.pending:,} pending"


@contextmanager
def standing(context: Context) -> Iterator[Pair]:
    """Yield both clusters: their nodes run and have ingested all that is pending."""
    counts = [max(1, context.sizes.pending // share) for share in (1, FEW_SHARE)]
    context.tell(f"{counts[0]} messages for later on one node, {counts[1]} on another")
    with running(context.brokers, 1) as many, running(context.brokers, 1) as few:
        pair = Pair(Standing(many, counts[0], counts[0]), Standing(few, counts[1], counts[1]))
        for each in (pair.few, pair.many):
            schedule_far(context, each.nodes, each.pending)
        yield pair


def bench_scale(context: Context, pair: Pair) -> list[Figure]:
    """Return cost and lateness with many pending against few."""
    units = {"scale-ingest-cpu": "us/message", "scale-deliver-cpu": "us/message"}
    units |= {"scale-lateness-p50": "ms late", "scale-lateness-p99": "ms late"}

    def play(standing: Standing) -> tuple[tuple[float, ...], Faults]:
        return context.patiently(lambda patience: _scale(context, standing, patience))

    return _compared(context, "scale", pair, units, play)


def bench_memory(context: Context, pair: Pair) -> list[Figure]:
    """Return the memory of a node with many pending against one with few, some seconds apart."""
    measured = Measured()
    for _ in context.runs("memory"):
        Event().wait(BETWEEN_S)
        many, few = tree_memory(pair.many.pid), tree_memory(pair.few.pid)
        measured.add("memory-anon", "MiB", many.anon / MIB, pair.against, few.anon / MIB)
        measured.add("memory-file", "MiB", many.file / MIB, pair.against, few.file / MIB)
        frames = int(pair.many.nodes.status(pair.many.name)["wheel"]["frames"])
        measured.add("memory-pending-lost", "messages", max(0, pair.many.pending - frames))
    return measured.figures()


def bench_startup(context: Context, pair: Pair) -> list[Figure]:
    """Return the time until ready, and memory then."""
    units = {"startup-ready": "ms", "startup-anon": "MiB"}
    return _compared(context, "startup", pair, units, lambda each: _start_again(context, each))


def _compared(
    context: Context,
    name: str,
    pair: Pair,
    units: dict[str, str],
    play: Callable[[Standing], tuple[tuple[float, ...], Faults]],
) -> list[Figure]:
    """Return the figures with these units that `play` measures on both clusters, in that order."""
    measured = Measured()
    for _ in context.runs(name):
        (many, faults), (few, others_faults) = play(pair.many), play(pair.few)
        for (figure, unit), own, other in zip(units.items(), many, few, strict=True):
            measured.add(figure, unit, own, pair.against, other)
        measured.add_faults(name, faults, others_faults)
    return measured.figures()


def _scale(context: Context, standing: Standing, patience: int) -> tuple[tuple[float, ...], Faults]:
    nodes, kafka = standing.nodes, context.brokers.client
    begun_s = tree_cpu_s(standing.pid)
    first_ms = nodes.clock.wall_ms() + FAR_FROM_MS
    far = shuffled(nodes.create_target(), context.sizes.messages, first_ms, FAR_SPREAD_MS)
    standing.ingest(kafka, far)
    ingest_s = tree_cpu_s(standing.pid) - begun_s
    near = standing.new_load(context, patience)
    with reading(kafka, near) as reader:
        standing.ingest(kafka, near)
        begun_s = tree_cpu_s(standing.pid)
        if nodes.clock.wall_ms() >= near.first_due_ms:
            raise TooSlowError
        found = received(reader, near.end_ms + LATE_MS_MAX)
    deliver_s = tree_cpu_s(standing.pid) - begun_s
    cost_us = (ingest_s * 10**6 / far.count, deliver_s * 10**6 / near.count)
    return (*cost_us, *found.quantiles_ms(500, 990)), found.faults()


def _start_again(context: Context, standing: Standing) -> tuple[tuple[float, ...], Faults]:
    nodes, kafka, name = standing.nodes, context.brokers.client, standing.name
    load = standing.new_load(context, patience=1)
    enough = nodes.count(name, "ingested_count") + load.count // KILL_SHARE
    with (
        reading(kafka, load) as reader,
        sending(kafka, nodes.buffer, load) as sender,
    ):
        nodes.wait(
            lambda: nodes.count(name, "ingested_count") >= enough,
            READY_S_MAX,
            "some are taken in",
            QUICK_LOOK_MS,
        )
        nodes.end(name, SIGKILL)
        begun_ms = nodes.clock.monotonic_ms()
        nodes.start(name)
        nodes.wait(lambda: nodes.is_ready(name), READY_S_MAX, "it is ready", QUICK_LOOK_MS)
        ready_ms = nodes.clock.monotonic_ms() - begun_ms
        finish(sender)
        found = received(reader, load.end_ms + LATE_MS_MAX)
    standing.ingested = nodes.count(name, "ingested_count")
    return (ready_ms, tree_memory(standing.pid).anon / MIB), found.faults()
