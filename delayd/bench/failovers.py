"""`delayd bench failover`, `freeze`, `handover`: the master ends, again and again, under a load.

Failover: SIGKILL; freeze: SIGSTOP, until another node delivers; the time from the signal to the
first record of the successor at a read_committed reader. Handover: SIGTERM; the longest time
without any record around it. Each ended node is started again before the next one ends. They are
compared with the time that the bare driver needs to take over a transactional id and be read, when
no death has to be noticed first.
"""

from signal import SIGKILL, SIGSTOP, SIGTERM, Signals
from threading import Event
from typing import Final

from delayd.bench.bare import Bare
from delayd.bench.brokers import PARTITIONS
from delayd.bench.context import Context
from delayd.bench.errors import BenchError
from delayd.bench.figures import Figure, Measured
from delayd.bench.hot_second import LATE_MS_MAX
from delayd.bench.lateness import LEAD_MS, START_MS, paced
from delayd.bench.nodes import QUICK_LOOK_MS, BenchNodes, running
from delayd.bench.reading import reading, received
from delayd.bench.receipts import Receipts
from delayd.bench.sending import finish, sending
from delayd.dev.ledger import Kill

NODES: Final = 3
PERIOD_S: Final = {SIGKILL: 9, SIGSTOP: 9, SIGTERM: 5}
"""Between two ends: three times the lease, where one may have to be waited for, so that each begins
from a calm cluster."""

FIRST_S: Final = 2
TAIL_S: Final = 4
MASTER_S_MAX: Final = 120
AGAINST: Final = "bare takeover"


def bench_failover(context: Context) -> list[Figure]:
    """Kill the master with SIGKILL, `runs` times."""
    return _bench(context, "failover", SIGKILL)


def bench_freeze(context: Context) -> list[Figure]:
    """Freeze the master with SIGSTOP, `runs` times."""
    return _bench(context, "freeze", SIGSTOP)


def bench_handover(context: Context) -> list[Figure]:
    """End the master with SIGTERM, `runs` times."""
    return _bench(context, "handover", SIGTERM)


def _bench(context: Context, name: str, signal: Signals) -> list[Figure]:
    sizes = context.sizes
    period_s = PERIOD_S[signal]
    kafka = context.brokers.client
    measured = Measured()
    with running(context.brokers, NODES) as nodes:
        bare = [Bare(kafka).takeover(nodes.create_target(), PARTITIONS) for _ in range(sizes.runs)]
        first_due_ms = nodes.clock.wall_ms() + START_MS + LEAD_MS
        seconds = FIRST_S + sizes.runs * period_s + TAIL_S
        load = paced(nodes.create_target(), sizes.rate, seconds, first_due_ms)
        with (
            reading(kafka, load, with_fired=True) as reader,
            sending(kafka, nodes.buffer, load, LEAD_MS) as sender,
        ):
            ends = []
            for run in range(sizes.runs):
                at_ms = first_due_ms + (FIRST_S + run * period_s) * 1000
                Event().wait(max(0, at_ms - nodes.clock.wall_ms()) / 1000)
                context.tell(f"{name}, run {run + 1}")
                ends.append(_end_master(nodes, signal))
            finish(sender)
            found = received(reader, load.end_ms + LATE_MS_MAX)
    for end, other in zip(ends, bare, strict=True):
        _add(measured, name, found, end, other, signal)
    measured.add_faults(name, found.faults())
    return measured.figures()


def _end_master(nodes: BenchNodes, signal: Signals) -> Kill:
    """End the master, and start or wake it again when another node delivers."""
    found: list[str | None] = [None]

    def has_master() -> bool:
        found[0] = nodes.master()
        return found[0] is not None

    nodes.wait(has_master, MASTER_S_MAX, "a node delivers")
    name = found[0]
    assert name is not None
    at_ms = nodes.clock.wall_ms()
    gone_ms = nodes.freeze(name) if signal == SIGSTOP else nodes.end(name, signal)
    nodes.wait(has_master, MASTER_S_MAX, "another node delivers", QUICK_LOOK_MS)
    if signal == SIGSTOP:
        nodes.thaw(name)
    else:
        nodes.start(name)
    return Kill(at_ms, gone_ms)


def _add(
    measured: Measured, name: str, found: Receipts, end: Kill, bare_ms: int, signal: Signals
) -> None:
    """Add the figures of one end of a master."""
    if signal == SIGTERM:
        until_ms = end.at_ms + PERIOD_S[signal] * 1000 // 2
        silence_ms = found.silence_ms(end.at_ms, until_ms)
        measured.add(f"{name}-gap", "ms without a record", silence_ms, AGAINST, bare_ms)
        return
    first_ms, caught_up_ms = found.successor_times(end.gone_ms, found.load.due_ms)
    if first_ms is None:
        raise BenchError("no successor delivered", remedy="see the nodes' logs")
    if caught_up_ms is None:  # a machine so busy that nothing is on time: at least so long
        caught_up_ms = found.load.end_ms
    measured.add(f"{name}-gap", "ms to the next record", first_ms - end.at_ms, AGAINST, bare_ms)
    late_ms = caught_up_ms - end.at_ms
    measured.add(f"{name}-caught-up", "ms until on time", late_ms, AGAINST, bare_ms)
