"""A new node's wheel from a peer against a replay of the buffer, and what the copy costs the donor.

    python tests/peer_figures.py --pending 1000000
    python tests/peer_figures.py --pending 10000000 --seconds 120

On a real Kafka and etcd, which it starts, one node holds so many messages of 300 bytes, due over 30
days, and delivers `--rate` a second. Lateness is measured for `--seconds` without a copy, and as
long while another node's directory is filled with copies, one after the other, at the donor's
default `snapshot_bytes_per_s`. The donor is the master, the fetcher on the same machine: the worst
case. Then a node without a wheel replays the same buffer. Prints JSON.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

from delayd.bench.brokers import brokers_at  # noqa: E402 - it is found only now
from delayd.bench.context import Context, Sizes  # noqa: E402
from delayd.bench.hot_second import LATE_MS_MAX  # noqa: E402
from delayd.bench.lateness import LEAD_MS, START_MS, paced, schedule_far  # noqa: E402
from delayd.bench.nodes import INGEST_S_MAX, BenchNodes  # noqa: E402
from delayd.bench.reading import reading, received  # noqa: E402
from delayd.bench.sending import finish, sending  # noqa: E402
from delayd.config.security import Security  # noqa: E402

QUANTILES = {"p50": 500, "p99": 990, "max": 1000}
READY_S = 60


@dataclass(frozen=True, slots=True)
class Peers:
    """A node that delivers, and the name of one that is to get a wheel."""

    context: Context
    nodes: BenchNodes
    donor: str
    new: str

    @property
    def config(self) -> Path:
        return self.nodes._directory / "config" / f"{self.new}.toml"

    @property
    def data(self) -> Path:
        return self.nodes._directory / "data" / self.new

    def lead(self) -> None:
        """Start the donor, and see it lead."""
        nodes = self.nodes
        nodes.start(self.donor)
        nodes.wait(
            lambda: nodes.is_ready(self.donor) and nodes.master() == self.donor, READY_S, "it leads"
        )

    def latenesses(self, meanwhile: Callable[[int], None]) -> dict[str, int]:
        """Return the lateness of a load at an even rate; `meanwhile` gets the time at which the
        last of it is due."""
        nodes, kafka, sizes = self.nodes, self.context.brokers.client, self.context.sizes
        first_due_ms = nodes.clock.wall_ms() + START_MS + LEAD_MS
        load = paced(nodes.create_target(), sizes.rate, sizes.seconds, first_due_ms)
        with (
            reading(kafka, load) as reader,
            sending(kafka, nodes.buffer, load, LEAD_MS) as sender,
        ):
            nodes.wait(lambda: nodes.clock.wall_ms() >= first_due_ms, READY_S, "it begins")
            meanwhile(load.end_ms)
            finish(sender)
            found = received(reader, load.end_ms + LATE_MS_MAX)
        assert not any(found.faults()), found.faults()
        return dict(zip(QUANTILES, found.quantiles_ms(*QUANTILES.values()), strict=True))

    def copies_until(self, end_ms: int, copies: list[dict[str, Any]]) -> None:
        """Copy the donor's wheel again and again until then, once at least."""
        while not copies or self.nodes.clock.wall_ms() < end_ms:
            shutil.rmtree(self.data, ignore_errors=True)
            self.data.mkdir()
            command = (
                sys.executable,
                "-m",
                "delayd.commands.cli",
                "wheel",
                "fetch",
                "--yes",
                "--json",
            )
            told = subprocess.run(
                [*command, "--config", str(self.config), "--from", self.donor],
                stdout=subprocess.PIPE,
                check=True,
            )
            copies.append(json.loads(told.stdout))

    def start_s(self, ends: int) -> float:
        """Start the new node; return the seconds until it could take over, and end it."""
        began = time.monotonic()
        self.nodes.start(self.new)
        self.nodes.wait(
            lambda: (
                self.nodes.is_ready(self.new)
                and sum(self.nodes.status(self.new).get("ingested") or ()) >= ends
            ),
            INGEST_S_MAX,
            f"{self.new} is ready",
        )
        return time.monotonic() - began


@contextmanager
def two_nodes(sizes: Sizes) -> Iterator[Peers]:
    """A Kafka and an etcd with two nodes that were not started yet; the first is the donor."""
    with brokers_at(None, Security.none()) as brokers, BenchNodes(brokers, 2) as nodes:
        context = Context(brokers, sizes, lambda what: print(what, file=sys.stderr, flush=True))
        yield Peers(context, nodes, *nodes.names)


def main() -> None:
    """Print the figures."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--pending", type=int, default=1_000_000)
    asked.add_argument("--rate", type=int, default=500, help="messages a second, delivered")
    asked.add_argument("--seconds", type=int, default=30)
    chosen = asked.parse_args()
    sizes = Sizes(runs=1, rate=chosen.rate, seconds=chosen.seconds, pending=chosen.pending)
    with two_nodes(sizes) as peers:
        context, nodes, donor, new = peers.context, peers.nodes, peers.donor, peers.new
        peers.lead()
        context.tell("filling")
        schedule_far(context, nodes, chosen.pending)
        context.tell("lateness without a copy")
        without = peers.latenesses(lambda end_ms: None)
        context.tell("lateness with copies")
        copies: list[dict[str, Any]] = []
        beside = peers.latenesses(lambda end_ms: peers.copies_until(end_ms, copies))
        ends = sum(nodes.status(donor)["ingested"])
        started_s = peers.start_s(ends)
        context.tell("replay")
        nodes.end(new, signal.SIGKILL)
        shutil.rmtree(peers.data)
        peers.data.mkdir()
        with peers.config.open("a") as file:
            file.write("replay_max_s = 0\n")
        replay_s = peers.start_s(ends)
    best = min(copies, key=lambda copy: float(copy["took_ms"]))
    figures = {
        "pending": chosen.pending,
        "copies": len(copies),
        "copy_mb": best["bytes"] / 1e6,
        "copy_s": best["took_ms"] / 1000,
        "copy_mb_per_s": best["bytes"] / 1e3 / best["took_ms"],
        "start_on_copy_s": started_s,
        "replay_s": replay_s,
        "lateness_ms": without,
        "lateness_beside_copies_ms": beside,
        "p99_ratio": beside["p99"] / max(1, without["p99"]),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
