"""One lane's queue: sorted, with a front that only moves forward."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication import lane as lane_module
from replication.entry import Entry
from replication.lane import Lane
from replication.rank import START, Rank

Operation = tuple[str, int]
operations = st.lists(
    st.tuples(st.sampled_from(["add", "open", "close", "drop", "count"]), st.integers(0, 30)),
    max_size=60,
)


def entry(due_ms: int, offset: int) -> Entry:
    return Entry(due_ms, 0, offset, 0, 0, 0, 10)


@given(operations)
def test_a_lane_is_a_sorted_list(steps: list[Operation]) -> None:
    """docs/design/frontier.md, Step: messages leave in rank order within a lane."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_module, "COMPACT_AT", 3)
        lane, model = Lane(START), list[Entry]()
        for offset, (name, number) in enumerate(steps):
            if name == "add":
                lane.add(entry(number, offset))
                model = sorted([*model, entry(number, offset)])
            elif name == "open":
                above_ms = max(lane.opened_to.due_ms, model[-1].due_ms if model else 0) + 1
                stored = [entry(above_ms + n, offset) for n in range(number % 5)]
                until, room = Rank(above_ms + 9, 0, 0), number % 3 + 1
                lane.open(stored, until, room)
                model += stored[:room]
                full_at = Rank(*stored[room][:3]) if len(stored) > room else until
                assert lane.opened_to == full_at
            elif name == "close":
                opened_to = lane.opened_to
                lane.close(number)
                if len(model) > number:
                    opened_to = Rank(*model[number][:3])
                    del model[number:]
                assert lane.opened_to == opened_to
            elif name == "drop":
                count = min(number, len(model))
                lane.drop(count)
                del model[:count]
            else:
                cursor = Rank(number, 0, offset // 2)
                assert lane.count_below(cursor) == len([e for e in model if e[:3] < cursor])
            assert [lane.peek(index) for index in range(len(lane))] == model
            assert lane.head() == (model[0] if model else None)


def test_an_empty_lane_keeps_nothing_of_what_was_delivered() -> None:
    """docs/design/simulation.md, Months: what a node keeps is what is pending, and a constant."""
    lane = Lane(START)
    for offset in range(100):
        lane.add(entry(offset, offset))
    lane.drop(100)
    assert lane._entries == []


def test_an_entry_at_the_cursor_is_not_below_it() -> None:
    """docs/design/frontier.md, Rank, slot, lane: a cursor is an exclusive bound."""
    lane = Lane(START)
    lane.add(entry(5, 7))
    assert lane.count_below(Rank(5, 0, 7)) == 0
    assert lane.count_below(Rank(5, 0, 8)) == 1


def test_dropping_more_than_there_is_is_a_bug() -> None:
    """docs/design/frontier.md, Step: a plan takes what is there."""
    with pytest.raises(AssertionError, match="dropping 1 of 0"):
        Lane(START).drop(1)
