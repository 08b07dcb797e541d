"""The delivery queue: what a master still has to deliver, and the plan of its next step.

A takeover makes it from the last committed frontier and the wheel. The replica adds every arrival,
and the master plans its steps from it. It holds entries (where a frame is stored), never payloads.
When a step fails, the delivery queue is thrown away with the producer; the next takeover makes a
new one from what was committed.

A stored message with rank >= K of its lane waits in its lane, once the lane has been opened beyond
its rank. One with rank < K and offset >= O is a *late arrival* and waits under its offset, for the
step that moves O over it. A *pending reply* waits under its offset too.

`OpenLimits` bounds how many entries each lane and all lanes together hold, however many messages
are due in one second: the rest stays closed, and is opened as steps make room. A lane that arrivals
have filled beyond its limit is closed again from behind.

The verdict of a cancel marker depends on what became of everything that it kills: was a message
that a step requeued refused at ingest? So it waits until the wheel has ingested R, as R was when
the verdict could first be given. R may grow on. A message that a later step requeues is refused
only if it continues one that the marker kills, and then the caller postpones the verdict.

Not thread safe: the caller holds one lock around it and the wheel.
Source: docs/design/frontier.md, "Step" and "Full steps".
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from replication.budget import share_fairly
from replication.entry import Entry
from replication.frontier import Frontier
from replication.lane import Lane
from replication.rank import START, Rank, passed_by, slot_of

LATE_GRACE_MS = 100
"""How long K waits, after its due time, for a message that O cannot pass yet."""

MOVED_BYTES = 256 * 1024
"""What a reply in another lane than 0 weighs besides: its step writes a message or more, of a size
that is not known before they are read."""


NOT_STOPPED: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class OpenLimits:
    """How many open entries the lanes may hold, of about 250 bytes each.

    Arrivals may double each number before a lane is closed again, because opening it once more
    costs another look into the wheel.
    """

    lane_max: int = 20_000
    """Of one lane: two full steps."""
    total_max: int = 60_000
    """Of all lanes together."""
    share: int = 500
    """What each lane may hold even when others hold too much: three times its share of a step
    that all lanes fill."""


OPEN_LIMITS = OpenLimits()


class Wanted(NamedTuple):
    """The messages to open next: those of these lanes, from this rank on."""

    since: Rank
    """The lowest rank to which one of the lanes is open."""
    lanes: frozenset[int]


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How much one step may take on."""

    records_max: int = 10_000
    bytes_max: int = 16 * 1024 * 1024
    lanes_max: Mapping[int, int] = field(default_factory=dict)
    """Records of a lane, for lanes that must take less."""
    lanes_stopped: Mapping[int, int] = field(default_factory=dict)
    """Lanes that stand still, but for late arrivals, and until when (Unix ms)."""
    lanes_first: frozenset[int] = frozenset()
    """Lanes that get the step for themselves: each other one gets a record."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: what to produce, and the frontier that says so."""

    before: Frontier
    """(K, O) that the step goes on from; verdicts are judged by it."""
    frontier: Frontier
    """(K', O') and R as before: own writes of the step itself are added by the driver."""
    now_ms: int
    deliveries: tuple[Entry, ...] = ()
    """Messages of Done(K', O') - Done(K, O), in rank order within each lane."""
    replies: tuple[Entry, ...] = ()
    """Pending replies with offsets in [O, O')."""
    late: int = 0
    """How many late arrivals it passes."""
    taken: Mapping[int, int] = field(default_factory=dict)
    """Entries to take off the front of each lane."""
    passed_over: tuple[Entry, ...] = ()
    """Entries that K' passes though O' does not: from now on late arrivals."""
    deferred: tuple[Entry, ...] = ()
    """Late arrivals beyond what their lane may take: to be requeued, because O' passes them for
    the sake of all other messages."""

    @property
    def is_empty(self) -> bool:
        """Does the step move bounds only?"""
        return not self.deliveries and not self.replies and not self.deferred


