"""What a comparison costs two nodes: `python tests/compare_figures.py --messages 200000`.

One has ingested a little more, so that all files are read. No Kafka, no network: both sides read in
this process, at the pace of nodes. Prints one line.
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "unit")]

from comparing_nodes import comparing  # noqa: E402
from exporting_node import BEGIN_MS, schedule  # noqa: E402

from delayd.node.comparing.side import BYTES_PER_S  # noqa: E402

BATCH = 1_000
DAY_MS = 24 * 3_600_000


def main() -> None:
    """Measure a pass over two wheels."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=200_000)
    count = parser.parse_args().messages
    value = b"v" * 300
    with tempfile.TemporaryDirectory() as folder, comparing(Path(folder), "ab") as nodes:
        for first in range(0, count, BATCH):
            records = [
                schedule(n, BEGIN_MS + 60_000 + n * 7_919_777 % DAY_MS, value=value)
                for n in range(first, first + BATCH)
            ]
            for node in nodes.nodes.values():
                node.take(records)
        more = [schedule(count + n, BEGIN_MS + n * 3_600_000) for n in range(1, 23)]
        nodes["b"].take(more)
        for node in nodes.nodes.values():
            node.replica.checkpoint()
            node.pace._bytes_per_s = BYTES_PER_S
        waits, done = [0.0], threading.Event()

        def knock() -> None:
            while not done.wait(0.001):
                began = time.perf_counter()
                with nodes["b"].replica.changed:
                    waits.append(time.perf_counter() - began)

        thread = threading.Thread(target=knock)
        thread.start()
        wall, processor = time.perf_counter(), time.process_time()
        rounds = 0
        while not nodes["a"].comparer.shown()["passes"].get("b"):
            nodes["a"].comparer.round()
            rounds += 1
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        done.set()
        thread.join()
        waits.sort()
        read = sum(node.pace.read_bytes for node in nodes.nodes.values())
        print(
            f"{count} messages: {rounds} rounds, {wall:.1f} s, {read >> 20} MiB read, processor "
            f"{processor:.1f} s, lock waited for {1e3 * waits[-1]:.1f} ms at most, "
            f"{1e3 * waits[len(waits) // 2]:.3f} ms in the middle, differs "
            f"{nodes['a'].comparer.view.differs}"
        )


if __name__ == "__main__":
    main()
