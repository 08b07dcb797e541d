"""A replica over a real wheel, which a test opens again and again."""

from collections.abc import Iterator
from pathlib import Path

import one_node
import pytest
from exporting_node import SETTINGS
from flat_pair import Pair
from replica_records import HOLD_MS, Opener

from delayd.node.replica.replica import Replica
from delayd.runtime import native
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


@pytest.fixture(scope="module")
def the_library_runs(library: native.Library) -> Iterator[None]:
    """The native library is the one of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", library)
        yield


@pytest.fixture(scope="module")
def pair(
    the_library_runs: None, library: native.Library, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """Of all tests of a file."""
    made = Pair(tmp_path_factory.mktemp("pair"), library)
    yield made
    made.close()


@pytest.fixture
def new_pair(the_library_runs: None, library: native.Library, tmp_path: Path) -> Iterator[Pair]:
    """Of one test."""
    made = Pair(tmp_path, library)
    yield made
    made.close()
