"""What look-ups, lists and hostile requests cost a master that delivers.

    python tests/api_figures.py --pending 10000000 --rate 5000 --seconds 60
    python tests/api_figures.py --pending 100000 --seconds 60 --hostile 10000

On a real Kafka and etcd, which it starts, a master holds so many messages due over 30 days, and
delivers `--rate` a second; a second node follows. Lateness is measured without the API, as long
while somebody asks the master for an id every 50 ms, and for the first page of what is pending
every half second, and as long while `--hostile` requests come at an even rate, none of which may
have an effect. Prints JSON.
"""

import argparse
import asyncio
import http.client
import json
import random
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from peer_figures import READY_S, two_nodes

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent / "unit")]

from hostile_http import AT_ONCE, statuses, throw  # noqa: E402 - it is found only now

from delayd.bench.context import Sizes  # noqa: E402
from delayd.bench.lateness import schedule_far  # noqa: E402
from delayd.bench.nodes import BenchNodes  # noqa: E402
from delayd.client import Client, Request  # noqa: E402

IDS = 2_000
EVERY_S = 0.05
PAGE_EVERY = 10
LIST = "/v1/pending?limit=100"
OPEN_TO_ALL = "api_requests_per_s = 100000\n"


def ask(address: str, end_ms: int, nodes: BenchNodes) -> dict[str, list[float]]:
    """Ask until then. Return how long each look-up and each page took, ms."""
    taken: dict[str, list[float]] = {"look_up": [], "page": []}
    connection = http.client.HTTPConnection(address, timeout=30)
    number = 0
    while nodes.clock.wall_ms() < end_ms:
        number += 1
        is_page = number % PAGE_EVERY == 0
        path = LIST if is_page else f"/v1/messages/known-{random.randrange(IDS)}"
        began = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        taken["page" if is_page else "look_up"].append(1_000 * (time.perf_counter() - began))
        assert answer.status == 200 and (is_page or found["messages"]), found
        time.sleep(EVERY_S)
    return taken


def throw_evenly(port: int, count: int, end_ms: int, nodes: BenchNodes) -> list[bytes]:
    """Send so many hostile requests until then. Return the first lines of the answers."""
    chance = random.Random(count)
    began_ms = nodes.clock.wall_ms()
    lines: list[bytes] = []
    while len(lines) < count:
        share = len(lines) / count
        time.sleep(max(0, began_ms + share * (end_ms - began_ms) - nodes.clock.wall_ms()) / 1_000)
        lines += asyncio.run(throw(port, chance, AT_ONCE))
    return lines


def quantile(values: list[float], per_mille: int) -> float:
    return sorted(values)[len(values) * per_mille // 1_000]


def main() -> None:
    """Print the figures."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--pending", type=int, default=1_000_000)
    asked.add_argument("--rate", type=int, default=5_000, help="messages a second, delivered")
    asked.add_argument("--seconds", type=int, default=30)
    asked.add_argument("--hostile", type=int, default=10_000, help="requests")
    chosen = asked.parse_args()
    sizes = Sizes(runs=1, rate=chosen.rate, seconds=chosen.seconds, pending=chosen.pending)
    with two_nodes(sizes) as peers:
        context, nodes, first, second = peers.context, peers.nodes, peers.donor, peers.new
        with (peers.config.parent / f"{first}.toml").open("a") as file:
            file.write(OPEN_TO_ALL)
        peers.lead()
        nodes.start(second)
        nodes.wait(lambda: nodes.is_ready(second), READY_S, "the second follows")
        context.tell("filling")
        with Client(context.brokers.bootstrap, buffer=nodes.buffer) as client:
            known = [Request("never", b"", id=f"known-{n}", in_="30d") for n in range(IDS)]
            assert len([*client.schedule_many(known)]) == IDS
        schedule_far(context, nodes, chosen.pending)
        context.tell("lateness without the API")
        without = peers.latenesses(lambda end_ms: None)
        context.tell("lateness beside look-ups and lists")
        taken: dict[str, list[float]] = {}
        address = urlsplit(nodes._state.part(first).address)
        beside = peers.latenesses(lambda end_ms: taken.update(ask(address.netloc, end_ms, nodes)))
        context.tell("lateness beside hostile requests")
        lines: list[bytes] = []
        term = nodes.status(first)["term"]
        before = sum(nodes.status(first)["ingested"])
        attacked = peers.latenesses(
            lambda end_ms: lines.extend(
                throw_evenly(address.port or 0, chosen.hostile, end_ms, nodes)
            )
        )
        sent = sum(nodes.status(first)["ingested"]) - before
        assert nodes.status(first)["term"] == term, "another node took over"
        assert max(statuses(lines)) < b"500", statuses(lines)
        assert sent == chosen.rate * chosen.seconds, f"{sent} records came into the buffer"
    figures = {
        "pending": chosen.pending,
        "rate": chosen.rate,
        **{
            f"{what}_ms": {"p50": quantile(times, 500), "p99": quantile(times, 990)}
            for what, times in taken.items()
        },
        "lateness_ms": without,
        "lateness_beside_ms": beside,
        "p99_ratio": beside["p99"] / max(1, without["p99"]),
        "hostile": len(lines),
        "hostile_answered": sum(map(bool, lines)),
        "lateness_beside_hostile_ms": attacked,
        "hostile_p99_ratio": attacked["p99"] / max(1, without["p99"]),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
