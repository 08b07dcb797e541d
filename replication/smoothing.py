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

Not here: the record of a deferral (`delayd.request.internal`), and which topics have a rate
(`delayd.config.node`). Pure: times are the step's `now`, Unix ms.
Source: docs/design/frontier.md, "Smoothing".
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from replication.frontier import Frontier
from replication.rank import lane_of

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

MS_NS: Final = 1_000_000
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

    def serve(self, now_ms: int, stall_ms: int, rate: int) -> "Queue | None":
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

    def behind(self, partition: int, now_ms: int, rate: int) -> "Queue":
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


def _period_ns(rate: int) -> int:
    return -(-SECOND_NS // rate)


NEW: Final = Queue(0, 0, -1, 0, ())


class Deferral(NamedTuple):
    """A message is requeued until then."""

    due_ms: int
    turn_ms: int | None
    """Its turn as it was given, without any shift, by which the queue knows it again; None if the
    queue is too long: the message asks again."""


class Smoothing:
    """The queues of one mastership, from the last committed frontier record on.

    `decide` changes them: if the step is not committed, they are thrown away with it.
    """

    def __init__(
        self, rates: Mapping[str, int], queues: Mapping[str, Queue], max_delay_ms: int
    ) -> None:
        """`rates`: records a second by topic. `queues`: the predecessor's, of which those of topics
        without a rate are dropped."""
        assert all(1 <= rate <= RATE_MAX for rate in rates.values()), "a rate is out of range"
        self._rates = dict(rates)
        self._queues = {topic: queue for topic, queue in queues.items() if topic in rates}
        self._max_delay_ms = max_delay_ms

    def limits(self, topic: str) -> bool:
        """Return True if the topic has a rate."""
        return topic in self._rates

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
        queue, rate = self._queues.get(topic, NEW), self._rates[topic]
        if turn_ms is not None and (place_ms := queue.place_ms(turn_ms)) <= queue.tail_ms:
            if rank_ms < cursor_ms:
                # A late arrival asks for another turn, unless its own is still to come.
                if place_ms >= now_ms + DEFER_MS:
                    return Deferral(place_ms, turn_ms)
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
        served = None if is_behind else queue.serve(now_ms, 0, rate)
        if served is not None:
            self._queues[topic] = served
            return None
        behind = queue.behind(partition, now_ms, rate)
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
            if max(queue.served_ns // MS_NS, queue.tail_ms) >= passed_ms:
                kept[topic] = queue.without_passed(passed_ms)
        self._queues = kept
        return dict(kept)

    def delays_ms(self, now_ms: int) -> dict[str, int]:
        """Return, by topic with a rate, how far its last deferral is ahead. For any thread."""
        queues = self._queues
        return {topic: max(0, queues.get(topic, NEW).tail_ms - now_ms) for topic in self._rates}
