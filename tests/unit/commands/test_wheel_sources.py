"""The sources that a repair remembers: a set, in little memory."""

import tracemalloc
from random import Random

import pytest

from delayd.commands.examine.patching import Sources
from delayd.wheel.checking import WholeFrame


@pytest.mark.parametrize("seed", range(6))
def test_sources_are_a_set_whatever_their_order(seed: int) -> None:
    random = Random(seed)
    sources, known = Sources(), set()
    frames = [frame_of(n % 2, n, n % 3) for n in range(500)]
    shuffled = [*frames, *random.sample(frames, 200)]
    if seed:
        random.shuffle(shuffled)
    if seed == 2:
        shuffled.reverse()
    for frame in shuffled:
        assert (frame in sources) == (frame in known)
        assert sources.add(frame) == (frame not in known)
        known.add(frame)
    assert frame_of(0, 1, 0) not in sources


def test_a_source_takes_no_more_memory_than_its_number() -> None:
    """A damaged hour may hold tens of millions."""
    count = 20_000
    for offsets in (range(count), reversed(range(count))):
        sources = Sources()
        tracemalloc.start()
        for offset in offsets:
            sources.add(frame_of(0, offset, 0))
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 12 * count and peak < 24 * count


def frame_of(partition: int, offset: int, kind: int) -> WholeFrame:
    return WholeFrame(partition, offset, 0, kind, 0, b"")
