"""Smoothing: no more than so many records a second to a target topic, in rank order.

A topic with a rate gives *turns*, 1/rate apart. A due message goes out while the rate has room;
otherwise it is deferred to its turn: an internal record continues it, due then. While a message of
the topic is deferred, all that follow take their turns behind it, so that none overtakes.

    turns      | | | | | | | | | | | |       1/rate apart
    out at once  ^ ^ ^                       as far as the rate has room
    deferred             ^ ^ ^ ^ ^ ^ ^ ^     to now + DEFER_MS or later, in rank order
                                       tail

After delivery stood still, more may be overdue than the rate has room for. Then all turns from the
first of these on *shift*: a message that becomes due before its shifted turn is deferred again, to
that turn. So the waiting messages keep their order and their distance, and each is written once
more, when it would have gone out.

A topic with a hold (`replication.holds`) is one with the hold's rate. While the hold is closed
nothing goes out: a message that has no turn gets one behind the others, and when the first turn has
come, all turns shift until the hold is to be looked at again.

Invariants:
- the rate: in any time t at most 1 + rate * (t + BURST_MS + STALL_MS) records go out, by the times
  of their steps;
- the order: of two deferred messages the one that ranks behind has no earlier turn, and in the same
  ms no lower partition, so that it ranks behind again. Late arrivals take the turn that they find,
  and so do messages that were requeued for other reasons. Above 1,000 a second some share a turn:
  if several steps defer these again, they may change places among themselves;
- a message is deferred by at least DEFER_MS, so that it is ingested when it is due again;
- of what is overdue some goes out before the rest is deferred, and no other message defers the one
  with the first turn of all: all go out in the end.

Not here: the record of a deferral (`delayd.request.internal`), which topics have a rate
(`delayd.config.node`), how a hold ends (`replication.drain`). Pure: times are the step's `now`,
Unix ms.
Source: docs/design/frontier.md, "Smoothing".
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias

from replication.drain import Endings
from replication.frontier import Frontier
from replication.holds import Hold, Order, obey
from replication.now import MS_NS
from replication.rank import lane_of

Rate: TypeAlias = int | Fraction
"""Records a second; of a shard it may be a part of one."""

RATE_MAX: Final = 1_000_000
"""Records a second: beyond it a turn is too short to count."""

TOPICS_MAX: Final = 200
"""Topics with a rate: the queue of each is in every frontier record, 100 bytes."""

BURST_MS: Final = 250
"""How much of the time to come may be borrowed: producers send in lumps."""

STALL_MS: Final = 1_000
"""How much of the time gone by may be made up for: steps come in lumps too."""

DEFER_MS: Final = 1_000
"""The shortest deferral: a record not ingested when it is due is a late arrival."""

REQUEUE_RATE: Final = 20_000
"""About how many messages a second steps can defer. While they defer overdue messages nothing goes
out, and the first of these must not be overdue again by then."""

CATCH_UP_MS: Final = 10
"""How much of what order costs may be made up for later: see `Queue.behind`."""

SHIFTS_MAX: Final = 16
"""Shifts that a queue remembers: one for each time that delivery stood still, or that overdue
messages could not be requeued fast enough."""

KEEP_MS: Final = 5_000
"""How long an ended queue is remembered: a successor's clock may be a little behind."""

NO_HOLDS: Final[Mapping[str, Hold]] = {}

SECOND_NS: Final = 1_000_000_000


