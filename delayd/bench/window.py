"""`delayd bench window`: very many messages due at one time, with `delayd-window`, on three nodes.

A reader in a process of its own works out where in its window each was planned, and measures the
lateness against that. Then the bare driver writes messages at the same rate, each as soon as it is
due, to the same reader.
"""

from typing import Final

from delayd.bench.context import Context
from delayd.bench.errors import TooSlowError
from delayd.bench.figures import Figure, Measured
from delayd.bench.hot_second import BARE_LEAD_MS, LATE_MS_MAX, add_cpu, cpu_s_of, play_bare
from delayd.bench.lateness import AGAINST, BARE_SHARE, NODES, QUANTILES
from delayd.bench.load import Load
from delayd.bench.nodes import BenchNodes, running
from delayd.bench.reading import reading, received
from delayd.bench.sending import fill, lead_ms

GENERAL_PATH: Final = 2
"""A message with a wish takes about so many times as long to ingest as a plain one."""


def bench_window(context: Context) -> list[Figure]:
    """Return lateness against what was planned, faults, and processor time."""
    measured = Measured()
    for _ in context.runs("window"):
        context.patiently(lambda patience: _play(context, measured, patience))
    return measured.figures()


def _play(context: Context, measured: Measured, patience: int) -> None:
    sizes, kafka = context.sizes, context.brokers.client
    with running(context.brokers, NODES) as nodes:
        ahead_ms = patience * GENERAL_PATH * lead_ms(NODES * sizes.messages)
        load = Load(
            nodes.create_target(),
            sizes.messages,
            nodes.clock.wall_ms() + ahead_ms,
            spread_ms=0,
            window_ms=sizes.seconds * 1000,
        )
        master, term = nodes.master() or nodes.names[0], nodes.term()
        before_s = cpu_s_of(nodes)
        with reading(kafka, load) as reader:
            fill(kafka, nodes.buffer, load)
            nodes.wait_until_ingested(load.count)
            if nodes.clock.wall_ms() >= load.first_due_ms:
                raise TooSlowError
            found = received(reader, load.end_ms + LATE_MS_MAX)
        used_s = {name: used_s - before_s[name] for name, used_s in cpu_s_of(nodes).items()}
        bare, bare_cpu_ms = play_bare(context, _bare_load(context, nodes))
        late, bare_late = (each.quantiles_ms(*QUANTILES.values()) for each in (found, bare))
        for name, own, other in zip(QUANTILES, late, bare_late, strict=True):
            measured.add(f"window-{name}", "ms late", own, AGAINST, other)
        measured.add("window-takeovers", "takeovers", nodes.term() - term)
        add_cpu(measured, "window", used_s, master, load.count, bare_cpu_ms)
        measured.add_faults("window", found.faults())


def _bare_load(context: Context, nodes: BenchNodes) -> Load:
    """Return a load at the rate at which a window lets messages out."""
    sizes = context.sizes
    seconds = max(1, sizes.seconds // BARE_SHARE)
    count = sizes.messages * seconds // sizes.seconds
    first_due_ms = nodes.clock.wall_ms() + BARE_LEAD_MS + count // 100
    return Load(nodes.create_target(), count, first_due_ms, seconds * 1000)
