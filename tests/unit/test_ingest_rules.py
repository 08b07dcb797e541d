"""What becomes of a record: a pure function of the partition's log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.ingest import Asked, Decision, Keep, LogState, Op, ingest
from replication.rank import Rank

records = st.lists(
    st.tuples(
        st.integers(1, 5),  # distance to the record before it: markers and aborted ones between
        st.integers(0, 100),  # append time: it may step back
        st.builds(Asked, st.sampled_from(Op), st.integers(0, 200)),
    ),
    max_size=20,
)
Log = list[tuple[int, int, Asked]]


def decide(log: Log) -> list[tuple[int, int, Asked, Decision]]:
    state, offset, decided = LogState(0, 0), -1, []
    for distance, append_ms, asked in log:
        offset += distance
        decision = ingest(state, 1, offset, append_ms, asked)
        state = decision.state
        decided.append((offset, append_ms, asked, decision))
    return decided


@given(records)
def test_a_message_is_due_when_asked_but_not_before_it_was_appended(log: Log) -> None:
    """docs/design/frontier.md, Ingest: due = max(requested due, the record's own append time)."""
    for offset, append_ms, asked, decision in decide(log):
        if asked.op is Op.SCHEDULE:
            assert decision.keep is Keep.MESSAGE
            assert decision.rank == Rank(max(asked.due_ms, append_ms), 1, offset)


@given(records)
def test_a_reject_is_an_answer_in_the_slot_of_its_append_time(log: Log) -> None:
    """docs/design/frontier.md, Ingest: rejects are frames in the slot of their append time."""
    for offset, append_ms, asked, decision in decide(log):
        if asked.op is Op.REJECT:
            assert decision.keep is Keep.ANSWER
            assert decision.rank == Rank(append_ms, 1, offset)


@given(records)
def test_log_time_is_the_largest_append_time_and_never_steps_back(log: Log) -> None:
    """docs/design/frontier.md, Ingest: append times can step back; L does not."""
    largest_ms = 0
    for offset, append_ms, _, decision in decide(log):
        largest_ms = max(largest_ms, append_ms)
        assert decision.state == LogState(offset + 1, largest_ms)


@given(records, st.integers(0, 20))
def test_a_node_that_begins_in_the_middle_decides_alike(log: Log, cut: int) -> None:
    """docs/design/frontier.md, Ingest: a pure function of the log, so a checkpoint is enough."""
    whole = decide(log)
    state = whole[cut - 1][3].state if 0 < cut <= len(whole) else LogState(0, 0)
    for offset, append_ms, asked, decision in whole[cut:] if cut <= len(whole) else []:
        again = ingest(state, 1, offset, append_ms, asked)
        assert again == decision
        state = again.state


@pytest.mark.parametrize("offset", [0, 6])
def test_a_record_that_comes_again_is_a_bug(offset: int) -> None:
    """docs/design/frontier.md, Ingest: the records of a partition, in order."""
    with pytest.raises(AssertionError, match="came after 6"):
        ingest(LogState(7, 0), 0, offset, 0, Asked(Op.SCHEDULE, 0))
