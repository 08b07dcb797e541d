"""A replica over a real wheel, which a test opens again and again."""

from collections.abc import Iterator
from pathlib import Path

import one_node
import pytest
from exporting_node import SETTINGS
from replica_records import HOLD_MS, Opener

from delayd.node.replica.replica import Replica
from replication.settings import Settings


@pytest.fixture
def open_replica(tmp_path: Path) -> Iterator[Opener]:
    """Opens this node's replica; what was open before ends as by a crash."""
    opened: list[Replica] = []

    def open_it(
        hold_ms: int = HOLD_MS, free_min_bytes: int = 0, settings: Settings = SETTINGS
    ) -> Replica:
        for before in opened:
            before.close()
        opened.append(
            one_node.open_replica(
                tmp_path, settings, export_hold_ms=hold_ms, disk_free_min_bytes=free_min_bytes
            )
        )
        return opened[-1]

    yield open_it
    for replica in opened:
        replica.close()
