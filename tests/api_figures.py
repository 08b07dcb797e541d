"""What look-ups and lists cost a master that delivers, and how long they take it.

    python tests/api_figures.py --pending 10000000 --rate 5000 --seconds 60

On a real Kafka and etcd, which it starts, a master holds so many messages due over 30 days, and
delivers `--rate` a second; a second node follows. Lateness is measured without the API, then as
long while somebody asks the master for an id every 50 ms, and for the first page of what is pending
every half second. Prints JSON.
"""

import argparse
import http.client
import json
import random
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from peer_figures import READY_S, Peers

sys.path[:0] = [str(Path(__file__).parents[1])]

from delayd.bench.brokers import brokers_at  # noqa: E402 - it is found only now
from delayd.bench.context import Context, Sizes  # noqa: E402
from delayd.bench.lateness import schedule_far  # noqa: E402
from delayd.bench.nodes import BenchNodes  # noqa: E402
from delayd.client import Client, Request  # noqa: E402
from delayd.config.security import Security  # noqa: E402

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


def quantile(values: list[float], per_mille: int) -> float:
    return sorted(values)[len(values) * per_mille // 1_000]


def main() -> None:
    """Print the figures."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--pending", type=int, default=1_000_000)
    asked.add_argument("--rate", type=int, default=5_000, help="messages a second, delivered")
    asked.add_argument("--seconds", type=int, default=30)
    chosen = asked.parse_args()
    sizes = Sizes(runs=1, rate=chosen.rate, seconds=chosen.seconds, pending=chosen.pending)
    with brokers_at(None, Security.none()) as brokers, BenchNodes(brokers, 2) as nodes:
        first, second = nodes.names
        context = Context(brokers, sizes, lambda what: print(what, file=sys.stderr, flush=True))
        peers = Peers(context, nodes, first, first)
        with peers.config.open("a") as file:
            file.write(OPEN_TO_ALL)
        nodes.start(first)
        nodes.wait(lambda: nodes.is_ready(first) and nodes.master() == first, READY_S, "it leads")
        nodes.start(second)
        context.tell("filling")
        with Client(brokers.bootstrap, buffer=nodes.buffer) as client:
            known = [Request("never", b"", id=f"known-{n}", in_="30d") for n in range(IDS)]
            assert len([*client.schedule_many(known)]) == IDS
        schedule_far(context, nodes, chosen.pending)
        context.tell("lateness without the API")
        without = peers.latenesses(lambda end_ms: None)
        context.tell("lateness beside look-ups and lists")
        taken: dict[str, list[float]] = {}
        address = urlsplit(nodes._state.part(first).address).netloc
        beside = peers.latenesses(lambda end_ms: taken.update(ask(address, end_ms, nodes)))
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
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
