"""The order of a takeover: one order at a time, whatever is answered."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.frontier import begin_term, first_frontier
from replication.takeover import (
    GIVE_WAY_MS,
    STABLE_TIMEOUT_MS,
    BeginTerm,
    CatchUp,
    CommitTerm,
    EndsRead,
    Fact,
    FencePredecessors,
    FrontierRead,
    Granted,
    Order,
    PredecessorsFenced,
    ReachFrontier,
    ReadEnds,
    ReadFrontier,
    ReadProgress,
    Refusal,
    Refuse,
    Takeover,
    TermWritten,
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
    FrontierRead(4, LAST, 40),
    WheelReached(5),
    TermWritten(6, 40),
)


def after(*facts: Fact) -> Order:
    takeover = Takeover()
    return [takeover.handle(fact) for fact in facts][-1]


def test_a_takeover_fences_then_reads_then_waits_then_begins_its_term() -> None:
    """docs/design/frontier.md, Takeover: in this order, and the term is 1 + the last one.

    Rules: first-step, takeover-order
    """
    takeover = Takeover()
    assert [takeover.handle(fact) for fact in ALL_WELL] == [
        CatchUp(KNOWN),
        FencePredecessors(),
        ReadEnds(),
        ReadFrontier(40),
        ReachFrontier(LAST, 40),
        BeginTerm(LAST, begin_term(LAST), 40),
        CommitTerm(),
    ]


def test_a_node_that_knows_no_frontier_fences_at_once() -> None:
    """docs/design/frontier.md, Takeover: it learns only from the read what it must reach."""
    assert after(Granted(0, None)) == FencePredecessors()


def test_without_a_fence_the_progress_takes_the_place_of_the_frontier_topic() -> None:
    """docs/design/frontier.md, At least once: nobody is fenced; etcd says where to go on.

    Rules: takeover-unfenced, wheel-reaches-o
    """
    takeover = Takeover(is_fenced=False)
    told = (Granted(0, KNOWN), WheelReached(1), FrontierRead(2, LAST, 7), WheelReached(3))
    assert [takeover.handle(fact) for fact in told] == [
        CatchUp(KNOWN),
        ReadProgress(),
        ReachFrontier(LAST, 7),
        BeginTerm(LAST, begin_term(LAST), 7),
    ]


def test_without_a_fence_and_without_any_progress_the_takeover_stops() -> None:
    """Rules: no-frontier"""
    takeover = Takeover(is_fenced=False)
    assert takeover.handle(Granted(0, None)) == ReadProgress()
    refused = takeover.handle(FrontierRead(1, None, 0))
    assert isinstance(refused, Refuse) and refused.reason is Refusal.NOT_INITIALISED


@pytest.mark.parametrize("count", [1, 5])
def test_a_wheel_that_does_not_get_there_gives_way_after_ten_seconds(count: int) -> None:
    """docs/design/frontier.md, Takeover: before it fences anyone, and after the read too.

    Rules: behind-gives-way
    """
    begun = ALL_WELL[:count]
    last_ms = begun[-1].now_ms + GIVE_WAY_MS
    order = after(*begun, WheelBehind(last_ms))
    assert order == (CatchUp(KNOWN) if count == 1 else ReachFrontier(LAST, 40))
    order = after(*begun, WheelBehind(last_ms), WheelBehind(last_ms + 1))
    assert isinstance(order, Refuse) and order.reason is Refusal.BEHIND


def test_a_stable_offset_that_lags_is_read_again_and_then_called_a_lost_marker() -> None:
    """docs/design/frontier.md, Takeover: nobody else can have a transaction open there.

    Rules: lost-marker
    """
    fenced = ALL_WELL[:3]
    last_ms = fenced[-1].now_ms + STABLE_TIMEOUT_MS
    lagging = EndsRead(last_ms, 39, 40)
    assert after(*fenced, lagging) == ReadEnds(is_anew=True)
    assert after(*fenced, lagging, EndsRead(last_ms + 9, 40, 40)) == ReadFrontier(40)
    order = after(*fenced, lagging, EndsRead(last_ms + 1, 39, 40))
    assert isinstance(order, Refuse) and order.reason is Refusal.MARKER_LOST
    assert "39" in order.detail and "40" in order.detail


def test_ends_that_disagree_for_long_are_asked_for_over_new_connections() -> None:
    """docs/design/frontier.md, Stale reads: a broker that leads no more shows an old marker as
    missing, and ends before what was read of its successor.

    Rules: stale-read
    """
    fenced = ALL_WELL[:3]
    half_ms = fenced[-1].now_ms + STABLE_TIMEOUT_MS // 2
    for old in (EndsRead(half_ms, 39, 40, 39), EndsRead(half_ms, 40, 40, 41)):
        later = replace(old, now_ms=half_ms + 1)
        assert after(*fenced, old) == ReadEnds()
        assert after(*fenced, old, later) == ReadEnds(is_anew=True)
        assert after(*fenced, old, later, EndsRead(half_ms + 2, 42, 42, 41)) == ReadFrontier(42)


def test_a_topic_that_ends_before_what_was_read_of_it_stops_the_takeover() -> None:
    """docs/design/frontier.md, Takeover: the topic was made again, or lost records."""
    fenced = ALL_WELL[:3]
    last_ms = fenced[-1].now_ms + STABLE_TIMEOUT_MS
    order = after(*fenced, EndsRead(last_ms, 3, 3, 5), EndsRead(last_ms + 1, 3, 3, 5))
    assert isinstance(order, Refuse) and order.reason is Refusal.LOG_CUT


@pytest.mark.parametrize("offset", [39, 41])
def test_a_term_whose_first_record_is_not_where_the_read_ended_is_not_committed(
    offset: int,
) -> None:
    """docs/design/frontier.md, Stale reads: something stands between, so the read was no truth.

    Rules: stale-read
    """
    order = after(*ALL_WELL[:-1], TermWritten(6, offset))
    assert isinstance(order, Refuse) and order.reason is Refusal.STALE_READ
    assert "40" in order.detail and str(offset) in order.detail


def test_no_frontier_record_at_all_stops_the_takeover() -> None:
    """docs/design/frontier.md, Takeover: starting at "now" would lose messages.

    Rules: no-frontier
    """
    order = after(*ALL_WELL[:4], FrontierRead(4, None, 40))
    assert isinstance(order, Refuse) and order.reason is Refusal.NOT_INITIALISED


def test_a_topic_that_was_made_again_stops_the_takeover_though_it_ends_where_it_did() -> None:
    """docs/design/frontier.md, Takeover: what was read is not the last frontier.

    Rules: no-frontier
    """
    order = after(*ALL_WELL[:4], FrontierRead(4, LAST, 40, is_of_topic=False))
    assert isinstance(order, Refuse) and order.reason is Refusal.OTHER_TOPIC


@pytest.mark.parametrize("count", range(len(ALL_WELL) + 1))
def test_an_answer_to_another_order_is_a_bug(count: int) -> None:
    """docs/design/frontier.md, Takeover: each order is answered by exactly one fact."""
    expected = {type(fact) for fact in ALL_WELL[count : count + 1]}
    if WheelReached in expected:
        expected.add(WheelBehind)
    for fact in (*ALL_WELL, WheelBehind(7)):
        if type(fact) not in expected:
            with pytest.raises(AssertionError, match="does not answer"):
                after(*ALL_WELL[:count], fact)


answers = st.one_of(
    st.builds(WheelReached, st.integers(0, 20_000)),
    st.builds(WheelBehind, st.integers(0, 20_000)),
    st.builds(EndsRead, st.integers(0, 20_000), *[st.integers(0, 2)] * 3),
    st.builds(
        FrontierRead,
        st.integers(0, 20_000),
        st.sampled_from([None, KNOWN, LAST]),
        st.integers(0, 2),
        st.booleans(),
    ),
    st.builds(TermWritten, st.integers(0, 20_000), st.integers(0, 2)),
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
    read = written = None
    order = takeover.handle(Granted(0, KNOWN if knows else None))
    while not isinstance(order, CommitTerm | Refuse):
        ordered.append(order)
        fact: Fact
        match order:
            case FencePredecessors():
                fact = PredecessorsFenced(0)
            case _:
                wanted = {
                    CatchUp: (WheelReached, WheelBehind),
                    ReachFrontier: (WheelReached, WheelBehind),
                    ReadEnds: (EndsRead,),
                    ReadFrontier: (FrontierRead,),
                    BeginTerm: (TermWritten,),
                }[type(order)]
                found = next((a for a in waiting if isinstance(a, wanted)), None)
                if found is None:
                    break
                fact = found
        if isinstance(order, ReadEnds):
            assert FencePredecessors() in ordered
        if isinstance(order, ReadFrontier):
            ends = [a for a in drawn if isinstance(a, EndsRead) and a.stable == order.end]
            assert any(a.read <= a.stable == a.written for a in ends), "no marker is missing"
        if isinstance(fact, FrontierRead):
            read = fact
        if isinstance(order, BeginTerm):
            assert read is not None and read.frontier == order.last and read.is_of_topic
            assert order.first == begin_term(order.last)
        if isinstance(fact, TermWritten):
            written = fact
        order = takeover.handle(fact)
    assert ordered.count(FencePredecessors()) <= 1
    if isinstance(order, CommitTerm):
        assert read is not None and written is not None and written.offset == read.end
