"""`delayd bench raw`: the limit on these brokers, confluent-kafka alone."""

from delayd.bench.bare import Bare
from delayd.bench.brokers import PARTITIONS
from delayd.bench.context import Context
from delayd.bench.figures import Figure, Measured
from delayd.bench.load import in_order
from delayd.bench.nodes import BenchNodes
from delayd.bench.reading import read_back


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
            plain = bare.produce(in_order(topics.create_target(), count, now_ms, 1000))
            load = in_order(topics.create_target(), count, now_ms, 1000)
            transactions = bare.transactions(load)
            consumed = bare.consume(load.target, PARTITIONS, count)
            found = read_back(context.brokers.client, load, topics.clock.wall_ms())
        measured.add("raw-produce", "messages/s", plain.rate)
        measured.add("raw-transactions", "messages/s", transactions.rate, against, plain.rate)
        measured.add("raw-consume", "messages/s", consumed.rate, against, plain.rate)
        # Due times mean nothing here: bare records have none.
        measured.add_faults("raw", found.faults()._replace(early=0))
    return measured.figures()
