"""Rank, slot and lane: computed alike by every node, for ever."""

from hypothesis import given
from hypothesis import strategies as st

from replication.rank import Rank, due_of, lane_of, passed_by, slot_of

times_ms = st.integers(0, 2**45)
ranks = st.builds(Rank, times_ms, st.integers(0, 9), st.integers(0, 2**40))


@given(st.lists(ranks, max_size=30))
def test_rank_orders_by_due_then_partition_then_offset(several: list[Rank]) -> None:
    """docs/design/frontier.md, Rank, slot, lane: a total order that all nodes share.

    Rules: rank-order
    """
    by_parts = sorted(several, key=lambda rank: (rank.due_ms, rank.partition, rank.offset))
    assert sorted(several) == by_parts


def test_a_cursor_is_an_exclusive_bound() -> None:
    """docs/design/frontier.md, Rank, slot, lane.

    Rules: rank-order
    """
    rank = Rank(5, 1, 7)
    assert not rank < rank
    assert rank < Rank(5, 1, 8) < Rank(5, 2, 0) < Rank(6, 0, 0)


@given(times_ms, times_ms)
def test_due_is_never_before_the_record_was_appended(requested_ms: int, append_ms: int) -> None:
    """docs/design/frontier.md, Ingest: due = max(requested due, the record's own append time).

    Rules: due-not-before-append
    """
    due_ms = due_of(requested_ms, append_ms)
    assert due_ms >= append_ms and due_ms >= requested_ms
    assert due_ms in (requested_ms, append_ms)


@given(ranks, times_ms)
def test_the_cursor_of_now_passes_exactly_what_is_due(rank: Rank, now_ms: int) -> None:
    """docs/design/frontier.md, Step: K' is at most (now + 1 ms, 0, 0).

    Rules: k-within-now
    """
    assert (rank < passed_by(now_ms)) is (rank.due_ms <= now_ms)


def test_a_slot_is_one_second_of_due_time() -> None:
    """docs/design/frontier.md, Rank, slot, lane.

    Rules: slot-and-lane
    """
    assert [slot_of(ms) for ms in (0, 999, 1000, 1_785_000_000_999)] == [0, 0, 1, 1_785_000_000]


def test_a_lane_is_the_crc_of_the_topic_name_modulo_the_lanes() -> None:
    """docs/design/frontier.md, Rank, slot, lane: fixed values, because no node may ever differ.

    Rules: slot-and-lane
    """
    # 0xCBF43926 is the check value of CRC-32; names are hashed as UTF-8.
    assert lane_of("123456789", 2**32) == 0xCBF43926
    assert lane_of("123456789", 64) == 0x26
    assert lane_of("123456789", 1) == 0
    assert lane_of("ключ", 2**32) == 0x0CAF961A
