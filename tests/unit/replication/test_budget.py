"""How a full step is shared: everybody gets something, nobody gets much more than another."""

from hypothesis import given
from hypothesis import strategies as st

from replication.budget import share_fairly

wishes = st.dictionaries(st.integers(0, 63), st.integers(1, 50), max_size=12)


@given(wishes, st.integers(0, 300))
def test_the_budget_is_shared_fairly_and_used_up(wanted: dict[int, int], budget: int) -> None:
    """docs/design/frontier.md, Full steps: nobody starves, what one lane leaves another may take,
    and who gets less than asked gets as much as any other.

    Rules: fair-lanes
    """
    shares = share_fairly(wanted, budget)
    assert shares.keys() == wanted.keys()
    assert all(1 <= shares[lane] <= wanted[lane] for lane in wanted)
    assert sum(shares.values()) <= max(budget, len(wanted))
    assert sum(shares.values()) >= min(budget, sum(wanted.values()))
    for lane, share in shares.items():
        assert share == wanted[lane] or share >= max(shares.values()) - 1


def test_a_quiet_lane_is_served_in_full_beside_a_hot_one() -> None:
    """docs/design/frontier.md, Full steps: a hot second is many steps, other lanes go on.

    Rules: fair-lanes
    """
    assert share_fairly({7: 1_000_000, 3: 5}, 100) == {3: 5, 7: 95}


def test_a_lane_that_wants_nothing_gets_nothing() -> None:
    """docs/design/frontier.md, Full steps."""
    assert share_fairly({1: 0, 2: 9}, 4) == {1: 0, 2: 4}
