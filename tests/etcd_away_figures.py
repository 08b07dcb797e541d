"""What an etcd that is away costs: `python tests/etcd_away_figures.py --seconds 60 --rate 2000`.

Three nodes, brokers and etcd of its own. The same load three times: with etcd; with etcd frozen
from before the first due time until three quarters have become due; with etcd killed for as long,
and empty when it comes back. Prints a line each: lateness, faults and takeovers.
"""

import argparse
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from delayd.bench.brokers import Brokers
from delayd.bench.hot_second import LATE_MS_MAX
from delayd.bench.lateness import LEAD_MS, START_MS, paced
from delayd.bench.nodes import BenchNodes, running
from delayd.bench.reading import reading, received
from delayd.bench.sending import finish, sending
from delayd.config.security import Security
from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions

NODES = 3
QUANTILES = {"p50": 500, "p99": 990, "p999": 999, "max": 1000}


def main() -> None:
    """Play the three loads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rate", type=int, default=2_000)
    sizes = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="delayd-figures-") as folder:
        here = Path(folder)
        with LocalCluster(here, ClusterOptions(nodes=0)) as servers:
            brokers = Brokers(servers.bootstrap, servers.etcd_url, Security.none())
            with running(brokers, NODES) as nodes:
                away_s = (START_MS + LEAD_MS) / 1_000 + sizes.seconds * 3 / 4
                for name, fault in (("there", None), ("frozen", frozen), ("emptied", emptied)):
                    term = nodes.term()
                    end = (lambda: None) if fault is None else fault(servers, here)
                    with ended_after(away_s, end):
                        told = play(brokers, nodes, sizes.rate, sizes.seconds)
                    print(f"etcd {name}: {told}, {nodes.term() - term} takeovers", flush=True)


def play(brokers: Brokers, nodes: BenchNodes, rate: int, seconds: int) -> str:
    """Deliver a load; return how late it was."""
    first_due_ms = nodes.clock.wall_ms() + START_MS + LEAD_MS
    load = paced(nodes.create_target(), rate, seconds, first_due_ms)
    with (
        reading(brokers.client, load) as reader,
        sending(brokers.client, nodes.buffer, load, LEAD_MS) as sender,
    ):
        finish(sender)
        found = received(reader, load.end_ms + LATE_MS_MAX)
    late = found.quantiles_ms(*QUANTILES.values())
    quantiles = ", ".join(f"{name} {ms} ms" for name, ms in zip(QUANTILES, late, strict=True))
    return f"{quantiles}, faults {found.faults()}"


@contextmanager
def ended_after(seconds: float, end: Callable[[], object]) -> Iterator[None]:
    """Call that after a while."""
    timer = threading.Timer(seconds, end)
    timer.start()
    yield
    timer.join()


def frozen(servers: LocalCluster, _folder: Path) -> Callable[[], object]:
    """Let etcd answer nothing; return what ends that."""
    servers.kill("etcd", signal.SIGSTOP)
    return lambda: servers.kill("etcd", signal.SIGCONT)


def emptied(servers: LocalCluster, folder: Path) -> Callable[[], object]:
    """Kill etcd; return what starts it without its data."""

    def restart() -> None:
        shutil.rmtree(folder / "data" / "etcd")
        servers.restart("etcd")

    servers.kill("etcd")
    return restart


if __name__ == "__main__":
    main()
