"""How long `delayd move` takes: looking at what is pending, writing it, reading it back.

    python tests/move_figures.py --pending 200000

It makes the wheel of a stopped node with so many messages of 200 bytes, every other one with an
id, spread over the next day, and moves them into a new cluster on a real Kafka with one broker,
which it starts. The new cluster has no nodes. Prints JSON.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "unit")]

from exporting_node import ExportingNode, cut, schedule  # noqa: E402 - it is found only now

from delayd.bus.confluent import ConfluentBus  # noqa: E402
from delayd.cluster.topics import create_topics, load_settings  # noqa: E402
from delayd.commands.move.moving import Move, run  # noqa: E402
from delayd.commands.move.source import Source  # noqa: E402
from delayd.dev.cluster import LocalCluster  # noqa: E402
from delayd.dev.startup import ClusterOptions  # noqa: E402
from delayd.runtime.clock import SystemClock  # noqa: E402
from delayd.wheel.stopped import locked, open_stopped  # noqa: E402
from replication.settings import DAY_MS  # noqa: E402

VALUE = b"v" * 200
BATCH = 5_000
TIMEOUT_MS = 30_000


def make_wheel(folder: Path, pending: int) -> None:
    """Fill the wheel of a node, and stop it."""
    clock = SystemClock()
    node = ExportingNode(folder)
    now_ms = clock.wall_ms()
    apart_ms = max(1, (DAY_MS - 3_600_000) // pending)
    for first in range(0, pending, BATCH):
        node.take(
            *sorted(
                (
                    schedule(
                        n,
                        now_ms + 1_800_000 + apart_ms * n,
                        id=f"id-{n}" if n % 2 else None,
                        partition=n // 2 % 2,
                        append_ms=now_ms,
                        value=VALUE,
                    )
                    for n in range(first, min(pending, first + BATCH))
                ),
                key=lambda record: (record.partition, record.offset),
            )
        )
    node.see(cut(1, (pending, pending), append_ms=now_ms))
    node.replica.checkpoint()
    node.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pending", type=int, default=20_000)
    asked = parser.parse_args()
    stages: dict[str, float] = {}

    def tell(stage: str, done: int, total: int) -> None:
        stages[stage] = round(time.monotonic() - began, 2)

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(Path(folder, "kafka"), ClusterOptions(nodes=0)) as kafka,
    ):
        make_wheel(Path(folder, "wheel"), asked.pending)
        bus = ConfluentBus(kafka.bootstrap)
        create_topics(bus, cluster="new", cluster_key="the key of a measured cluster")
        record = load_settings(bus, "new", "delayd-", TIMEOUT_MS).record
        with locked(Path(folder, "wheel")) as layout, open_stopped(layout) as wheel:
            move = Move(
                bus=bus,
                record=record,
                old=None,
                stopped_ms=0,
                takes_doubles=True,
                clock=SystemClock(),
                timeout_ms=TIMEOUT_MS,
            )
            began = time.monotonic()
            moved = run(move, Source(wheel), tell, 0)
            took_s = time.monotonic() - began
    print(
        json.dumps(
            {
                "pending": asked.pending,
                "written": moved.written,
                "seconds": round(took_s, 2),
                "messages_per_s": int(moved.written / took_s),
                "stages_end_at_s": stages,
            }
        )
    )


if __name__ == "__main__":
    main()
