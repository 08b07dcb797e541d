"""Frontiers against sets: what each step of any history adds to Done, message by message.

Rules: done, forward-only, order
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from replication.frontier import Frontier, begin_term, first_frontier, stand_still
from replication.rank import Rank

LANES, PARTITIONS = 2, 2
DUE_MAX, OFFSET_MAX = 4, 3

ALL = [
    (lane, Rank(due_ms, partition, offset))
    for lane in range(LANES)
    for due_ms in range(DUE_MAX)
    for partition in range(PARTITIONS)
    for offset in range(OFFSET_MAX)
]
"""Every message that can be: Done is a set of these."""

Message = tuple[int, Rank]


def naive_done(cursors: list[Rank], offsets: list[int]) -> set[Message]:
    """As the definition has it, compared part by part."""
    done = set()
    for lane, rank in ALL:
        due_ms, partition, offset = rank
        bound = cursors[lane]
        is_below = due_ms < bound.due_ms or (
            due_ms == bound.due_ms
            and (
                partition < bound.partition
                or (partition == bound.partition and offset < bound.offset)
            )
        )
        if is_below and offset < offsets[partition]:
            done.add((lane, rank))
    return done


class FrontierMachine(RuleBasedStateMachine):
    """A history of frontiers, and what each of them added."""

    def __init__(self) -> None:
        super().__init__()
        self.frontier = first_frontier(0, PARTITIONS, LANES)
        self.cursors = list(self.frontier.cursors)
        self.offsets = [0] * PARTITIONS
        self.history: list[tuple[Frontier, set[Message]]] = [(self.frontier, set())]
        self.delivered: list[Message] = []

    def go_on(self, after: Frontier) -> None:
        """One step: the difference of two frontiers, in rank order within a lane."""
        assert self.frontier.precedes(after) and not after.precedes(self.frontier)
        done = naive_done(self.cursors, self.offsets)
        added = [
            (lane, rank)
            for lane, rank in ALL
            if after.covers(lane, rank) and not self.frontier.covers(lane, rank)
        ]
        assert set(added) == done - self.history[-1][1]
        for lane in range(LANES):
            of_lane = [rank for each, rank in added if each == lane]
            in_time = [rank for rank in of_lane if not rank < self.frontier.cursors[lane]]
            late = [rank for rank in of_lane if rank < self.frontier.cursors[lane]]
            assert all(rank.offset >= self.frontier.offsets[rank.partition] for rank in late)
            assert not late or not in_time or max(late) < min(in_time), "late ones rank first"
        self.delivered += added
        self.frontier = after
        self.history.append((after, done))

    @rule(lane=st.integers(0, LANES - 1), to=st.sampled_from([rank for _, rank in ALL]))
    def move_cursor(self, lane: int, to: Rank) -> None:
        self.cursors[lane] = max(self.cursors[lane], to)
        self.go_on(
            Frontier(
                0,
                tuple(self.cursors),
                tuple(self.offsets),
                self.frontier.own_writes,
                self.frontier.term,
                self.frontier.step + 1,
            )
        )

    @rule(
        partition=st.integers(0, PARTITIONS - 1),
        by=st.integers(0, OFFSET_MAX),
        own=st.integers(0, OFFSET_MAX),
    )
    def move_offset(self, partition: int, by: int, own: int) -> None:
        self.offsets[partition] += by
        own_writes = list(self.frontier.own_writes)
        own_writes[partition] += own
        self.go_on(
            Frontier(
                0,
                tuple(self.cursors),
                tuple(self.offsets),
                tuple(own_writes),
                self.frontier.term,
                self.frontier.step + 1,
            )
        )

    @rule(is_takeover=st.booleans())
    def move_nothing(self, is_takeover: bool) -> None:
        count = len(self.delivered)
        self.go_on(begin_term(self.frontier) if is_takeover else stand_still(self.frontier))
        assert len(self.delivered) == count

    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        """No earlier frontier follows, and whatever it covered is covered still."""
        before, done = data.draw(st.sampled_from(self.history))
        assert before.is_within(self.frontier)
        assert before is self.frontier or not self.frontier.precedes(before)
        assert done <= self.history[-1][1]

    @invariant()
    def each_message_was_added_once(self) -> None:
        assert len(self.delivered) == len(set(self.delivered))
        assert set(self.delivered) == self.history[-1][1]


TestFrontiersAgainstSets = FrontierMachine.TestCase
TestFrontiersAgainstSets.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, print_blob=True
)