class DeliveryQueue:
    """All that is left to do beyond a frontier."""

    def __init__(
        self,
        frontier: Frontier,
        replies: Iterable[Entry],
        limits: OpenLimits = OPEN_LIMITS,
        *,
        marker_kinds: Container[int] = (),
    ) -> None:
        """`replies` are pending; those of `marker_kinds` are cancel markers. The caller reports
        late arrivals that are stored already by `arrived`, before the first plan."""
        self._marker_kinds = marker_kinds
        self.frontier = frontier
        """The frontier of the step last begun; committed, unless that step is under way."""
        self._limits = limits
        self._lanes: list[Lane] = [Lane(cursor) for cursor in frontier.cursors]
        self._held = 0
        """Entries in all lanes."""
        self._late: list[list[tuple[int, Entry]]] = [[] for _ in frontier.offsets]
        self._replies: list[list[tuple[int, Entry]]] = [[] for _ in frontier.offsets]
        self._verdict_waits: dict[tuple[int, int], int] = {}
        """By partition and offset of a cancel marker: the offset to be ingested before it."""
        self._verdicts_new: list[tuple[int, int]] = []
        """Markers of which that is not known before the step under way has ended."""
        for entry in replies:
            self.reply_arrived(entry)

    @property
    def opened_to(self) -> Rank:
        """All stored messages below this rank are known, done, or were."""
        return min(lane.opened_to for lane in self._lanes)

    @property
    def told_ms(self) -> int:
        """What arrives and is due later than this need not be told: no lane has come so far."""
        opened = max(lane.opened_to for lane in self._lanes)
        return max(opened, self.frontier.highest_cursor).due_ms

    @property
    def standing(self) -> frozenset[int]:
        """The slots up to which lanes are open, each within one of them or at its beginning."""
        return frozenset(slot_of(lane.opened_to.due_ms) for lane in self._lanes)

    def wanted(self, before: Rank, since: Rank = START) -> Wanted | None:
        """Return what to open, of lanes that have room and are open to `since` or beyond, but not
        to `before`; None if nothing.

        A lane that holds more than half of what it may waits until it has room for a good deal:
        finding its messages among those of others is the greater part of the work.
        """
        lanes = [
            number
            for number, lane in enumerate(self._lanes)
            if since <= lane.opened_to < before
            and 2 * len(lane) <= self._limits.lane_max
            and 2 * self._room(lane) >= self._limits.share
        ]
        if not lanes:
            return None
        return Wanted(min(self._lanes[number].opened_to for number in lanes), frozenset(lanes))

    def open(self, wanted: Wanted, entries: Iterable[Entry], until: Rank) -> None:
        """Take in stored messages, sorted by rank: all of the lanes that are wanted with
        `wanted.since` <= rank < `until`; those of other lanes change nothing.

        Nothing may have changed since they were wanted. After it each of these lanes is open up to
        `until`, or it is full, and open up to the first message that it could not take.
        """
        by_lane: dict[int, list[Entry]] = {number: [] for number in wanted.lanes}
        for entry in entries:
            if entry.lane in by_lane and not entry < self._lanes[entry.lane].opened_to:
                by_lane[entry.lane].append(entry)
        for number, of_lane in sorted(by_lane.items()):
            lane = self._lanes[number]
            assert wanted.since <= lane.opened_to, f"lane {number} was closed since it was wanted"
            if lane.opened_to < until:
                held = len(lane)
                lane.open(of_lane, until, self._room(lane))
                self._held += len(lane) - held

    def _room(self, lane: Lane) -> int:
        """Return how many more entries the lane may take in."""
        limits, held = self._limits, len(lane)
        return max(
            min(limits.lane_max - held, limits.total_max - self._held), limits.share - held, 0
        )

    def arrived(self, entry: Entry) -> None:
        """Add a message that was stored. Never between a plan and its beginning."""
        cursor = self.frontier.cursors[entry.lane]
        if entry < cursor:
            insort(self._late[entry.partition], (entry.offset, entry))
            return
        lane = self._lanes[entry.lane]
        if entry < lane.opened_to:
            lane.add(entry)
            self._held += 1
            self._close_crowded(lane)

    def _close_crowded(self, lane: Lane) -> None:
        """Close a lane that arrivals would fill without bound; the wheel has them too."""
        limits, held = self._limits, len(lane)
        most = max(limits.share, min(limits.lane_max, limits.total_max - (self._held - held)))
        if held > 2 * most:
            lane.close(most)
            self._held -= held - most

    def reply_arrived(self, entry: Entry) -> None:
        """Add a pending reply that was stored."""
        insort(self._replies[entry.partition], (entry.offset, entry))
        if entry.kind in self._marker_kinds:
            self._verdicts_new.append((entry.partition, entry.offset))

    def postpone_verdict(self, partition: int, offset: int) -> None:
        """Let a cancel marker wait for the step under way, which may requeue what it kills. One
        that gets no verdict does not wait."""
        replies = self._replies[partition]
        at = bisect_left(replies, offset, key=lambda waiting: waiting[0])
        if at < len(replies) and replies[at][0] == offset:
            self._verdicts_new.append((partition, offset))

    def postpone_verdicts(self, partition: int) -> None:
        """Let all cancel markers beyond O' wait for the step under way, which writes what one of
        them is about."""
        for offset, entry in self._replies[partition]:
            if entry.kind in self._marker_kinds:
                self._verdicts_new.append((partition, offset))

    def next_due_ms(self, stopped: Mapping[int, int] = NOT_STOPPED) -> int | None:
        """Return the earliest due time of any open entry, late arrival or pending reply, which is
        due at once (0); None if there is none. `stopped`: as `StepLimits` has it."""
        if any(self._replies):
            return 0
        heads = [head.due_ms for lane in self._lanes if (head := lane.head()) is not None]
        if stopped:
            heads = [
                max(head.due_ms, stopped.get(number, 0))
                for number, lane in enumerate(self._lanes)
                if (head := lane.head()) is not None
            ]
        heads += [entry.due_ms for late in self._late for _, entry in late[:1]]
        return min(heads, default=None)

    def plan(self, now_ms: int, ingested: tuple[int, ...], limits: StepLimits) -> Plan:
        """Return the next step at `now_ms`; the queue knows of everything below `ingested`."""
        last = self.frontier
        assert last.reached_by(ingested), "a step needs a wheel that has reached O"
        for partition, offset in self._verdicts_new:
            self._verdict_waits[partition, offset] = last.own_writes[partition]
        self._verdicts_new.clear()
        offsets, late, replies, deferred = self._pass_offsets(now_ms, ingested, limits)
        deliveries: list[Entry] = []
        taken: dict[int, int] = {}
        passed_over: list[Entry] = []
        # Most lanes stand at now: one value for all of them, so that comparing them costs little.
        by_now = passed_by(now_ms)
        caps = [min(by_now, lane.opened_to) for lane in self._lanes]
        for number in limits.lanes_stopped:
            caps[number] = last.cursors[number]
        cursors = [k if k > cap else cap for cap, k in zip(caps, last.cursors, strict=True)]
        due = {
            number: count
            for number, lane in enumerate(self._lanes)
            if len(lane) and (count := lane.count_below(caps[number]))
        }
        sharing = (due.keys() & limits.lanes_first) or due.keys()
        wanted = {number: due[number] for number in sharing}
        shares = share_fairly(wanted, max(1, limits.records_max - len(late)))
        shares |= dict.fromkeys(due.keys() - sharing, 1)
        lane_bytes_max = limits.bytes_max // max(1, len(sharing))
        late_by_lane: dict[int, list[Entry]] = {}
        for entry in late:
            late_by_lane.setdefault(entry.lane, []).append(entry)
        for number, most in limits.lanes_max.items():
            if number in shares:
                room = most - len(late_by_lane.get(number, ()))
                shares[number] = min(shares[number], max(0, room))
        for number in sorted(due.keys() | late_by_lane.keys()):
            deliveries += sorted(late_by_lane.get(number, ()))
            if number not in due:
                continue
            lane = self._lanes[number]
            cut = self._cut_lane(lane, due[number], shares[number], lane_bytes_max, offsets, now_ms)
            deliveries += cut.deliveries
            passed_over += cut.passed_over
            taken[number] = cut.taken
            if cut.taken < due[number]:
                stop = lane.peek(cut.taken)
                cursor = Rank(stop.due_ms, stop.partition, stop.offset)
                cursors[number] = max(cursor, last.cursors[number])
        frontier = replace(last, cursors=tuple(cursors), offsets=tuple(offsets), step=last.step + 1)
        return Plan(
            before=last,
            frontier=frontier,
            deliveries=tuple(deliveries),
            replies=tuple(replies),
            late=len(late) + len(deferred),
            now_ms=now_ms,
            taken=taken,
            passed_over=tuple(passed_over),
            deferred=tuple(deferred),
        )

    def begin(self, plan: Plan) -> None:
        """Begin the step: what arrives from now on is judged by its frontier."""
        for number, count in plan.taken.items():
            self._lanes[number].drop(count)
            self._held -= count
        for partition, offset in enumerate(plan.frontier.offsets):
            for waiting in (self._late[partition], self._replies[partition]):
                passed = 0
                while passed < len(waiting) and waiting[passed][0] < offset:
                    self._verdict_waits.pop((partition, waiting[passed][0]), None)
                    passed += 1
                del waiting[:passed]
        for entry in plan.passed_over:
            insort(self._late[entry.partition], (entry.offset, entry))
        self.frontier = plan.frontier

    def wrote(self, own_writes: tuple[int, ...]) -> None:
        """Note R, what the step that was begun last has written to the buffer."""
        self.frontier = replace(self.frontier, own_writes=own_writes)

    def _pass_offsets(
        self, now_ms: int, ingested: tuple[int, ...], limits: StepLimits
    ) -> tuple[list[int], list[Entry], list[Entry], list[Entry]]:
        """Return O', the late arrivals and replies below it, and late arrivals that their lane may
        not take. Only late arrivals and replies ever cut O'."""
        waiting = sum(bool(x) or bool(y) for x, y in zip(self._late, self._replies, strict=True))
        records_max = max(1, limits.records_max // max(1, waiting))
        bytes_max = limits.bytes_max // max(1, waiting)
        late_of: Counter[int] = Counter()
        offsets: list[int] = []
        late: list[Entry] = []
        replies: list[Entry] = []
        deferred: list[Entry] = []
        for partition, reached in enumerate(ingested):
            if not self._late[partition] and not self._replies[partition]:
                offsets.append(reached)
                continue
            for rest in (self._late[partition], self._replies[partition]):
                assert not rest or rest[-1][0] < reached, (
                    f"partition {partition}: offset {rest[-1][0]} is beyond what was ingested"
                )
            stop, size = reached, 0
            queue = sorted(
                [(offset, False, entry) for offset, entry in self._late[partition][:records_max]]
                + [(offset, True, e) for offset, e in self._replies[partition][:records_max]],
                key=lambda item: item[0],
            )
            beyond = [
                rest[records_max][0]
                for rest in (self._late[partition], self._replies[partition])
                if len(rest) > records_max
            ]
            passed: list[tuple[bool, Entry]] = []
            for records, (offset, is_reply, entry) in enumerate(queue):
                # A replace is two entries under one offset: O passes both, or neither.
                is_second = bool(passed) and passed[-1][1].offset == offset
                weight = entry.length + (MOVED_BYTES if is_reply and entry.lane else 0)
                is_full = records >= records_max or size + weight > bytes_max
                if is_reply:
                    waits = reached <= self._verdict_waits.get((partition, offset), -1)
                else:
                    waits = entry.due_ms > now_ms
                if waits or (records and is_full and not is_second):
                    stop = offset
                    break
                passed.append((is_reply, entry))
                size += weight
            for is_reply, entry in passed:
                if entry.offset >= stop:
                    continue
                if is_reply:
                    replies.append(entry)
                    continue
                lane_max = limits.lanes_max.get(entry.lane)
                is_crowded = lane_max is not None and late_of[entry.lane] >= lane_max
                late_of[entry.lane] += 1
                (deferred if is_crowded else late).append(entry)
            offsets.append(min([stop, *beyond]))
        return offsets, late, replies, deferred

    def _cut_lane(
        self,
        lane: Lane,
        due: int,
        share: int,
        bytes_max: int,
        offsets: list[int],
        now_ms: int,
    ) -> "_Cut":
        """Walk the due entries of a lane until the budget or a message beyond O' ends it."""
        deliveries: list[Entry] = []
        passed_over: list[Entry] = []
        size = 0
        for index in range(due):
            entry = lane.peek(index)
            if entry.offset >= offsets[entry.partition]:
                if entry.due_ms + LATE_GRACE_MS > now_ms:
                    return _Cut(deliveries, passed_over, index)
                passed_over.append(entry)
                continue
            if len(deliveries) >= share or (deliveries and size + entry.length > bytes_max):
                return _Cut(deliveries, passed_over, index)
            deliveries.append(entry)
            size += entry.length
        return _Cut(deliveries, passed_over, due)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The part of a step from one lane: of `taken` entries some are delivered, some passed over."""

    deliveries: list[Entry]
    passed_over: list[Entry]
    taken: int
