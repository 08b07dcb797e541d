"""Which version of the rules a record is ruled by, and what happens to log time at the seam."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from replication.log_time import log_time_after
from replication.rules import Barrier, Rules

barriers = st.lists(
    st.builds(Barrier, st.integers(0, 2), st.integers(0, 9), st.integers(2, 5)), max_size=6
)
PLACES = [(partition, offset) for partition in range(3) for offset in range(12)]


def versions(rules: Rules) -> list[int]:
    return [rules.version_at(*place) for place in PLACES]


def test_a_barrier_rules_what_is_behind_it_in_its_partition_alone() -> None:
    """docs/design/frontier.md, Rules switch.

    Rules: rules-by-place
    """
    rules = Rules(3).with_barriers([Barrier(1, 5, 4)])
    assert [rules.version_at(1, offset) for offset in (4, 5, 6, 10**9)] == [3, 3, 4, 4]
    assert [rules.version_at(partition, 10**9) for partition in (0, 2)] == [3, 3]
    assert (rules.lowest(2), rules.with_barriers([Barrier(0, 9, 4)]).lowest(2)) == (3, 4)
    assert [rules.ruled_from(partition, 4) for partition in (0, 1)] == [None, 6]
    assert Rules(4).ruled_from(0, 4) == 0
    assert [rules.below(offsets) for offsets in ((9, 5), (0, 6))] == [(), rules.barriers]


@given(barriers)
def test_whoever_learns_of_barriers_in_any_order_rules_alike(drawn: list[Barrier]) -> None:
    """docs/design/frontier.md, Rules switch: twice, and by two people at once.

    Rules: rules-by-place, switch-repeated
    """
    whole = Rules(3, tuple(drawn))
    one_by_one = Rules(3)
    for barrier in sorted(drawn):
        one_by_one = one_by_one.with_barriers([barrier]).with_barriers([barrier])
    assert one_by_one == whole
    for order in list(permutations(whole.barriers))[:24]:
        rules = Rules(3)
        for barrier in order:
            rules = rules.with_barriers([barrier])
        assert rules == whole
    for partition in range(3):
        of_one = [whole.version_at(partition, offset) for offset in range(12)]
        assert of_one == sorted(of_one)


@given(barriers, st.integers(0, 12))
def test_what_comes_later_changes_no_version_before(drawn: list[Barrier], end: int) -> None:
    """docs/design/frontier.md, Rules switch: the version of a record never changes.

    Rules: rules-by-place
    """
    early = Rules(3, tuple(barrier for barrier in drawn if barrier.offset < end))
    whole = Rules(3, tuple(drawn))
    for partition, offset in PLACES:
        if offset <= end:
            assert early.version_at(partition, offset) == whole.version_at(partition, offset)


@given(st.lists(st.integers(1, 90), max_size=30), st.integers(0, 30), st.integers(1, 5))
def test_log_time_never_steps_back_at_a_switch(times: list[int], at: int, trail_ms: int) -> None:
    """docs/design/frontier.md, Rules switch: nobody has forgotten what is asked for then.

    Rules: log-time-at-a-switch
    """
    log_ms, leap_ms, floors = 0, 0, [0]
    for offset, append_ms in enumerate(times):
        log_ms, leap_ms = log_time_after(
            log_ms, leap_ms, append_ms, trail_ms if offset >= at else 0
        )
        assert offset >= at or leap_ms == 0, "the seam has no leap"
        floors.append(log_ms)
    assert floors == sorted(floors)
    assert floors[min(at, len(times))] == max(times[:at], default=0)
