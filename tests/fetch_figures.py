"""How long a node takes that copies another one's wheel.

    python tests/fetch_figures.py --pending 1000000

A process of its own gives a wheel with so many messages of 300 bytes, spread evenly over a day;
this one copies, verifies and installs it. Prints JSON. Without Kafka and without load on the donor.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "unit")]

from cluster_settings import PARTITIONS  # noqa: E402 - it is found only now
from exporting_node import PROOF_KEY, SETTINGS  # noqa: E402
from giving_node import Giver  # noqa: E402

from delayd.cluster.fetching import Fetch, Want  # noqa: E402
from delayd.runtime.clock import SystemClock  # noqa: E402
from replication.settings import DAY_MS  # noqa: E402

VALUE = b"v" * 300


def give(folder: Path, pending: int, other: Connection) -> None:
    """Give a wheel until the other process has it; then tell for how long the lock was held."""
    apart_ms = max(1, (DAY_MS - 60_000) // pending)
    giver = Giver(folder, "donor", records=pending, apart_ms=apart_ms, value=VALUE)
    other.send(giver.member)
    other.recv()
    giver.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pending", type=int, default=100_000)
    asked = parser.parse_args()
    here, there = multiprocessing.Pipe()
    began = time.monotonic()
    stages: dict[str, float] = {}

    def tell(stage: str, done: int, total: int) -> None:
        stages[stage] = time.monotonic() - began

    with tempfile.TemporaryDirectory() as folder:
        giver = multiprocessing.get_context("spawn").Process(
            target=give, args=(Path(folder, "a"), asked.pending, there)
        )
        giver.start()
        members = {"donor": here.recv()}
        want = Want(
            node="new",
            directory=Path(folder, "b"),
            settings=SETTINGS,
            proof_key=PROOF_KEY,
            spare_bytes=0,
            starts=lambda: dict.fromkeys(range(PARTITIONS), 0),
        )
        began = time.monotonic()
        fetched = Fetch(want, lambda: members, SystemClock(), tell).run(10)
        took_s = time.monotonic() - began
        here.send("done")
        giver.join()
    figures = {
        "pending": asked.pending,
        "mb": fetched.bytes / 1e6,
        "seconds": took_s,
        "mb_per_s": fetched.bytes / 1e6 / took_s,
        "stages_end_at_s": stages,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
