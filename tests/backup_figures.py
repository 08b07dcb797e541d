"""How long a backup of a running node takes, the next one, and a restore.

    python tests/backup_figures.py --pending 200000
    python tests/backup_figures.py --pending 10000000 --dir /mnt/large    # needs three times 4.5 GB

A process of its own gives a wheel with so many messages of 300 bytes, spread evenly over a day;
this one backs it up into a directory, again after one percent more, and restores it. Prints JSON.
Without Kafka and without load on the donor.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "unit")]

from exporting_node import BEGIN_MS, PROOF_KEY, SETTINGS, schedule  # noqa: E402 - found only now
from giving_node import BATCH, Giver  # noqa: E402

from delayd.commands.backup.donating import Cluster, back_up  # noqa: E402
from delayd.commands.backup.keeping import chosen, verify  # noqa: E402
from delayd.commands.backup.restoring import restore  # noqa: E402
from delayd.commands.backup.stores import Directory  # noqa: E402
from delayd.runtime.clock import SystemClock  # noqa: E402
from replication.settings import DAY_MS  # noqa: E402

VALUE = b"v" * 300


def give(folder: Path, pending: int, other: Connection) -> None:
    """Give a wheel, then one with a percent more, until the other process has both."""
    apart_ms = max(1, (DAY_MS - 60_000) // pending)
    giver = Giver(folder, "donor", records=pending, apart_ms=apart_ms, value=VALUE)
    other.send(giver.member)
    other.recv()
    more = range(pending, pending + pending // 100)
    for first in range(more.start, more.stop, BATCH):
        giver.node.take(
            *[
                schedule(n, BEGIN_MS + n * 7919 % (DAY_MS - 60_000), value=VALUE)
                for n in more[first - more.start : first - more.start + BATCH]
            ]
        )
    giver.node.replica.checkpoint()
    other.send("more")
    other.recv()
    giver.close()


def quiet(*told: Any) -> None:
    """Tell nobody."""


def measured(what: Any) -> tuple[Any, float]:
    """What a call returns, and the seconds it took."""
    began = time.monotonic()
    return what(), round(time.monotonic() - began, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pending", type=int, default=200_000)
    parser.add_argument("--dir", type=Path, help="where to write; it leaves nothing there")
    asked = parser.parse_args()
    here, there = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
        giver = multiprocessing.get_context("spawn").Process(
            target=give, args=(Path(folder, "a"), asked.pending, there)
        )
        giver.start()
        members = {"donor": here.recv()}
        cluster = Cluster(SETTINGS, PROOF_KEY, lambda: members, SystemClock())
        target = Path(folder, "target")
        target.mkdir()
        store = Directory(target)
        first, first_s = measured(lambda: back_up(store, cluster, quiet, quiet))
        here.send("more")
        here.recv()
        second, second_s = measured(lambda: back_up(store, cluster, quiet, quiet))
        here.send("done")
        giver.join()
        found, verify_s = measured(lambda: verify(store, quiet))
        assert not found.damaged_backups
        name, manifest, _ = chosen(store, None)
        into = Path(folder, "b")
        _, restore_s = measured(
            lambda: restore(store, name, manifest, into, SystemClock(), quiet, spare_bytes=0)
        )
    print(
        json.dumps(
            {
                "pending": asked.pending,
                "files": len(first.manifest.files),
                "mb": first.manifest.bytes / 1e6,
                "catalogue_mb": first.manifest.catalogue_bytes / 1e6,
                "backup": {"seconds": first_s, "written_mb": first.written_bytes / 1e6},
                "next_backup": {
                    "seconds": second_s,
                    "new_mb": (second.manifest.bytes - first.manifest.bytes) / 1e6,
                    "written_mb": second.written_bytes / 1e6,
                },
                "verify_s": verify_s,
                "restore_s": restore_s,
                "memory_max_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
            }
        )
    )


if __name__ == "__main__":
    main()
