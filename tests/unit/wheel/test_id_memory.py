"""The memory of ids: what it forgets at a checkpoint, and how evenly.

Source: docs/design/frontier.md, "Forgetting".
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_settings import LANES
from wheel_reading import checkpoint

from delayd.wheel import Progress
from delayd.wheel.id_memory import FORGET_MAX, id_name
from delayd.wheel.storage import Wheel
from replication.frontier import Frontier, first_frontier
from replication.ids import NOTHING, IdState, LiveMessage
from replication.rank import Rank

PARTITIONS = 64
KEEP_MS = 1_000
DUE_MS = 10_000
OVER_MS = DUE_MS + KEEP_MS + 1
REACHED = Progress((10**9,) * PARTITIONS, (0,) * PARTITIONS, (OVER_MS,) * PARTITIONS, b"", ())


@pytest.fixture
def wheel(tmp_path: Path) -> Iterator[Wheel]:
    wheel = Wheel.open(tmp_path, partitions=PARTITIONS)
    yield wheel
    wheel.close()


def cut() -> Frontier:
    """All that was ever ingested is done."""
    past = Rank(OVER_MS, 0, 0)
    first = first_frontier(0, PARTITIONS, LANES)
    return replace(first, cursors=(past,) * LANES, offsets=(10**9,) * PARTITIONS)


def remember(wheel: Wheel, partition: int, count: int) -> None:
    for number in range(count):
        state = IdState((LiveMessage(DUE_MS, number, 0, b""),))
        wheel.ids.remember(partition, id_name(f"id-{number}"), state, KEEP_MS)


def kept(wheel: Wheel, partition: int, count: int) -> int:
    names = (id_name(f"id-{number}") for number in range(count))
    return sum(wheel.ids.state(partition, name) is not NOTHING for name in names)


def forget(wheel: Wheel) -> None:
    """What a checkpoint forgets."""
    wheel.ids.forget(cut(), (OVER_MS,) * PARTITIONS, OVER_MS)
    checkpoint(wheel, REACHED)


def test_one_busy_partition_may_forget_all_that_a_checkpoint_looks_at(wheel: Wheel) -> None:
    """Otherwise its memory grows without end: ids come there as fast as in all others together."""
    count = FORGET_MAX // 8
    remember(wheel, 5, count)
    remember(wheel, 6, 3)
    checkpoint(wheel, REACHED)
    forget(wheel)
    assert (kept(wheel, 5, count), kept(wheel, 6, 3)) == (0, 0)


def test_a_busy_partition_leaves_the_others_their_share(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.wheel.id_memory.FORGET_MAX", 10 * PARTITIONS)
    remember(wheel, 0, 20 * PARTITIONS)
    remember(wheel, 63, 10)
    checkpoint(wheel, REACHED)
    forget(wheel)
    assert kept(wheel, 63, 10) == 0
    left = kept(wheel, 0, 20 * PARTITIONS)
    assert left < 11 * PARTITIONS, "it has what the others do not need"
    assert left > 9 * PARTITIONS, "and no more"
    forget(wheel)
    forget(wheel)
    assert kept(wheel, 0, 20 * PARTITIONS) == 0


def test_what_no_frontier_covers_is_looked_at_once_and_kept(wheel: Wheel) -> None:
    remember(wheel, 0, 100)
    checkpoint(wheel, REACHED)
    wheel.ids.forget(first_frontier(0, PARTITIONS, LANES), (OVER_MS,) * PARTITIONS, OVER_MS)
    assert kept(wheel, 0, 100) == 100
