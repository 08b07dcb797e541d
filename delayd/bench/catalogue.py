"""All benchmarks: their names and their sizes, full and quick."""

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from delayd.bench.audits import bench_audit
from delayd.bench.context import Context, Sizes
from delayd.bench.errors import BenchError
from delayd.bench.failovers import bench_failover, bench_freeze, bench_handover
from delayd.bench.figures import Figure
from delayd.bench.hot_second import bench_hot_second
from delayd.bench.lateness import bench_lateness
from delayd.bench.neighbours import bench_neighbours
from delayd.bench.pair import Pair, bench_memory, bench_scale, bench_startup, standing
from delayd.bench.rates import bench_deliver, bench_ingest, bench_raw
from delayd.bench.shards import bench_shards
from delayd.bench.window import bench_window
from delayd.dev.cluster import LocalCluster
from delayd.dev.interrupts import interrupts_raised
from delayd.dev.startup import ClusterOptions

MILLION: Final = 1_000_000


class Wanted(NamedTuple):
    """The sizes of a benchmark."""

    full: Sizes
    quick: Sizes


ON_BROKERS: Final[dict[str, Callable[[Context], list[Figure]]]] = {
    "raw": bench_raw,
    "ingest": bench_ingest,
    "deliver": bench_deliver,
    "hot-second": bench_hot_second,
    "lateness": bench_lateness,
    "failover": bench_failover,
    "freeze": bench_freeze,
    "handover": bench_handover,
    "shards": bench_shards,
    "window": bench_window,
}
"""Each starts the nodes that it needs."""

ON_PAIR: Final[dict[str, Callable[[Context, Pair], list[Figure]]]] = {
    "scale": bench_scale,
    "memory": bench_memory,
    "startup": bench_startup,
}
"""These share two clusters, one with very many messages pending."""

ON_CLUSTER: Final[dict[str, Callable[[LocalCluster, int, int], list[Figure]]]] = {
    "neighbours": bench_neighbours,
    "audit": bench_audit,
}
"""These need a whole local cluster, on brokers of its own, and are not in `all`."""

_RATES: Final = Wanted(Sizes(runs=5, messages=MILLION), Sizes(runs=2, messages=MILLION // 10))

WANTED: Final[dict[str, Wanted]] = {
    "raw": _RATES._replace(full=Sizes(runs=5, messages=MILLION // 2)),
    "ingest": _RATES,
    "deliver": _RATES._replace(quick=Sizes(runs=1, messages=MILLION // 10)),
    "hot-second": Wanted(Sizes(runs=5, messages=500_000), Sizes(runs=1, messages=50_000)),
    "lateness": Wanted(
        Sizes(runs=5, rate=5_000, seconds=60, pending=MILLION),
        Sizes(runs=1, rate=5_000, seconds=5, pending=50_000),
    ),
    "failover": Wanted(Sizes(runs=20, rate=2_000), Sizes(runs=2, rate=2_000)),
    "freeze": Wanted(Sizes(runs=10, rate=2_000), Sizes(runs=1, rate=2_000)),
    "handover": Wanted(Sizes(runs=20, rate=2_000), Sizes(runs=2, rate=2_000)),
    "scale": Wanted(
        Sizes(runs=3, messages=100_000, rate=5_000, seconds=5, pending=10 * MILLION),
        Sizes(runs=1, messages=20_000, rate=5_000, seconds=2, pending=200_000),
    ),
    "memory": Wanted(
        Sizes(runs=5, pending=10 * MILLION),
        Sizes(runs=2, pending=200_000),
    ),
    "startup": Wanted(
        Sizes(runs=5, rate=5_000, seconds=2, pending=10 * MILLION),
        Sizes(runs=1, rate=5_000, seconds=2, pending=200_000),
    ),
    "shards": Wanted(
        Sizes(runs=1, messages=300_000, rate=5_000, seconds=10),
        Sizes(runs=1, messages=20_000, rate=1_000, seconds=3),
    ),
    "window": Wanted(
        Sizes(runs=3, messages=500_000, seconds=60),
        Sizes(runs=1, messages=20_000, seconds=10),
    ),
    "neighbours": Wanted(Sizes(runs=3, messages=60_000), Sizes(runs=1, messages=10_000)),
    "audit": Wanted(Sizes(runs=3, messages=200_000), Sizes(runs=1, messages=20_000)),
}

BESIDE_ALL: Final = ("freeze", "shards", "window")
"""Most of `freeze` is a setting, the time of suspicion; `shards` takes as long as all others;
`window` is `lateness` at another rate, of messages with a wish."""
ALL: Final = tuple(name for name in (*ON_BROKERS, *ON_PAIR) if name not in BESIDE_ALL)


def sizes_of(name: str, *, quick: bool, chosen: dict[str, int]) -> Sizes:
    """Return a benchmark's sizes; `chosen` replaces those that it has."""
    wanted = WANTED[name]
    sizes = wanted.quick if quick else wanted.full
    return replace(
        sizes, **{key: value for key, value in chosen.items() if getattr(wanted.full, key)}
    )


def measure(
    names: Iterable[str], context_of: Callable[[str], Context], found: dict[str, list[Figure]]
) -> dict[str, BenchError]:
    """Put these benchmarks' figures into `found`, by name, in the order of ALL. A benchmark that
    fails stops no other: return the errors, by name."""
    wanted, failed = set(names), dict[str, BenchError]()

    def attempt(name: str, bench: Callable[[], list[Figure]]) -> None:
        try:
            found[name] = bench()
        except BenchError as error:
            failed[name] = error

    for name, bench in ON_BROKERS.items():
        if name in wanted:
            attempt(name, partial(bench, context_of(name)))
    if on_pair := [name for name in ON_PAIR if name in wanted]:
        try:
            with standing(context_of(on_pair[0])) as pair:
                for name in on_pair:
                    attempt(name, partial(ON_PAIR[name], context_of(name), pair))
        except BenchError as error:
            failed |= dict.fromkeys((name for name in on_pair if name not in found), error)
    return failed


def measure_on_cluster(name: str, sizes: Sizes) -> list[Figure]:
    """Return the figures of a benchmark that needs a whole local cluster."""
    with (
        interrupts_raised(),
        tempfile.TemporaryDirectory(prefix="delayd-bench-") as folder,
        LocalCluster(Path(folder), ClusterOptions(nodes=3)) as cluster,
    ):
        return ON_CLUSTER[name](cluster, sizes.messages, sizes.runs)
