"""`delayd bench raw`, `ingest` and `deliver`: messages per second, and processor time for each.

Raw: the limit on these brokers, confluent-kafka alone. Ingest: a node ingests a buffer that is full
when it starts. Deliver: a node ingests messages, ends before the first of them is due, and starts
again when all are due, as after an outage; nobody reads the target meanwhile.
"""

import contextlib
from functools import partial
from signal import SIGTERM
from typing import Final, NamedTuple

from delayd.bench.bare import Bare, Progress
from delayd.bench.brokers import PARTITIONS, TOPIC_TIMEOUT_MS
from delayd.bench.context import Context
from delayd.bench.errors import TooSlowError
from delayd.bench.figures import Figure, Measured
from delayd.bench.load import Load, shuffled
from delayd.bench.nodes import BenchNodes
from delayd.bench.process_costs import tree_cpu_s
from delayd.bench.reading import read_back
from delayd.bench.receipts import Faults
from delayd.bench.sending import fill, lead_ms

INGEST_LEAD_MS: Final = 3_600_000
"""Nothing becomes due meanwhile."""

INGEST_SPREAD_MS: Final = 60_000
DELIVER_SPREAD_MS: Final = 5_000
PROGRESS_S_MAX: Final = 900


def bench_raw(context: Context) -> list[Figure]:
    """Return transactional produce and read_committed consume, against produce without
    transactions."""
    measured = Measured()
    bare = Bare(context.brokers.client)
    against = "bare produce without transactions"
    for _ in context.runs("raw"):
        with BenchNodes(context.brokers, 0) as topics:
            now_ms = topics.clock.wall_ms()
            count = context.sizes.messages
            plain = bare.produce(Load(topics.create_target(), count, now_ms, 1000))
            load = Load(topics.create_target(), count, now_ms, 1000)
            transactions = bare.transactions(load)
            consumed = bare.consume(load.target, PARTITIONS, count)
            found = read_back(context.brokers.client, load, topics.clock.wall_ms())
        measured.add("raw-produce", "messages/s", plain.rate)
        measured.add("raw-transactions", "messages/s", transactions.rate, against, plain.rate)
        measured.add("raw-consume", "messages/s", consumed.rate, against, plain.rate)
        # Due times mean nothing here: bare records have none.
        measured.add_faults("raw", found.faults()._replace(early=0))
    return measured.figures()


def bench_ingest(context: Context) -> list[Figure]:
    """Return a node's rate of ingest of a full buffer, due times over 60 s, against a bare read
    of it."""
    measured = Measured()
    bare = Bare(context.brokers.client)
    for _ in context.runs("ingest"):
        paths = context.paths
        with BenchNodes(context.brokers, len(paths), [*paths.values()]) as nodes:
            target, count = nodes.create_target(), context.sizes.messages
            first_due_ms = nodes.clock.wall_ms() + INGEST_LEAD_MS
            load = shuffled(target, count, first_due_ms, INGEST_SPREAD_MS)
            fill(context.brokers.client, nodes.buffer, load)
            consumed = bare.consume(nodes.buffer, PARTITIONS, count)
            measured_of: dict[str, tuple[Progress, int]] = {}
            for name, path in zip(nodes.names, paths, strict=True):
                nodes.start(name)
                progress = _watch(nodes, name, "ingested_count", count)
                measured_of[path] = progress, nodes.count(name, "ingested_count")
                nodes.end(name, SIGTERM)
            with contextlib.closing(context.brokers.bus.cluster()) as kafka:
                ends = kafka.end_offsets(target, TOPIC_TIMEOUT_MS, committed=False)
            early = sum(ends.values())  # whatever the offsets tell of came too early
        for path, (progress, ingested) in measured_of.items():
            _add(measured, f"ingest{path}", progress, "bare read_committed consume", consumed)
            # `_watch` ends when all are ingested: fewer is an error, and not a figure.
            measured.add_faults(f"ingest{path}", Faults(0, ingested - count, early, 0))
    return measured.figures()


def bench_deliver(context: Context) -> list[Figure]:
    """Return the backlog's rate, against a bare transactional produce of as many."""
    measured = Measured()
    bare = Bare(context.brokers.client)
    for _ in context.runs("deliver"):
        for path in context.paths:
            play = partial(_deliver, context, bare, measured, path)
            context.patiently(play)
    return measured.figures()


def _deliver(context: Context, bare: Bare, measured: Measured, path: str, patience: int) -> None:
    with BenchNodes(context.brokers, 1, [context.paths[path]]) as nodes:
        [name] = nodes.names
        count = context.sizes.messages
        nodes.start_and_wait()
        first_due_ms = nodes.clock.wall_ms() + patience * lead_ms(count)
        load = shuffled(nodes.create_target(), count, first_due_ms, DELIVER_SPREAD_MS)
        fill(context.brokers.client, nodes.buffer, load)
        nodes.wait_until_ingested(count)
        if nodes.end(name, SIGTERM) >= first_due_ms:
            raise TooSlowError
        produced = bare.transactions(Load(nodes.create_target(), count, 0, 1000))
        nodes.wait(lambda: nodes.clock.wall_ms() > load.end_ms, PROGRESS_S_MAX, "all is due")
        nodes.start()
        progress = _watch(nodes, name, "delivered_count", count)
        found = read_back(context.brokers.client, load, nodes.clock.wall_ms())
        _add(measured, f"deliver{path}", progress, "bare transactional produce", produced)
        measured.add_faults(f"deliver{path}", found.faults())


def _add(measured: Measured, name: str, own: Progress, against: str, bare: Progress) -> None:
    measured.add(name, "messages/s", own.rate, against, bare.rate)
    measured.add(f"{name}-cpu", "us/message", own.cpu_us, against, bare.cpu_us)


class _Sample(NamedTuple):
    at_ms: int
    done: int
    cpu_s: float


def _watch(nodes: BenchNodes, name: str, what: str, count: int) -> Progress:
    """Measure from the node's first sign of progress until `what` (`ingested_count`,
    `delivered_count`) has reached `count`, without the last look: when it got there between two
    looks is unknown.

    Work that is over after a look or two is measured from the start of watching. Raises BenchError.
    """
    pid = nodes.pid(name)
    samples: list[_Sample] = []

    def is_done() -> bool:
        now_ms = nodes.clock.monotonic_ms()
        samples.append(_Sample(now_ms, nodes.count(name, what), tree_cpu_s(pid)))
        return len(samples) > 1 and samples[-1].done >= count

    nodes.wait(is_done, PROGRESS_S_MAX, f"{name} has {what} = {count}")
    under_way = [each for each in samples if samples[0].done < each.done < count]
    first, last = samples[0], samples[-1]
    if len(under_way) > 1:
        first, last = under_way[0], under_way[-1]
    return Progress.of(
        max(1, last.done - first.done), last.at_ms - first.at_ms, last.cpu_s - first.cpu_s
    )
