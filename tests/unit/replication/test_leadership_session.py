"""What a node does with a grant: when it tries again, when it rests, and how it ends."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.election_facts import Ended
from replication.leadership_session import (
    RETRY_FIRST_MS,
    RETRY_MAX_MS,
    BeMaster,
    Fact,
    Failure,
    GrantGiven,
    GrantOver,
    LeadershipSession,
    MastershipFailed,
    Order,
    Rest,
    Wait,
    Waited,
)
from replication.takeover import GIVE_WAY_MS

MAY_PASS = (Failure.STEP_FAILED, Failure.STALE_READ)


def failed(
    now_ms: int,
    failure: Failure = Failure.STEP_FAILED,
    *,
    stepped: bool = False,
    learnt: bool = False,
) -> MastershipFailed:
    return MastershipFailed(now_ms, failure, stepped, learnt)


def told(session: LeadershipSession, *facts: Fact) -> list[Order]:
    return [session.handle(fact) for fact in facts]


def given_at(now_ms: int) -> LeadershipSession:
    session = LeadershipSession()
    assert session.handle(GrantGiven(now_ms)) == BeMaster()
    return session


@pytest.mark.parametrize(
    ("failure", "ended"),
    [
        (Failure.FENCED, Ended.FENCED),
        (Failure.SUPERSEDED, Ended.HIGHER_TERM),
        (Failure.LEADERSHIP_LOST, Ended.LEADERSHIP_LOST),
        (Failure.CLOCK_DRIFT, Ended.CLOCK_DRIFT),
        (Failure.BEHIND, Ended.FAILED),
    ],
)
def test_what_would_fail_again_is_not_tried_again(failure: Failure, ended: Ended) -> None:
    """docs/design/election.md, "Leadership session": however well it went before.

    Rules: higher-term, clock-drift, behind-gives-way
    """
    assert given_at(5).handle(failed(6, failure, stepped=True, learnt=True)) == Rest(ended)


def test_who_has_learnt_what_to_send_less_of_tries_at_once() -> None:
    """docs/design/frontier.md, "Targets": what refused a transaction delays nothing else.

    Rules: fault-isolated
    """
    session = given_at(0)
    assert session.handle(failed(GIVE_WAY_MS * 2, learnt=True)) == BeMaster()


def test_who_commits_nothing_for_ten_seconds_lets_another_try() -> None:
    """docs/design/election.md, "Leadership session": a lease that cannot be used is worth nothing.

    Rules: give-way
    """
    session = given_at(1_000)
    assert told(session, failed(1_000 + GIVE_WAY_MS), Waited(1_001)) == [Wait(50), BeMaster()]
    assert session.handle(failed(1_000 + GIVE_WAY_MS + 1)) == Rest(Ended.FAILED)


def test_while_etcd_is_away_nobody_else_could_try() -> None:
    """docs/design/election.md, "While etcd is away".

    Rules: give-way
    """
    session = given_at(0)
    fact = replace(failed(GIVE_WAY_MS * 3), is_alone=True)
    assert told(session, fact, Waited(GIVE_WAY_MS * 3)) == [Wait(50), BeMaster()]
    assert session.handle(failed(GIVE_WAY_MS * 3 + 1)) == Rest(Ended.FAILED)


@pytest.mark.parametrize("is_waiting", [False, True])
def test_nothing_is_ordered_once_the_grant_is_over(is_waiting: bool) -> None:
    """docs/design/election.md, "Lease and deadline".

    Rules: fence-needs-lease
    """
    session = given_at(0)
    if is_waiting:
        session.handle(failed(1))
    assert session.handle(GrantOver(2)) == Rest(Ended.ASKED)


@pytest.mark.parametrize("fact", [GrantGiven(9), GrantOver(9), failed(9), Waited(9)])
def test_who_rests_is_told_nothing_more(fact: Fact) -> None:
    """An order has one answer: anything else is a bug of the caller."""
    session = given_at(0)
    session.handle(GrantOver(1))
    with pytest.raises(AssertionError, match="does not answer"):
        session.handle(fact)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(Failure), st.booleans(), st.booleans(), st.integers(0, GIVE_WAY_MS)
        ),
        max_size=40,
    )
)
def test_whatever_fails_it_rests_once_or_tries_again_within_two_seconds(
    failures: list[tuple[Failure, bool, bool, int]],
) -> None:
    """docs/design/election.md, "Leadership session".

    Rules: back-off, give-way
    """
    session, now_ms, stepped_ms = given_at(0), 0, 0
    for failure, stepped, learnt, lasted_ms in failures:
        now_ms += lasted_ms
        stepped_ms = now_ms if stepped else stepped_ms
        order = session.handle(MastershipFailed(now_ms, failure, stepped, learnt))
        if isinstance(order, Rest):
            assert failure not in MAY_PASS or now_ms - stepped_ms > GIVE_WAY_MS
            return
        assert failure in MAY_PASS
        if isinstance(order, Wait):
            assert not learnt and now_ms - stepped_ms <= GIVE_WAY_MS
            assert RETRY_FIRST_MS <= order.wait_ms <= RETRY_MAX_MS
            now_ms += order.wait_ms
            assert session.handle(Waited(now_ms)) == BeMaster()
        else:
            assert learnt and order == BeMaster()
