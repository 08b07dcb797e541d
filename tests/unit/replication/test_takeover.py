"""The order of a takeover: one order at a time, whatever is answered."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.frontier import begin_term, first_frontier
from replication.takeover import GIVE_WAY_MS, STABLE_TIMEOUT_MS, Takeover
from replication.takeover_facts import (
    BeginTerm,
    EndsRead,
    Fact,
    FencePredecessors,
    FrontierRead,
    Granted,
    GrantEnded,
    Order,
    PredecessorsFenced,
    ReadEnds,
    ReadFrontier,
    ReadProgress,
    Refusal,
    Refuse,
    TermBegun,
    WaitForWheel,
    WheelBehind,
    WheelReached,
)

KNOWN = replace(first_frontier(0, partitions=1, lanes=1), offsets=(3,), step=5, term=2)
LAST = replace(KNOWN, offsets=(9,), step=8, term=3)

ALL_WELL: tuple[Fact, ...] = (
    Granted(0, KNOWN),
    WheelReached(1),
    PredecessorsFenced(2),
    EndsRead(3, 40, 40),
    FrontierRead(4, LAST),
    WheelReached(5),
    TermBegun(6),
)


def after(*facts: Fact) -> tuple[Takeover, Order | None]:
    takeover, order = Takeover(), None
    for fact in facts:
        order = takeover.handle(fact)
    return takeover, order


def test_a_takeover_fences_then_reads_then_waits_then_begins_its_term() -> None:
    """docs/design/frontier.md, Takeover: in this order, and the term is 1 + the last one.

    Rules: first-step, takeover-order
    """
    takeover = Takeover()
    assert [takeover.handle(fact) for fact in ALL_WELL] == [
        WaitForWheel(KNOWN),
        FencePredecessors(),
        ReadEnds(),
        ReadFrontier(40),
        WaitForWheel(LAST),
        BeginTerm(LAST, begin_term(LAST)),
        None,
    ]
    assert takeover.is_done


def test_a_node_that_knows_no_frontier_fences_at_once() -> None:
    """docs/design/frontier.md, Takeover: it learns only from the read what it must reach."""
    assert after(Granted(0, None))[1] == FencePredecessors()


def test_without_a_fence_the_progress_takes_the_place_of_the_frontier_topic() -> None:
    """docs/design/frontier.md, At least once: nobody is fenced; etcd says where to go on.

    Rules: takeover-unfenced, wheel-reaches-o
    """
    takeover = Takeover(is_fenced=False)
    told = (Granted(0, KNOWN), WheelReached(1), FrontierRead(2, LAST), WheelReached(3))
    assert [takeover.handle(fact) for fact in (*told, TermBegun(4))] == [
        WaitForWheel(KNOWN),
        ReadProgress(),
        WaitForWheel(LAST),
        BeginTerm(LAST, begin_term(LAST)),
        None,
    ]
    assert takeover.is_done


def test_without_a_fence_and_without_any_progress_the_takeover_stops() -> None:
    """Rules: no-frontier"""
    takeover = Takeover(is_fenced=False)
    assert takeover.handle(Granted(0, None)) == ReadProgress()
    refused = takeover.handle(FrontierRead(1, None))
    assert isinstance(refused, Refuse) and refused.reason is Refusal.NOT_INITIALISED


@pytest.mark.parametrize("count", range(1, len(ALL_WELL)))
def test_a_grant_that_ends_ends_the_takeover_wherever_it_is(count: int) -> None:
    """docs/design/frontier.md, Takeover: never fence without a fresh lease, never go on.

    Rules: fence-needs-lease
    """
    takeover, order = after(*ALL_WELL[:count], GrantEnded(count))
    assert order is None and not takeover.is_done


@pytest.mark.parametrize("count", [1, 5])
def test_a_wheel_that_does_not_get_there_gives_way_after_ten_seconds(count: int) -> None:
    """docs/design/frontier.md, Takeover: before it fences anyone, and after the read too.

    Rules: behind-gives-way
    """
    begun = ALL_WELL[:count]
    last_ms = begun[-1].now_ms + GIVE_WAY_MS
    _, order = after(*begun, WheelBehind(last_ms))
    assert order == WaitForWheel(KNOWN if count == 1 else LAST)
    takeover, order = after(*begun, WheelBehind(last_ms), WheelBehind(last_ms + 1))
    assert isinstance(order, Refuse) and order.reason is Refusal.BEHIND
    assert not takeover.is_done


def test_a_stable_offset_that_lags_is_read_again_and_then_called_a_lost_marker() -> None:
    """docs/design/frontier.md, Takeover: nobody else can have a transaction open there.

    Rules: lost-marker
    """
    fenced = ALL_WELL[:3]
    last_ms = fenced[-1].now_ms + STABLE_TIMEOUT_MS
    lagging = EndsRead(last_ms, 39, 40)
    assert after(*fenced, lagging)[1] == ReadEnds()
    assert after(*fenced, lagging, EndsRead(last_ms + 9, 40, 40))[1] == ReadFrontier(40)
    takeover, order = after(*fenced, lagging, EndsRead(last_ms + 1, 39, 40))
    assert isinstance(order, Refuse) and order.reason is Refusal.MARKER_LOST
    assert "39" in order.detail and "40" in order.detail
    assert not takeover.is_done


def test_no_frontier_record_at_all_stops_the_takeover() -> None:
    """docs/design/frontier.md, Takeover: starting at "now" would lose messages.

    Rules: no-frontier
    """
    takeover, order = after(*ALL_WELL[:4], FrontierRead(4, None))
    assert isinstance(order, Refuse) and order.reason is Refusal.NOT_INITIALISED
    assert not takeover.is_done


def test_a_topic_that_was_made_again_stops_the_takeover_though_it_ends_where_it_did() -> None:
    """docs/design/frontier.md, Takeover: what was read is not the last frontier.

    Rules: no-frontier
    """
    takeover, order = after(*ALL_WELL[:4], FrontierRead(4, LAST, is_of_topic=False))
    assert isinstance(order, Refuse) and order.reason is Refusal.OTHER_TOPIC
    assert not takeover.is_done


@pytest.mark.parametrize("count", range(len(ALL_WELL) + 1))
def test_an_answer_to_what_was_not_ordered_is_a_bug(count: int) -> None:
    """docs/design/frontier.md, Takeover: each order is answered by exactly one fact."""
    expected = {type(fact) for fact in ALL_WELL[count : count + 1]}
    if WheelReached in expected:
        expected.add(WheelBehind)
    for fact in (*ALL_WELL, WheelBehind(7)):
        if type(fact) not in expected:
            with pytest.raises(AssertionError, match="answers nothing"):
                after(*ALL_WELL[:count], fact)


answers = st.one_of(
    st.builds(WheelReached, st.integers(0, 20_000)),
    st.builds(WheelBehind, st.integers(0, 20_000)),
    st.builds(EndsRead, st.integers(0, 20_000), st.integers(0, 2), st.integers(0, 2)),
    st.builds(
        FrontierRead, st.integers(0, 20_000), st.sampled_from([None, KNOWN, LAST]), st.booleans()
    ),
)


@given(st.booleans(), st.lists(answers, max_size=30))
def test_whatever_is_answered_nothing_is_read_unfenced_and_no_term_begun_unread(
    knows: bool, drawn: list[Fact]
) -> None:
    """docs/design/frontier.md, Takeover: one writer, and what it reads is the last.

    Rules: takeover-order
    """
    takeover = Takeover()
    waiting = iter(drawn)
    ordered: list[Order] = []
    read = None
    order = takeover.handle(Granted(0, KNOWN if knows else None))
    while order is not None and not isinstance(order, Refuse):
        ordered.append(order)
        fact: Fact
        match order:
            case FencePredecessors():
                fact = PredecessorsFenced(0)
            case BeginTerm(last, first):
                assert read is not None and read.frontier == last and read.is_of_topic
                assert first == begin_term(last)
                fact = TermBegun(0)
            case _:
                wanted = {
                    WaitForWheel: (WheelReached, WheelBehind),
                    ReadEnds: (EndsRead,),
                    ReadFrontier: (FrontierRead,),
                }[type(order)]
                found = next((a for a in waiting if isinstance(a, wanted)), None)
                if found is None:
                    break
                fact = found
        if isinstance(order, ReadEnds):
            assert FencePredecessors() in ordered
        if isinstance(order, ReadFrontier):
            ends = [a for a in drawn if isinstance(a, EndsRead) and a.stable == order.end]
            assert any(a.stable == a.written for a in ends), "no marker is missing"
        if isinstance(fact, FrontierRead):
            read = fact
        order = takeover.handle(fact)
    assert ordered.count(FencePredecessors()) <= 1
    assert takeover.is_done is any(isinstance(order, BeginTerm) for order in ordered)
