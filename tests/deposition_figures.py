"""How often an overloaded machine deposes a master that lives: beside busy loops, for an hour.

    python tests/deposition_figures.py --minutes 60 --busy 20

Three nodes deliver an even load, with Kafka, etcd and so many busy loops on the same machine, all
at the same priority. Nothing dies and nothing is frozen, so each deposition is a wrong one. Prints
a line a minute, then lateness and faults. Exit code 1 if a master was missed or deposed, or a
message lost, doubled, early or altered. A master whose step Kafka did not acknowledge in time takes
over again itself, which is counted and no deposition.

On a machine with other work, begin it in a cgroup of its own, so that the busy loops take their
processor time from these nodes alone.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from delayd.bench.brokers import brokers_at  # noqa: E402 - it is found only now
from delayd.bench.hot_second import LATE_MS_MAX  # noqa: E402
from delayd.bench.lateness import LEAD_MS, START_MS, paced  # noqa: E402
from delayd.bench.nodes import BenchNodes, running  # noqa: E402
from delayd.bench.reading import reading, received  # noqa: E402
from delayd.bench.sending import finish, sending  # noqa: E402
from delayd.config.security import Security  # noqa: E402

NODES = 3
START_FACTOR = 10
"""The processes that send and read start so much later beside the busy loops."""

QUANTILES = {"p50": 500, "p99": 990, "p999": 999, "max": 1000}
EVENTS = ("master_missed", "master_found_dead", "master_cut_off", "mastership_begun")


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run so many busy loops inside."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
        assert all(loop.poll() is None for loop in loops), "all were busy to the end"
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def seen(nodes: BenchNodes) -> dict[str, int]:
    """Return how often the nodes logged each event."""
    logs = [path.read_text() for path in (nodes._directory / "logs").glob("node-*.log")]
    return {event: sum(log.count(event) for log in logs) for event in EVENTS}


def main() -> None:
    """Play the load, and print what was seen."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--minutes", type=int, default=60)
    asked.add_argument("--rate", type=int, default=200, help="messages a second")
    asked.add_argument("--busy", type=int, default=20, help="busy loops")
    sizes = asked.parse_args()
    with brokers_at(None, Security.none()) as brokers, running(brokers, NODES) as nodes:
        # Else the sender's own repetitions are requests of their own, and look like doubles.
        idempotent = {**brokers.client, "enable.idempotence": "true"}
        term = nodes.term()
        with busy(sizes.busy):
            first_due_ms = nodes.clock.wall_ms() + START_FACTOR * START_MS + LEAD_MS
            load = paced(nodes.create_target(), sizes.rate, 60 * sizes.minutes, first_due_ms)
            with (
                reading(brokers.client, load) as reader,
                sending(idempotent, nodes.buffer, load, LEAD_MS) as sender,
            ):
                for minute in range(1, sizes.minutes + 1):
                    time.sleep(max(0, first_due_ms / 1000 + 60 * minute - time.time()))
                    loads = " ".join(f"{each:.1f}" for each in os.getloadavg())
                    print(f"minute {minute}: load {loads}, {seen(nodes)}", flush=True)
                finish(sender)
                found = received(reader, load.end_ms + LATE_MS_MAX)
        events, takeovers = seen(nodes), nodes.term() - term
    late = found.quantiles_ms(*QUANTILES.values())
    print(", ".join(f"{name} {ms} ms" for name, ms in zip(QUANTILES, late, strict=True)))
    print(f"{found.faults()}, {takeovers} takeovers, {events}")
    deposed = events["master_missed"] + events["master_found_dead"] + events["master_cut_off"]
    sys.exit(any((*found.faults(), deposed)))


if __name__ == "__main__":
    main()
