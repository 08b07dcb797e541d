"""The frontier by which lists are filtered is never ahead of what the checkpoint holds."""

from types import SimpleNamespace
from typing import Any

from delayd.node.replica import complete
from delayd.node.replica.complete import CompleteFrontier


def frontier(offset: int, own_write: int) -> Any:
    return SimpleNamespace(
        reached_by=lambda ingested: ingested[0] >= offset, own_writes=(own_write,)
    )


def test_it_is_complete_when_all_that_its_step_wrote_was_ingested() -> None:
    found = CompleteFrontier()
    first, second, third = frontier(5, 7), frontier(9, 9), frontier(20, 20)
    for each in (first, second, third):
        found.note(each)
    assert found.reached((7,)) is None, "record 7 is the next to come"
    assert found.reached((8,)) is first
    assert found.frontier is None, "not before the checkpoint is durable"
    found.checkpointed(first)
    assert found.reached((10,)) is second and found.frontier is first
    assert found.reached((10,)) is second


def test_it_remembers_a_bounded_number() -> None:
    found = CompleteFrontier()
    for number in range(complete.AHEAD_MAX + 10):
        found.note(frontier(number, number))
    assert found.reached((10**6,)).own_writes == (complete.AHEAD_MAX + 9,)  # type: ignore[union-attr]
