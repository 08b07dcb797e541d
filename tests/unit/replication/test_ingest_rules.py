"""What becomes of a record: a pure function of the partition's log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.ids import LIVE_MAX, NOTHING, REDRIVES_MAX, IdState, LiveMessage
from replication.ingest import (
    REDRIVE_MEMORY_MS,
    REPEAT_MEMORY_MS,
    Asked,
    Decision,
    Known,
    LogState,
    Op,
    PendingReply,
    ingest,
    ingest_plain,
)
from replication.rank import Rank

records = st.lists(
    st.tuples(
        st.integers(1, 5),  # distance to the record before it: markers and aborted ones between
        st.integers(0, 100),  # append time: it may step back
        st.builds(Asked, st.sampled_from([Op.SCHEDULE, Op.REJECT]), st.integers(0, 200)),
    ),
    max_size=20,
)
Log = list[tuple[int, int, Asked]]
HOUR_MS = 60 * 60 * 1000


def decide(log: Log) -> list[tuple[int, int, Asked, Decision]]:
    state, offset, decided = LogState(0, 0), -1, []
    for distance, append_ms, asked in log:
        offset += distance
        decision = ingest(state, 1, offset, append_ms, asked, Known(), HOUR_MS)
        state = decision.state
        decided.append((offset, append_ms, asked, decision))
    return decided


@given(records)
def test_a_message_is_due_when_asked_but_not_before_it_was_appended(log: Log) -> None:
    """docs/design/frontier.md, Ingest: due = max(requested due, the record's own append time).

    Rules: due-not-before-append
    """
    for offset, append_ms, asked, decision in decide(log):
        if asked.op is Op.SCHEDULE:
            assert decision.reply is PendingReply.NONE
            assert decision.rank == Rank(max(asked.due_ms, append_ms), 1, offset)


@given(records)
def test_a_reject_is_answered_and_nothing_is_stored(log: Log) -> None:
    """docs/design/frontier.md, Ingest: anything else is an answer.

    Rules: reject-answered
    """
    for _, _, asked, decision in decide(log):
        if asked.op is Op.REJECT:
            assert (decision.rank, decision.reply) == (None, PendingReply.REJECTED)


@given(records)
def test_log_time_is_the_largest_append_time_and_never_steps_back(log: Log) -> None:
    """docs/design/frontier.md, Ingest: append times can step back; L does not.

    Rules: log-time
    """
    largest_ms = 0
    for offset, append_ms, _, decision in decide(log):
        largest_ms = max(largest_ms, append_ms)
        assert decision.state == LogState(offset + 1, largest_ms)


@given(records, st.integers(0, 20))
def test_a_node_that_begins_in_the_middle_decides_alike(log: Log, cut: int) -> None:
    """docs/design/frontier.md, Ingest: a pure function of the log, so a checkpoint is enough.

    Rules: pure-ingest
    """
    whole = decide(log)
    state = whole[cut - 1][3].state if 0 < cut <= len(whole) else LogState(0, 0)
    for offset, append_ms, asked, decision in whole[cut:] if cut <= len(whole) else []:
        again = ingest(state, 1, offset, append_ms, asked, Known(), HOUR_MS)
        assert again == decision
        state = again.state


@pytest.mark.parametrize("offset", [0, 6])
def test_a_record_that_comes_again_is_a_bug(offset: int) -> None:
    """docs/design/frontier.md, Ingest: the records of a partition, in order."""
    with pytest.raises(AssertionError, match="came after 6"):
        ingest(LogState(7, 0), 0, offset, 0, Asked(Op.SCHEDULE, 0), Known(), HOUR_MS)


def decided(asked: Asked, known: Known, append_ms: int = 1_000, log_ms: int = 0) -> Decision:
    return ingest(LogState(50, log_ms), 0, 50, append_ms, asked, known, HOUR_MS)


def test_an_id_is_taken_until_log_time_reaches_its_due_time() -> None:
    """docs/design/frontier.md, Ids: due > L, and L is not the record's own append time.

    Rules: schedule-free, schedule-taken
    """
    known = Known(IdState((LiveMessage(1_500, 7, 0, b"x"),)))
    asked = Asked(Op.SCHEDULE, 9_000, 0, True, b"y")
    assert decided(asked, known).reply is PendingReply.CONFLICT
    assert decided(asked, known, log_ms=1_499).reply is PendingReply.CONFLICT
    freed = decided(asked, known, log_ms=1_500)
    assert freed.reply is PendingReply.NONE and freed.id is not None
    assert [m.offset for m in freed.id.live] == [7, 50]


def test_a_continuation_takes_the_place_of_what_it_continues() -> None:
    """docs/design/frontier.md, Ids: stored, live beside any other; never a duplicate.

    Rules: continuation-stored
    """
    known = Known(IdState((LiveMessage(900, 7, 0, b"x"), LiveMessage(5_000, 9, 0, b"y"))))
    again = decided(Asked(Op.CONTINUE, 4_000, 0, True, b"x", continued_offset=7), known)
    assert again.id is not None and again.rank == Rank(4_000, 0, 50)
    assert [(m.due_ms, m.offset, m.digest) for m in again.id.live] == [
        (4_000, 50, b"x"),
        (5_000, 9, b"y"),
    ]


def test_a_continuation_of_a_killed_message_is_refused() -> None:
    """docs/design/frontier.md, Ids: refused, no answer.

    Rules: continuation-refused
    """
    refused = decided(Asked(Op.CONTINUE, 4_000, 0, True, b"x", 7), Known(killed_by=30))
    assert refused == Decision(None, PendingReply.NONE, LogState(51, 1_000), is_refused=True)


def test_where_two_masters_may_continue_a_message_the_first_record_counts() -> None:
    """docs/design/frontier.md, At least once: a repeat is ignored for an hour of log time.

    Rules: repeat-ignored
    """
    asked = Asked(Op.CONTINUE, 4_000, continued_offset=7)
    first = decided(asked, Known(continued=NOTHING))
    assert first.rank == Rank(4_000, 0, 50) and first.continued is not None
    again = Known(continued=first.continued)
    last_ms = 1_000 + REPEAT_MEMORY_MS
    for has_id in (False, True):
        repeat = decided(asked._replace(has_id=has_id), again, last_ms)
        assert repeat == Decision(None, PendingReply.NONE, LogState(51, last_ms))
    assert decided(asked, again, last_ms + 1).rank is not None
    assert decided(asked, Known()).continued is None, "one master: nothing to remember"


def test_a_first_continuation_under_an_id_is_live_and_remembered() -> None:
    """Rules: continuation-stored, repeat-ignored"""
    known = Known(IdState((LiveMessage(900, 7, 0, b"x"),)), continued=NOTHING)
    first = decided(Asked(Op.CONTINUE, 4_000, 0, True, b"x", continued_offset=7), known)
    assert first.id is not None and [m.offset for m in first.id.live] == [50]
    assert first.continued == IdState((LiveMessage(1_000, 50, 0, b""),))


def test_a_source_is_redriven_once_in_thirty_days_of_log_time() -> None:
    """docs/design/frontier.md, Ids: stored unless that source was redriven in the last 30 days, and
    answered either way.

    Rules: redrive-once
    """
    first = decided(Asked(Op.REDRIVE, 0), Known())
    assert first.rank == Rank(1_000, 0, 50) and first.redriven is not None
    assert first.reply is PendingReply.SCHEDULED
    again = Known(redriven=first.redriven)
    last_ms = 1_000 + REDRIVE_MEMORY_MS
    refused = decided(Asked(Op.REDRIVE, 0), again, last_ms)
    assert (refused.rank, refused.reply) == (None, PendingReply.DUPLICATE)
    assert decided(Asked(Op.REDRIVE, 0), again, last_ms + 1).reply is PendingReply.SCHEDULED


@given(st.integers(0, 100), st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, 10_000))
def test_a_plain_schedule_is_decided_as_any_other(
    next_offset: int, log_ms: int, append_ms: int, due_ms: int
) -> None:
    """docs/design/frontier.md, Ingest: the short way gives the same answer."""
    state = LogState(next_offset, log_ms)
    decision = ingest(state, 3, next_offset + 2, append_ms, Asked(Op.SCHEDULE, due_ms), Known(), 1)
    plain = ingest_plain(state, 3, next_offset + 2, append_ms, due_ms)
    assert (decision.rank, decision.state) == plain
    assert decision == Decision(plain[0], PendingReply.NONE, plain[1])


def test_a_redrive_is_not_added_to_more_than_an_id_can_hold() -> None:
    """docs/design/frontier.md, Ids: what is forgotten beyond the limit has fired.

    Rules: redrive-room
    """
    redrive = Asked(Op.REDRIVE, 9_000, 0, True, b"x")
    full = IdState(tuple(LiveMessage(5_000 + n, n, 0, b"x") for n in range(REDRIVES_MAX)))
    refused = decided(redrive, Known(full))
    assert (refused.rank, refused.reply, refused.id, refused.redriven) == (
        None,
        PendingReply.CONFLICT,
        None,
        None,
    )
    fired = full._replace(live=(LiveMessage(900, 0, 0, b"x"), *full.live[1:]))
    assert decided(redrive, Known(fired)).reply is PendingReply.SCHEDULED


def test_a_cancel_marker_that_kills_nothing_of_late_keeps_the_last_killed_set() -> None:
    """docs/design/frontier.md, Ids: what others may have dropped never displaces it.

    Rules: killed-set-kept
    """
    cancel = Asked(Op.CANCEL, 0, has_id=True)
    live = IdState((LiveMessage(9_000_000, 7, 0, b"x"),))
    first = decided(cancel, Known(live)).id
    assert first is not None and [m.offset for m in first.killed] == [7]
    assert decided(cancel, Known(first)).id == first
    aged = first._replace(live=(LiveMessage(10, 8, 0, b"x"),))
    second = decided(cancel, Known(aged), append_ms=10 + HOUR_MS + 1).id
    assert second is not None and [m.offset for m in second.killed] == [7, 8]


def test_an_id_keeps_a_bounded_number_of_messages_that_have_fired() -> None:
    """docs/design/frontier.md, Ids: the one due first is forgotten.

    Rules: live-limit
    """
    state = IdState(tuple(LiveMessage(n, n, 0, b"x") for n in range(LIVE_MAX)))
    more = decided(Asked(Op.SCHEDULE, 9_000, 0, True, b"y"), Known(state), log_ms=900).id
    assert more is not None and len(more.live) == LIVE_MAX
    assert [more.live[0].offset, more.live[-1].offset] == [1, 50]
    assert NOTHING.last_due_ms == 0


def test_a_retry_is_known_by_its_users_own_request_live_and_killed() -> None:
    """docs/design/frontier.md, Verdicts: nobody else knows the copies in the buffer."""
    first = LiveMessage(5_000, 7, 0, b"x")
    retried = LiveMessage(6_000, 9, 0, b"x", origin=7)
    assert (first.asked_at, retried.asked_at) == (7, 7)
    killed = decided(Asked(Op.CANCEL, 0, has_id=True), Known(IdState((first, retried)))).killed
    assert [(m.offset, m.asked_at) for m in killed] == [(7, 7), (9, 7)]


def test_a_repeated_replace_holds_what_is_remembered() -> None:
    """Until it is passed, the id is not forgotten: it is told what the first one was.

    Rules: replace-repeated
    """
    state = IdState((LiveMessage(5_000, 7, 0, b"x"),), (), 7, None, replaced_by=7)
    asked = Asked(Op.REPLACE, 5_000, 0, True, b"x", has_own_time=True)
    again = ingest(LogState(50, 0), 0, 50, 1_000, asked, Known(state), HOUR_MS, trail_ms=1)
    assert again == Decision(
        None,
        PendingReply.CANCEL_MARKER,
        again.state,
        id=state._replace(killed_by=50),
        repeats=7,
    )
    older = ingest(LogState(50, 0), 0, 50, 1_000, asked, Known(state), HOUR_MS)
    assert older.rank is not None and older.id is not None
    assert older.id.replaced_by == -1, "by rules 2 and 3 nothing is repeated"


def test_a_replace_is_new_when_others_may_have_forgotten_the_first_one() -> None:
    """What that stored may have been continued after they did, and be pending.

    Rules: replace-repeated
    """
    late = LiveMessage(5_000 + 3 * HOUR_MS, 20, 0, b"x", origin=7)
    state = IdState((late,), (), 7, None, replaced_by=7)
    asked = Asked(Op.REPLACE, 5_000, 0, True, b"x", has_own_time=True)
    for at_ms, repeats in ((5_000 + HOUR_MS, 7), (5_001 + HOUR_MS, -1)):
        known = LogState(50, at_ms)
        again = ingest(known, 0, 50, at_ms, asked, Known(state), HOUR_MS, trail_ms=1)
        assert again.repeats == repeats
