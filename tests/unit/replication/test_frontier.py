"""The frontier: what it covers, and that it only moves forward."""

from dataclasses import replace
from itertools import permutations

import pytest

from replication.frontier import Frontier, begin_term, first_frontier, stand_still
from replication.rank import START, Rank

LANES, PARTITIONS = 3, 2

MIDDLE = Frontier(
    shard=0, cursors=(Rank(5, 1, 5),) * 2, offsets=(5, 5), own_writes=(5, 5), term=5, step=5
)


@pytest.mark.parametrize(
    ("after", "follows"),
    [
        (stand_still(MIDDLE), True),
        (begin_term(MIDDLE), True),
        (replace(MIDDLE, step=7, cursors=(Rank(5, 1, 5), Rank(6, 0, 0)), offsets=(5, 9)), True),
        (MIDDLE, False),
        (replace(MIDDLE, step=4), False),
        (replace(MIDDLE, step=6, term=4), False),
        (replace(MIDDLE, step=6, shard=1), False),
        (replace(MIDDLE, step=6, cursors=(Rank(5, 1, 5), Rank(5, 1, 4))), False),
        (replace(MIDDLE, step=6, offsets=(9, 4)), False),
        (replace(MIDDLE, step=6, own_writes=(4, 9)), False),
    ],
)
def test_only_a_frontier_that_is_ahead_everywhere_follows(after: Frontier, follows: bool) -> None:
    """docs/design/frontier.md, Step: (K, O) to (K', O'), each component forward only.

    Rules: forward-only
    """
    assert MIDDLE.precedes(after) is follows


def test_a_new_cluster_has_done_nothing() -> None:
    """docs/design/frontier.md, Takeover: the first record is written by `topics create`."""
    first = first_frontier(0, PARTITIONS, LANES)
    assert first.cursors == (START,) * LANES
    assert (first.offsets, first.own_writes) == ((0,) * PARTITIONS, (-1,) * PARTITIONS)
    assert not any(first.covers(lane, Rank(0, 0, 0)) for lane in range(LANES))


def test_a_new_term_moves_nothing_but_the_term() -> None:
    """docs/design/frontier.md, Term: term = 1 + last term, in a step of its own.

    Rules: term, first-step
    """
    begun = begin_term(MIDDLE)
    assert (begun.term, begun.step) == (6, 6)
    assert replace(begun, term=5, step=5) == MIDDLE


def test_an_empty_step_moves_nothing_but_its_number() -> None:
    """docs/design/frontier.md, Now: an empty step renews the bound."""
    assert replace(stand_still(MIDDLE), step=5) == MIDDLE
    assert stand_still(MIDDLE).step == 6


def test_the_cursor_that_people_see_is_the_lowest() -> None:
    """docs/design/frontier.md, Full steps: the cursor time is the minimum over the lanes.

    Rules: shown-cursor
    """
    ordered = (Rank(4, 1, 9), Rank(5, 0, 7), Rank(5, 1, 0))
    for cursors in permutations(ordered):
        frontier = replace(MIDDLE, cursors=cursors)
        assert (frontier.lowest_cursor, frontier.highest_cursor) == (ordered[0], ordered[-1])


@pytest.mark.parametrize(
    ("ingested", "reached"), [((5, 5), True), ((6, 5), True), ((9, 4), False), ((0, 0), False)]
)
def test_a_node_has_reached_a_frontier_when_every_partition_has(
    ingested: tuple[int, ...], reached: bool
) -> None:
    """docs/design/frontier.md, Takeover: let the own wheel reach O.

    Rules: wheel-reaches-o
    """
    assert MIDDLE.reached_by(ingested) is reached
