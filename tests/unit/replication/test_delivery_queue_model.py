"""The delivery queue against sets: whatever is stored, opened, stepped and taken over, Done is
exact."""

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from replication.delivery_queue import LATE_GRACE_MS, DeliveryQueue, OpenLimits, Plan, StepLimits
from replication.entry import Entry
from replication.frontier import Frontier, begin_term, first_frontier
from replication.rank import START, Rank

PARTITIONS, LANES = 3, 4
START_MS = 50_000
STEPS_TO_THE_END_MAX = 600
OPEN_LIMITS = OpenLimits(lane_max=3, total_max=6, share=1)

MESSAGE, REPLY, MARKER = 0, 1, 2

budgets = st.builds(
    StepLimits,
    records_max=st.integers(1, 12),
    bytes_max=st.sampled_from([1, 40, 100, 10_000]),
    lanes_max=st.one_of(
        st.just({}), st.dictionaries(st.integers(0, LANES - 1), st.integers(1, 3), max_size=2)
    ),
)
dues = st.one_of(
    st.integers(-4_000, 4_000),
    st.integers(-LATE_GRACE_MS, LATE_GRACE_MS),
    st.sampled_from([0, 1, 1_000]),
)


@dataclass
class Model:
    """What is stored and what happened, in sets; Done is computed over all of it each time."""

    messages: set[Entry] = field(default_factory=set)
    replies: set[Entry] = field(default_factory=set)
    ingested: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    delivered: set[Entry] = field(default_factory=set)
    replied: set[Entry] = field(default_factory=set)
    waits: dict[Entry, int] = field(default_factory=dict)
    """By cancel marker: R of its partition when it could first be passed."""

    def done(self, frontier: Frontier) -> set[Entry]:
        return {
            m
            for m in self.messages
            if (m.due_ms, m.partition, m.offset) < frontier.cursors[m.lane]
            and m.offset < frontier.offsets[m.partition]
        }

    def passed_replies(self, frontier: Frontier) -> set[Entry]:
        return {a for a in self.replies if a.offset < frontier.offsets[a.partition]}

    @property
    def is_finished(self) -> bool:
        return self.delivered == self.messages and self.replied == self.replies