class Queue(NamedTuple):
    """The turns that a topic has given; part of the frontier record (`replication.record`)."""

    served_ns: int
    """When the rate has room for the next record that goes out, Unix ns."""
    next_ns: int
    """When the next turn is, with the shift."""
    tail_ms: int
    """The due time of the message deferred last, with the shift; -1 if none was."""
    tail_partition: int
    """The buffer partition of that message."""
    shifts: tuple[tuple[int, int], ...]
    """From which turn on, as it was given, turns are later, and by how much; both ascending."""

    def place_ms(self, turn_ms: int) -> int:
        """Return the time of this turn now."""
        return turn_ms + max((by for from_ms, by in self.shifts if from_ms <= turn_ms), default=0)

    @property
    def shift_ms(self) -> int:
        """How much later the last turns are."""
        return self.shifts[-1][1] if self.shifts else 0

    def serve(self, now_ms: int, stall_ms: int, rate: Rate) -> "Queue | None":
        """Return the queue after one more record went out; None if the rate has no room for it.

        Up to `stall_ms` of the time gone by may be made up for.
        """
        from_ns = max(self.served_ns, (now_ms - stall_ms) * MS_NS)
        if from_ns > (now_ms + BURST_MS) * MS_NS:
            return None
        return self._replace(served_ns=from_ns + _period_ns(rate))

    def shifted(self, turn_ms: int, due_ms: int) -> "Queue":
        """Return the queue with this turn at `due_ms`, and none behind it shifted by less."""
        if due_ms == self.place_ms(turn_ms):
            return self
        by_ms = due_ms - turn_ms
        before = [shift for shift in self.shifts if shift[0] < turn_ms]
        behind = [shift for shift in self.shifts if shift[0] > turn_ms and shift[1] > by_ms]
        shifts = [*before, (turn_ms, by_ms), *behind]
        if len(shifts) > SHIFTS_MAX:
            shifts[-2:] = [(shifts[-2][0], shifts[-1][1])]
        more_ms = shifts[-1][1] - self.shift_ms
        return self._replace(
            next_ns=self.next_ns + more_ms * MS_NS,
            tail_ms=self.tail_ms + more_ms,
            # What is deferred next must not share a ms with what is requeued to it later.
            tail_partition=1 << 31,
            shifts=tuple(shifts),
        )

    def without_passed(self, passed_ms: int) -> "Queue":
        """Return the queue without the shifts of turns that are all passed."""
        kept = [
            shift
            for shift, following in zip(self.shifts, self.shifts[1:], strict=False)
            if sum(following) >= passed_ms
        ]
        return self._replace(shifts=(*kept, *self.shifts[-1:]))

    def behind(self, partition: int, now_ms: int, rate: Rate) -> "Queue":
        """Return the queue after one more message was deferred, at the end.

        Due times are in whole ms, and within one ms the partition ranks: where that would reverse
        the order, the message takes the next ms. The ms that follow take more to make up for it,
        as far as it is less than CATCH_UP_MS.
        """
        turn_ns = max(self.next_ns, (now_ms + DEFER_MS) * MS_NS)
        due_ms = -(-turn_ns // MS_NS)
        if due_ms <= self.tail_ms:
            due_ms = self.tail_ms + (partition < self.tail_partition)
        turn_ns = max(turn_ns, (due_ms - CATCH_UP_MS) * MS_NS)
        return self._replace(
            next_ns=turn_ns + _period_ns(rate), tail_ms=due_ms, tail_partition=partition
        )


def _period_ns(rate: Rate) -> int:
    return -(-SECOND_NS // rate)


NEW: Final = Queue(0, 0, -1, 0, ())


class Deferral(NamedTuple):
    """A message is requeued until then."""

    due_ms: int
    turn_ms: int | None
    """Its turn as it was given, without any shift, by which the queue knows it again; None if the
    queue is too long: the message asks again."""


class Smoothing:
    """The queues and holds of one mastership, from the last committed frontier record on.

    `decide` and `obey` change them: if the step is not committed, they are thrown away with it.
    """

    def __init__(
        self,
        rates: Mapping[str, Rate],
        queues: Mapping[str, Queue],
        max_delay_ms: int,
        holds: Mapping[str, Hold] = NO_HOLDS,
    ) -> None:
        """`rates`: records a second by topic. `queues`: the predecessor's, of which those of topics
        without a rate or a hold are dropped. `holds`: the predecessor's."""
        assert all(0 < rate <= RATE_MAX for rate in rates.values()), "a rate is out of range"
        self._rates = dict(rates)
        self._holds = dict(holds)
        self._queues = {topic: queue for topic, queue in queues.items() if self.limits(topic)}
        self._max_delay_ms = max_delay_ms
        self._endings = Endings()
        self._ended: frozenset[str] = frozenset()

    def limits(self, topic: str) -> bool:
        """Return True if the topic has a rate or a hold."""
        return topic in self._rates or topic in self._holds

    def obey(self, order: Order, offset: int, now_ms: int) -> None:
        """Obey an order, before the step that passes it decides anything."""
        self._holds = obey(self._holds, order, offset, now_ms)

    def is_held(self, topic: str, now_ms: int) -> bool:
        """Return whether nothing may go to the topic."""
        hold = self._holds.get(topic)
        return hold is not None and hold.is_closed(now_ms)

    def stopped_lanes(self, lanes: int, now_ms: int) -> dict[int, int]:
        """Return the lanes that a step must leave alone, because a hold comes to its end, and until
        when."""
        if not self._holds:
            return {}
        return self._endings.stopped(self._tails_ms(now_ms), lanes, now_ms)

    def lanes_first(self, lanes: int, now_ms: int) -> frozenset[int]:
        """Return the lanes that need the step for themselves, so that a hold can end."""
        if not self._holds:
            return frozenset()
        return self._endings.lanes_due(self._tails_ms(now_ms), lanes, now_ms)

    def begin_step(self, after: Frontier, now_ms: int) -> frozenset[str]:
        """Return the topics whose hold ends with the step to `after`: messages with a turn go out
        in it whatever the rate, and those without one behind them."""
        self._ended = frozenset()
        if self._holds:
            tails_ms = self._tails_ms(now_ms)
            self._ended = self._endings.ended(tails_ms, after, len(after.cursors), now_ms)
        return self._ended

    def _tails_ms(self, now_ms: int) -> dict[str, int]:
        """Return the last turns of the topics that only an open hold limits."""
        return {
            topic: self._queues[topic].tail_ms
            for topic, hold in self._holds.items()
            if not hold.is_closed(now_ms) and topic not in self._rates and topic in self._queues
        }

    def _rate_of(self, topic: str) -> Rate:
        hold, own = self._holds.get(topic), self._rates.get(topic)
        if hold is None:
            assert own is not None, "only a topic with a rate or a hold is decided about"
            return own
        return hold.rate if own is None else min(own, hold.rate)

    def decide(
        self,
        topic: str,
        rank_ms: int,
        partition: int,
        turn_ms: int | None,
        *,
        cursor_ms: int,
        now_ms: int,
    ) -> Deferral | None:
        """Return None if a due message may go out, else until when it is deferred.

        `rank_ms` and `partition` are of its rank, `turn_ms` is the turn that an earlier deferral
        gave it, `cursor_ms` is the cursor of its lane before the step. The messages of a topic come
        in the order of the step.
        """
        if topic in self._ended:
            return None
        queue, rate = self._queues.get(topic, NEW), self._rate_of(topic)
        hold = self._holds.get(topic)
        look_ms = None
        if hold is not None and hold.is_closed(now_ms):
            look_ms = max(hold.look_ms(now_ms), now_ms + DEFER_MS)
        if turn_ms is not None and (place_ms := queue.place_ms(turn_ms)) <= queue.tail_ms:
            if rank_ms < cursor_ms:
                # A late arrival asks for another turn, unless its own is still to come.
                if place_ms >= now_ms + DEFER_MS:
                    return Deferral(place_ms, turn_ms)
                if look_ms is not None:
                    return Deferral(now_ms + DEFER_MS, turn_ms)
            elif look_ms is not None:
                due_ms = place_ms if place_ms >= now_ms + DEFER_MS else look_ms
                self._queues[topic] = queue.shifted(turn_ms, due_ms)
                return Deferral(due_ms, turn_ms)
            else:
                served = queue.serve(now_ms, STALL_MS, rate) if rank_ms >= place_ms else None
                if served is not None:
                    self._queues[topic] = served
                    return None
                overdue_ms = max(0, now_ms - rank_ms)
                wait_ms = DEFER_MS + overdue_ms * min(rate, REQUEUE_RATE) // REQUEUE_RATE
                due_ms = max(place_ms, now_ms + wait_ms)
                self._queues[topic] = queue.shifted(turn_ms, due_ms)
                return Deferral(due_ms, turn_ms)
        is_behind = queue.tail_ms >= max(rank_ms, cursor_ms)
        served = None if is_behind or look_ms else queue.serve(now_ms, 0, rate)
        if served is not None:
            self._queues[topic] = served
            return None
        behind = queue.behind(partition, (look_ms or now_ms + DEFER_MS) - DEFER_MS, rate)
        if behind.tail_ms > now_ms + self._max_delay_ms:
            return Deferral(now_ms + self._max_delay_ms, None)
        self._queues[topic] = behind
        return Deferral(behind.tail_ms, behind.tail_ms - behind.shift_ms)

    def queues(self, after: Frontier, now_ms: int) -> dict[str, Queue]:
        """Return what a successor must know, once a step to `after` has been written."""
        kept = {}
        for topic, queue in self._queues.items():
            cursor_ms = after.cursors[lane_of(topic, len(after.cursors))].due_ms
            passed_ms = min(cursor_ms, now_ms - KEEP_MS)
            is_needed = max(queue.served_ns // MS_NS, queue.tail_ms) >= passed_ms
            if is_needed and not (topic in self._ended and topic not in self._rates):
                kept[topic] = queue.without_passed(passed_ms)
        self._queues = kept
        return dict(kept)

    def holds(self, now_ms: int) -> dict[str, Hold]:
        """Return the holds that a successor must know, once the queues are those after the step."""
        if self._holds:
            self._holds = {t: h for t, h in self._holds.items() if not self._is_over(t, h, now_ms)}
        return dict(self._holds)

    def _is_over(self, topic: str, hold: Hold, now_ms: int) -> bool:
        queue = self._queues.get(topic)
        if hold.is_closed(now_ms):
            return False
        # With a rate of its own a topic goes on as it did without a hold.
        return queue is None or (topic in self._rates and queue.tail_ms <= now_ms + DEFER_MS)

    def delays_ms(self, now_ms: int) -> dict[str, int]:
        """Return, by topic with a rate, how far its last deferral is ahead. For any thread."""
        queues = self._queues
        return {topic: max(0, queues.get(topic, NEW).tail_ms - now_ms) for topic in self._rates}