class DeliveryQueueMachine(RuleBasedStateMachine):
    """A master, its stored messages and its clock; every rule happens to both."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.now_ms = START_MS
        self.frontier = first_frontier(0, PARTITIONS, LANES)
        self.take_over()

    @rule(
        partition=st.integers(0, PARTITIONS - 1),
        lane=st.integers(0, LANES - 1),
        due=dues,
        gap=st.integers(0, 2),
        length=st.sampled_from([10, 10, 90]),
        count=st.integers(1, 6),
    )
    def store_messages(
        self, partition: int, lane: int, due: int, gap: int, length: int, count: int
    ) -> None:
        for _ in range(count):
            offset = self.model.ingested[partition] + gap
            self.model.ingested[partition] = offset + 1
            entry = Entry(self.now_ms + due, partition, offset, lane, MESSAGE, offset, length)
            self.model.messages.add(entry)
            self.queue.arrived(entry)

    @rule(
        partition=st.integers(0, PARTITIONS - 1),
        count=st.integers(1, 4),
        kind=st.sampled_from([REPLY, MARKER]),
    )
    def store_answers(self, partition: int, count: int, kind: int) -> None:
        for _ in range(count):
            offset = self.model.ingested[partition]
            self.model.ingested[partition] = offset + 1
            entry = Entry(self.now_ms, partition, offset, 0, kind, offset, 10)
            self.model.replies.add(entry)
            self.queue.reply_arrived(entry)

    @rule(partition=st.integers(0, PARTITIONS - 1), due=dues, lane=st.integers(0, LANES - 1))
    def store_replace(self, partition: int, due: int, lane: int) -> None:
        """A message and a cancel marker under one offset."""
        offset = self.model.ingested[partition]
        self.store_messages(partition, lane, due, gap=0, length=10, count=1)
        marker = Entry(self.now_ms, partition, offset, 0, MARKER, offset, 10)
        self.model.replies.add(marker)
        self.queue.reply_arrived(marker)

    @rule(
        runs_max=st.integers(1, 4),
        run_max=st.integers(1, 5),
        ahead_ms=st.sampled_from([0, 200, 5_000]),
        lag_ms=st.sampled_from([None, 0, 1_000]),
    )
    def open_runs(
        self, runs_max: int, run_max: int, ahead_ms: int, lag_ms: int | None = None
    ) -> None:
        """As a replica does it: some runs of so many messages, or all that is due soon; of all
        lanes, or of those that do not lag by more."""
        before = Rank(self.now_ms + ahead_ms, 1, 0)
        front = START if lag_ms is None else Rank(self.now_ms - lag_ms, 0, 0)
        for _ in range(runs_max):
            wanted = self.queue.wanted(before, front)
            if wanted is None:
                return
            stored = sorted(
                m
                for m in self.model.messages
                if wanted.since <= m < before and m.lane in wanted.lanes
            )
            until = Rank(*stored[run_max][:3]) if len(stored) > run_max else before
            self.queue.open(wanted, stored[:run_max], until)

    @rule(by_ms=st.one_of(st.integers(-300, 1_500), st.sampled_from([-3_000, 99, 100, 101])))
    def move_clock(self, by_ms: int) -> None:
        self.now_ms += by_ms

    @rule(data=st.data())
    def postpone_a_verdict(self, data: st.DataObject) -> None:
        """The step begun last may have continued what a marker kills: it waits for its R too."""
        markers = [a for a in sorted(self.model.replies - self.model.replied) if a.kind == MARKER]
        if markers:
            marker = data.draw(st.sampled_from(markers))
            self.queue.postpone_verdict(marker.partition, marker.offset)
            self.model.waits.pop(marker, None)

    @rule(
        limits=budgets,
        open_first=st.booleans(),
        put_back=st.one_of(st.none(), st.integers(0, PARTITIONS - 1)),
        behind=st.integers(0, 3),
    )
    def step(
        self, limits: StepLimits, open_first: bool, put_back: int | None = None, behind: int = 0
    ) -> None:
        """`put_back`: a partition of the buffer that the step itself writes to, `behind` so many
        records of users that this node has not ingested yet."""
        if open_first:
            self.open_runs(runs_max=1_000, run_max=1_000, ahead_ms=200)
        ingested = tuple(self.model.ingested)
        for marker in self.model.replies - self.model.replied:
            if marker.kind == MARKER:
                self.model.waits.setdefault(marker, self.frontier.own_writes[marker.partition])
        plan = self.queue.plan(self.now_ms, ingested, limits)
        assert self.queue.plan(self.now_ms, ingested, limits) == plan
        next_due_ms = self.queue.next_due_ms()
        if not plan.is_empty:
            assert next_due_ms is not None and next_due_ms <= self.now_ms
        self.check(plan, limits)
        self.model.delivered |= {*plan.deliveries, *plan.deferred}
        self.model.replied |= set(plan.replies)
        self.frontier = plan.frontier
        self.queue.begin(plan)
        if put_back is not None:
            own_writes = list(self.frontier.own_writes)
            own_write = self.model.ingested[put_back] + behind
            own_writes[put_back] = max(own_writes[put_back], own_write)
            self.frontier = replace(self.frontier, own_writes=tuple(own_writes))
            self.queue.wrote(tuple(own_writes))
        assert self.queue.frontier == self.frontier

    def check(self, plan: Plan, limits: StepLimits) -> None:
        self.check_done(plan)
        self.check_bounds(plan)
        self.check_waiting(plan)
        self.check_order(plan)
        self.check_verdicts(plan)
        self.check_lanes(plan, limits)
        self.check_memory(plan)
        taken = [*plan.deliveries, *plan.replies]
        places = LANES + PARTITIONS
        assert len(taken) <= 2 * limits.records_max + places
        if all(e.length <= limits.bytes_max for e in taken):
            assert sum(e.length for e in taken) <= 2 * limits.bytes_max + places * 90

    def check_done(self, plan: Plan) -> None:
        """docs/design/frontier.md, Step: exactly Done(K', O') - Done(K, O), each message once.

        Rules: exactly-done
        """
        newly_done = self.model.done(plan.frontier) - self.model.done(self.frontier)
        dealt_with = [*plan.deliveries, *plan.deferred]
        assert set(dealt_with) == newly_done
        assert len(dealt_with) == len(newly_done)
        assert not newly_done & self.model.delivered
        newly_passed = self.model.passed_replies(plan.frontier) - self.model.replied
        assert set(plan.replies) == newly_passed
        assert len(plan.replies) == len(newly_passed)

    def check_bounds(self, plan: Plan) -> None:
        """docs/design/frontier.md, Step: forward only, K' within now, O' within what is ingested;
        and Now: nothing before its due time.

        Rules: forward-only, k-within-now, never-early
        """
        assert self.frontier.precedes(plan.frontier)
        assert plan.frontier.reached_by(tuple(self.model.ingested))
        for before, after in zip(self.frontier.cursors, plan.frontier.cursors, strict=True):
            assert after == before or after <= Rank(self.now_ms + 1, 0, 0)
        assert all(entry.due_ms <= self.now_ms for entry in plan.deliveries)

    def check_verdicts(self, plan: Plan) -> None:
        """docs/design/frontier.md, Verdicts: ingested beyond R as it was; of a replace both parts.

        Rules: verdict-waits-for-r
        """
        for marker in plan.replies:
            if marker.kind == MARKER:
                assert self.model.ingested[marker.partition] > self.model.waits[marker]
        offsets = plan.frontier.offsets
        for marker, waits_for in self.model.waits.items():
            is_waiting = self.model.ingested[marker.partition] <= waits_for
            if is_waiting and marker not in self.model.replied:
                assert offsets[marker.partition] <= marker.offset, "O' passes no marker that waits"

    def check_lanes(self, plan: Plan, limits: StepLimits) -> None:
        """docs/design/frontier.md, Targets: O' passes what a suspect lane must not take.

        Rules: fault-isolated
        """
        for lane, most in limits.lanes_max.items():
            assert sum(entry.lane == lane for entry in plan.deliveries) <= most
        for entry in plan.deferred:
            assert entry < self.frontier.cursors[entry.lane], "only late arrivals are put off"
            assert entry.lane in limits.lanes_max

    def check_memory(self, plan: Plan) -> None:
        """docs/design/frontier.md, Full steps: lanes hold a bounded number, so steps take no more.

        Rules: fair-lanes
        """
        on_time = [e for e in plan.deliveries if not e < self.frontier.cursors[e.lane]]
        for lane in range(LANES):
            assert sum(e.lane == lane for e in on_time) <= 2 * OPEN_LIMITS.lane_max
        assert len(on_time) <= 2 * OPEN_LIMITS.total_max + LANES * 2 * OPEN_LIMITS.share

    def check_waiting(self, plan: Plan) -> None:
        """docs/design/frontier.md, Step: late arrivals hold O', what O' cannot pass holds K'.

        Rules: late-not-due, late-grace
        """
        for m in self.model.messages - self.model.done(self.frontier):
            rank, after = Rank(m.due_ms, m.partition, m.offset), plan.frontier
            if rank < self.frontier.cursors[m.lane]:
                if m.due_ms > self.now_ms:
                    assert after.offsets[m.partition] <= m.offset
            elif m.offset >= after.offsets[m.partition]:
                if rank < after.cursors[m.lane]:
                    assert m.due_ms + LATE_GRACE_MS <= self.now_ms
                elif rank == after.cursors[m.lane] and rank != self.frontier.cursors[m.lane]:
                    if self.queue._lanes[m.lane].opened_to == rank:
                        continue  # It had no room yet.
                    assert m.due_ms + LATE_GRACE_MS > self.now_ms

    def check_order(self, plan: Plan) -> None:
        """docs/design/frontier.md, Order and Step: rank order within a lane.

        Rules: order
        """
        for lane in range(LANES):
            of_lane = [entry for entry in plan.deliveries if entry.lane == lane]
            assert of_lane == sorted(of_lane)
        late = [e for e in plan.deliveries if e < self.frontier.cursors[e.lane]]
        assert plan.late == len(late) + len(plan.deferred)

    @rule()
    def take_over(self) -> None:
        """docs/design/frontier.md, Takeover: a new queue from the frontier and what is stored."""
        self.queue = DeliveryQueue(
            self.frontier,
            [a for a in self.model.replies if a.offset >= self.frontier.offsets[a.partition]],
            OPEN_LIMITS,
            marker_kinds=(MARKER,),
        )
        for m in self.model.messages:
            is_below = m < self.frontier.cursors[m.lane]
            if is_below and m.offset >= self.frontier.offsets[m.partition]:
                self.queue.arrived(m)
        self.model.waits.clear()

    @rule()
    def begin_term(self) -> None:
        """docs/design/frontier.md, Term: the first step moves nothing but the term."""
        self.take_over()
        frontier = begin_term(self.frontier)
        self.queue.begin(Plan(self.queue.frontier, frontier, self.now_ms))
        self.frontier = frontier

    @invariant()
    def nothing_is_done_that_was_not_delivered(self) -> None:
        assert self.model.done(self.frontier) == self.model.delivered
        assert self.model.passed_replies(self.frontier) == self.model.replied

    def teardown(self) -> None:
        """docs/design/frontier.md, Full steps: enough steps deliver everything."""
        self.now_ms = max([self.now_ms, *(m.due_ms for m in self.model.messages)]) + 1_000
        for partition, own in enumerate(self.frontier.own_writes):
            self.model.ingested[partition] = max(self.model.ingested[partition], own + 1)
        for _ in range(STEPS_TO_THE_END_MAX):
            if self.model.is_finished:
                break
            self.step(StepLimits(records_max=3, bytes_max=100), open_first=True)
        assert self.model.is_finished, "something is never delivered"


TestDeliveryQueueAgainstSets = DeliveryQueueMachine.TestCase
TestDeliveryQueueAgainstSets.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, print_blob=True
)
